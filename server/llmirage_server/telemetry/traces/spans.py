"""When which instance worked on what: spans by OpenTelemetry's gen_ai conventions as OTLP/JSON, and slices for Perfetto."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

from llmirage_server.telemetry.traces.served import PlacedRequest, Sessions, TracedRequest
from llmirage_server.telemetry.traces.trace_file import SETTING, json_line, opened
from llmirage_shared.otlp import attributes, exported_spans, message_parts, nanoseconds, said_before, span_id
from llmirage_shared.wire.output import json_text

_Event = dict[str, Any]


class PerfettoWriter:
    """A process an instance; in it a thread for each request that runs at once, with its phases as slices."""

    def __init__(self, path: Path) -> None:
        """Create the file. Raises ConfigError if it cannot be made."""
        self._file = opened(path, SETTING, b"[\n", b"]\n")
        self._sessions = Sessions()
        self._begun = False
        self._free_s: dict[int, list[float]] = {}  # by instance: the end of the last request of each thread

    def write(self, requests: Iterable[TracedRequest]) -> None:
        for served in requests:
            part = b",\n".join([json_line(event).strip() for event in self._events(self._sessions.place(served))])
            self._file.add((b",\n" if self._begun else b"") + part)
            self._begun = True

    def _events(self, placed: PlacedRequest) -> Iterator[_Event]:
        served = placed.served
        process = served.instance + 1  # 0: of requests that no instance got
        if process not in self._free_s:
            self._free_s[process] = []
            name = f"instance {served.instance} ({served.model})" if process else "no instance"
            yield _named("process_name", process, 0, name)
        threads = self._free_s[process]
        thread = next((number for number, end_s in enumerate(threads) if end_s <= served.arrival_s), len(threads))
        if thread == len(threads):
            threads.append(0.0)
            yield _named("thread_name", process, thread + 1, f"slot {thread + 1}")
        threads[thread] = served.end_s
        told = {
            "request_id": served.id,
            "caller_id": served.caller_id,
            "session": placed.session.name,
            "model": served.model,
            "prompt_tokens": served.prompt_tokens,
            "cached_tokens": served.cached_tokens,
            "output_tokens": served.output_tokens,
            "finish_reason": served.finish,
            "tool_calls": [name for _, name, _ in served.calls],
        }
        if served.refusal is not None:
            told["status"], told["error"] = served.refusal
        if placed.session.parent is not None:
            told["parent_session"] = placed.session.parent.name
        yield self._slice(process, thread, "request", placed.session.name, served.arrival_s, served.end_s, told)
        times = [served.arrival_s, served.admitted_s, served.first_token_s, served.end_s]
        for number, name in enumerate(("queue", "prefill", "decode")):
            start_s = times[number]
            later = [time_s for time_s in times[number + 1 :] if not math.isnan(time_s)]
            if not math.isnan(start_s) and later:
                yield self._slice(process, thread, "phase", name, start_s, later[0], {})

    def _slice(
        self, process: int, thread: int, category: str, name: str, start_s: float, end_s: float, told: dict[str, Any]
    ) -> _Event:
        start_us, end_us = round(start_s * 1e6), round(end_s * 1e6)
        return {
            "ph": "X",
            "name": name,
            "cat": category,
            "pid": process,
            "tid": thread + 1,
            "ts": start_us,
            "dur": max(end_us - start_us, 0),
            "args": told,
        }


def _named(what: str, process: int, thread: int, name: str) -> _Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


_SERVER, _OK, _ERROR = 2, 1, 2  # of SpanKind and Status
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")
_FAILED = ("cancelled", "error")
_MOST_SPANS = 256  # of one export
_WITHIN_S = 5.0


class OtelWriter:
    """A span a request, with its messages. Its trace is the caller's (`traceparent`), else its tree of sessions."""

    def __init__(self, path: Path) -> None:
        """Create the file. Raises ConfigError if it cannot be made."""
        self._file = opened(path, SETTING)
        self._sessions = Sessions()

    def write(self, requests: Iterable[TracedRequest]) -> None:
        for served in requests:
            self._file.add(json_line(exported_spans([_span(self._sessions.place(served))], "llmirage")))


