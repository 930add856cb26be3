"""Levels that change over a run: how many requests were in which phase, and how fast tokens moved, weighted by time.

A request is in prefill from its start to its first content event and in decode from there to its last. Its input tokens
are spread evenly over the one, its output tokens over the other (AIPerf's sweep-line metrics).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from llmirage_client.measure.arrays import Bools, Floats
from llmirage_client.measure.columns import Columns


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
        return asdict(self)


def levels(columns: Columns, isl: Floats | None, osl: Floats | None, speed: float = 1.0) -> dict[str, Level]:
    """Return by tag of catalogue.OVER_TIME, from the first start to the last end of these requests; empty for an empty run.

    isl, osl: tokens of each row, NaN where unknown. The throughputs need tokens, and those of decode more than one event.
    """
    start, first, last = columns.start_s, columns.first_s, columns.last_s
    # One grid for all levels: every moment at which one of them may change.
    moments = np.concatenate((start, columns.end_s, first, last))
    order = np.argsort(moments, kind="stable")[: int((~np.isnan(moments)).sum())]
    moments = moments[order]
    if not moments.size or moments[-1] <= moments[0]:
        return {}
    widths = np.diff(moments)
    rows = len(columns)
    streamed = columns.ok & columns.streamed

    def level(begin: int, end: int, heights: Floats) -> Floats:
        """Return a level that each row raises by its height between two of its moments (0 start, 1 end, 2 first, 3 last)."""
        change = np.zeros(4 * rows)
        change[begin * rows : (begin + 1) * rows] = heights
        change[end * rows : (end + 1) * rows] -= heights
        height: Floats = np.cumsum(change[order])[:-1]
        return height

    prefill = streamed & (first > start)
    decode = streamed & (last > first)
    prefilling = np.round(level(0, 2, prefill.astype(np.float64)))
    decoding = np.round(level(2, 3, decode.astype(np.float64)))
    found = {
        "effective_concurrency": statistics(np.round(level(0, 1, np.ones(rows))), widths),
        "effective_prefill_concurrency": statistics(prefilling, widths),
        "effective_decode_concurrency": statistics(decoding, widths),
    }
    if isl is not None and osl is not None:
        prefill_rate = np.maximum(level(0, 2, _rate(isl, (first - start) * speed, prefill)), 0.0)
        decode_rate = np.maximum(level(2, 3, _rate(osl, (last - first) * speed, decode)), 0.0)
        # What is left of sums and differences of many rates is not a rate.
        prefill_rate[prefilling == 0], decode_rate[decoding == 0] = 0.0, 0.0
        found |= {
            "effective_prefill_throughput": statistics(prefill_rate, widths),
            "effective_decode_throughput": statistics(decode_rate, widths),
            "effective_total_throughput": statistics(prefill_rate + decode_rate, widths),
            "active_prefill_throughput": statistics(prefill_rate, widths, prefilling > 0),
            "active_decode_throughput": statistics(decode_rate, widths, decoding > 0),
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


def statistics(heights: Floats, widths: Floats, chosen: Bools | None = None) -> Level | None:
    """Return statistics of a level of heights[i] for widths[i] seconds, where chosen; None for no time at all."""
    lasting = widths > 0 if chosen is None else (widths > 0) & chosen
    heights, widths = heights[lasting], widths[lasting]
    if not heights.size:
        return None
    order = np.argsort(heights)
    heights, widths = heights[order], widths[order]
    shares = np.cumsum(widths)
    whole_s = float(shares[-1])
    # No matrix product: threads of a BLAS would cost more than the sums.
    mean = min(max(float((heights * widths).sum()) / whole_s, float(heights[0])), float(heights[-1]))
    places = np.searchsorted(shares, np.array((0.5, 0.9, 0.95, 0.99)) * whole_s)
    p50, p90, p95, p99 = (float(heights[min(int(p), heights.size - 1)]) for p in places)
    spread = float(np.sqrt(((heights - mean) ** 2 * widths).sum() / whole_s))
    return Level(mean, float(heights[0]), float(heights[-1]), p50, p90, p95, p99, spread)


def _rate(tokens: Floats, seconds: Floats, chosen: Bools) -> Floats:
    known = chosen & ~np.isnan(tokens)
    return np.divide(tokens, seconds, out=np.zeros(tokens.size), where=known)
