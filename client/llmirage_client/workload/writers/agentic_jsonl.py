"""agentic_jsonl: calls in tokens. Single calls are flat lines, chains have a line with sub_requests."""

from __future__ import annotations

from typing import Any

from llmirage_client.workload.session import TokenSpec, Workload
from llmirage_client.workload.writers.writer import Writer, Written, line

_NS_PER_S = 1_000_000_000


def write(workload: Workload) -> Written:
    """Sessions that have no arrival time get 0: the format must have one."""
    rows = []
    for name in workload.roots:
        session = workload.sessions[name]
        arrival: dict[str, Any] = {"arrival_time_ns": round((session.arrival_s or 0.0) * _NS_PER_S)}
        specs = [turn.tokens for turn in session.turns if turn.tokens is not None]
        if len(specs) == 1:
            rows.append(line(arrival | _call(specs[0])))
            continue
        waits = [*(turn.delay_s for turn in session.turns[1:]), 0.0]
        calls = [
            _call(spec) | {"tool_duration_ns": round(wait_s * _NS_PER_S)}
            for spec, wait_s in zip(specs, waits, strict=True)
        ]  # fmt: skip
        rows.append(line({"session_id": session.id, **arrival, "sub_requests": calls}))
    return Written(b"".join(rows))


def _call(spec: TokenSpec) -> dict[str, Any]:
    row: dict[str, Any] = {"input_toks": spec.input_tokens, "output_toks": spec.output_tokens}
    if spec.input_ids is not None:
        row["input_tok_ids"] = spec.input_ids.tolist()
    if spec.output_ids is not None:
        row["output_tok_ids"] = spec.output_ids.tolist()
    return row


WRITER = Writer("agentic_jsonl", frozenset(("tokens",)), write)
