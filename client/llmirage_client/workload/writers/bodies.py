"""inputs_json and raw_payload: whole request bodies."""

from __future__ import annotations

import json

from llmirage_client.workload.session import Workload
from llmirage_client.workload.writers.writer import Writer, Written, line


def write_inputs(workload: Workload) -> Written:
    sessions = [workload.sessions[name] for name in workload.roots]
    data = [{"session_id": s.id, "payloads": [turn.payload for turn in s.turns]} for s in sessions]
    return Written(json.dumps({"data": data}, ensure_ascii=False, indent=1).encode() + b"\n")


def write_raw(workload: Workload) -> Written:
    turns = [turn for name in workload.roots for turn in workload.sessions[name].turns]
    return Written(b"".join(line(turn.payload) for turn in turns))


INPUTS = Writer("inputs_json", frozenset(("verbatim",)), write_inputs)
RAW = Writer("raw_payload", frozenset(("verbatim",)), write_raw)
