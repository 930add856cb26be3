"""profile_export.jsonl: one line a request, in AIPerf's layout, written while the run goes on.

Beside it, in a file of its own, what is known of a run when it starts: the head of its summary.

events.jsonl: a run of MLPerf's agentic rules in the event types and fields of mlcommons/endpoints, for its scorer. A sample
is a request. `turn` is the number of its row in the file, which counts the rows of the assistant and takes the results of
one row of tools as one; `conversation_id` is the name that went out, with the number of the repeat.
"""

from __future__ import annotations

import errno
import json
import os
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from llmirage_client.measure.catalogue import PER_REQUEST
from llmirage_client.measure.record import Record, RequestError, RunResult
from llmirage_client.measure.request_metrics import chunk_gaps_of, request_metrics
from llmirage_client.measure.run_folder import CLUSTER_FILE, HEAD_FILE, RECORDS_FILE
from llmirage_client.report.output_files import hide_in_options, hide_in_text, json_bytes
from llmirage_client.workload.session import Tenant

SCHEMA_VERSION = "1.4"  # of AIPerf's summary, whose structure this one follows


def run_head(result: RunResult, benchmark_id: str, start_unix_ns: int) -> dict[str, Any]:
    """Return values for JSON, without secrets. Of the result only what describes the run; its records do not matter."""
    made_by = result.version or version("llmirage")
    served = {"deployment": result.deployment} if result.deployment else {}
    return {
        "schema_version": SCHEMA_VERSION,
        "benchmark_id": benchmark_id,
        "input_config": {
            "models": {"items": [{"name": result.model}]},
            "endpoint": {"urls": [hide_in_text(result.url)], "type": result.endpoint, "streaming": result.streaming},
            "datasets": [{"name": "main", "type": "file", "path": result.workload_path, "format": result.workload_format}],
            "options": hide_in_options(result.options),
        },
        "start_time": datetime.fromtimestamp(start_unix_ns / 1e9, UTC).isoformat(timespec="microseconds"),
        "llmirage": {"version": made_by, "speed": result.speed, "start_unix_ns": start_unix_ns, **served},
    }


_RETRY_S = 1.0
EVENTS_FILE = "events.jsonl"
_string = json.encoder.encode_basestring_ascii
_ENCODER = json.JSONEncoder(separators=(",", ":"))
# Around the value of a metric: "tag":{"value": ... ,"unit":"ms"}
_BEFORE = {tag: f'"{tag}":{{"value":' for tag in PER_REQUEST}
_AFTER = {tag: f',"unit":"{spec.unit}"}}' for tag, spec in PER_REQUEST.items()}
_AFRESH = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
# What another run in the same folder may have left, and what would be taken for this run's if it were cut off.
_LEFT_BEHIND = (
    *(f"profile_export_aiperf{part}.{kind}" for part in ("", "_timeslices") for kind in ("json", "csv")),
    "trace_summary.json",
    "workload_throughput.json",
    "workload_timeline.json",
    "benchmark_summary.json",
    "benchmark_percentile.json",
    "inputs.json",
    "otel_spans.jsonl",
    "otel_metrics.jsonl",
    EVENTS_FILE,
    CLUSTER_FILE,
)


class RunClock:
    """Turns times of the run's clock into nanoseconds since the Unix epoch, in cluster time: waits stretched by `speed`."""

    def __init__(self, start_s: float, start_unix_s: float, speed: float = 1.0) -> None:
        self.speed = speed
        self._start_s = start_s
        whole_s = int(start_unix_s)
        self.start_unix_ns = whole_s * 10**9 + round((start_unix_s - whole_s) * 1e9)

    def unix_ns(self, time_s: float) -> int:
        # Whole numbers from here on: a float of today's epoch is no finer than 240 ns.
        return self.start_unix_ns + round((time_s - self._start_s) * self.speed * 1e9)


