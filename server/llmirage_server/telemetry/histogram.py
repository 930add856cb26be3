"""A histogram in Prometheus's form."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence


class PrometheusHistogram:
    """Counts by bucket. bounds: upper bounds of the buckets, ascending; one more bucket follows the last."""

    __slots__ = ("_bounds", "_counts", "count", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.count = 0
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self.count += times
        self.sum += value * times

    def buckets(self) -> Iterator[tuple[str, int]]:
        """Each bound as Prometheus writes it, and the number of values up to it."""
        total = 0
        for bound, count in zip(self._bounds, self._counts, strict=False):
            total += count
            yield str(float(bound)), total
        yield "+Inf", self.count


def one_two_five(most: int) -> list[int]:
    """1, 2, 5, 10, 20, 50 ... up to `most`."""
    bounds: list[int] = []
    power = 1
    while True:
        for digit in (1, 2, 5):
            if digit * power > most:
                return bounds
            bounds.append(digit * power)
        power *= 10
