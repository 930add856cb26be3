"""profile_export.jsonl: one line a request, in AIPerf's layout, written while the run goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, BinaryIO

from llmirage_client.measure.catalogue import PER_REQUEST
from llmirage_client.measure.record import Record, RequestError
from llmirage_client.measure.request_metrics import chunk_gaps_ms, request_metrics

RECORDS_FILE = "profile_export.jsonl"


class RunClock:
    """Turns times of the run's clock into nanoseconds since the Unix epoch, in cluster time: waits stretched by `speed`."""

    def __init__(self, start_s: float, start_unix_s: float, speed: float = 1.0) -> None:
        self.speed = speed
        self._start_s = start_s
        whole_s = int(start_unix_s)
        self._start_unix_ns = whole_s * 10**9 + round((start_unix_s - whole_s) * 1e9)

    def unix_ns(self, time_s: float) -> int:
        # Whole numbers from here on: a float of today's epoch is no finer than 240 ns.
        return self._start_unix_ns + round((time_s - self._start_s) * self.speed * 1e9)


class RecordWriter:
    """Appends each finished request to the file and flushes it, so that a killed client loses none.

    Flushed means handed to the system, not forced to the disk: that would cost milliseconds a request. A disk that fails
    (full, gone) does not stop the run: `problem` holds the OSError, later records are skipped, and write_artifacts writes
    the file anew from all records or raises.
    """

    def __init__(self, directory: Path, clock: RunClock) -> None:
        """Starts the file afresh. Raises OSError when the directory cannot be made or the file not be opened."""
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / RECORDS_FILE
        self.problem: OSError | None = None
        self._clock = clock
        self._file: BinaryIO | None = self.path.open("wb")

    def write(self, record: Record) -> None:
        if self._file is None:
            return
        try:
            self._file.write(record_line(record, self._clock))
            self._file.flush()
        except OSError as error:
            self.problem = error
            self.close()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                self.problem = self.problem or error


def record_line(record: Record, clock: RunClock) -> bytes:
    """One line of the file with its newline."""
    exchange = record.exchange
    end_s = exchange.end_s if exchange.end_s is not None else max((exchange.start_s, *exchange.token_s[-1:]))
    metadata: dict[str, Any] = {
        "session_num": record.session_num,
        "x_request_id": record.request_id,
        "x_correlation_id": record.correlation_id,
        "conversation_id": record.conversation_id,
        "turn_index": record.turn_index,
        "credit_issued_ns": clock.unix_ns(record.issued_s),
        "request_start_ns": clock.unix_ns(exchange.start_s),
        "request_ack_ns": None if exchange.ack_s is None else clock.unix_ns(exchange.ack_s),
        "request_end_ns": clock.unix_ns(end_s),
        "worker_id": "llmirage",  # one process does everything; the keys stay for tools that expect them
        "record_processor_id": "llmirage",
        "benchmark_phase": record.phase,
        "was_cancelled": record.cancelled,
        "agent_depth": record.agent_depth,
        "root_correlation_id": record.root_correlation_id,
    }
    if record.parent_correlation_id is not None:
        metadata["parent_correlation_id"] = record.parent_correlation_id
    metrics: dict[str, Any] = {
        tag: {"value": value, "unit": PER_REQUEST[tag].unit} for tag, value in request_metrics(record, clock.speed).items()
    }
    gaps = chunk_gaps_ms(record, clock.speed)
    if gaps.size:
        # To the nanosecond, which is finer than any clock here; more digits would double the file.
        metrics["inter_chunk_latency"] = {"value": gaps.round(6).tolist(), "unit": PER_REQUEST["inter_chunk_latency"].unit}
    line: dict[str, Any] = {"metadata": metadata, "metrics": metrics}
    if exchange.error is not None:
        line["error"] = error_details(exchange.error)
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def error_details(error: RequestError) -> dict[str, Any]:
    code = {} if error.code is None else {"code": error.code}
    return {**code, "type": error.type, "message": error.message}
