"""mooncake_trace: the four ways to give a prompt, sessions, times and block hashes; every fault with line and field."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from workload_files import assert_refused, contents, problems_of, write

from llmirage_client.workload.registry import detect, load
from llmirage_client.workload.session import SyntheticUser, Turn

EXAMPLE = Path(__file__).parents[3] / "data" / "aiperf" / "mooncake_trace.jsonl"
USER = {"role": "user", "content": "x"}


def synthetic(turn: Turn) -> SyntheticUser:
    assert turn.synthetic is not None
    return turn.synthetic


def block_ids(turn: Turn) -> list[int]:
    ids = synthetic(turn).block_ids
    assert ids is not None
    assert ids.dtype == np.int64
    return ids.tolist()


def test_the_example_has_every_way_to_give_a_prompt() -> None:
    workload = load(str(EXAMPLE))
    assert workload.format == detect(str(EXAMPLE)) == "mooncake_trace"
    assert workload.timed
    assert {name: (session.mode, len(session.turns)) for name, session in workload.sessions.items()} == {
        **{f"request_{line}": ("accumulate", 1) for line in (1, 2, 3, 4)},
        "text": ("accumulate", 2),
        "agent": ("isolated", 2),
        "request_9": ("verbatim", 1),
        "live": ("accumulate", 2),
    }
    arrivals = [session.arrival_s for session in workload.sessions.values()]
    assert arrivals == [0.0, 0.105, 0.11, 0.15, 0.16, 0.17, 0.18, 0.19]


def test_a_length_is_a_prompt_of_known_blocks_and_a_reply_of_known_length() -> None:
    turn = load(str(EXAMPLE)).sessions["request_1"].turns[0]
    assert (synthetic(turn).tokens, synthetic(turn).block_tokens, block_ids(turn)) == (1200, 512, [0, 1, 2])
    assert (turn.messages, turn.max_tokens, turn.min_tokens) == ((), 12, 12)


def test_a_length_without_hashes_is_like_no_other(tmp_path: Path) -> None:
    first, second = load(write(tmp_path, {"input_length": 9}, {"input_length": "9"})).sessions.values()
    assert block_ids(first.turns[0]) == []
    assert synthetic(first.turns[0]).key != synthetic(second.turns[0]).key
    assert (first.turns[0].max_tokens, first.turns[0].min_tokens, first.arrival_s) == (None, None, None)


def test_texts_and_their_waits(tmp_path: Path) -> None:
    workload = load(str(EXAMPLE))
    first, second = workload.sessions["text"].turns
    assert contents(load(write(tmp_path, {"text_input": ""}))) == [[[""]]]
    assert [turn.messages for turn in (first, second)] == [
        ({"role": "user", "content": "Name a city."},),
        ({"role": "user", "content": "And its river?"},),
    ]
    assert (first.arrival_s, second.arrival_s, second.delay_s) == (0.16, None, 0.03)
    assert (first.max_tokens, first.min_tokens) == (5, None)


def test_messages_are_whole_requests_and_their_tools_are_not_handed_on() -> None:
    first, second = load(str(EXAMPLE)).sessions["agent"].turns
    assert [message["content"] for message in second.messages] == ["Hello", "Hi.", "How are you?"]
    assert first.tools == ({"type": "function", "function": {"name": "look"}},)
    assert (first.extra, second.tools, second.extra, second.arrival_s) == ({}, None, {}, 0.26)


def test_message_deltas_hand_their_tools_on(tmp_path: Path) -> None:
    rows = [{"session_id": "s", "message_mode": "delta", "messages": [USER], "tools": [{"type": "function"}]}]
    session = load(write(tmp_path, *rows)).sessions["s"]
    assert (session.mode, session.turns[0].tools) == ("accumulate", ({"type": "function"},))


def test_a_payload_is_kept_as_it_is() -> None:
    turn = load(str(EXAMPLE)).sessions["request_9"].turns[0]
    assert turn.payload == json.loads(EXAMPLE.read_text().splitlines()[8])["payload"]


def test_the_first_timestamp_is_the_start(tmp_path: Path) -> None:
    rows = [{"input_length": 5, "timestamp": 27482000}, {"input_length": 5, "timestamp": 27485500}]
    workload = load(write(tmp_path, *rows))
    assert [session.arrival_s for session in workload.sessions.values()] == [0.0, 3.5]


def test_hashes_of_any_size_and_blocks_of_any_length(tmp_path: Path) -> None:
    large = 2**64 - 1
    path = write(tmp_path, {"input_length": 33, "hash_ids": [large, -1, 5]})
    turn = load(path, None, {"block_size": 16}).sessions["request_1"].turns[0]
    assert block_ids(turn) == [-1, -1, 5]
    assert synthetic(turn).block_tokens == 16


def test_other_keys_are_noted(tmp_path: Path) -> None:
    assert load(write(tmp_path, {"input_length": 5, "user": 7})).notes == ("'user' is not used (in 1 place)",)


EITHER = "'input_length', 'text_input', 'messages', or 'payload'"
TOO_MANY = "hash_ids: 3 blocks of 512 tokens are too many for 1024 tokens, which end in block 2"
BAD: list[tuple[Any, ...]] = [
    ({"output_length": 5}, f"Value error, Exactly one of {EITHER} must be provided"),
    ({"input_length": 5, "text_input": "a"}, f"Value error, {EITHER} are mutually exclusive. Use only one of them."),
    (
        {"input_text": "a", "timestamp": 5},
        f"Value error, Exactly one of {EITHER} must be provided ('input_text' is called 'text_input')",
    ),
    (
        {"text_input": "a", "hash_ids": [1]},
        "hash_ids: Value error, 'hash_ids' is only allowed when 'input_length' is provided",
    ),
    ({"input_length": 1024, "hash_ids": [1, 2, 3]}, TOO_MANY),
    ({"input_length": 5, "hash_ids": [1, "2"]}, "hash_ids.1: Input should be a valid integer"),
    ({"input_length": 5, "hash_ids": 1}, "hash_ids: Input should be a valid list"),
    ({"input_length": 0}, "input_length: Input should be greater than or equal to 1"),
    ({"input_length": True}, "input_length: Input should be a valid integer, not a boolean (got True)"),
    ({"input_length": 5, "output_length": 0}, "output_length: Input should be greater than or equal to 1"),
    ({"input_length": 5, "timestamp": -3}, "timestamp: Input should be greater than or equal to 0"),
    ({"messages": []}, "messages: Value error, 'messages' must be a non-empty list"),
    (
        {"messages": [USER, {"content": "b"}]},
        "messages: Value error, Each message must have a 'role' key, but message at index 1 does not",
    ),
    ({"text_input": "a", "tools": [{}]}, "tools: Value error, 'tools' is only allowed when 'messages' is provided"),
    ({"messages": [USER], "tools": []}, "tools: Value error, 'tools' must be a non-empty list"),
    ({"payload": {}}, "payload: Value error, 'payload' must be a non-empty dict"),
    ({"payload": "{}"}, "payload: Input should be a valid dictionary (a JSON object), got a string"),
    ({"messages": [USER], "message_mode": "x"}, "message_mode: Input should be 'history'"),
    (
        {"text_input": "a", "message_mode": "delta"},
        "message_mode: Value error, 'message_mode' 'delta' is only allowed when 'messages' is provided",
    ),
    (
        {"messages": [USER], "message_mode": "delta", "extra": {"messages": []}},
        "extra.messages: Value error, 'messages' in 'extra' would replace the history of a 'delta' session",
    ),
    (
        {"input_lenght": 5, "output_len": 3, "hashids": []},
        "input_lenght: is not a key of this format (did you mean 'input_length'?)",
        "output_len: is not a key of this format (did you mean 'output_length'?)",
        "hashids: is not a key of this format (did you mean 'hash_ids'?)",
        f"Value error, Exactly one of {EITHER} must be provided",
    ),
    ({"input_length": 5, "type": "text"}, "type: Input should be 'mooncake_trace'"),
]


@pytest.mark.parametrize(("row", "problems"), [(row, problems) for row, *problems in BAD])
def test_a_bad_row_is_refused_with_its_problems(row: Any, problems: list[str], tmp_path: Path) -> None:
    assert_refused(tmp_path, "mooncake_trace", row, problems)


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ({"messages": [USER]}, {"payload": {"a": 1}}, "messages complete in themselves"),
        ({"payload": {"a": 1}}, {"input_length": 5}, "a payload"),
        ({"text_input": "a"}, {"messages": [USER]}, "a part of a growing conversation"),
        ({"messages": [USER], "message_mode": "delta"}, {"messages": [USER]}, "a part of a growing conversation"),
    ],
)
def test_a_session_keeps_to_one_way(first: Any, second: Any, kind: str, tmp_path: Path) -> None:
    path = write(tmp_path, {"session_id": "s", **first}, {"text_input": "b"}, {"session_id": "s", **second})
    (problem,) = problems_of(path)
    assert problem.startswith(f"line 3: session 's' began on line 1 with {kind}")


def test_a_length_and_a_text_may_be_turns_of_one_session(tmp_path: Path) -> None:
    rows = [{"session_id": "s", "input_length": 5}, {"session_id": "s", "text_input": "a"}]
    assert len(load(write(tmp_path, *rows)).sessions["s"].turns) == 2
