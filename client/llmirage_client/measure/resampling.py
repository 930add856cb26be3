"""How much a figure would vary if the run were repeated: its conversations drawn anew with replacement (cluster bootstrap).

Requests of one conversation tree share their context, their place in the cluster and its queue, so they are not independent
samples: whole trees are what is drawn. Requests of one time share the load of that time: `parts` of the run are drawn
likewise (block bootstrap). Source: B. Efron, R. Tibshirani, An Introduction to the Bootstrap, 1993, ch. 8, 13.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from llmirage_client.measure.arrays import Floats, Ints, ratio

REPLICATES = 500
_AT_ONCE = 4_000_000  # weights held in memory at a time


def parts(start_s: Floats, count: int) -> Ints:
    """For each request the part of the run in which it began, of `count` parts with as many requests each."""
    place = np.argsort(np.argsort(start_s, kind="stable"), kind="stable")
    return place * count // max(start_s.size, 1)


def student_t(probability: float, freedom: int) -> float:
    """Quantile of Student's t distribution. Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5."""
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return float(z + sum(term / freedom**power for power, term in enumerate(terms, 1)))


def draws(clusters: int, rng: np.random.Generator, replicates: int = REPLICATES) -> npt.NDArray[np.int32]:
    """How often each cluster is drawn in each replicate, shape (replicates, clusters); every row sums to `clusters`."""
    chosen = rng.integers(0, clusters, size=(replicates, clusters))
    counts = np.zeros((replicates, clusters), dtype=np.int32)
    np.add.at(counts, (np.arange(replicates)[:, None], chosen), 1)
    return counts


def means(values: Floats, cluster: Ints, counts: npt.NDArray[np.int32]) -> Floats:
    """The mean of the values in each replicate, NaN where none was drawn. values, cluster: one entry a row, without NaN."""
    return ratios(values, np.ones(values.size), cluster, counts)


def ratios(upper: Floats, lower: Floats, cluster: Ints, counts: npt.NDArray[np.int32]) -> Floats:
    """Sum of upper / sum of lower in each replicate, NaN where lower sums to 0."""
    clusters = counts.shape[1]
    sums = [np.bincount(cluster, weights=values, minlength=clusters) for values in (upper, lower)]
    above, below = (np.asarray(counts @ one, dtype=np.float64) for one in sums)
    return ratio(above, below)


def percentiles(values: Floats, cluster: Ints, counts: npt.NDArray[np.int32], percents: Sequence[float]) -> Floats:
    """Percentiles of the values in each replicate, NaN where none was drawn, shape (replicates, percents).

    A percentile is the smallest value that so many percent do not exceed.
    """
    order = np.argsort(values)
    values, cluster = values[order], cluster[order]
    found = np.full((counts.shape[0], len(percents)), np.nan)
    step = max(_AT_ONCE // max(values.size, 1), 1)
    shares = np.array(percents) / 100
    for begin in range(0, counts.shape[0], step):
        weights = np.cumsum(counts[begin : begin + step][:, cluster], axis=1, dtype=np.int32)
        for row, drawn in enumerate(weights, begin):
            if drawn[-1] > 0:
                found[row] = values[np.searchsorted(drawn, np.ceil(shares * drawn[-1]).clip(1))]
    return found
