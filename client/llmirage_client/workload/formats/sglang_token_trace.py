"""sglang_token_trace: requests in token ids with the lengths of their replies, one a line, as SGLang's token-trace has them.

`ts` is the time of a request in milliseconds. Rows without tokens, and those with an empty reply, are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from llmirage_client.workload.checking import MOST_TOKENS, Checker
from llmirage_client.workload.conversation_lines import LeftOut
from llmirage_client.workload.files import read_rows
from llmirage_client.workload.format import Format
from llmirage_client.workload.schedule import scheduled
from llmirage_client.workload.session import Problem, Session, TokenSpec, Turn, Workload, WorkloadError

_LARGEST_ID = np.iinfo(np.int32).max
_MS_PER_S = 1e3


def load(path: str) -> Workload:
    """Every request of the file. Raises WorkloadError with all problems, each with line and field."""
    problems: list[Problem] = []
    left_out = LeftOut()
    sessions: list[Session] = []
    for row, check in read_rows(path, problems):
        spec = _tokens(row, check)
        timestamp_ms = check.given(row, "ts", check.number)
        if check.problems or spec is None:
            continue
        if not spec.input_tokens or not spec.output_tokens:
            left_out.add("rows without tokens of a prompt or of a reply")
            continue
        arrival_s = None if timestamp_ms is None else timestamp_ms / _MS_PER_S
        turn = Turn(tokens=spec, arrival_s=arrival_s)
        sessions.append(Session(f"request_{check.line}", (turn,), "tokens", arrival_s, line=check.line))
    if not sessions and not problems:
        problems.append(Problem("; ".join(["has no request that can run", *left_out.notes()])))
    if problems:
        raise WorkloadError(path, problems)
    return scheduled(FORMAT.name, path, sessions, left_out.notes())


def _tokens(row: Mapping[str, Any], check: Checker) -> TokenSpec | None:
    ids = _ids(check.required(row, "input_tokens"), "input_tokens", check)
    output_ids = None if row.get("output_tokens") is None else _ids(row["output_tokens"], "output_tokens", check)
    count = check.given(row, "num_output_tokens", check.integer)
    if count is None and output_ids is None and "num_output_tokens" not in row:
        check.required(row, "num_output_tokens")
    if count is not None and not 0 <= count <= MOST_TOKENS:
        check.fail("num_output_tokens", f"Input should be 0 to {MOST_TOKENS}")
    if ids is None or check.problems:
        return None
    output_tokens = count if count is not None else 0 if output_ids is None else len(output_ids)
    same = output_ids is not None and len(output_ids) == output_tokens
    return TokenSpec(len(ids), output_tokens, ids, output_ids if same else None)


def _ids(value: object, field: str, check: Checker) -> Any:
    entries = check.items(value, field)
    for i, entry in enumerate(entries or []):
        if type(entry) is not int or not 0 <= entry <= _LARGEST_ID:
            check.fail(f"{field}.{i}", f"Input should be a token id, 0 to {_LARGEST_ID}")
            return None
    return None if entries is None else np.array(entries, dtype=np.int32)


def recognises(keys: Collection[str]) -> bool:
    known = set(keys)
    return "input_tokens" in known and bool(known & {"output_tokens", "num_output_tokens"})


FORMAT = Format(
    name="sglang_token_trace",
    summary="requests in token ids with the lengths of their replies, one a line (SGLang token-trace)",
    needs="'input_tokens', and 'output_tokens' or 'num_output_tokens', on every line",
    recognises=recognises,
    load=load,
    aliases=("token_trace",),
    order=37,
)
