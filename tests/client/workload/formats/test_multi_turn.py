"""multi_turn: conversations whose history grows; leading system prompts; every fault with its line and field."""

from pathlib import Path
from typing import Any

import pytest
from workload_files import assert_refused, contents, problems_of, write

from llmirage_client.workload.registry import detect, load
from llmirage_client.workload.session import Turn, Workload

EXAMPLE = Path(__file__).parents[3] / "data" / "aiperf" / "multi_turn.jsonl"
SYSTEM = {"role": "system", "text": "Be brief."}


def conversation(*turns: Any, **more: Any) -> dict[str, Any]:
    return {"session_id": "s", "turns": list(turns), **more}


def turns_of(workload: Workload) -> tuple[Turn, ...]:
    (session,) = workload.sessions.values()
    assert session.mode == "accumulate"
    return session.turns


def test_the_example_is_two_conversations() -> None:
    workload = load(str(EXAMPLE))
    assert workload.format == detect(str(EXAMPLE)) == "multi_turn"
    assert contents(workload) == [
        [["You answer in one sentence.", "What is a KV cache?"], ["Give me an example."]],
        [
            ["Explain attention."],
            [[{"type": "text", "text": "And how is it"}, {"type": "text", "text": "made fast?"}]],
            ["Thank you."],
        ],
    ]
    assert [(turn.max_tokens, turn.delay_s) for turn in workload.sessions["chat_1"].turns] == [(16, 0.0), (16, 0.02)]
    assert workload.sessions["chat_2"].turns[2].extra == {"temperature": 0.0}


@pytest.mark.parametrize(
    ("turns", "roles"),
    [
        ([SYSTEM, {"text": "a"}, {"text": "b"}], [["system", "user"], ["user"]]),
        ([{"role": "system", "texts": ["a", "b"]}, {"text": "c"}], [["system", "user"]]),
        ([SYSTEM], [["system"]]),
        ([SYSTEM, SYSTEM, {"text": "a"}], [["system"], ["system"], ["user"]]),
        ([{**SYSTEM, "delay": 0}, {"text": "a"}], [["system"], ["user"]]),
        ([{**SYSTEM, "output_length": 3}, {"text": "a"}], [["system"], ["user"]]),
        ([{**SYSTEM, "extra": {}}, {"text": "a"}], [["system"], ["user"]]),
        ([{**SYSTEM, "image": "https://a/b.png"}, {"text": "a"}], [["system"], ["user"]]),
        ([{"text": "a"}, SYSTEM, {"text": "b"}], [["user"], ["system"], ["user"]]),
        ([{"text": "a"}, {"text": "b", "role": "assistant"}], [["user"], ["assistant"]]),
    ],
)
def test_only_a_leading_bare_system_turn_is_no_request(turns: list[Any], roles: list[list[str]], tmp_path: Path) -> None:
    read = turns_of(load(write(tmp_path, conversation(*turns))))
    assert [[message["role"] for message in turn.messages] for turn in read] == roles


def test_the_texts_of_a_system_prompt_are_lines(tmp_path: Path) -> None:
    row = conversation({"role": "system", "texts": ["a", {"contents": ["b"]}]}, {"text": "c"})
    assert contents(load(write(tmp_path, row))) == [[["a\nb", "c"]]]


def test_lines_of_one_session_are_one_conversation(tmp_path: Path) -> None:
    workload = load(write(tmp_path, conversation(SYSTEM), {"turns": [{"text": "x"}]}, conversation({"text": "a"})))
    assert workload.roots == ("s", "request_2")
    assert contents(workload) == [[["Be brief.", "a"]], [["x"]]]


def test_each_turn_keeps_its_own_time(tmp_path: Path) -> None:
    row = conversation({"text": "a", "timestamp": 1000}, {"text": "b", "timestamp": 3500}, {"text": "c", "delay": 250})
    workload = load(write(tmp_path, row))
    assert workload.timed
    assert [(turn.arrival_s, turn.delay_s) for turn in turns_of(workload)] == [(0.0, 0.0), (2.5, 0.0), (None, 0.25)]


TURN = {"text": "a"}
BAD: list[tuple[Any, ...]] = [
    ({"session_id": "s"}, "turns: Field required"),
    (conversation(), "turns: List should have at least 1 item after validation, not 0"),
    ({"turns": {}}, "turns: Input should be a valid list"),
    (conversation(TURN, "b"), "turns.1: Input should be a valid dictionary (a JSON object), got a string"),
    (conversation(TURN, {"role": "user"}), "turns.1: Value error, At least one modality must be provided "),
    (conversation({"text": None}), "turns.0: Value error, At least one modality"),
    (conversation({"text": "a", "texts": ["b"]}), "turns.0: Value error, text and texts cannot be set together"),
    (
        conversation(TURN, {"text": "a", "timestamp": 5, "delay": 5}),
        "turns.1: Value error, timestamp and delay cannot be set together",
    ),
    (conversation({"text": "a", "delay": True}), "turns.0.delay: Input should be a valid number, not a boolean (got True)"),
    (
        conversation({"text": "a", "output_length": 0.5}),
        "turns.0.output_length: Input should be a valid integer, got a number with a fractional part",
    ),
    ({"session_id": [], "turns": [TURN]}, "session_id: Input should be a valid"),
    ({"turns": [TURN], "sessionid": "s"}, "sessionid: is not a key of this format (did you mean"),
    (
        conversation({"text": "a", "time_stamp": 3}),
        "turns.0.time_stamp: is not a key of this format (did you mean 'timestamp'?)",
    ),
    (conversation(TURN, type="single_turn"), "type: Input should be 'multi_turn'"),
    (conversation({**TURN, "type": "x"}), "turns.0.type: Input should be 'single_turn'"),
    ([3], "Input should be a valid dictionary (a JSON object), got an array"),
    ('{"turns": [{"text": "a"}', "invalid JSON: Expecting ',' delimiter at column 25"),
]


@pytest.mark.parametrize(("row", "problems"), [(row, problems) for row, *problems in BAD])
def test_a_bad_row_is_refused_with_its_problems(row: Any, problems: list[str], tmp_path: Path) -> None:
    assert_refused(tmp_path, "multi_turn", row, problems)


def test_a_bad_line_is_known_for_its_format_and_all_are_told(tmp_path: Path) -> None:
    path = write(tmp_path, conversation(TURN), conversation(TURN, {"text": 5}), conversation({"text": "a", "delay": "x"}))
    assert detect(path) == "multi_turn"
    assert [problem.split(": ")[:2] for problem in problems_of(path)] == [
        ["line 2", "turns.1.text"],
        ["line 3", "turns.0.delay"],
    ]
