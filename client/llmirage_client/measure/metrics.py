"""The metrics of a run, computed after it from its records alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np
import numpy.typing as npt

from llmirage_client.measure.catalogue import PER_REQUEST, TOTALS
from llmirage_client.measure.record import Record, RequestError, RunResult
from llmirage_client.measure.request_metrics import request_metrics
from llmirage_shared.statistics import Summary, summarize

TokenSource = Literal["server", "client", "mixed", "unknown"]


@dataclass(slots=True, frozen=True)
class ErrorGroup:
    """Requests that failed in the same way."""

    error: RequestError
    count: int


@dataclass(slots=True, frozen=True)
class Group:
    """The requests that share an agent depth or a turn index. Summaries are None when no request of it has the metric.

    cached_pct: prompt tokens that the server took from its cache, percent of all its prompt tokens; None: not reported.
    """

    key: int
    ok: int
    failed: int
    cancelled: int
    ttft_ms: Summary | None
    latency_ms: Summary | None
    input_tokens: Summary | None
    output_tokens: Summary | None
    cached_pct: float | None


@dataclass(slots=True, frozen=True)
class Metrics:
    """What a run measured. Requests of the warm-up phase are in none of it.

    per_request: tag to summary; whole_run: tag to value; units are in measure.catalogue. A metric without data has no key.
    errors: most frequent first. by_depth, by_turn: one Group per agent depth and per turn index, ascending.
    input_counted_by, output_counted_by: "server" when the counts are those of the reply's usage; "client" when we counted
        ourselves (input: the workload or the tokenizer; output: content events, which may hold several tokens each).
    """

    per_request: Mapping[str, Summary]
    whole_run: Mapping[str, float]
    errors: tuple[ErrorGroup, ...]
    by_depth: tuple[Group, ...]
    by_turn: tuple[Group, ...]
    input_counted_by: TokenSource
    output_counted_by: TokenSource


def compute(result: RunResult) -> Metrics:
    """All metrics of a run, in cluster time (record times multiplied by result.speed)."""
    records = [r for r in result.records if r.phase == "profiling"]
    measured = [request_metrics(r, result.speed) for r in records]
    per_request = {tag: summary for tag in PER_REQUEST if (summary := summarize(_column(measured, tag)))}
    if gaps := summarize(_chunk_gaps_ms(records, result.speed)):
        per_request["inter_chunk_latency"] = gaps
    return Metrics(
        per_request={tag: per_request[tag] for tag in PER_REQUEST if tag in per_request},
        whole_run=_whole_run(records, measured, per_request, result.speed),
        errors=error_groups(records),
        by_depth=_groups(records, measured, lambda r: r.agent_depth),
        by_turn=_groups(records, measured, lambda r: r.turn_index),
        input_counted_by=_counted_by(measured, "input_sequence_length", "usage_prompt_tokens"),
        output_counted_by=_counted_by(measured, "output_sequence_length", "usage_completion_tokens"),
    )


def error_groups(records: Sequence[Record]) -> tuple[ErrorGroup, ...]:
    """Failed requests grouped by code, type and message; cancelled ones are no failures."""
    counts = Counter(r.exchange.error for r in records if r.exchange.error is not None and not r.cancelled)
    return tuple(ErrorGroup(error, count) for error, count in counts.most_common())


def _whole_run(
    records: Sequence[Record], measured: Sequence[Mapping[str, float]], per_request: Mapping[str, Summary], speed: float
) -> dict[str, float]:
    cancelled = sum(r.cancelled for r in records)
    ok = sum(r.ok for r in records)
    completed = len(records) - cancelled
    values: dict[str, float] = {
        "request_count": ok,
        "error_request_count": completed - ok,
        "cancelled_request_count": cancelled,
        "completed_request_count": completed,
    }
    if completed:
        values["request_error_rate"] = 100 * (completed - ok) / completed
    values |= {total: per_request[tag].sum for total, tag in TOTALS.items() if tag in per_request}
    if (cached_pct := _cached_pct(measured)) is not None:
        values["overall_usage_prompt_cache_read_pct"] = cached_pct
    duration_s = _duration_s(records) * speed
    if duration_s > 0:
        values["benchmark_duration"] = duration_s
        values["request_throughput"] = ok / duration_s
        for rate, total in (("input_token_throughput", "total_isl"), ("output_token_throughput", "total_osl")):
            if total in values:
                values[rate] = values[total] / duration_s
        if "total_isl" in values and "total_osl" in values:
            values["total_token_throughput"] = (values["total_isl"] + values["total_osl"]) / duration_s
    return values


def _duration_s(records: Sequence[Record]) -> float:
    """From the first request sent to the last reply or failure, on the run's clock; cancelled requests do not count."""
    completed = [r for r in records if not r.cancelled]
    if not completed:
        return 0.0
    return max(_last_s(r) for r in completed) - min(r.exchange.start_s for r in completed)


