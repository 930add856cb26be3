"""events.jsonl: a run of MLPerf's agentic rules in the event types and fields of mlcommons/endpoints, for its scorer.

A sample is a request. `turn` is the number of its row in the file, which counts the rows of the assistant and takes the
results of one row of tools as one; `conversation_id` is the name that went out, with the number of the repeat.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from llmirage_client.measure.record import Record, RunResult
from llmirage_client.report.atomic_files import json_bytes
from llmirage_client.report.records_file import RunClock


def event_lines(result: RunResult) -> Iterator[bytes]:
    """Yield the lines of the file, by time."""
    clock = RunClock(result.start_s, result.start_unix_s, result.speed)
    records = [record for record in result.records if record.phase == "profiling"]
    first_s = min((record.exchange.start_s for record in records), default=result.start_s)
    events: list[tuple[float, dict[str, Any]]] = [
        (result.start_s, {"event_type": "session.started"}),
        (first_s, {"event_type": "session.start_performance_tracking"}),
    ]
    if result.window is not None and result.window.end_s is not None:
        events.append((result.window.end_s, {"event_type": "session.stop_performance_tracking"}))
    for record, name, payload in with_bodies(result.records, result.inputs):
        events += _of_request(record, name, payload)
    events.append((max(result.end_s, *(time_s for time_s, _ in events)), {"event_type": "session.ended"}))
    for time_s, event in sorted(events, key=lambda timed: timed[0]):
        yield json_bytes({"timestamp_ns": clock.unix_ns(time_s), **event}) + b"\n"


def with_bodies(
    records: Iterable[Record], inputs: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Record, str, Mapping[str, Any]]]:
    """Yield each record of the load with the name of its conversation and its body.

    Conversations of one name and their requests are in both in the order in which they went out.
    """
    profiled = [record for record in records if record.phase == "profiling"]
    by_number: dict[int, list[Record]] = {}
    for record in sorted(profiled, key=lambda record: (record.exchange.start_s, record.session_num)):
        by_number.setdefault(record.session_num, []).append(record)
    names = {own[0].conversation_id for own in by_number.values()}
    sent: dict[str, deque[tuple[str, Sequence[Mapping[str, Any]]]]] = {}
    for entry in inputs:
        given = entry["session_id"]  # NAME#2 is its second play
        name, _, repeat = (given, "", "") if given in names else given.rpartition("#")
        sent.setdefault(name, deque()).append((repeat, entry["payloads"]))
    for own in by_number.values():
        name = own[0].conversation_id
        if plays := sent.get(name):
            repeat, bodies = plays.popleft()
            for record, body in zip(own, bodies, strict=False):
                yield record, f"{name}__repeat_{repeat}" if repeat else name, body


def _of_request(record: Record, name: str, body: Mapping[str, Any]) -> Iterator[tuple[float, dict[str, Any]]]:
    exchange = record.exchange
    messages = body.get("messages", [])
    about = {
        "sample_uuid": record.request_id,
        "conversation_id": name,
        "turn": _row_of(messages),
        "worker_id": "llmirage",
    }
    asked = {"messages": messages, "tools": body.get("tools")}
    yield exchange.start_s, {"event_type": "sample.issued", **about, "data": asked}
    if exchange.token_s:
        yield exchange.token_s[0], {"event_type": "sample.recv_first", **about}
    end_s = exchange.start_s if exchange.end_s is None else exchange.end_s
    if exchange.error is not None:
        yield end_s, {"event_type": "error.generic", **about, "data": {"error": exchange.error.message}}
        return
    said = {
        "text": exchange.text,
        "reasoning": exchange.reasoning,
        "tool_calls": (exchange.message or {}).get("tool_calls"),
    }
    yield end_s, {"event_type": "sample.complete", **about, "data": said, "finish_reason": exchange.finish_reason}


def _row_of(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of the row whose messages are the last of these."""
    roles = [message["role"] for message in messages if message["role"] != "system"]
    return sum(role != "tool" or before != "tool" for before, role in zip(["", *roles], roles, strict=False))
