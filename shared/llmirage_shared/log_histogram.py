"""Distributions of times in bounded memory: counts in bins whose width is 1 % of the value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

RATIO = 1.01  # between the edges of a bin
LEAST_S = 1e-6  # everything below falls into the first bin
_MOST_BIN = 3000  # 9e6 s
_PER_E = 1 / math.log(RATIO)


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
