"""bailian_trace: conversations by parent_chat_id, whole prompts, seconds; every fault with its line and field."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from workload_files import assert_refused, loads_or_is_refused, problems_of, write

from llmirage_client.workload.registry import detect, load
from llmirage_client.workload.session import Workload

EXAMPLE = Path(__file__).parents[3] / "data" / "aiperf" / "bailian_trace.jsonl"
ROW = {"chat_id": 1, "timestamp": 0, "input_length": 20, "output_length": 5}


def row(chat_id: int = 1, parent: int = -1, turn: int = 1, **more: Any) -> dict[str, Any]:
    return {**ROW, "chat_id": chat_id, "parent_chat_id": parent, "turn": turn, **more}


def without(key: str) -> dict[str, Any]:
    return {k: v for k, v in ROW.items() if k != key}


def shape(workload: Workload) -> dict[str, list[int]]:
    """The key, which is the line, of each turn of each session."""
    return {
        name: [turn.synthetic.key for turn in session.turns if turn.synthetic is not None]
        for name, session in workload.sessions.items()
    }


def test_the_example_is_three_conversations() -> None:
    workload = load(str(EXAMPLE))
    assert workload.format == detect(str(EXAMPLE)) == "bailian_trace"
    assert shape(workload) == {"159": [1, 3], "161": [2], "164": [4]}
    assert {session.mode for session in workload.sessions.values()} == {"isolated"}
    first, second = workload.sessions["159"].turns
    assert (first.arrival_s, second.arrival_s) == (0.0, pytest.approx(0.286))
    assert (second.max_tokens, second.min_tokens) == (8, 8)
    assert second.synthetic is not None
    assert second.synthetic.block_ids is not None
    assert (second.synthetic.tokens, second.synthetic.block_tokens) == (90, 16)
    assert second.synthetic.block_ids.tolist() == [1089, 1090, 1091, 8000, 8001, 8002]
    assert workload.notes == ("the file's first timestamp, 61.114 s, is the start of the run",)


def test_turns_go_by_their_number_and_chains_by_their_root(tmp_path: Path) -> None:
    rows = [row(5, 4, 3), row(4, 3, 2), row(3, -1, 1), row(9, 3, 2), row(7, 99, 4)]
    assert shape(load(write(tmp_path, *rows))) == {"3": [3, 2, 4, 1], "7": [5]}


def test_a_long_chain_is_one_conversation(tmp_path: Path) -> None:
    rows = [row(number, number - 1 if number else -1, number + 1) for number in range(3000)]
    (session,) = load(write(tmp_path, *reversed(rows))).sessions.values()
    assert [turn.synthetic.key for turn in session.turns if turn.synthetic] == list(range(3000, 0, -1))


def test_parent_turn_type_and_hashes_may_be_left_out(tmp_path: Path) -> None:
    workload = load(write(tmp_path, ROW, {**ROW, "chat_id": 2, "type": "file", "hash_ids": [], "model": "q"}))
    assert workload.roots == ("1", "2")
    assert workload.notes == ("'model' is not used (in 1 place)",)


def test_the_block_size_may_be_another(tmp_path: Path) -> None:
    path = write(tmp_path, {**ROW, "hash_ids": [1, 2, 3]})
    turn = load(path, None, {"block_size": 8}).sessions["1"].turns[0]
    assert turn.synthetic is not None
    assert turn.synthetic.block_tokens == 8
    assert problems_of(path)[0].startswith("line 1: hash_ids: 3 blocks of 16 tokens are too many for 20 tokens")


BAD: list[tuple[Any, ...]] = [
    ({**without("chat_id"), "parent_chat_id": -1}, "chat_id: Field required"),
    (without("timestamp"), "timestamp: Field required"),
    (without("input_length"), "input_length: Field required"),
    (without("output_length"), "output_length: Field required"),
    ({**ROW, "chat_id": "a"}, "chat_id: Input should be a valid integer, unable to parse"),
    ({**ROW, "timestamp": None}, "timestamp: Input should be a valid number"),
    ({**ROW, "timestamp": -0.5}, "timestamp: Input should be greater than or equal to 0"),
    ({**ROW, "input_length": 0}, "input_length: Input should be greater than or equal to 1"),
    ({**ROW, "output_length": 0}, "output_length: Input should be greater than or equal to 1"),
    ({**ROW, "turn": "first"}, "turn: Input should be a valid integer, unable to parse"),
    ({**ROW, "parent_chat_id": None}, "parent_chat_id: Input should be a valid integer"),
    ({**ROW, "type": 5}, "type: Input should be a valid string"),
    ({**ROW, "hash_ids": ["a"]}, "hash_ids.0: Input should be a valid integer"),
    ({**ROW, "hash_ids": {}}, "hash_ids: Input should be a valid list"),
    (
        {**without("chat_id"), "chatid": 1, "parent_chat_id": -1},
        "chatid: is not a key of this format (did you mean 'chat_id'?)",
        "chat_id: Field required",
    ),
    ([3], "Input should be a valid dictionary (a JSON object), got an array"),
    ('{"chat_id": 1,}', "invalid JSON: "),
]


@pytest.mark.parametrize(("row", "problems"), [(row, problems) for row, *problems in BAD])
def test_a_bad_row_is_refused_with_its_problems(row: Any, problems: list[str], tmp_path: Path) -> None:
    assert_refused(tmp_path, "bailian_trace", row, problems)


def test_an_id_stands_once_and_no_chat_is_its_own_ancestor(tmp_path: Path) -> None:
    rows = [row(1), row(2, 3), row(3, 4), row(4, 2), row(1), row(5, 5)]
    assert problems_of(write(tmp_path, *rows)) == [
        "line 2: parent_chat_id: the chats are each other's parents: 2 -> 3 -> 4 -> 2",
        "line 5: chat_id: 1 is also on line 1; ids must be unique",
        "line 6: parent_chat_id: the chats are each other's parents: 5 -> 5",
    ]


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(-1, 8), st.integers(0, 3)), min_size=1, max_size=12))
def test_a_request_has_one_conversation(tmp_path_factory: pytest.TempPathFactory, chats: list[tuple[int, int, int]]) -> None:
    unique = {chat[0]: chat for chat in chats}
    path = write(tmp_path_factory.mktemp("chats"), *(row(*chat) for chat in unique.values()))
    loads_or_is_refused(path, "bailian_trace")
    acyclic = [chat for chat in unique.values() if chat[1] < chat[0]]
    if acyclic:
        path = write(tmp_path_factory.mktemp("chats"), *(row(*chat) for chat in acyclic))
        lines = sorted(line for keys in shape(load(path, "bailian_trace")).values() for line in keys)
        assert lines == list(range(1, len(acyclic) + 1))
