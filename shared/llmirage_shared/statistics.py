"""Distributions: summaries of samples, one definition of each figure, and counts of times in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
_NAMES = tuple(f"p{p}" for p in PERCENTILES)
_SHARES = np.array(PERCENTILES) / 100.0

RATIO = 1.01  # between the edges of a bin
LEAST_S = 1e-6  # everything below falls into the first bin
_MOST_BIN = 3000  # 9e6 s
_PER_E = 1 / math.log(RATIO)


@dataclass(slots=True, frozen=True)
class Summary:
    """The figures of a sample, in the unit of its values.

    pN: the N-th percentile by linear interpolation between the two nearest order statistics: with the values sorted from
        index 0, the value at index (count - 1) * N / 100 (numpy's default, type 7 of Hyndman and Fan 1996).
    std: the population's standard deviation (divisor count, not count - 1); 0 for one value.
    """

    avg: float
    p1: float
    p5: float
    p10: float
    p25: float
    p50: float
    p75: float
    p90: float
    p95: float
    p99: float
    min: float
    max: float
    std: float
    count: int
    sum: float

    def as_dict(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in self.__slots__}


def summarize(values: Sequence[float] | Floats) -> Summary | None:
    """Return the summary of a one-dimensional sample, None for an empty one.

    Raises ValueError for a value that is not finite: it means a mistake upstream, and would spoil every figure.
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.size == 0:
        return None
    if not np.isfinite(sample).all():
        raise ValueError("a sample to summarize holds a value that is not finite")
    ranked = np.sort(sample)
    percentiles = dict(zip(_NAMES, _percentiles(ranked).tolist(), strict=True))
    low, high, total = float(ranked[0]), float(ranked[-1]), float(sample.sum())
    # Rounding may move the mean of equal values past them.
    mean = min(max(total / sample.size, low), high)
    apart = sample - total / sample.size
    apart *= apart
    std = math.sqrt(float(apart.sum()) / sample.size)  # to the last bit sample.std(), at a third of its cost
    return Summary(avg=mean, min=low, max=high, std=std, count=int(sample.size), sum=total, **percentiles)


def _percentiles(ranked: Floats) -> Floats:
    """Return PERCENTILES of a sorted sample: equal to np.percentile to the last bit, at a fifth of its cost."""
    places = (ranked.size - 1) * _SHARES
    below = places.astype(np.int64)
    return interpolated(ranked[below], ranked[np.minimum(below + 1, ranked.size - 1)], places - below)


def interpolated(low: Floats, high: Floats, share: Floats) -> Floats:
    """Return the values at `share` of the way from low to high, in np.percentile's own order of operations."""
    return np.where(share < 0.5, low + share * (high - low), high - (1 - share) * (high - low))


def ratio(upper: Floats | float, lower: Floats) -> Floats:
    """Return upper / lower, entry by entry; NaN where lower is not above 0."""
    shares: Floats = np.divide(upper, lower, out=np.full(lower.size, np.nan), where=lower > 0)
    return shares


def first_known(*choices: Floats | None) -> Floats:
    """Return for each row the first value that is not NaN. At least one of the arrays is given."""
    given = [values for values in choices if values is not None]
    found = given[0]
    for values in given[1:]:
        missing = np.isnan(found)
        if not missing.any():
            break
        found = np.where(missing, values, found)
    return found


class LogHistogram:
    """Times in seconds, at least 0. Bin n > 0 holds values from LEAST_S * RATIO ** (n - 1) to LEAST_S * RATIO ** n."""

    __slots__ = ("_bins", "count", "sum_s")

    def __init__(self, bins: Mapping[int, int] | None = None, sum_s: float = 0.0) -> None:
        """Create a histogram. bins: counts by number of bin, each at least 0."""
        self._bins = dict(bins or {})
        self.count = sum(self._bins.values())
        self.sum_s = sum_s

    def add(self, value_s: float, times: int = 1) -> None:
        place = 0 if value_s <= LEAST_S else 1 + int(math.log(value_s / LEAST_S) * _PER_E)
        if place > _MOST_BIN:
            place = _MOST_BIN
        bins = self._bins
        bins[place] = bins.get(place, 0) + times
        self.count += times
        self.sum_s += value_s * times

    def quantile(self, share: float) -> float:
        """Return the quantile `share` of the values, at most 1 % off; 0 for the first bin, and without values."""
        wanted, seen = share * self.count, 0
        for place in sorted(self._bins):
            inside = self._bins[place]
            if seen + inside >= wanted and inside:
                part = max(wanted - seen, 0.0) / inside
                return 0.0 if place == 0 else LEAST_S * RATIO ** (place - 1 + part)
            seen += inside
        return 0.0

    def up_to(self, value_s: float) -> int:
        """Return how many values are at most this one, including all of its bin."""
        at = 0 if value_s <= LEAST_S else 1 + int(math.log(value_s / LEAST_S) * _PER_E)
        return sum([inside for place, inside in self._bins.items() if place <= at])

    def merged(self, other: LogHistogram) -> LogHistogram:
        """Return a histogram of the values of both."""
        bins = dict(self._bins)
        for place, inside in other._bins.items():
            bins[place] = bins.get(place, 0) + inside
        return LogHistogram(bins, self.sum_s + other.sum_s)

    def since(self, before: LogHistogram) -> LogHistogram:
        """Return the values added after the earlier state `before`. Raises ValueError if it is none."""
        bins = {place: inside - before._bins.get(place, 0) for place, inside in self._bins.items()}
        if any(inside < 0 for inside in bins.values()) or before._bins.keys() - bins.keys():
            raise ValueError("the histogram was begun anew in the meantime")
        return LogHistogram({place: inside for place, inside in bins.items() if inside}, self.sum_s - before.sum_s)

    def as_dict(self) -> dict[str, object]:
        """Return a JSON-able dict; see `from_dict`."""
        return {
            "count": self.count,
            "sum_s": self.sum_s,
            "bins": {str(place): self._bins[place] for place in sorted(self._bins)},
        }

    @staticmethod
    def from_dict(value: Mapping[str, object]) -> LogHistogram:
        """Return the histogram of `as_dict`. Raises KeyError, TypeError or ValueError for anything else."""
        bins, sum_s = value["bins"], value["sum_s"]
        if not isinstance(bins, Mapping) or not isinstance(sum_s, int | float):
            raise TypeError("not a histogram")
        return LogHistogram({int(place): int(inside) for place, inside in bins.items()}, float(sum_s))


@dataclass(slots=True)
class ServedTimes:
    """A server's record of its pace: times of replies as the cluster has them, and as they left the server.

    GET /llmirage/pacing shows it, and `llmirage run` reads it before and after its load.

    Of finished streamed replies with one choice; TTFT and ITL are cluster time. TTFT: from the arrival of the request to the
    first visible token. ITL: the mean of the gaps after it, if there are any. simulated: by the cluster; sent: when the
    server wrote these tokens to the connection.

    Of all requests, in real time: front_end: from the arrival of a request until the cluster has it; tokens_late: from the
    time at which a token was due until it was written.
    """

    simulated_ttft: LogHistogram = field(default_factory=LogHistogram)
    sent_ttft: LogHistogram = field(default_factory=LogHistogram)
    simulated_itl: LogHistogram = field(default_factory=LogHistogram)
    sent_itl: LogHistogram = field(default_factory=LogHistogram)
    front_end: LogHistogram = field(default_factory=LogHistogram)
    tokens_late: LogHistogram = field(default_factory=LogHistogram)

    @property
    def streams(self) -> int:
        return self.simulated_ttft.count

    def ended(self, simulated_ttft_s: float, sent_ttft_s: float, gaps: int, simulated_s: float, sent_s: float) -> None:
        """Record a finished stream. simulated_s, sent_s: from its first token to its last, over `gaps` gaps."""
        self.simulated_ttft.add(max(simulated_ttft_s, 0.0))
        self.sent_ttft.add(max(sent_ttft_s, 0.0))
        if gaps:
            self.simulated_itl.add(max(simulated_s, 0.0) / gaps)
            self.sent_itl.add(max(sent_s, 0.0) / gaps)

    def since(self, before: ServedTimes) -> ServedTimes:
        """Return the records added after the earlier state `before`. Raises ValueError if it is none."""
        return ServedTimes(*[getattr(self, one.name).since(getattr(before, one.name)) for one in fields(self)])

    def merged(self, other: ServedTimes) -> ServedTimes:
        """Return the records of two servers together."""
        return ServedTimes(*[getattr(self, one.name).merged(getattr(other, one.name)) for one in fields(self)])

    def as_dict(self) -> dict[str, dict[str, object]]:
        """Return a JSON-able dict; see `from_dict`."""
        return {one.name: getattr(self, one.name).as_dict() for one in fields(self)}

    @staticmethod
    def from_dict(value: Mapping[str, Mapping[str, object]]) -> ServedTimes:
        """Return the record of `as_dict`. Raises KeyError, TypeError or ValueError for anything else."""
        return ServedTimes(*[LogHistogram.from_dict(value[one.name]) for one in fields(ServedTimes)])
