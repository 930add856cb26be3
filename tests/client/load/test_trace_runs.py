"""Runs of traces and schedules: when each turn goes out, and what goes out for prompts known by their lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from workload_files import write

from llmirage_client.workload.registry import load
from llmirage_shared.prompt_encoder import PromptEncoder
from llmirage_shared.tokenizer_loader import load as load_tokenizer

ROWS = [
    {"session_id": "a", "timestamp": 10_000, "text_input": "a0"},
    {"session_id": "a", "timestamp": 10_500, "text_input": "a1"},
    {"session_id": "a", "timestamp": 17_000, "delay": 9_000, "text_input": "a2"},
    {"session_id": "a", "delay": 250, "text_input": "a3"},
    {"session_id": "b", "timestamp": 12_000, "text_input": "b0"},
]


@pytest.mark.parametrize("speed", [1.0, 4.0])
def test_on_a_schedule_a_turn_goes_out_at_its_time_or_with_the_reply_before(
    bench: Any, tmp_path: Path, speed: float
) -> None:
    _, target = bench.run(load(write(tmp_path, *ROWS)), fixed_schedule=True, speed=speed)
    # Replies take 1 s: a1 is due at 0.5 s and waits for the reply to a0; a2 is due at 7 s; a3 comes 0.25 s after its reply.
    second = 1 / speed
    due = [("a0", 0.0), ("a1", 1.0), ("b0", max(2 * second, 0)), ("a2", max(7 * second, 2.0)), ("a3", 0.0)]
    due[-1] = ("a3", due[-2][1] + 1 + 0.25 * second)
    assert sorted(target.times()) == [(name, pytest.approx(at)) for name, at in sorted(due)]


def test_without_the_schedule_only_delays_count(bench: Any, tmp_path: Path) -> None:
    _, target = bench.run(load(write(tmp_path, *ROWS)), concurrency=2)
    times = dict(target.times())
    assert times == {
        "a0": 0.0,
        "b0": pytest.approx(0.0),
        "a1": pytest.approx(1.0),
        "a2": pytest.approx(11.0),
        "a3": pytest.approx(12.25),
    }


def test_lengths_add_up_with_the_live_replies_between_them(bench: Any, tmp_path: Path) -> None:
    rows = [{"session_id": "s", "input_length": n, "hash_ids": [7]} for n in (30, 40)]
    result, target = bench.run(load(write(tmp_path, *rows), None, {"block_size": 32}), seed=5)
    vocabulary = load_tokenizer(None)[0]
    first, second = (sent.call.body["messages"] for sent in target.sent)
    assert [message["role"] for message in second] == ["user", "assistant", "user"]
    assert second[0] == first[0]
    counts = [len(vocabulary.encode(message["content"])) for message in (first[0], second[2])]
    assert counts == [30, 40]
    assert second[2]["content"].startswith(first[0]["content"])
    assert result.notes == ["lengths of a session are what each line adds to the history (option prompts=delta)"]


def test_whole_prompts_share_their_blocks_token_for_token(bench: Any, tmp_path: Path) -> None:
    rows = [
        {"chat_id": 1, "timestamp": 0, "input_length": 40, "output_length": 5, "hash_ids": [1, 2, 3]},
        {"chat_id": 2, "parent_chat_id": 1, "timestamp": 9, "turn": 2, "input_length": 64, "output_length": 5}
        | {"hash_ids": [1, 2, 4, 5]},
    ]
    _, target = bench.run(load(write(tmp_path, *rows)), fixed_schedule=True)
    encoder = PromptEncoder(*load_tokenizer(None))
    first, second = (list(encoder.encode_chat(sent.call.body["messages"])) for sent in target.sent)
    head = next(i for i in range(16) if encoder.encode_chat([{"role": "user", "content": "x"}])[i] != first[i])
    assert len(second) - len(first) == 24
    shared = next(i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    assert shared == head + 32


@pytest.mark.parametrize("kind", ["llmirage", "vllm", "other"])
def test_replies_are_as_long_as_in_the_trace_where_the_endpoint_can_be_told(bench: Any, tmp_path: Path, kind: str) -> None:
    rows = [{"input_length": 5, "output_length": 7}, {"text_input": "x", "output_length": 7}]
    _, target = bench.run(load(write(tmp_path, *rows)), endpoint_kind=kind)
    length, text = (sent.call.body for sent in target.sent)
    assert length["max_completion_tokens"] == text["max_completion_tokens"] == 7
    told = {"min_tokens": 7, "ignore_eos": True} if kind != "other" else {}
    assert {key: length[key] for key in ("min_tokens", "ignore_eos") if key in length} == told
    assert not {"min_tokens", "ignore_eos"} & text.keys()


def test_a_system_prompt_stands_before_every_turn(bench: Any, tmp_path: Path) -> None:
    turns = [{"role": "system", "text": "S"}, {"text": "a"}, {"text": "b"}]
    _, target = bench.run(load(write(tmp_path, {"turns": turns})))
    assert target.histories() == {"a": ["S", "a"], "b": ["S", "a", "re a", "b"]}


def test_lines_of_a_single_turn_session_share_nothing(bench: Any, tmp_path: Path) -> None:
    rows = [{"session_id": "s", "text": "a"}, {"session_id": "s", "text": "b", "delay": 500}]
    _, target = bench.run(load(write(tmp_path, *rows)))
    assert target.histories() == {"a": ["a"], "b": ["b"]}
    assert target.times() == [("a", 0.0), ("b", pytest.approx(1.5))]


def test_tools_of_whole_messages_are_of_their_request_alone(bench: Any, tmp_path: Path) -> None:
    whole = [{"session_id": "s", "messages": [bench.user(text)]} for text in "ab"]
    deltas = [{**row, "session_id": "d", "message_mode": "delta"} for row in whole]
    rows = [{**row, "tools": [{"type": "function"}]} if i % 2 == 0 else row for i, row in enumerate([*whole, *deltas])]
    _, target = bench.run(load(write(tmp_path, *rows)))
    assert ["tools" in sent.call.body for sent in target.sent] == [True, False, True, True]
    assert len(target.sent[3].call.body["messages"]) == 3
