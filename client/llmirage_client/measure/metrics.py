"""All metrics of a run, of slices of it, and of the client that measured it, from its records.

A conversation is a row of its own: duration, time to its first answer, and the part of its context that the
server had cached.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from llmirage_client.measure.breakdowns import (
    CachedSource,
    Level,
    Rates,
    RequestGroup,
    cached_or_estimated,
    cached_pct,
    fairness,
    grouped,
    levels,
    tenant_groups,
    timeline,
)
from llmirage_client.measure.catalogue import PER_REQUEST, TOTALS
from llmirage_client.measure.columns import Columns, columns_of, filled
from llmirage_client.measure.record import ClientCost, Record, RequestError, RunResult
from llmirage_client.measure.request_metrics import (
    all_request_columns,
    chunk_gaps_ms,
    good_requests,
    parse_goodput,
    request_columns,
)
from llmirage_client.measure.submission import PerformanceWindow
from llmirage_shared.statistics import Bools, Floats, Ints, Summary, ratio, summarize


@dataclass(slots=True, frozen=True)
class Conversations:
    """Arrays of one length, one entry a conversation with at least one request that succeeded, in order of first start.

    Times are in seconds of cluster time, counted over the turns that succeeded; NaN where a figure has no basis.
    number: as in Columns.conversation. whole: it came to its last turn, and none of its requests failed or was cancelled.
    latency_s: first start to last content. ttfat_s: first start to the first content of the last turn.
    decode_tokens_per_s: mean over turns of (tokens - 1) / (latency - TTFT); of replies that came in one piece there is none.
    cache_hit: cached tokens, part of all prompt tokens. eligible_cache_hit: cached tokens, part of those that the server had
        seen: the prompt and reply of the turn before. Both are at most 1.
    """

    number: Ints
    turns: Ints
    whole: Bools
    start_s: Floats
    latency_s: Floats
    first_turn_ttft_s: Floats
    ttfat_s: Floats
    decode_tokens_per_s: Floats
    cache_hit: Floats
    eligible_cache_hit: Floats

    def those(self, chosen: Ints | Bools) -> Conversations:
        """Return the conversations with these places, or where this is true."""
        return Conversations(*(getattr(self, name)[chosen] for name in Conversations.__slots__))


def conversations(
    columns: Columns, prompt: Floats, completion: Floats, cached: Floats, speed: float = 1.0, *, to_last_byte: bool = False
) -> Conversations:
    """Return one row a conversation.

    prompt, completion, cached: tokens of each row, NaN where unknown; a turn whose count of cached tokens is unknown is
    left out of both hit rates. to_last_byte: a request ends with its last byte (evalscope) and not with its last content.
    """
    ends_s = columns.end_s if to_last_byte else columns.last_s
    rows = np.lexsort((columns.turn_index, columns.conversation))
    rows = rows[columns.ok[rows] & ~np.isnan(ends_s[rows])]
    number = columns.conversation[rows]
    starts = np.flatnonzero(np.diff(number, prepend=-1)) if rows.size else np.empty(0, dtype=np.int64)
    turns = np.diff(starts, append=rows.size)
    failed = np.isin(number[starts], columns.conversation[~columns.ok])
    begin, end = columns.start_s[rows], ends_s[rows]
    # A reply in one piece has no first token of its own: all of it came at once.
    ttft = np.where(columns.streamed[rows], columns.first_s[rows], end) - begin
    lasts = starts + turns - 1

    def total(values: Floats) -> Floats:
        """Sum over each conversation; NaN counts as nothing."""
        sums: Floats = np.add.reduceat(np.nan_to_num(values), starts) if rows.size else np.empty(0)
        return sums

    decode_s = (end - begin - ttft) * speed
    further = completion[rows] - 1
    several = columns.last_s[rows] > columns.first_s[rows]  # packets: one alone says nothing of how fast it was decoded
    per_s = np.divide(further, decode_s, out=np.full(rows.size, np.nan), where=several & (decode_s > 0) & (further > 0))
    known = ~np.isnan(cached[rows]) & ~np.isnan(prompt[rows])
    hits = np.where(known, np.minimum(cached[rows], prompt[rows]), np.nan)
    seen = prompt + completion
    before = columns.continues[rows]
    eligible = np.where(known & (before >= 0), seen[before], np.nan)
    result = Conversations(
        number=number[starts],
        turns=turns,
        whole=~failed & np.isin(number[starts], columns.conversation[columns.final]),
        start_s=begin[starts],
        latency_s=(end[lasts] - begin[starts]) * speed,
        first_turn_ttft_s=ttft[starts] * speed,
        ttfat_s=(begin[lasts] + ttft[lasts] - begin[starts]) * speed,
        decode_tokens_per_s=ratio(total(per_s), total((~np.isnan(per_s)).astype(np.float64))),
        cache_hit=ratio(total(hits), total(np.where(known, prompt[rows], np.nan))),
        eligible_cache_hit=ratio(total(np.minimum(hits, eligible)), total(eligible)),
    )
    return result.those(np.argsort(result.start_s, kind="stable"))


LATE_MS = 10.0
LATE_SHARE = 0.05  # of the median request latency
BUSY_SHARE = 0.85  # of one CPU core
_SHORTEST_JUDGED_S = 1.0


def client_cost(
    cpu_s: float | None,
    wall_s: float,
    timer_lag_s: Sequence[float],
    metrics: Mapping[str, Floats],
    speed: float = 1.0,
    *,
    waits_for_slots: bool = False,
) -> ClientCost:
    """Judge the client's cost and lateness.

    timer_lag_s: samples in seconds of real time. metrics: request_columns of the measured requests.

    waits_for_slots: a schedule that waits for free slots is late because the endpoint is slow; its requests are not judged.
    Late: the 95th percentile of either lag is above LATE_MS and above LATE_SHARE of the median request latency.
    Busy: the client used more than BUSY_SHARE of one core over a run of at least a second.
    """
    timers = _tail(np.asarray(timer_lag_s, dtype=np.float64) * (speed * 1e3))
    send_lag_ms = None if waits_for_slots else metrics.get("credit_to_start_latency")
    sends = _tail(send_lag_ms[~np.isnan(send_lag_ms)]) if send_lag_ms is not None else (None, None)
    latency_ms = metrics.get("request_latency")
    limit_ms = max(LATE_MS, LATE_SHARE * (0.0 if latency_ms is None else float(np.nanmedian(latency_ms))))
    return ClientCost(
        cpu_s=cpu_s,
        wall_s=wall_s,
        timers_late_p95_ms=timers[0],
        timers_late_max_ms=timers[1],
        sends_late_p95_ms=sends[0],
        sends_late_max_ms=sends[1],
        late=any(p95 is not None and p95 > limit_ms for p95 in (timers[0], sends[0])),
        busy=cpu_s is not None and wall_s >= _SHORTEST_JUDGED_S and cpu_s > BUSY_SHARE * wall_s,
    )


def _tail(late_ms: Floats) -> tuple[float, float] | tuple[None, None]:
    if not late_ms.size:
        return None, None
    return float(np.percentile(late_ms, 95)), float(late_ms.max())


TokenSource = Literal["server", "client", "mixed", "unknown"]

# A reply is as long as asked within this share of what was asked, but never more than so many tokens off (AIPerf's limits).
_OSL_MISMATCH_SHARE = 0.05
_OSL_MISMATCH_TOKENS = 50

# Counts of the server and the client agree within so many percent, and a schedule is kept within so many ms (likewise).
_DIFFERENCES = ("usage_prompt_tokens_diff_pct", "usage_completion_tokens_diff_pct")
_DISCREPANCY_PCT = 10.0
_DEGRADED_MS = 500.0


@dataclass(slots=True, frozen=True)
class ErrorGroup:
    """Requests that failed in the same way."""

    error: RequestError
    count: int


@dataclass(slots=True, frozen=True)
class Basis:
    """The basis of metrics: the measured requests, their values by tag (request_columns), and token counts.

    counted: cached tokens, from the server or estimated. Counts are NaN where they are not known.
    good: requests within the limits of goodput, where there are limits. span_s: when the phase began and ended, if known.
    """

    columns: Columns
    found: Mapping[str, Floats]
    prompt: Floats
    completion: Floats
    cached: Floats
    counted: Floats
    speed: float
    good: Bools | None = None
    span_s: tuple[float, float] | None = None


def _nothing() -> Basis:
    empty = np.empty(0)
    return Basis(filled(empty), {}, empty, empty, empty, empty, 1.0)


@dataclass(frozen=True)
class Metrics:
    """Metrics of a run. They leave out requests of the warm-up phase.

    per_request, per_conversation: tag to summary; over_time: tag to statistics of a level; whole_run: tag to value; units
        are in measure.catalogue. A metric without data has no key.
    errors: most frequent first. by_depth, by_turn, by_branch_mode: a group for each agent depth, turn index, and index
        into columns.BRANCH_MODES, ascending. by_tenants: likewise by "tenant", "class" and "priority", each where there are
        several. fairness: Jain's index over the tenants, by what it is of.
    workload_throughput: token rates by what is counted; cached_counted_by: whose count of cached tokens they use.
    input_counted_by, output_counted_by: "server" when the counts are those of the reply's usage; "client" when we counted
        ourselves (input: the workload or the tokenizer; output: content events, which may hold several tokens each).
    client: None when nothing is known of the client.

    What reports alone show is worked out of `basis` when it is first asked for: a simulation's summary does without.
    """

    per_request: Mapping[str, Summary]
    whole_run: Mapping[str, float]
    errors: tuple[ErrorGroup, ...]
    input_counted_by: TokenSource
    output_counted_by: TokenSource
    cached_counted_by: CachedSource = "estimated"
    client: ClientCost | None = None
    basis: Basis = field(default_factory=_nothing, repr=False, compare=False)

    @cached_property
    def by_depth(self) -> tuple[RequestGroup, ...]:
        return grouped(self.basis.columns, self.basis.found, self.basis.columns.agent_depth)

    @cached_property
    def by_turn(self) -> tuple[RequestGroup, ...]:
        return grouped(self.basis.columns, self.basis.found, self.basis.columns.turn_index)

    @cached_property
    def by_branch_mode(self) -> tuple[RequestGroup, ...]:
        return grouped(self.basis.columns, self.basis.found, self.basis.columns.branch_mode)

    @cached_property
    def by_tenants(self) -> Mapping[str, tuple[RequestGroup, ...]]:
        return tenant_groups(self.basis.columns, self.basis.found, self.basis.good)

    @property
    def fairness(self) -> Mapping[str, float]:
        return fairness(self.by_tenants.get("tenant", ()))

    @cached_property
    def per_conversation(self) -> Mapping[str, Summary]:
        return _per_conversation(self.basis)

    @cached_property
    def over_time(self) -> Mapping[str, Level]:
        basis = self.basis
        return levels(basis.columns, basis.prompt, basis.completion, basis.speed, basis.span_s)

    @cached_property
    def workload_throughput(self) -> Mapping[str, Rates]:
        basis = self.basis
        return timeline(basis.columns, basis.prompt, basis.completion, basis.counted, basis.speed).rates()


def compute(result: RunResult) -> Metrics:
    """Return all metrics of a run, in cluster time (record times multiplied by result.speed).

    Objectives for goodput are those of result.options["goodput"], as the command line has them.
    """
    goodput = result.options.get("goodput")
    limits = parse_goodput(goodput) if isinstance(goodput, str) and goodput else {}
    errors = error_groups([r for r in result.records if r.phase == "profiling"])
    columns = columns_of(result.records)
    columns = columns.rows(columns.measured)
    metrics = all_request_columns(columns, result.speed, result.options)
    scheduled = result.options.get("fixed_schedule") is True
    cost = result.client_cost or client_cost(
        result.client_cpu_s,
        result.end_s - result.start_s,
        result.client_lag_s,
        metrics,
        result.speed,
        waits_for_slots=scheduled and result.options.get("concurrency") is not None,
    )
    return compute_columns(
        columns,
        result.speed,
        metrics=metrics,
        errors=errors,
        goodput=limits,
        client=cost,
        scheduled=scheduled,
        span_s=(result.start_s, result.end_s),
    )


def compute_columns(
    columns: Columns,
    speed: float = 1.0,
    *,
    metrics: Mapping[str, Floats] | None = None,
    errors: tuple[ErrorGroup, ...] = (),
    goodput: Mapping[str, float] | None = None,
    client: ClientCost | None = None,
    scheduled: bool = False,
    span_s: tuple[float, float] | None = None,
    duration_s: float | None = None,
) -> Metrics:
    """Compute the metrics from columns.

    metrics: request_columns of these rows, if computed already. goodput: limits by metric tag. scheduled: whether requests
    had times of their own in the workload. span_s: see Basis. duration_s: that rates are over; None: from the first request
    to the last reply.
    """
    columns = columns.rows(columns.measured)
    found = dict(request_columns(columns, speed) if metrics is None else metrics)
    failed = ~columns.ok & ~columns.cancelled
    found["error_isl"] = np.where(failed, columns.input_tokens, np.nan)
    per_request = {tag: s for tag, values in found.items() if (s := summarize(values[~np.isnan(values)]))}
    if gaps := summarize(chunk_gaps_ms(columns, speed)):
        per_request["inter_chunk_latency"] = gaps

    empty = np.full(len(columns), np.nan)
    prompt, completion = found.get("input_sequence_length", empty), found.get("output_sequence_length", empty)
    cached = found.get("usage_prompt_cache_read_tokens")
    counted, cached_by = cached_or_estimated(columns, prompt, completion, cached)
    whole_run = _whole_run(columns, found, per_request, _duration_s(columns) * speed if duration_s is None else duration_s)
    good = good_requests(columns, found, goodput) if goodput else None
    if good is not None:
        whole_run |= _goodput(whole_run, int(good.sum()))
    if scheduled and "credit_to_start_latency" in found:
        whole_run |= _schedule_lag(found["credit_to_start_latency"])
    return Metrics(
        per_request={tag: per_request[tag] for tag in PER_REQUEST if tag in per_request},
        whole_run=whole_run,
        errors=errors,
        cached_counted_by=cached_by,
        input_counted_by=_counted_by(found, "input_sequence_length", "usage_prompt_tokens"),
        output_counted_by=_counted_by(found, "output_sequence_length", "usage_completion_tokens"),
        client=client,
        basis=Basis(
            columns=replace(columns, stamps_s=None),
            found=found,
            prompt=prompt,
            completion=completion,
            cached=empty if cached is None else cached,
            counted=counted,
            speed=speed,
            good=good,
            span_s=span_s,
        ),
    )


def error_groups(records: Sequence[Record]) -> tuple[ErrorGroup, ...]:
    """Return failed requests grouped by code, type and message; cancelled ones are no failures."""
    counts = Counter(r.exchange.error for r in records if r.exchange.error is not None and not r.cancelled)
    return tuple(ErrorGroup(error, count) for error, count in counts.most_common())


def _per_conversation(basis: Basis) -> dict[str, Summary]:
    rows = conversations(basis.columns, basis.prompt, basis.completion, basis.cached, basis.speed)
    values = {
        "conversation_latency": rows.latency_s[rows.whole] * 1e3,
        "conversation_first_turn_ttft": rows.first_turn_ttft_s * 1e3,
        "conversation_ttfat": rows.ttfat_s[rows.whole] * 1e3,
        "conversation_decode_throughput": rows.decode_tokens_per_s,
        "conversation_turns": rows.turns.astype(np.float64),
        "conversation_cache_hit_pct": rows.cache_hit * 100,
        "conversation_eligible_cache_hit_pct": rows.eligible_cache_hit * 100,
    }
    return {tag: s for tag, column in values.items() if (s := summarize(column[~np.isnan(column)]))}


def _whole_run(
    columns: Columns, found: Mapping[str, Floats], per_request: Mapping[str, Summary], duration_s: float
) -> dict[str, float]:
    cancelled, ok = int(columns.cancelled.sum()), int(columns.ok.sum())
    completed = len(columns) - cancelled
    values: dict[str, float] = {
        "request_count": ok,
        "error_request_count": completed - ok,
        "cancelled_request_count": cancelled,
        "completed_request_count": completed,
        "conversation_count": len(set(columns.conversation.tolist())),  # np.unique would load numpy.ma
    }
    if completed:
        values["request_error_rate"] = 100 * (completed - ok) / completed
    if "osl_mismatch_diff_pct" in found:
        asked = columns.asked_tokens
        allowed = np.minimum(asked * _OSL_MISMATCH_SHARE, _OSL_MISMATCH_TOKENS)
        values["osl_mismatch_count"] = int((np.abs(found["output_sequence_length"] - asked) > allowed).sum())
    apart = [found[tag] > _DISCREPANCY_PCT for tag in _DIFFERENCES if tag in found]
    if apart:
        values["usage_discrepancy_count"] = int(np.any(apart, axis=0).sum())
    values |= {total: per_request[tag].sum for total, tag in TOTALS.items() if tag in per_request}
    overall = cached_pct(found, np.zeros(len(columns), dtype=np.int64), 1)[0]
    if overall is not None:
        values["overall_usage_prompt_cache_read_pct"] = overall
    if duration_s > 0:
        values["benchmark_duration"] = duration_s
        values["request_throughput"] = ok / duration_s
        for rate, total in (("input_token_throughput", "total_isl"), ("output_token_throughput", "total_osl")):
            if total in values:
                values[rate] = values[total] / duration_s
        if "total_isl" in values and "total_osl" in values:
            values["total_token_throughput"] = (values["total_isl"] + values["total_osl"]) / duration_s
    return values


def _goodput(values: Mapping[str, float], good: int) -> dict[str, float]:
    found: dict[str, float] = {"good_request_count": good}
    if completed := values["completed_request_count"]:
        found["good_request_fraction"] = good / completed
    if "benchmark_duration" in values:
        found["goodput"] = good / values["benchmark_duration"]
    return found


def _schedule_lag(late_ms: Floats) -> dict[str, float]:
    """Return the lag of the schedule against the least late request, as AIPerf has it."""
    late_ms = late_ms[~np.isnan(late_ms)]
    p50, p90, p99 = (float(v) for v in np.percentile(late_ms - late_ms.min(), (50, 90, 99)))
    lag = {"replay_sched_lag_p50": p50, "replay_sched_lag_p90": p90, "replay_sched_lag_p99": p99}
    return lag | {"replay_sched_degraded": float(p99 > _DEGRADED_MS)}


def _duration_s(columns: Columns) -> float:
    """Return the time from the first request to the last reply or failure; cancelled requests do not count."""
    completed = ~columns.cancelled
    if not completed.any():
        return 0.0
    # When the last content arrived; when there was none, when the request ended.
    last_s = np.where(columns.ok & ~np.isnan(columns.last_s), columns.last_s, columns.end_s)
    return float(last_s[completed].max() - columns.start_s[completed].min())


def _counted_by(found: Mapping[str, Floats], tag: str, usage_tag: str) -> TokenSource:
    if tag not in found:
        return "unknown"
    counted = int((~np.isnan(found[tag])).sum())
    by_server = int((~np.isnan(found[usage_tag])).sum()) if usage_tag in found else 0
    return "server" if by_server == counted else "client" if by_server == 0 else "mixed"


@dataclass(slots=True, frozen=True)
class Slice:
    """index: from 0, counted from the first start of the run; start_s, end_s: from there, in cluster time."""

    index: int
    start_s: float
    end_s: float
    metrics: Metrics


def time_slices(columns: Columns, slice_s: float, speed: float = 1.0, most: int = 5_000) -> list[Slice]:
    """Return the metrics of the requests that started in each slice of slice_s seconds of cluster time.

    An empty slice is left out.

    Raises ValueError when slice_s is not above zero or there would be more than `most` slices.
    """
    if not slice_s > 0:
        raise ValueError("the duration of a slice must be above 0")
    columns = columns.rows(columns.measured)
    if not len(columns):
        return []
    since_s = (columns.start_s - columns.start_s.min()) * speed
    number = np.floor(since_s / slice_s).astype(np.int64)
    found = np.unique(number)
    if found.size > most:
        raise ValueError(f"slices of {slice_s:g} s would be {found.size}; {most} is the most")
    return [
        Slice(i, i * slice_s, (i + 1) * slice_s, compute_columns(rows, speed))
        for i, rows in _by_number(columns, number, found.tolist())
    ]


def _by_number(columns: Columns, number: Ints, found: list[int]) -> Iterator[tuple[int, Columns]]:
    """Yield each of the numbers found, in their order, with its rows; by halves, as every choice copies what it keeps."""
    if len(found) == 1:
        yield found[0], columns
        return
    half = len(found) // 2
    for part, chosen in ((found[:half], number < found[half]), (found[half:], number >= found[half])):
        yield from _by_number(columns.rows(chosen), number[chosen], part)


MLPERF = "mlperf-agentic"
_PERCENTILES = (99.9, 99, 97, 95, 90, 80, 75, 50, 25, 10, 5, 1)
_LATENCIES = {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "latency": "request_latency"}  # in ms
_NS_PER_S, _NS_PER_MS = 1e9, 1e6


def performance_of(columns: Columns, window: PerformanceWindow, speed: float) -> dict[str, Any]:
    """Return the figures of the turns issued within the window, by MLPerf's names, times in ns of cluster time.

    As mlcommons/endpoints has them for its agentic rules (metrics_aggregator/metrics_table.py, metrics/report.py): what
    counts is issued while every slot has work. Its `qps` counts failed turns and those that were not sent after a failure,
    so that failures raise it; `successful_qps` counts successful ones only.

    A run that ended before its window did counts as a whole, and is not complete.
    """
    start_s = columns.start_s[columns.measured].min(initial=np.inf)
    end_s = np.inf if window.end_s is None else window.end_s
    counted = columns.rows(columns.measured & (columns.start_s < end_s))
    over_s = counted.end_s[~np.isnan(counted.end_s)].max(initial=-np.inf)
    duration_s = max(float(over_s - start_s), 0.0) * speed if len(counted) else 0.0
    values = request_columns(counted, speed) if len(counted) else {}
    lengths = values.get("output_sequence_length", np.empty(0))
    completed, successful = len(counted) - int(counted.cancelled.sum()) + window.unsent, int(counted.ok.sum())

    def per_s(count: float) -> float:
        return count / duration_s if duration_s else 0.0

    return {
        "n_samples_issued": len(counted) + window.unsent,
        "n_samples_completed": completed,
        "n_samples_failed": completed - successful,
        "n_samples_unsent": window.unsent,
        "duration_ns": round(duration_s * _NS_PER_S),
        "complete": window.end_s is not None,
        "qps": per_s(completed),
        "successful_qps": per_s(successful),
        "tps": per_s(float(np.nansum(lengths))),
        **{name: _distribution(values.get(tag, np.empty(0)) * _NS_PER_MS) for name, tag in _LATENCIES.items()},
        "osl": _distribution(lengths),
    }


def _distribution(values: Floats) -> dict[str, Any] | None:
    """Return the figures of those values that are numbers; None without any."""
    sample = values[~np.isnan(values)]
    if not sample.size:
        return None
    percentiles = np.percentile(sample, _PERCENTILES).tolist()
    return {
        "total": float(sample.sum()),
        "min": float(sample.min()),
        "max": float(sample.max()),
        "median": float(np.median(sample)),
        "avg": float(sample.mean()),
        "std_dev": float(sample.std()),
        "percentiles": {f"{p:g}": value for p, value in zip(_PERCENTILES, percentiles, strict=True)},
    }
