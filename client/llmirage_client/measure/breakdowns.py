"""Metrics by group of requests, and levels and token rates over the time of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from llmirage_client.measure.columns import Columns
from llmirage_shared.statistics import PERCENTILES, Bools, Floats, Ints, Summary, interpolated, summarize


def summaries(values: Floats, group: Ints, groups: int) -> list[Summary | None]:
    """Return for each group 0 to groups - 1 the summary of its values, as statistics.summarize defines it.

    None without values.

    values, group: one entry a row; a NaN value is no value.
    """
    present = ~np.isnan(values)
    values, group = values[present], group[present]
    if groups == 1:
        return [summarize(values)]
    order = np.lexsort((values, group))
    values, group = values[order], group[order]
    counts = np.bincount(group, minlength=groups)
    found: list[Summary | None] = [None] * groups
    some = np.flatnonzero(counts)
    if not some.size:
        return found
    counts = counts[some]
    starts = np.cumsum(counts) - counts
    sums = np.add.reduceat(values, starts)
    low, high = values[starts], values[starts + counts - 1]
    means = np.clip(sums / counts, low, high)
    deviations = (values - np.repeat(means, counts)) ** 2
    stds = np.sqrt(np.add.reduceat(deviations, starts) / counts)
    places = (counts - 1)[:, None] * (np.array(PERCENTILES) / 100)
    below = places.astype(np.int64)
    left = values[starts[:, None] + below]
    right = values[starts[:, None] + np.minimum(below + 1, (counts - 1)[:, None])]
    percentiles = interpolated(left, right, places - below)
    for row, index in enumerate(some):
        named = {f"p{p}": float(v) for p, v in zip(PERCENTILES, percentiles[row], strict=True)}
        found[index] = Summary(
            avg=float(means[row]),
            min=float(low[row]),
            max=float(high[row]),
            std=float(stds[row]),
            count=int(counts[row]),
            sum=float(sums[row]),
            **named,
        )
    return found


GROUP_METRICS = (
    "time_to_first_token", "request_latency", "input_sequence_length", "output_sequence_length", "inter_token_latency",
)  # fmt: skip


@dataclass(slots=True, frozen=True)
class RequestGroup:
    """Some requests of a run. per_request: summaries of those of GROUP_METRICS that a request of it has.

    cached_pct: prompt tokens that the server took from its cache, percent of all its prompt tokens; None: not reported.
    name: of groups whose key says nothing. good: requests within the limits of goodput; None: there are no limits.
    """

    key: int
    ok: int
    failed: int
    cancelled: int
    per_request: Mapping[str, Summary]
    cached_pct: float | None
    name: str = ""
    good: int | None = None

    @property
    def tokens(self) -> float:
        """Input and output tokens of its requests."""
        found = [self.per_request.get(f"{side}_sequence_length") for side in ("input", "output")]
        return sum(summary.sum for summary in found if summary is not None)

    @property
    def good_share(self) -> float | None:
        """Part of its requests that are good; those that were cancelled do not count."""
        count = self.ok + self.failed
        return None if self.good is None or not count else self.good / count


def tenant_groups(
    columns: Columns, metrics: Mapping[str, Floats], good: Bools | None
) -> dict[str, tuple[RequestGroup, ...]]:
    """Return groups by "tenant", "class" and "priority", each where the requests differ in it."""
    found = {}
    for kind, part in (("tenant", "name"), ("class", "service_class"), ("priority", "priority")):
        values = [getattr(tenant, part) for tenant in columns.tenants]
        names = sorted(set(values))
        if len(names) > 1:
            key = np.array([names.index(value) for value in values])[columns.tenant]
            groups = grouped(columns, metrics, key, good)
            if len(groups) > 1:
                found[kind] = tuple(replace(group, name=str(names[group.key])) for group in groups)
    return found


def jain_index(values: Sequence[float]) -> float | None:
    """Return Jain's index of fairness: 1 where all have the same, 1/n where one of n has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else None


