"""Flat and agentic JSONL: tokens, ids, arrivals and tool waits; every fault with its line and field."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from workload_files import problems_of, write

from llmirage_client.workload.registry import load
from llmirage_client.workload.session import Workload, WorkloadError
from llmirage_client.workload.writers import write_tokens

FLAT = {"input_toks": 3, "output_toks": 2, "arrival_time_ns": 5_000_000}
CALL = {"input_toks": 4, "output_toks": 1, "tool_duration_ns": 250_000_000}
SESSION = {"session_id": "s", "arrival_time_ns": 1_500_000_000, "sub_requests": [CALL, {"input_toks": 6, "output_toks": 2}]}


def load_rows(tmp_path: Path, *rows: Any) -> Workload:
    return load(write(tmp_path, *rows))


def without(row: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in row.items() if k != key}


def test_a_flat_line_is_a_session_of_one_call_named_by_its_line(tmp_path: Path) -> None:
    workload = load_rows(tmp_path, "", FLAT)
    (session,) = workload.sessions.values()
    assert (session.id, session.line, session.mode, session.arrival_s) == ("request_2", 2, "tokens", 0.005)
    assert workload.roots == ("request_2",)
    assert workload.timed
    tokens = session.turns[0].tokens
    assert tokens is not None
    assert (tokens.input_tokens, tokens.output_tokens, tokens.input_ids, tokens.output_ids) == (3, 2, None, None)


def test_the_wait_after_a_call_delays_the_next_one(tmp_path: Path) -> None:
    session = load_rows(tmp_path, SESSION).sessions["s"]
    assert session.arrival_s == 1.5
    assert [turn.delay_s for turn in session.turns] == [0.0, 0.25]
    assert [turn.tokens.input_tokens for turn in session.turns if turn.tokens] == [4, 6]


def test_a_wait_after_the_last_call_is_noted_and_not_used(tmp_path: Path) -> None:
    workload = load_rows(tmp_path, {**SESSION, "sub_requests": [CALL, CALL]})
    assert [turn.delay_s for turn in workload.sessions["s"].turns] == [0.0, 0.25]
    assert workload.notes == ("'tool_duration_ns of a last call' is not used (in 1 place)",)


def test_mixed_lines_are_sorted_by_arrival(tmp_path: Path) -> None:
    workload = load_rows(tmp_path, SESSION, FLAT, {**SESSION, "session_id": "first", "arrival_time_ns": 0})
    assert workload.roots == tuple(workload.sessions) == ("first", "request_2", "s")


def test_the_documentation_s_mixed_file_loads() -> None:
    workload = load("bundled:mixed-flat-agentic")
    assert workload.roots[:3] == ("request_1", "s0", "request_3")


def test_ids_become_read_only_arrays(tmp_path: Path) -> None:
    row = {**FLAT, "input_tok_ids": [0, 7, 2**31 - 1], "output_tok_ids": [1, 2]}
    tokens = load_rows(tmp_path, row).sessions["request_1"].turns[0].tokens
    assert tokens is not None
    assert tokens.input_ids is not None
    assert tokens.output_ids is not None
    assert tokens.input_ids.dtype == np.int32
    assert tokens.input_ids.tolist() == [0, 7, 2**31 - 1]
    assert tokens.output_ids.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        tokens.input_ids[0] = 1


def test_keys_that_are_not_used_are_noted_with_their_number(tmp_path: Path) -> None:
    call = {**CALL, "tool": "pytest"}
    notes = load_rows(tmp_path, {**FLAT, "user": 1}, {**SESSION, "repo": "x", "sub_requests": [call, call, FLAT]}).notes
    assert list(notes) == [
        "'arrival_time_ns' is not used (in 1 place)",
        "'repo' is not used (in 1 place)",
        "'tool' is not used (in 2 places)",
        "'user' is not used (in 1 place)",
    ]


@pytest.mark.parametrize(
    ("row", "problems"),
    [
        (without(FLAT, "input_toks"), ["input_toks: Field required"]),
        (without(FLAT, "output_toks"), ["output_toks: Field required"]),
        (without(FLAT, "arrival_time_ns"), ["arrival_time_ns: Field required"]),
        (without(SESSION, "arrival_time_ns"), ["arrival_time_ns: Field required"]),
        (without(SESSION, "session_id"), ["session_id: Field required"]),
        ({**SESSION, "session_id": 3}, ["session_id: Input should be a valid string"]),
        ({**SESSION, "session_id": ""}, ["session_id: String should have at least 1 character"]),
        ({**FLAT, "arrival_time_ns": -1}, ["arrival_time_ns: Input should be greater than or equal to 0"]),
        ({**FLAT, "arrival_time_ns": "0"}, ["arrival_time_ns: Input should be a valid integer"]),
        ({**FLAT, "input_toks": 0}, ["input_toks: Input should be greater than or equal to 1"]),
        ({**FLAT, "output_toks": -4}, ["output_toks: Input should be greater than or equal to 1"]),
        ({**FLAT, "input_toks": 1.5}, ["input_toks: Input should be a valid integer, got a number with a fractional part"]),
        ({**FLAT, "input_toks": True}, ["input_toks: Input should be a valid integer, not a boolean (got True)"]),
        ({**FLAT, "input_toks": None}, ["input_toks: Input should be a valid integer"]),
        ({**FLAT, "input_tok_ids": [1, 2]}, ["input_tok_ids: has 2 ids, but input_toks is 3"]),
        ({**FLAT, "output_tok_ids": [1, 2, 3]}, ["output_tok_ids: has 3 ids, but output_toks is 2"]),
        ({**FLAT, "input_tok_ids": "1 2 3"}, ["input_tok_ids: Input should be a valid list"]),
        (
            {**FLAT, "input_tok_ids": [1, "2", 3]},
            ["input_tok_ids.1: Input should be a valid integer (token ids are integers)"],
        ),
        (
            {**FLAT, "input_tok_ids": [1, 2, True]},
            ["input_tok_ids.2: Input should be a valid integer (token ids are integers)"],
        ),
        (
            {**FLAT, "input_tok_ids": [1.0, 2, 3]},
            ["input_tok_ids.0: Input should be a valid integer (token ids are integers)"],
        ),
        ({**FLAT, "input_tok_ids": [1, -2, 3]}, ["input_tok_ids.1: Input should be greater than or equal to 0"]),
        ({**FLAT, "input_tok_ids": [1, 2, 2**31]}, ["input_tok_ids.2: Input should be less than or equal to 2147483647"]),
        ({**SESSION, "sub_requests": {}}, ["sub_requests: Input should be a valid list"]),
        (
            {**SESSION, "sub_requests": []},
            [
                "sub_requests: a session needs at least one sub-request "
                "(List should have at least 1 item after validation, not 0)"
            ],
        ),
        (
            {**SESSION, "sub_requests": [5]},
            ["sub_requests.0: Input should be a valid dictionary (a JSON object), got a number"],
        ),
        (
            {**SESSION, "sub_requests": [{**CALL, "tool_duration_ns": -1}, without(CALL, "output_toks")]},
            [
                "sub_requests.0.tool_duration_ns: Input should be greater than or equal to 0",
                "sub_requests.1.output_toks: Field required",
            ],
        ),
        ("[1]", ["Input should be a valid dictionary (a JSON object), got an array"]),
        ("{", ["invalid JSON: Expecting property name enclosed in double quotes at column 2"]),
    ],
)
def test_a_bad_line_is_refused_with_line_and_field(row: Any, problems: list[str], tmp_path: Path) -> None:
    assert problems_of(write(tmp_path, FLAT, row), "agentic_jsonl") == [f"line 2: {problem}" for problem in problems]


def test_all_problems_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    bad_call = {"input_toks": -1, "output_toks": 1, "input_tok_ids": [1]}
    found = problems_of(
        write(tmp_path, "{", {**SESSION, "sub_requests": [bad_call]}, without(FLAT, "output_toks")), "agentic_jsonl"
    )
    assert [problem.split(":")[0] for problem in found] == ["line 1", "line 2", "line 3"]


def test_a_session_id_may_appear_once(tmp_path: Path) -> None:
    assert problems_of(write(tmp_path, SESSION, FLAT, SESSION), "agentic_jsonl") == [
        "line 3: session_id: duplicate session_id 's' (first on line 1)"
    ]
    taken = {**SESSION, "session_id": "request_1"}
    assert problems_of(write(tmp_path, FLAT, taken), "agentic_jsonl") == [
        "line 2: session_id: duplicate session_id 'request_1' (first on line 1)"
    ]


def test_a_packed_file_reads_as_the_plain_one(tmp_path: Path) -> None:
    packed = tmp_path / "input.jsonl.gz"
    packed.write_bytes(gzip.compress(Path(write(tmp_path, FLAT, SESSION)).read_bytes()))
    assert load(str(packed)).sessions == load(str(tmp_path / "workload")).sessions


def test_windows_line_ends_and_byte_order_mark_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "input.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(FLAT).encode() + b"\r\n\r\n" + json.dumps(SESSION).encode() + b"\r\n")
    assert set(load(str(path)).sessions) == {"request_1", "s"}


def test_priorities_of_calls_and_sessions_are_fields_of_the_body_and_are_written_again(tmp_path: Path) -> None:
    call = {"input_toks": 5, "output_toks": 2}
    rows = [
        {"arrival_time_ns": 0, **call, "priority": 3},
        {
            "arrival_time_ns": 0,
            "session_id": "s",
            "priority": 1,
            "sub_requests": [{**call, "tool_duration_ns": 0}, {**call, "priority": -2, "tool_duration_ns": 0}],
        },
        {"arrival_time_ns": 0, **call},
    ]
    file = tmp_path / "calls.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    workload = load(str(file))
    found = [[turn.extra for turn in session.turns] for session in workload.sessions.values()]
    assert found == [[{"priority": 3}], [{"priority": 1}, {"priority": -2}], [{}]]
    again = tmp_path / "again.jsonl"
    again.write_bytes(write_tokens(workload).data)
    assert [[turn.extra for turn in session.turns] for session in load(str(again)).sessions.values()] == found
    assert not workload.notes
    file.write_text(json.dumps(rows[0] | {"priority": "high"}))
    with pytest.raises(WorkloadError, match="priority"):
        load(str(file))