class RecordWriter:
    """Appends each finished request to the file, one write a line, so that a killed client loses none.

    Written means handed to the system, not forced to the disk: that would cost milliseconds a request. A disk that fails
    (full, gone) does not stop the run: what could not be written is kept and tried again, at most once a second, and the
    file never holds part of a line. `problem` is the OSError that stands in the way, None when every line is in the file.
    """

    def __init__(self, directory: Path, clock: RunClock, about: RunResult | None = None) -> None:
        """Start the file afresh and remove an earlier run's files from the folder.

        about: the run as far as it is known at its start; it is kept beside the records, for the case that there will be no
        summary. Raises OSError when the directory cannot be made or the file not be opened.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / RECORDS_FILE
        self.benchmark_id = str(uuid.uuid4())
        self.problem: OSError | None = None
        self.clock = clock
        self._file: int | None = os.open(self.path, _AFRESH, 0o666)
        self._whole = 0  # bytes of whole lines in the file
        self._waiting: list[bytes] = []
        self._retry_s = 0.0
        remove_earlier_run(directory)
        if about is not None:
            head = run_head(about, self.benchmark_id, clock.start_unix_ns)
            (directory / HEAD_FILE).write_text(json.dumps(head, indent=2, default=str) + "\n")

    def write(self, record: Record) -> None:
        self.write_lines(record_line(record, self.clock))

    def write_lines(self, lines: bytes) -> None:
        """Append whole lines that `record_line` made, with a clock that says the same times as this writer's."""
        if self.problem is None:
            self._append(lines)
        else:
            self._waiting.append(lines)
            if time.monotonic() >= self._retry_s:
                self._catch_up()

    def close(self) -> None:
        """Write what waited, if it can now. `problem` says whether it could, and whether the file is still there."""
        if self._file is None:
            return
        if self._waiting:
            self._catch_up()
        file, self._file = self._file, None
        try:
            if self.problem is None and not os.path.samestat(os.fstat(file), self.path.stat()):
                self.problem = FileNotFoundError(errno.ENOENT, "another file has its place", str(self.path))
            os.close(file)
        except OSError as error:
            self.problem = self.problem or error

    def _append(self, lines: bytes) -> None:
        if self._file is None:
            return
        try:
            written = os.write(self._file, lines)
            while written < len(lines):  # a disk that fills up takes a part first
                written += os.write(self._file, lines[written:])
            self._whole += len(lines)
        except OSError as error:
            self.problem = error
            self._retry_s = time.monotonic() + _RETRY_S
            self._waiting.append(lines)
            self._cut()

    def _cut(self) -> None:
        """Take back the part of a line that was written."""
        assert self._file is not None
        try:
            os.ftruncate(self._file, self._whole)
            os.lseek(self._file, self._whole, os.SEEK_SET)
        except OSError:  # then the file ends in part of a line, and its reader leaves that out
            pass

    def _catch_up(self) -> None:
        lines, self._waiting, self.problem = b"".join(self._waiting), [], None
        self._append(lines)


def remove_earlier_run(folder: Path) -> None:
    """Remove files of an earlier run but its records, which the next one overwrites. Raises OSError."""
    for name in (HEAD_FILE, *_LEFT_BEHIND):
        (folder / name).unlink(missing_ok=True)


def record_line(record: Record, clock: RunClock, worker: str = "llmirage") -> bytes:
    """Return one line of the file with its newline.

    Put together by hand, at a third of the JSON encoder's cost: it is written
    while the load runs. worker: the name of the process that sent it.
    """
    exchange = record.exchange
    end_s = exchange.end_s if exchange.end_s is not None else max((exchange.start_s, *exchange.token_s[-1:]))
    ack_ns = "null" if exchange.ack_s is None else clock.unix_ns(exchange.ack_s)
    parent = ""
    if record.parent_correlation_id is not None:
        parent = f',"parent_correlation_id":{_string(record.parent_correlation_id)}'
    # One process sends and records; record_processor_id is there for tools that expect it.
    metadata = (
        f'"session_num":{record.session_num},"x_request_id":{_string(record.request_id)},'
        f'"x_correlation_id":{_string(record.correlation_id)},"conversation_id":{_string(record.conversation_id)},'
        f'"turn_index":{record.turn_index},"credit_issued_ns":{clock.unix_ns(record.issued_s)},'
        f'"request_start_ns":{clock.unix_ns(exchange.start_s)},"request_ack_ns":{ack_ns},'
        f'"request_end_ns":{clock.unix_ns(end_s)},"worker_id":{_string(worker)},"record_processor_id":"llmirage",'
        f'"benchmark_phase":"{record.phase}","was_cancelled":{"true" if record.cancelled else "false"},'
        f'{_source(record.conversation_id)}"agent_depth":{record.agent_depth},"root_correlation_id":{_string(record.root_correlation_id)}{parent}'
    )
    metrics = [f"{_BEFORE[tag]}{value!r}{_AFTER[tag]}" for tag, value in request_metrics(record, clock.speed).items()]
    gaps = chunk_gaps_of(record, clock.speed)
    if gaps.size:
        # To the nanosecond, which is finer than any clock here; more digits would double the file.
        values = repr(gaps.round(6).tolist()).replace(" ", "")
        metrics.append(f"{_BEFORE['inter_chunk_latency']}{values}{_AFTER['inter_chunk_latency']}")
    own = _own(record)
    error = "" if exchange.error is None else f',"error":{_ENCODER.encode(error_details(exchange.error))}'
    return f'{{"metadata":{{{metadata}}},"metrics":{{{",".join(metrics)}}},"llmirage":{own}{error}}}\n'.encode()


