"""Summaries of many groups at once: one sort for all of them instead of one a group."""

from __future__ import annotations

import numpy as np

from llmirage_client.measure.arrays import Floats, Ints
from llmirage_shared.statistics import PERCENTILES, Summary, interpolated, summarize


def summaries(values: Floats, group: Ints, groups: int) -> list[Summary | None]:
    """For each group 0 to groups - 1 the summary of its values, as statistics.summarize defines it; None without values.

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