class OtlpSender:
    """The same spans to a collector, over HTTP as JSON; OTEL_EXPORTER_OTLP_HEADERS may give headers (`name=value,...`)."""

    def __init__(self, url: str) -> None:
        """url: of the collector, such as http://localhost:4318; another path than / is that of its traces."""
        parts = urlsplit(url)
        self._url = url if parts.path.strip("/") else f"{url.rstrip('/')}/v1/traces"
        given = [pair.partition("=") for pair in os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "").split(",") if "=" in pair]
        self._headers = {name.strip(): unquote(value.strip()) for name, _, value in given}
        self._headers["content-type"] = "application/json"
        self._sessions = Sessions()

    def write(self, requests: Iterable[TracedRequest]) -> None:
        spans = [_span(self._sessions.place(served)) for served in requests]
        for start in range(0, len(spans), _MOST_SPANS):
            body = json_line(exported_spans(spans[start : start + _MOST_SPANS], "llmirage"))
            with urlopen(Request(self._url, body, self._headers), timeout=_WITHIN_S) as answer:
                answer.read()


def _span(placed: PlacedRequest) -> dict[str, Any]:
    served = placed.served
    given = _TRACEPARENT.fullmatch(served.traceparent or "")
    plain = served.path.endswith("/completions") and not served.path.endswith("/chat/completions")
    operation = "text_completion" if plain else "chat"
    span: dict[str, Any] = {
        "traceId": given[1] if given else span_id(placed.session.root.name, 16),
        "spanId": span_id(served.id),
    }
    if given:
        span["parentSpanId"] = given[2]
    elif (earlier := placed.previous or placed.spawned_by) is not None:
        span["links"] = [{"traceId": span["traceId"], "spanId": span_id(earlier.id)}]
    span |= {
        "name": f"{operation} {served.asked_model}",
        "kind": _SERVER,
        "startTimeUnixNano": nanoseconds(served.arrival_s),
        "endTimeUnixNano": nanoseconds(served.end_s),
        "attributes": attributes(_attributes(placed, operation)),
        "status": {"code": _ERROR, "message": _error(served)[1]} if served.finish in _FAILED else {"code": _OK},
    }
    return span


def _attributes(placed: PlacedRequest, operation: str) -> Mapping[str, Any]:
    served, sampling = placed.served, placed.served.sampling
    found: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "llmirage",
        "gen_ai.request.model": served.asked_model,
        "gen_ai.response.model": served.model,
        "gen_ai.response.id": served.id,
        "gen_ai.response.finish_reasons": [served.finish],
        "gen_ai.usage.input_tokens": served.prompt_tokens,
        "gen_ai.usage.output_tokens": served.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": served.cached_tokens,
        "gen_ai.conversation.id": placed.session.name,
        "gen_ai.request.max_tokens": served.max_tokens,
        "gen_ai.request.temperature": _number(served.body.get("temperature")),
        "gen_ai.request.top_p": _number(served.body.get("top_p")),
        "gen_ai.request.stop_sequences": list(sampling.stop) or None,
        "gen_ai.request.seed": sampling.seed,
        "gen_ai.request.choice.count": sampling.n if sampling.n > 1 else None,
        "error.type": _error(served)[0] if served.finish in _FAILED else None,
    }
    if sampling.stream and not math.isnan(served.first_token_s):
        found["gen_ai.response.time_to_first_chunk"] = round(served.first_token_s - served.arrival_s, 9)
    messages = served.messages or [{"role": "user", "content": served.text}]
    found |= said_before(messages)
    if served.refusal is None:
        found["gen_ai.output.messages"] = json_text([_output(served)])
    tools = [
        {"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.parameters}
        for tool in served.tools
        if tool.kind == "function"
    ]
    if tools:
        found["gen_ai.tool.definitions"] = json_text(tools)
    return {name: value for name, value in found.items() if value is not None}


def _output(served: TracedRequest) -> dict[str, Any]:
    calls = [{"id": call, "function": {"name": name, "arguments": text}} for call, name, text in served.calls]
    said = {"role": "assistant", "content": served.said, "reasoning_content": served.thought or None, "tool_calls": calls}
    return {"role": "assistant", "parts": message_parts(said), "finish_reason": served.finish}


def _error(served: TracedRequest) -> tuple[str, str]:
    """Return type and message: of a refusal its status."""
    return (served.finish, served.finish) if served.refusal is None else (str(served.refusal[0]), served.refusal[1])


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
