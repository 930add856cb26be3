"""`llmirage convert`: what it writes, what it tells, and what it refuses."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from invoked import invoke, refusal
from workload_files import mutate, write

from llmirage_client.workload.convert import ConversionError, convert
from llmirage_client.workload.registry import FORMATS, load
from llmirage_client.workload.session import WorkloadError
from llmirage_client.workload.shape import shape
from llmirage_client.workload.summary import summarise
from llmirage_client.workload.writers import WRITERS
from llmirage_shared.prompt_encoder import PromptEncoder
from llmirage_shared.tokenizer_loader import load as load_tokenizer

TALK = {"session_id": "a", "turns": [{"messages": [{"role": "user", "content": "hi"}]},
                                     {"messages": [{"role": "user", "content": "on"}], "delay": 250}]}  # fmt: skip


def test_a_conversation_becomes_a_multi_turn_line(tmp_path: Path) -> None:
    result = invoke("convert", write(tmp_path, TALK), "--to", "multi_turn")
    assert json.loads(result.stdout) == {"session_id": "a", "turns": [{"text": "hi"}, {"text": "on", "delay": 250}]}
    assert result.stderr == "standard output: 1 conversation as multi_turn\n"


def test_what_would_be_lost_is_told_and_nothing_is_written(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    path = write(tmp_path, TALK)
    result = invoke("convert", path, "--to", "share_gpt", "-o", output, status=2)
    assert result.stderr == f"{path}: share_gpt cannot represent it; this would be lost or changed: delays ('a', turn 1)\n"
    assert not output.exists()


@pytest.mark.parametrize(
    ("change", "format_name", "lost"),
    [
        ({"max_tokens": 5}, "custom_multi_turn", "most tokens of a reply ('a', turn 0)"),
        ({"extra": {"top_p": 1}}, "share_gpt", "extra request parameters ('a', turn 0)"),
        ({"model": "x"}, "multi_turn", "model ('a', turn 0)"),
        ({"tools": [{"type": "function"}]}, "multi_turn", "tools ('a', turn 0 and 1 more)"),
        ({"messages": [{"role": "user", "content": "hi", "name": "Ann"}]}, "multi_turn", "messages ('a', turn 0)"),
        ({}, "single_turn", "how history is carried (accumulate) ('a')"),
        ({}, "agentic_jsonl", "conversations with live replies in the history ('a')"),
        ({}, "inputs_json", "conversations with live replies in the history ('a')"),
    ],
)
def test_all_that_a_format_cannot_say_is_named(tmp_path: Path, change: dict[str, Any], format_name: str, lost: str) -> None:
    turns = [{"messages": [{"role": "user", "content": "hi"}], **change}, {"messages": [{"role": "user", "content": "on"}]}]
    workload = load(write(tmp_path, {"session_id": "a", "turns": turns}))
    with pytest.raises(ConversionError) as caught:
        convert(workload, format_name)
    assert caught.value.lost == (lost,)


def test_branches_fit_into_dag_jsonl_alone(tmp_path: Path) -> None:
    workload = load("bundled:dag-agent-team")
    kept = [name for name in WRITERS if _fits(workload, name)]
    assert kept == ["dag_jsonl"]
    path = tmp_path / "again"
    path.write_bytes(convert(workload, "dag_jsonl").data)
    again = load(str(path))
    assert [s.turns for s in again.sessions.values()] == [again.sessions[n].turns for n in again.sessions]
    assert {name: session.turns for name, session in again.sessions.items()} == {
        name: session.turns for name, session in workload.sessions.items()
    }


def _fits(workload: Any, format_name: str) -> bool:
    try:
        convert(workload, format_name)
    except ConversionError:
        return False
    return True


def test_an_orchestrator_keeps_its_rounds_and_think_times(tmp_path: Path) -> None:
    workload = load("bundled:dag-rounds")
    path = tmp_path / "again"
    path.write_bytes(convert(workload, "dag_jsonl").data)
    again = load(str(path))
    for name, session in workload.sessions.items():
        assert (again.sessions[name].rounds, again.sessions[name].think_time) == (session.rounds, session.think_time)


def test_texts_given_by_length_are_written_out_where_there_is_no_place_for_a_length(tmp_path: Path) -> None:
    line = '{"input_prompt_length": 30, "num_turns": 1, "assistant_response_length": [5], "tool_call_output_length": [7], '
    path = write(tmp_path, line + '"tool_call_latency": [0.5], "final_assistant_response_length": 6}')
    rows = [json.loads(row) for row in invoke("convert", path, "--to", "dag_jsonl").stdout.splitlines()]
    tokenizer = load_tokenizer(None)[0]
    lengths = [len(tokenizer.encode(turn["messages"][0]["content"])) for turn in rows[0]["turns"]]
    assert lengths == [30, 7]
    assert [turn["max_tokens"] for turn in rows[0]["turns"]] == [5, 6]
    assert rows[0]["turns"][1]["delay"] == 500


def test_the_options_that_a_file_then_needs_are_told(tmp_path: Path) -> None:
    rows = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    result = invoke(
        "convert", write(tmp_path, {"session_id": "a", "turns": [{"messages": rows}]}), "--to", "custom_multi_turn"
    )
    assert "note: to load it, give --format custom_multi_turn --format-option any_role=true" in result.stderr
    assert "note: a failed request ends its conversation" in result.stderr


def test_conversations_that_an_offset_leaves_out_are_not_written(tmp_path: Path) -> None:
    path = write(tmp_path, TALK, {**TALK, "session_id": "b"})
    result = invoke("convert", path, "--to", "dag_jsonl", "--dataset-offset", "1")
    assert [json.loads(line)["session_id"] for line in result.stdout.splitlines()] == ["b"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("bundled:dag-example", "--to", "trie"), "'trie' cannot be written; choose one of dag_jsonl, multi_turn"),
        (("/nowhere", "--to", "dag_jsonl"), "/nowhere: no such file"),
        (("bundled:dag-example", "--to", "dag_jsonl", "-o", "/nowhere/x"), "/nowhere/x: there is no folder /nowhere"),
    ],
)
def test_bad_arguments_are_refused_with_status_2(arguments: tuple[str, ...], message: str) -> None:
    assert message in refusal("convert", *arguments)


EXAMPLES: list[Any] = [
    TALK,
    {"session_id": "p", "turns": [{"messages": [{"role": "user", "content": "x"}], "forks": ["c"]}], "timestamp": 5},
    {"session_id": "c", "turns": [{"messages": [{"role": "user", "content": "x"}], "tools": [], "extra": {"a": 1}}]},
    {"session_id": "o", "orchestrator": True, "rounds": [{"spawns": ["c"], "think_time_ms": 3}]},
    {"input_toks": 30, "output_toks": 2, "arrival_time_ns": 0},
    {"session_id": "t", "arrival_time_ns": 5, "sub_requests": [{"input_toks": 30, "output_toks": 2, "tool_duration_ns": 7}]},
    {"input_length": 40, "output_length": 3, "timestamp": 7, "hash_ids": [1]},
    {"messages": [{"role": "user", "content": "x"}], "output_length": 3, "message_mode": "delta"},
    {"payload": {"messages": [{"role": "user", "content": "x"}]}, "delay": 1},
    {"texts": ["a", "b"], "images": ["http://x/y.png"], "session_id": "s", "delay": 3},
    {"session_id": "m", "turns": [{"role": "system", "text": "s"}, {"text": "x", "output_length": 4}]},
    {"data": [{"session_id": "a", "payloads": [{"messages": []}]}]},
    [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}],
    {"conversation": [{"human": "x", "assistant": "y"}]},
]


@given(st.data())
def test_any_file_is_inspected_and_converted_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    rows = [mutate(data.draw(st.sampled_from(EXAMPLES)), data) for _ in range(data.draw(st.integers(1, 3)))]
    format_name = data.draw(st.sampled_from([None, *(name for name, declared in FORMATS.items() if not declared.generates)]))
    try:
        workload = load(write(tmp_path_factory.mktemp("mutant"), *rows), format_name)
    except WorkloadError as error:
        refused = error.problems
    else:
        refused = ()
    if refused:
        assert all(problem.line for problem in refused) or not any(problem.field for problem in refused)
        return
    assert summarise(workload).requests >= len(workload.roots) - sum(bool(s.rounds) for s in workload.sessions.values())
    assert shape(workload, PromptEncoder(*load_tokenizer(None)), 5, 50).counted_requests <= 50
    written = data.draw(st.sampled_from(sorted(WRITERS)))
    with contextlib.suppress(ConversionError):
        assert convert(workload, written).data
