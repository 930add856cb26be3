"""A simulation as a Chrome trace (JSON trace event format), to be opened in Perfetto: steps and requests, each on its lane.

Format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (Trace Event Format).
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from llmirage_client.measure.record import Record
from llmirage_client.simulator.engine import StepSpan

_REQUESTS = 1  # process id of the requests; instances follow
MOST_EVENTS = 500_000


def write_trace(path: Path | str, steps: Sequence[Sequence[StepSpan]], records: Sequence[Record]) -> int:
    """Write the steps of every instance and the lives of all requests; return how many events were left out.

    Runs of steps of one batch are one event each. Raises OSError.
    """
    left_out = 0
    with open(path, "w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        for number, event in enumerate(_events(steps, records)):
            if number >= MOST_EVENTS:
                left_out += 1
                continue
            file.write(("" if number == 0 else ",\n") + json.dumps(event, separators=(",", ":")))
        file.write("\n]}\n")
    return left_out


def _events(steps: Sequence[Sequence[StepSpan]], records: Sequence[Record]) -> Iterator[dict[str, Any]]:
    yield _name("process_name", _REQUESTS, 0, "requests")
    for index in range(len(steps)):
        yield _name("process_name", _REQUESTS + 1 + index, 0, f"instance {index}")
    yield from _request_events(records)
    for index, spans in enumerate(steps):
        for span in spans:
            yield _step_event(_REQUESTS + 1 + index, span)


def _step_event(process: int, span: StepSpan) -> dict[str, Any]:
    parts = [word for word, there in (("prefill", span.prompt_tokens), ("decode", span.decodes)) if there]
    name = " and ".join(parts)
    if span.steps > 1:
        name = f"{name} x {span.steps}"
    figures = {"steps": span.steps, "prompt_tokens": span.prompt_tokens, "decoding_sequences": span.decodes}
    return _slice(name, process, 0, span.start_s, span.end_s, figures)


def _request_events(records: Sequence[Record]) -> Iterator[dict[str, Any]]:
    """Yield requests in as few lanes as there are at one time."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    for record in sorted(records, key=lambda record: record.exchange.start_s):
        exchange = record.exchange
        start_s, end_s = exchange.start_s, exchange.end_s if exchange.end_s is not None else exchange.start_s
        while busy and busy[0][0] <= start_s:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy) + 1
        heapq.heappush(busy, (end_s, lane))
        usage = exchange.usage or {}
        figures = {
            "conversation": record.conversation_id,
            "turn": record.turn_index,
            "prompt_tokens": usage.get("prompt_tokens", record.input_tokens),
            "output_tokens": usage.get("completion_tokens", len(exchange.token_s)),
            "cached_tokens": (usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
            "error": None if exchange.error is None else exchange.error.message,
        }
        yield _slice(f"{record.conversation_id}:{record.turn_index}", _REQUESTS, lane, start_s, end_s, figures)
        if exchange.token_s:
            yield _slice("to first token", _REQUESTS, lane, start_s, exchange.token_s[0], {})
            yield _slice("tokens", _REQUESTS, lane, exchange.token_s[0], exchange.token_s[-1], {})


def _slice(name: str, process: int, lane: int, start_s: float, end_s: float, figures: dict[str, Any]) -> dict[str, Any]:
    """Return a slice with times in microseconds, to the nanosecond."""
    begin_us, length_us = round(start_s * 1e6, 3), round((end_s - start_s) * 1e6, 3)
    return {"name": name, "ph": "X", "pid": process, "tid": lane, "ts": begin_us, "dur": length_us, "args": figures}


def _name(kind: str, process: int, lane: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": lane, "args": {"name": name}}