def fairness(tenants: Sequence[RequestGroup]) -> dict[str, float]:
    """Return Jain's index over tenants, of their tokens, mean TTFT and shares of good requests, where they are known."""
    ttfts = [one.per_request["time_to_first_token"].avg for one in tenants if "time_to_first_token" in one.per_request]
    shares = [share for one in tenants if (share := one.good_share) is not None]
    figures = {"tokens": [one.tokens for one in tenants], "time_to_first_token": ttfts, "good_request_fraction": shares}
    return {name: index for name, values in figures.items() if (index := jain_index(values)) is not None}


def grouped(
    columns: Columns, metrics: Mapping[str, Floats], key: Ints, good: Bools | None = None
) -> tuple[RequestGroup, ...]:
    """Return one RequestGroup for each value of `key`, which has one entry a row; ascending."""
    keys, group = np.unique(key, return_inverse=True)
    count = keys.size
    ok, cancelled = (np.bincount(group, weights=flag, minlength=count) for flag in (columns.ok, columns.cancelled))
    whole = np.bincount(group, minlength=count)
    empty = np.full(len(columns), np.nan)
    found = {tag: summaries(metrics.get(tag, empty), group, count) for tag in GROUP_METRICS}
    cached = cached_pct(metrics, group, count)
    return tuple(
        RequestGroup(
            key=int(keys[i]),
            ok=int(ok[i]),
            failed=int(whole[i] - ok[i] - cancelled[i]),
            cancelled=int(cancelled[i]),
            per_request={tag: summary for tag, each in found.items() if (summary := each[i]) is not None},
            cached_pct=cached[i],
            good=None if good is None else int(np.count_nonzero(good[group == i])),
        )
        for i in range(count)
    )


def cached_pct(metrics: Mapping[str, Floats], group: Ints, groups: int) -> list[float | None]:
    """Return cached prompt tokens of each group, percent of all prompt tokens in usage; None without such a report.

    Where some replies of a group report and others do not, those that do not count as 0.
    """
    cached, prompt = metrics.get("usage_prompt_cache_read_tokens"), metrics.get("usage_prompt_tokens")
    if cached is None or prompt is None:
        return [None] * groups
    reported = np.bincount(group, weights=~np.isnan(cached), minlength=groups)
    hits = np.bincount(group, weights=np.nan_to_num(np.minimum(cached, prompt)), minlength=groups)
    tokens = np.bincount(group, weights=np.nan_to_num(prompt), minlength=groups)
    return [float(100 * hits[i] / tokens[i]) if reported[i] and tokens[i] else None for i in range(groups)]


@dataclass(slots=True, frozen=True)
class Level:
    """A level's statistics over time: pN is the value at or below which it was for N percent of the time."""

    avg: float
    min: float
    max: float
    p50: float
    p90: float
    p95: float
    p99: float
    std: float

    def as_dict(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in self.__slots__}


