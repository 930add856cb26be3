"""Spans by OpenTelemetry's gen_ai conventions, as OTLP/JSON: an export a line."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

from llmirage_server.telemetry.traces.block_traces import SETTING, json_line
from llmirage_server.telemetry.traces.served import TracedRequest
from llmirage_server.telemetry.traces.sessions import PlacedRequest, Sessions
from llmirage_server.telemetry.traces.trace_file import opened
from llmirage_shared.otlp import as_text, attributes, exported_spans, message_parts, nanoseconds, said_before, span_id

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

    def close(self) -> None:
        """Do nothing: the file is complete."""


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

    def close(self) -> None:
        """Do nothing: each span has been sent."""


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
        found["gen_ai.output.messages"] = as_text([_output(served)])
    tools = [
        {"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.parameters}
        for tool in served.tools
        if tool.kind == "function"
    ]
    if tools:
        found["gen_ai.tool.definitions"] = as_text(tools)
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
