"""agentic_jsonl: calls given in tokens, one flat request or one session of chained calls a line, mixed at will.

A line with `sub_requests` is a session, any other a single request, named request_<line>. Times are nanoseconds: the
arrival of the first call on the clock of the run, and after each call the tool's duration, which becomes the delay of
the session's next turn. After the last call there is nothing to wait for: its tool duration is checked and then not
used (a note says so). Keys the format does not know are not used either, and noted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from llmirage_client.workload.checking import AT_LEAST_ONE_ITEM, MOST_TOKENS, TENANT_KEYS, Checker
from llmirage_client.workload.format import Format, any_of
from llmirage_client.workload.loading import Loading, StrayKeys
from llmirage_client.workload.session import Session, TokenSpec, Turn, Workload

_CALL_KEYS = frozenset({"input_toks", "output_toks", "input_tok_ids", "output_tok_ids", "priority"})
_FLAT_KEYS = _CALL_KEYS | {"arrival_time_ns", *TENANT_KEYS}
_SESSION_KEYS = frozenset({"session_id", "arrival_time_ns", "sub_requests", "priority", *TENANT_KEYS})
_SUB_REQUEST_KEYS = _CALL_KEYS | {"tool_duration_ns"}
_LARGEST_ID = np.iinfo(np.int32).max
_NS_PER_S = 1e9


def load(path: str) -> Workload:
    """Load every line of the file, by arrival time. Raises WorkloadError with all problems, each with line and field."""
    file = Loading(path)
    sessions: list[Session] = []
    first_line: dict[str, int] = {}
    for row, check in file.rows():
        session = _session(row, check, file.stray)
        line = check.line or 0
        if session is not None and first_line.setdefault(session.id, line) != line:
            check.fail("session_id", f"duplicate session_id '{session.id}' (first on line {first_line[session.id]})")
        if session is not None and not check.problems:
            sessions.append(session)
    file.raise_problems()
    sessions.sort(key=lambda session: session.arrival_s or 0.0)
    return Workload.of_roots(FORMAT.name, path, sessions, file.notes())


def _session(row: Mapping[str, Any], check: Checker, stray: StrayKeys) -> Session | None:
    arrival_s = _seconds(check.required(row, "arrival_time_ns"), "arrival_time_ns", check)
    if "sub_requests" not in row:
        stray.count(row.keys() - _FLAT_KEYS)
        turn = Turn(tokens=_tokens(row, "", check), extra=_priority(row, "", check))
        name, tenant = f"request_{check.line}", check.tenant(row)
        return Session(name, (turn,), mode="tokens", arrival_s=arrival_s, line=check.line, tenant=tenant)
    stray.count(row.keys() - _SESSION_KEYS)
    session_id = check.need(row, "session_id", check.name)
    turns, tenant = _chain(row["sub_requests"], _priority(row, "", check), check, stray), check.tenant(row)
    if session_id is None:
        return None
    return Session(session_id, turns, mode="tokens", arrival_s=arrival_s, line=check.line, tenant=tenant)


def _chain(value: object, extra: dict[str, Any], check: Checker, stray: StrayKeys) -> tuple[Turn, ...]:
    calls = check.items(value, "sub_requests")
    if calls is not None and not calls:
        check.fail("sub_requests", f"a session needs at least one sub-request ({AT_LEAST_ONE_ITEM})")
    turns = []
    delay_s = 0.0
    for at, call in check.each(calls, "sub_requests"):
        stray.count(call.keys() - _SUB_REQUEST_KEYS)
        own = extra | _priority(call, at, check)
        turns.append(Turn(tokens=_tokens(call, at, check), delay_s=delay_s, extra=own))
        delay_s = _seconds(call.get("tool_duration_ns", 0), f"{at}tool_duration_ns", check)
    if delay_s > 0:
        stray.count(["tool_duration_ns of a last call"])
    return tuple(turns)


def _priority(row: Mapping[str, Any], prefix: str, check: Checker) -> dict[str, Any]:
    """Return the field of the request's body, as vLLM has it: lower is served first."""
    if "priority" not in row:
        return {}
    priority = check.integer(
        row["priority"], f"{prefix}priority", minimum=-_LARGEST_ID, maximum=_LARGEST_ID, from_text=False
    )
    return {} if priority is None else {"priority": priority}


def _seconds(value: object, field: str, check: Checker) -> float:
    """Return a duration or time in nanoseconds, as seconds."""
    return (check.integer(value, field, minimum=0, from_text=False) or 0) / _NS_PER_S


def _tokens(call: Mapping[str, Any], prefix: str, check: Checker) -> TokenSpec:
    input_tokens, input_ids = _side(call, "input", prefix, check)
    output_tokens, output_ids = _side(call, "output", prefix, check)
    return TokenSpec(input_tokens, output_tokens, input_ids, output_ids)


def _side(call: Mapping[str, Any], side: str, prefix: str, check: Checker) -> tuple[int, npt.NDArray[np.int32] | None]:
    """Read the number of tokens of one side, input or output, and their ids."""
    key, ids_key = f"{side}_toks", f"{side}_tok_ids"
    count = check.integer(check.required(call, key, prefix), prefix + key, minimum=1, maximum=MOST_TOKENS, from_text=False)
    ids = _ids(call[ids_key], prefix + ids_key, check) if call.get(ids_key) is not None else None
    if ids is not None and count is not None and len(ids) != count:
        check.fail(prefix + ids_key, f"has {len(ids)} ids, but {key} is {count}")
    return count or 0, ids


def _ids(value: object, field: str, check: Checker) -> npt.NDArray[np.int32] | None:
    """Return the ids as an array of shape (count,). Only the first bad id of a list is reported."""
    entries = check.items(value, field)
    if entries is None:
        return None
    ids = _as_array(entries)
    if ids is not None:
        return ids
    for i, entry in enumerate(entries):
        if type(entry) is not int:
            check.fail(f"{field}.{i}", "Input should be a valid integer (token ids are integers)")
        elif entry < 0:
            check.fail(f"{field}.{i}", "Input should be greater than or equal to 0")
        elif entry > _LARGEST_ID:
            check.fail(f"{field}.{i}", f"Input should be less than or equal to {_LARGEST_ID}")
        else:
            continue
        break
    return None


def _as_array(entries: list[Any]) -> npt.NDArray[np.int32] | None:
    """Return the ids, read-only; None when one of them is no id."""
    if not set(map(type, entries)) <= {int}:
        return None
    try:
        ids = np.array(entries, dtype=np.int32)
    except OverflowError:
        return None
    if ids.size and ids.min() < 0:
        return None
    ids.flags.writeable = False
    return ids


FORMAT = Format(
    name="agentic_jsonl",
    summary="requests and sessions of chained calls in tokens or token ids, with arrival times and tool waits",
    needs="'sub_requests', or 'input_toks' and 'output_toks', on every line",
    recognises=any_of(("sub_requests",), ("input_toks",), ("output_toks",), ("input_tok_ids",)),
    load=load,
    aliases=("flat_jsonl", "llmservingsim"),
    order=20,
)