def _last_s(record: Record) -> float:
    """When the last content arrived; when there was none, when the request ended."""
    exchange = record.exchange
    if record.ok and exchange.token_s:
        return exchange.token_s[-1]
    return exchange.start_s if exchange.end_s is None else exchange.end_s


def _groups(
    records: Sequence[Record], measured: Sequence[Mapping[str, float]], key: Callable[[Record], int]
) -> tuple[Group, ...]:
    members: dict[int, list[int]] = {}
    for index, record in enumerate(records):
        members.setdefault(key(record), []).append(index)
    groups = []
    for value in sorted(members):
        own = [records[i] for i in members[value]]
        numbers = [measured[i] for i in members[value]]
        cancelled, ok = sum(r.cancelled for r in own), sum(r.ok for r in own)
        groups.append(
            Group(
                key=value,
                ok=ok,
                failed=len(own) - ok - cancelled,
                cancelled=cancelled,
                ttft_ms=summarize(_column(numbers, "time_to_first_token")),
                latency_ms=summarize(_column(numbers, "request_latency")),
                input_tokens=summarize(_column(numbers, "input_sequence_length")),
                output_tokens=summarize(_column(numbers, "output_sequence_length")),
                cached_pct=_cached_pct(numbers),
            )
        )
    return tuple(groups)


def _column(measured: Sequence[Mapping[str, float]], tag: str) -> npt.NDArray[np.float64]:
    return np.array([m[tag] for m in measured if tag in m], dtype=np.float64)


def _chunk_gaps_ms(records: Sequence[Record], speed: float) -> npt.NDArray[np.float64]:
    """All gaps between content events within a reply: one difference over all stamps, less those across replies."""
    streams = [r.exchange.token_s for r in records if r.ok and r.exchange.streamed and len(r.exchange.token_s) > 1]
    if not streams:
        return np.empty(0)
    lengths = np.array([len(s) for s in streams])
    stamps = np.fromiter(chain.from_iterable(streams), dtype=np.float64, count=int(lengths.sum()))
    gaps: npt.NDArray[np.float64] = np.diff(stamps)
    within_reply = np.ones(gaps.size, dtype=bool)
    within_reply[np.cumsum(lengths)[:-1] - 1] = False
    return gaps[within_reply] * (speed * 1e3)


def _cached_pct(measured: Sequence[Mapping[str, float]]) -> float | None:
    """Cached prompt tokens, percent of all prompt tokens in usage; None when no reply reported any."""
    cached = [m["usage_prompt_cache_read_tokens"] for m in measured if "usage_prompt_cache_read_tokens" in m]
    prompt = sum(m.get("usage_prompt_tokens", 0) for m in measured)
    return 100 * sum(cached) / prompt if cached and prompt else None


def _counted_by(measured: Sequence[Mapping[str, float]], tag: str, usage_tag: str) -> TokenSource:
    counted = sum(tag in m for m in measured)
    by_server = sum(usage_tag in m for m in measured)
    if not counted:
        return "unknown"
    return "server" if by_server == counted else "client" if by_server == 0 else "mixed"
