"""The requests that share an agent depth, a turn index or a branch mode, in figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from llmirage_client.measure.arrays import Floats, Ints
from llmirage_client.measure.columns import Columns
from llmirage_shared.statistics import PERCENTILES, Summary, interpolated, summarize


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
    """

    key: int
    ok: int
    failed: int
    cancelled: int
    per_request: Mapping[str, Summary]
    cached_pct: float | None


def grouped(columns: Columns, metrics: Mapping[str, Floats], key: Ints) -> tuple[RequestGroup, ...]:
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
