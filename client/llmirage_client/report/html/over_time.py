"""How a run went as series over its time: rolling percentiles, token rates, requests in flight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmirage_client.measure.arrays import Floats
from llmirage_client.report.html.run_view import RunView
from llmirage_client.report.html.scale import nice_ticks

_POINTS = 120
_WINDOWS = 30  # of a run: a window is that part of it
_FEWEST = {50: 5, 90: 10, 99: 100}  # requests in a window for its percentile to mean something


@dataclass(frozen=True, slots=True)
class Rolling:
    """percentiles[p][i]: of the values within half a window of at_s[i]; NaN where they are too few."""

    at_s: Floats
    window_s: float
    percentiles: dict[int, Floats]


def rolling(times_s: Floats, values: Floats) -> Rolling:
    """Percentiles over a window that moves along. A percentile that no window has enough values for is left out."""
    known = np.isfinite(values)
    times, kept = times_s[known], values[known]
    order = np.argsort(times, kind="stable")
    times, kept = times[order], kept[order]
    if times.size < 2 or times[-1] <= times[0]:
        return Rolling(times, 0.0, {})
    span = float(times[-1] - times[0])
    window = span / min(_WINDOWS, max(3.0, times.size / 20))
    at = np.linspace(times[0], times[-1], _POINTS)
    first = np.searchsorted(times, at - window / 2, side="left")
    last = np.searchsorted(times, at + window / 2, side="right")
    found = {p: np.full(at.size, np.nan) for p in _FEWEST}
    for i, (a, b) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        wanted = [p for p, fewest in _FEWEST.items() if b - a >= fewest]
        if wanted:
            for p, value in zip(wanted, np.percentile(kept[a:b], wanted), strict=True):
                found[p][i] = value
    return Rolling(at, window, {p: v for p, v in found.items() if np.isfinite(v).any()})


def bins(end_s: float, most: int = _POINTS) -> Floats:
    """Edges of equal bins with a width people would choose, from 0 to past end_s."""
    if end_s <= 0:
        return np.array([0.0, 1.0])
    ticks = nice_ticks(0.0, end_s, most, time=True)
    width = ticks[1] - ticks[0] if len(ticks) > 1 else end_s
    return np.arange(0.0, end_s + width, width)


def output_rate(view: RunView, edges: Floats) -> Floats:
    """Output tokens per second in each bin, by arrival. A reply's tokens are shared evenly among its content events."""
    columns, osl = view.columns, view.value("output_sequence_length")
    if columns.stamps_s is None:
        seen = np.isfinite(osl) & np.isfinite(columns.last_s)
        stamps, tokens = columns.last_s[seen], osl[seen]
    else:
        share = np.divide(osl, columns.events, out=np.zeros(osl.size), where=(columns.events > 0) & np.isfinite(osl))
        stamps, tokens = columns.stamps_s, np.repeat(share, columns.events)
    counted, _ = np.histogram(view.since_start_s(stamps), edges, weights=tokens)
    return counted / np.diff(edges)


def mean_active(starts_s: Floats, ends_s: Floats, edges: Floats) -> Floats:
    """How many of the intervals from start to end are open, on average over each bin. Intervals with a NaN do not count."""
    known = np.isfinite(starts_s) & np.isfinite(ends_s)

    def reached(moments: Floats) -> Floats:
        """The sum over all moments before t of t less the moment, at every edge."""
        ordered = np.sort(moments)
        sums = np.concatenate([[0.0], np.cumsum(ordered)])
        before = np.searchsorted(ordered, edges)
        reach: Floats = edges * before - sums[before]
        return reach

    return np.maximum(np.diff(reached(starts_s[known]) - reached(ends_s[known])) / np.diff(edges), 0.0)
