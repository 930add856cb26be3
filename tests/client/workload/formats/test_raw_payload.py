"""raw_payload: bodies are kept as they are, from a file or a directory; every fault with its file and line."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from workload_files import problems_of, write

from llmirage_client.workload.registry import detect, load

DATA = Path(__file__).parents[3] / "data" / "aiperf"
FILE, DIRECTORY = DATA / "raw_payload.jsonl", DATA / "raw_payload"


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_line_of_a_file_is_a_conversation_of_one_body() -> None:
    workload = load(str(FILE))
    assert workload.format == detect(str(FILE)) == "raw_payload"
    assert workload.roots == ("request_1", "request_2")
    assert [[turn.payload for turn in session.turns] for session in workload.sessions.values()] == [
        [body] for body in lines(FILE)
    ]
    assert {session.mode for session in workload.sessions.values()} == {"verbatim"}


def test_each_file_of_a_directory_is_a_conversation_of_its_lines() -> None:
    workload = load(str(DIRECTORY))
    assert workload.format == detect(str(DIRECTORY)) == "raw_payload"
    assert {name: [turn.payload for turn in session.turns] for name, session in workload.sessions.items()} == {
        name: lines(DIRECTORY / f"{name}.jsonl") for name in ("first", "second")
    }


def test_key_order_numbers_and_text_survive(tmp_path: Path) -> None:
    body = '{"z":1,"messages":[],"a":123456789012345678901234567890,"f":0.1,"text":"naïve ☃","n":null}'
    payload = load(write(tmp_path, "", body)).sessions["request_2"].turns[0].payload
    assert json.dumps(payload, separators=(",", ":"), ensure_ascii=False) == body


def test_a_packed_file_will_do(tmp_path: Path) -> None:
    (tmp_path / "x.gz").write_bytes(gzip.compress(b'\xef\xbb\xbf{"messages":[]}\r\n\r\n{"messages":[]}'))
    assert len(load(str(tmp_path / "x.gz")).roots) == 2


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ({"messages": [], "model": "m"}, "raw_payload"),
        ({"messages": [], "timestamp": 5}, "mooncake_trace"),
        ({"messages": [], "output_length": 5}, "mooncake_trace"),
        ({"session_id": "s", "turns": [{"messages": []}]}, "dag_jsonl"),
        ({"data": [{"session_id": "s", "payloads": [{"messages": []}]}]}, "inputs_json"),
    ],
)
def test_messages_alone_make_a_body(row: Any, name: str, tmp_path: Path) -> None:
    assert detect(write(tmp_path, row)) == name


def test_a_recorded_trajectory_is_no_body(tmp_path: Path) -> None:
    (problem,) = problems_of(write(tmp_path, {"conversation_id": "c", "messages": []}))
    assert problem.startswith("the format is not known: the first object has the keys 'conversation_id', 'messages'. ")


NOT_A_LIST = "messages: Input should be a valid list (the request's messages), got"
BAD: list[tuple[str, Any, str]] = [
    ("no messages", {"model": "x"}, "line 1: messages: Field required"),
    ("nothing", {}, "line 1: messages: Field required"),
    ("a prompt", {"prompt": "a"}, "line 1: messages: Field required"),
    ("messages is a text", {"messages": "a"}, f"line 1: {NOT_A_LIST} a string"),
    ("messages is an object", {"messages": {}}, f"line 1: {NOT_A_LIST} an object"),
    ("messages is null", {"messages": None}, f"line 1: {NOT_A_LIST} null"),
    ("an array", [[{"messages": []}]], "line 1: Input should be a valid dictionary (a JSON object), got an array"),
    ("a text", '"messages"', "line 1: Input should be a valid dictionary (a JSON object), got a string"),
    ("null", "null", "line 1: Input should be a valid dictionary (a JSON object), got null"),
    ("no JSON", '{"messages": [}', "line 1: invalid JSON: Expecting value at column 15"),
    ("no number", '{"messages": [], "seed": NaN}', "line 1: invalid JSON: NaN is not a JSON number"),
    ("several lines", '{\n"messages": []\n}', "line 1: the file is one JSON object over several lines; this format needs"),
]


@pytest.mark.parametrize(("row", "problem"), [pytest.param(*case[1:], id=case[0]) for case in BAD])
def test_a_bad_row_is_refused_with_its_problem(row: Any, problem: str, tmp_path: Path) -> None:
    (found,) = problems_of(write(tmp_path, row), "raw_payload")
    assert found.startswith(problem)


def test_problems_of_a_directory_name_the_file(tmp_path: Path) -> None:
    assert problems_of(str(tmp_path), "raw_payload") == [
        "is a directory without .jsonl files; each is a conversation, each line of it a request body"
    ]
    (tmp_path / "a.jsonl").write_text('{"messages": []}\n{"model": 1}\n')
    (tmp_path / "b.jsonl").write_text("")
    (tmp_path / "notes.txt").write_text("not looked at")
    assert problems_of(str(tmp_path)) == [
        "a.jsonl: line 2: messages: Field required",
        "b.jsonl: is empty; a workload needs at least one session",
    ]