def levels(
    columns: Columns,
    isl: Floats | None,
    osl: Floats | None,
    speed: float = 1.0,
    span_s: tuple[float, float] | None = None,
) -> dict[str, Level]:
    """Return by tag of catalogue.OVER_TIME, from the first start to the last end of these requests; empty for an empty run.

    isl, osl: tokens of each row, NaN where unknown. The throughputs need tokens, and those of decode more than one event.
    span_s: when the phase began and ended; what of it is before the first start and after the last end counts, too.
    """
    start, first, last = columns.start_s, columns.first_s, columns.last_s
    if not len(columns):
        return {}
    # One grid for all levels: every moment at which one of them may change.
    moments = np.concatenate((start, columns.end_s, first, last, span_s or ()))
    order = np.argsort(moments, kind="stable")[: int((~np.isnan(moments)).sum())]
    moments = moments[order]
    if not moments.size or moments[-1] <= moments[0]:
        return {}
    widths = np.diff(moments)
    rows = len(columns)
    streamed = columns.ok & columns.streamed

    def level(begin: int, end: int, heights: Floats) -> Floats:
        """Return a level that each row raises by its height between two of its moments (0 start, 1 end, 2 first, 3 last)."""
        change = np.zeros(4 * rows + len(span_s or ()))
        change[begin * rows : (begin + 1) * rows] = heights
        change[end * rows : (end + 1) * rows] -= heights
        height: Floats = change[order].cumsum()[:-1]
        return height

    prefill = streamed & (first > start)
    decode = streamed & (last > first)
    prefilling = np.round(level(0, 2, prefill.astype(np.float64)))
    decoding = np.round(level(2, 3, decode.astype(np.float64)))
    in_flight = np.round(level(0, 1, np.ones(rows)))
    found = {
        "effective_concurrency": statistics(in_flight, widths),
        "effective_prefill_concurrency": statistics(prefilling, widths),
        "effective_decode_concurrency": statistics(decoding, widths),
    }
    if isl is not None and osl is not None:
        prefill_rate = np.maximum(level(0, 2, _rate(isl, (first - start) * speed, prefill)), 0.0)
        decode_rate = np.maximum(level(2, 3, _rate(osl, (last - first) * speed, decode)), 0.0)
        # What is left of sums and differences of many rates is not a rate.
        prefill_rate[prefilling == 0], decode_rate[decoding == 0] = 0.0, 0.0
        total_rate = prefill_rate + decode_rate
        prefill_each = _rate(prefill_rate, prefilling, prefilling > 0)
        decode_each = _rate(decode_rate, decoding, decoding > 0)
        # A reply grows evenly from its first event to its last: in the mean half of it is there.
        prompts, replies = (np.where(each, np.nan_to_num(n), 0.0) for each, n in ((prefill, isl), (decode, osl)))
        held = np.maximum(level(0, 3, prompts) + level(2, 3, replies / 2), 0.0)
        found |= {
            "effective_prefill_throughput": statistics(prefill_rate, widths),
            "effective_decode_throughput": statistics(decode_rate, widths),
            "effective_total_throughput": statistics(total_rate, widths),
            "effective_prefill_throughput_per_user": statistics(prefill_each, widths),
            "effective_decode_throughput_per_user": statistics(decode_each, widths),
            "active_prefill_throughput": statistics(prefill_rate, widths, prefilling > 0),
            "active_decode_throughput": statistics(decode_rate, widths, decoding > 0),
            "active_total_throughput": statistics(total_rate, widths, in_flight > 0),
            "active_prefill_throughput_per_user": statistics(prefill_each, widths, prefilling > 0),
            "active_decode_throughput_per_user": statistics(decode_each, widths, decoding > 0),
            "tokens_in_flight": statistics(held, widths),
        }
    return {tag: values for tag, values in found.items() if values is not None}


def mean_in_flight(columns: Columns, edges: Floats) -> Floats:
    """Return mean number of requests in flight between each two edges (s, ascending). One without an end is there for ever.

    The mean of all moments: requests in step with each other are missed by moments at equal distances.
    """
    begin = columns.start_s[:, None].clip(edges[:-1], edges[1:])
    end = np.nan_to_num(columns.end_s, nan=np.inf)[:, None].clip(edges[:-1], edges[1:])
    means: Floats = (end - begin).sum(axis=0) / np.diff(edges)
    return means


_SHARES = np.array((0.5, 0.9, 0.95, 0.99))


def statistics(heights: Floats, widths: Floats, chosen: Bools | None = None) -> Level | None:
    """Return statistics of a level of heights[i] for widths[i] seconds, where chosen; None for no time at all."""
    lasting = widths > 0 if chosen is None else (widths > 0) & chosen
    heights, widths = heights[lasting], widths[lasting]
    if not heights.size:
        return None
    order = heights.argsort()  # of such few numbers, a method takes half of the time of numpy's function
    heights, widths = heights[order], widths[order]
    shares = widths.cumsum()
    whole_s = float(shares[-1])
    # No matrix product: threads of a BLAS would cost more than the sums.
    low, high = float(heights[0]), float(heights[-1])
    mean = min(max(float((heights * widths).sum()) / whole_s, low), high)
    places = shares.searchsorted(_SHARES * whole_s)
    p50, p90, p95, p99 = heights[np.minimum(places, heights.size - 1)].tolist()
    spread = math.sqrt(float(((heights - mean) ** 2 * widths).sum()) / whole_s)
    return Level(mean, low, high, p50, p90, p95, p99, spread)