@lru_cache(maxsize=1024)
def _source(conversation_id: str) -> str:
    """Return the fields that say of which trace's which agent a conversation is, where its name tells."""
    trace, agent, name = conversation_id.partition("::")
    if not agent:
        return ""
    kind = "weka_subagent" if name.startswith("sa:") else "weka_flat"
    return f'"source_trace_id":{_string(trace)},"source_kind":"{kind}",'


def _own(record: Record) -> str:
    """Return a JSON object of the values that AIPerf's layout has no place for; defaults are left out."""
    exchange = record.exchange
    rare = {
        "input_tokens": record.input_tokens,
        "output_tokens": record.output_tokens,
        "input_tokens_asked": record.input_tokens_asked,
        "output_tokens_asked": record.output_tokens_asked,
        "parent_turn_index": record.parent_turn_index,
        "joined": record.joined or None,
        "retries": exchange.retries or None,
        "skipped_events": exchange.skipped_events or None,
        "url": exchange.url,
        "other_model": exchange.other_model,
    }
    given = {key: value for key, value in rare.items() if value is not None}
    common = _common(
        record.branch_mode, exchange.streamed, exchange.status, exchange.finish_reason, record.turns, record.tenant
    )
    return f"{{{common},{_ENCODER.encode(given)[1:]}" if given else f"{{{common}}}"


@lru_cache(maxsize=1024)
def _common(
    branch_mode: str, streamed: bool, status: int | None, finish_reason: str | None, turns: int | None, tenant: Tenant
) -> str:
    own = {
        "branch_mode": branch_mode,
        "turns": turns,
        "streamed": streamed,
        "status": status,
        "finish_reason": finish_reason,
        "tenant": tenant.name or None,
        "service_class": tenant.service_class or None,
        "priority": tenant.priority or None,
    }
    return _ENCODER.encode({key: value for key, value in own.items() if value is not None})[1:-1]


def error_details(error: RequestError) -> dict[str, Any]:
    """Return an error as AIPerf's records have it."""
    code = {} if error.code is None else {"code": error.code}
    return {**code, "type": error.type, "message": error.message}


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
    about = {"sample_uuid": record.request_id, "conversation_id": name, "turn": _row_of(messages), "worker_id": "llmirage"}
    asked = {"messages": messages, "tools": body.get("tools")}
    yield exchange.start_s, {"event_type": "sample.issued", **about, "data": asked}
    if exchange.token_s:
        yield exchange.token_s[0], {"event_type": "sample.recv_first", **about}
    end_s = exchange.start_s if exchange.end_s is None else exchange.end_s
    if exchange.error is not None:
        yield end_s, {"event_type": "error.generic", **about, "data": {"error": exchange.error.message}}
        return
    said = {"text": exchange.text, "reasoning": exchange.reasoning, "tool_calls": (exchange.message or {}).get("tool_calls")}
    yield end_s, {"event_type": "sample.complete", **about, "data": said, "finish_reason": exchange.finish_reason}


def _row_of(messages: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of the row whose messages are the last of these."""
    roles = [message["role"] for message in messages if message["role"] != "system"]
    return sum(role != "tool" or before != "tool" for before, role in zip(["", *roles], roles, strict=False))
