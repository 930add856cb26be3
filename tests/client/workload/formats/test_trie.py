"""trie: from recorded lengths to turns, waits and reply limits; every fault with its line and field."""

from pathlib import Path
from typing import Any

import pytest
from workload_files import problems_of, write

from llmirage_client.workload.registry import detect, load
from llmirage_client.workload.session import Session

EXAMPLE = Path(__file__).parents[3] / "data" / "evalscope" / "trie.jsonl"
TRACE = {
    "input_prompt_length": 120,
    "num_turns": 2,
    "assistant_response_length": [5, 7],
    "tool_call_output_length": [20, 0],
    "tool_call_latency": [0.25, 0],
    "final_assistant_response_length": 12,
}


def but(**changes: Any) -> dict[str, Any]:
    return {**TRACE, **changes}


def without(key: str) -> dict[str, Any]:
    return {k: v for k, v in TRACE.items() if k != key}


def shape(session: Session) -> list[tuple[int, int | None, float]]:
    """Prompt tokens, most reply tokens and wait of each turn."""
    return [(t.synthetic.tokens, t.max_tokens, t.delay_s) for t in session.turns if t.synthetic and not t.messages]


def test_a_trace_of_n_tool_calls_is_n_plus_one_requests(tmp_path: Path) -> None:
    workload = load(write(tmp_path, TRACE))
    (session,) = workload.sessions.values()
    assert workload.format == "trie"
    assert shape(session) == [(120, 5, 0.0), (20, 7, 0.25), (1, 12, 0.0)]
    assert (session.mode, session.ends_on_failure) == ("accumulate", True)


def test_a_trace_without_tool_calls_is_one_request_with_the_final_length(tmp_path: Path) -> None:
    lists: dict[str, list[int]] = {
        key: [] for key in ("assistant_response_length", "tool_call_output_length", "tool_call_latency")
    }
    (session,) = load(write(tmp_path, but(num_turns=0, **lists))).sessions.values()
    assert shape(session) == [(120, 12, 0.0)]


def test_numbers_may_be_text_and_fractions_of_tokens_are_cut_off(tmp_path: Path) -> None:
    row = but(input_prompt_length="48", assistant_response_length=[3.9, "7"], tool_call_latency=["0.15", 1])
    (session,) = load(write(tmp_path, {**row, "extra_key": "ignored"})).sessions.values()
    assert shape(session) == [(48, 3, 0.0), (20, 7, 0.15), (1, 12, 1.0)]


def test_max_turns_cuts_traces_short(tmp_path: Path) -> None:
    (session,) = load(write(tmp_path, TRACE), None, {"max_turns": 2}).sessions.values()
    assert shape(session) == [(120, 5, 0.0), (20, 7, 0.25)]


def test_texts_differ_by_place_and_are_the_same_at_every_load(tmp_path: Path) -> None:
    path = write(tmp_path, TRACE, TRACE)
    keys = [t.synthetic.key for s in load(path).sessions.values() for t in s.turns if t.synthetic]
    assert len(set(keys)) == 6
    assert keys == [t.synthetic.key for s in load(path).sessions.values() for t in s.turns if t.synthetic]


@pytest.mark.parametrize(
    ("row", "problems"),
    [
        ("not json", ["invalid JSON: Expecting value at column 1"]),
        ("[1]", ["Input should be a valid dictionary (a JSON object), got an array"]),
        (without("num_turns"), ["num_turns: Field required"]),
        (
            without("input_prompt_length") | {"input_prompt_len": 3},
            ["input_prompt_length: Field required (is it 'input_prompt_len'?)"],
        ),
        ({"input_prompt_length": 10, "num_turns": 0}, [f"{key}: Field required" for key in list(TRACE)[2:]]),
        (but(input_prompt_length=0), ["input_prompt_length: Input should be greater than or equal to 1"]),
        (but(input_prompt_length=2**31), ["input_prompt_length: Input should be less than or equal to 10000000"]),
        (
            but(input_prompt_length="many"),
            ["input_prompt_length: Input should be a valid number, unable to parse string as a number"],
        ),
        (but(final_assistant_response_length=None), ["final_assistant_response_length: Input should be a valid number"]),
        (
            but(final_assistant_response_length=True),
            ["final_assistant_response_length: Input should be a valid number, not a boolean (got True)"],
        ),
        (but(assistant_response_length=5), ["assistant_response_length: Input should be a valid list, got a number"]),
        (but(tool_call_output_length=[20]), ["tool_call_output_length: has 1 value, but num_turns is 2"]),
        (but(num_turns=-1), ["num_turns: Input should be greater than or equal to 0"]),
        (
            but(assistant_response_length=[5, 0], tool_call_output_length=[-1, 1], tool_call_latency=[-0.1, "soon"]),
            [
                "assistant_response_length.1: Input should be greater than or equal to 1",
                "tool_call_output_length.0: Input should be greater than or equal to 0",
                "tool_call_latency.0: Input should be greater than or equal to 0",
                "tool_call_latency.1: Input should be a valid number, unable to parse string as a number",
            ],
        ),
    ],
)  # fmt: skip
def test_a_bad_line_is_refused_with_line_and_field(row: Any, problems: list[str], tmp_path: Path) -> None:
    path = write(tmp_path, TRACE, row)
    assert problems_of(path) == [f"line 2: {problem}" for problem in problems]
    workload = load(path, None, {"skip_bad_lines": True})
    assert workload.roots == ("conversation_1",)
    assert workload.notes == (f"left out 1 bad line; the first: line 2: {problems[0]}",)


def test_the_names_of_the_published_traces_say_what_to_fetch() -> None:
    for name in ("trie_agentic_coding", "trie_code_qa", "trie_office_work"):
        (problem,) = problems_of(name)
        assert "fetch agentic_coding_8k.jsonl, code_qa_8k.jsonl or office_work_8k.jsonl" in problem


def test_the_example_is_known_by_its_content() -> None:
    assert detect(str(EXAMPLE)) == "trie"
    assert sum(len(session.turns) for session in load(str(EXAMPLE)).sessions.values()) == 7