def _rate(tokens: Floats, seconds: Floats, chosen: Bools) -> Floats:
    known = chosen & ~np.isnan(tokens)
    return np.divide(tokens, seconds, out=np.zeros(tokens.size), where=known)


LAST_WINDOW_S = 30.0
WARM_UP_FRACTION = 0.2
CachedSource = Literal["server", "estimated", "mixed"]


@dataclass(slots=True, frozen=True)
class Rates:
    """Tokens per second of cluster time. last_window is overall when the run was no longer than LAST_WINDOW_S."""

    overall: float
    last_window: float
    steady_state: float


@dataclass(slots=True, frozen=True)
class Timeline:
    """One point a successful request, in order of its end, shape (n,). t_s: since the first start, in cluster time.

    new_prompt, cached_prompt, completion: tokens up to and with that request.
    """

    wall_start_s: float
    t_s: Floats
    completion: Floats
    new_prompt: Floats
    cached_prompt: Floats

    @property
    def wall_time_s(self) -> float:
        return float(self.t_s[-1]) if self.t_s.size else 0.0

    def rates(self) -> Mapping[str, Rates]:
        """Return by what is counted: total_prompt, new_prompt, cached_prompt, completion. Empty when no time passed."""
        if self.wall_time_s <= 0:
            return {}
        counted = {
            "total_prompt": self.new_prompt + self.cached_prompt,
            "new_prompt": self.new_prompt,
            "cached_prompt": self.cached_prompt,
            "completion": self.completion,
        }
        return {name: self._rates(tokens) for name, tokens in counted.items()}

    def _rates(self, tokens: Floats) -> Rates:
        wall_s = self.wall_time_s
        overall = float(tokens[-1]) / wall_s
        last = overall if wall_s <= LAST_WINDOW_S else self._since(tokens, wall_s - LAST_WINDOW_S)
        steady = self._since(tokens, WARM_UP_FRACTION * wall_s)
        return Rates(overall, overall if last is None else last, overall if steady is None else steady)

    def _since(self, tokens: Floats, moment_s: float) -> float | None:
        """Return the rate from the last point not after the moment, or the first point, to the end.

        None when that is no time.
        """
        anchor = max(int(np.searchsorted(self.t_s, moment_s, side="right")) - 1, 0)
        span_s = self.wall_time_s - float(self.t_s[anchor])
        return float(tokens[-1] - tokens[anchor]) / span_s if span_s > 0 else None


def timeline(columns: Columns, prompt: Floats, completion: Floats, cached: Floats, speed: float = 1.0) -> Timeline:
    """Return the timeline of tokens.

    Prompt, completion, cached: tokens of each row; unknown (NaN) counts as none, and cached is at most the prompt.
    """
    rows = np.flatnonzero(columns.ok & ~np.isnan(columns.end_s))
    rows = rows[np.argsort(columns.end_s[rows], kind="stable")]
    start_s = float(columns.start_s[rows].min()) if rows.size else 0.0
    whole, part = np.nan_to_num(prompt[rows]), np.nan_to_num(cached[rows])
    part = np.minimum(part, whole)
    return Timeline(
        wall_start_s=start_s,
        t_s=(columns.end_s[rows] - start_s) * speed,
        completion=np.cumsum(np.nan_to_num(completion[rows])),
        new_prompt=np.cumsum(whole - part),
        cached_prompt=np.cumsum(part),
    )


def cached_or_estimated(
    columns: Columns, prompt: Floats, completion: Floats, cached: Floats | None
) -> tuple[Floats, CachedSource]:
    """Return cached prompt tokens of each row and their source: the server's counts, or evalscope's estimate.

    The estimate is what a cache that forgets nothing would have: the prompt and the reply of the turn before, at most the
    prompt itself; 0 for a first turn.
    """
    seen = np.where(columns.continues >= 0, (prompt + completion)[columns.continues], 0.0)
    estimate = np.where(columns.ok, np.minimum(np.nan_to_num(seen), prompt), np.nan)
    if cached is None:
        return estimate, "estimated"
    missing = columns.ok & np.isnan(cached)
    if not missing.any():
        return np.minimum(cached, prompt), "server"
    return np.where(missing, estimate, np.minimum(cached, prompt)), "mixed"
