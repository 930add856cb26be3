"""otel_spans.jsonl and otel_metrics.jsonl: a run as client spans and metrics by OpenTelemetry's gen_ai conventions.

OTLP/JSON, an export a line, as collectors read it. Spans have the messages where the bodies of requests were kept.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from llmirage_client.measure.record import Record, RunResult
from llmirage_client.report.output_files import json_bytes
from llmirage_client.report.records_file import RunClock, with_bodies
from llmirage_shared.otlp import attributes, exported_metrics, exported_spans, message_parts, said_before, span_id
from llmirage_shared.wire.output import json_text

SPANS_FILE, METRICS_FILE = "otel_spans.jsonl", "otel_metrics.jsonl"
_CLIENT, _OK, _ERROR, _CUMULATIVE = 3, 1, 2, 2  # of SpanKind, Status and AggregationTemporality
_SERVICE = "llmirage run"
_SECONDS = tuple(0.01 * 2**power for power in range(14))  # bounds that the conventions ask for
_TOKENS = tuple(4**power for power in range(14))


def span_lines(result: RunResult) -> Iterator[bytes]:
    """Yield the lines of the spans, one a request, in the order in which they went out."""
    clock = RunClock(result.start_s, result.start_unix_s, result.speed)
    bodies = {id(record): body for record, _, body in with_bodies(result.records, result.inputs)}
    turns = {(record.correlation_id, record.turn_index): record.request_id for record in result.records}
    for record in sorted(result.records, key=lambda record: record.exchange.start_s):
        parent = turns.get((record.parent_correlation_id or "", record.parent_turn_index or 0))
        span = _span(record, result, clock, bodies.get(id(record), {}), parent)
        yield json_bytes(exported_spans([span], _SERVICE)) + b"\n"


def metric_lines(result: RunResult) -> Iterator[bytes]:
    """Yield the lines of the metrics, which count the requests that were measured."""
    clock = RunClock(result.start_s, result.start_unix_s, result.speed)
    records = [record for record in result.records if record.phase == "profiling"]
    plain = [record for record in records if not record.cancelled]
    about = _about(result)
    times = clock.unix_ns(result.start_s), clock.unix_ns(result.end_s)
    failed: dict[str, list[float]] = {}
    for record in plain:
        error = record.exchange.error
        failed.setdefault("" if error is None else error.type, []).append(_lasted_s(record) * result.speed)
    durations = [(about | ({"error.type": error} if error else {}), values) for error, values in failed.items()]
    streamed = [record.exchange for record in plain if record.exchange.streamed and record.exchange.token_s]
    firsts = [(one.token_s[0] - one.start_s) * result.speed for one in streamed]
    gaps = [(after - before) * result.speed for one in streamed for before, after in pairwise(one.token_s)]
    tokens = [
        (about | {"gen_ai.token.type": kind}, [float(n) for record in plain if (n := _tokens(record)[place]) is not None])
        for place, kind in enumerate(("input", "output"))
    ]
    metrics = [
        _histogram("gen_ai.client.operation.duration", "s", _SECONDS, times, durations),
        _histogram("gen_ai.client.operation.time_to_first_chunk", "s", _SECONDS, times, [(about, firsts)]),
        _histogram("gen_ai.client.operation.time_per_output_chunk", "s", _SECONDS, times, [(about, gaps)]),
        _histogram("gen_ai.client.token.usage", "{token}", _TOKENS, times, tokens),
    ]
    yield json_bytes(exported_metrics([metric for metric in metrics if metric is not None], _SERVICE)) + b"\n"


def _about(result: RunResult) -> dict[str, Any]:
    """Return the attributes that all spans and metrics of a run have."""
    found: dict[str, Any] = {
        "gen_ai.operation.name": {"completions": "text_completion", "embeddings": "embeddings"}.get(result.endpoint, "chat"),
        "gen_ai.provider.name": "anthropic" if result.endpoint == "messages" else "openai",
        "gen_ai.request.model": result.model,
    }
    place = urlsplit(result.url if "//" in result.url else f"//{result.url}")
    if place.hostname:
        found |= {"server.address": place.hostname}
        found |= {"server.port": place.port or {"http": 80, "https": 443}.get(place.scheme, 80)}
    return found


def _span(record: Record, result: RunResult, clock: RunClock, body: Mapping[str, Any], parent: str | None) -> dict[str, Any]:
    exchange, about = record.exchange, _about(result)
    usage = exchange.usage or {}
    tokens = _tokens(record)
    found: dict[str, Any] = about | {
        "gen_ai.conversation.id": record.correlation_id,
        "gen_ai.request.max_tokens": record.output_tokens_asked,
        "gen_ai.request.temperature": body.get("temperature"),
        "gen_ai.response.id": exchange.response_id,
        "gen_ai.response.model": exchange.other_model[1] if exchange.other_model else None,
        "gen_ai.response.finish_reasons": [exchange.finish_reason] if exchange.finish_reason else None,
        "gen_ai.usage.input_tokens": tokens[0],
        "gen_ai.usage.output_tokens": tokens[1],
        "gen_ai.usage.cache_read.input_tokens": (usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        "gen_ai.response.time_to_first_chunk": None,
        "error.type": exchange.error.type if exchange.error is not None else None,
    }
    if exchange.streamed and exchange.token_s:
        found["gen_ai.response.time_to_first_chunk"] = (exchange.token_s[0] - exchange.start_s) * result.speed
    if isinstance(messages := body.get("messages"), list):
        found |= said_before(messages)
        found["gen_ai.tool.definitions"] = json_text(body["tools"]) if body.get("tools") else None
    if exchange.message is not None:
        said = {"role": "assistant", "parts": message_parts({"reasoning": exchange.reasoning or None, **exchange.message})}
        found["gen_ai.output.messages"] = json_text([said | {"finish_reason": exchange.finish_reason}])
    span: dict[str, Any] = {"traceId": span_id(record.root_correlation_id, 16), "spanId": span_id(record.request_id)}
    if parent is not None:
        span["parentSpanId"] = span_id(parent)
    end_s = exchange.start_s + _lasted_s(record)
    return span | {
        "name": f"{about['gen_ai.operation.name']} {result.model}",
        "kind": _CLIENT,
        "startTimeUnixNano": str(clock.unix_ns(exchange.start_s)),
        "endTimeUnixNano": str(clock.unix_ns(end_s)),
        "attributes": attributes({name: value for name, value in found.items() if value is not None}),
        "status": {"code": _OK} if exchange.error is None else {"code": _ERROR, "message": exchange.error.one_line(200)},
    }


def _lasted_s(record: Record) -> float:
    return max((record.exchange.end_s or record.exchange.start_s) - record.exchange.start_s, 0.0)


def _tokens(record: Record) -> tuple[int | None, int | None]:
    """Return the tokens of prompt and reply: what the endpoint says, else what the client has counted."""
    usage = record.exchange.usage or {}
    prompt, reply = usage.get("prompt_tokens"), usage.get("completion_tokens")
    return (record.input_tokens if prompt is None else prompt), (record.output_tokens if reply is None else reply)


def _histogram(
    name: str,
    unit: str,
    bounds: Sequence[float],
    times: tuple[int, int],
    series: Sequence[tuple[Mapping[str, Any], Sequence[float]]],
) -> dict[str, Any] | None:
    """Return a metric with a point for each of the series that has values; None without any."""
    points = []
    for about, values in series:
        if not values:
            continue
        counts = [0] * (len(bounds) + 1)
        for value in values:
            counts[bisect_left(bounds, value)] += 1
        points.append(
            {
                "attributes": attributes(about),
                "startTimeUnixNano": str(times[0]),
                "timeUnixNano": str(times[1]),
                "count": str(len(values)),
                "sum": sum(values),
                "min": min(values),
                "max": max(values),
                "bucketCounts": [str(count) for count in counts],
                "explicitBounds": list(bounds),
            }
        )
    if not points:
        return None
    return {"name": name, "unit": unit, "histogram": {"aggregationTemporality": _CUMULATIVE, "dataPoints": points}}
