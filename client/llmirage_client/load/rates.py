"""How many arrivals a second, as a function of time: constant, growing over a ramp, or along a series of points."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING

from llmirage_client.choices import ArrivalPattern

if TYPE_CHECKING:
    from random import Random  # for its type alone: options are loaded for a help text, too


@dataclass(slots=True, frozen=True)
class RateSeries:
    """A rate that runs along straight lines between points (seconds, arrivals per second).

    The times begin at 0 and do not fall; two points of the same time are a step. After the last point its rate holds.
    """

    points: tuple[tuple[float, float], ...]

    @classmethod
    def constant(cls, per_s: float, ramp_s: float = 0.0) -> RateSeries:
        """The rate from the start, or growing to it from 0 within ramp_s."""
        return cls(((0.0, 0.0), (ramp_s, per_s)) if ramp_s else ((0.0, per_s),))

    def after(self, time_s: float, arrivals: float) -> float:
        """When so many more arrivals are due, counted from time_s: where the area under the rate reaches them.

        With 0 arrivals, the first moment from which the rate is not zero. Infinite when that never comes.
        """
        last_s, last_rate = self.points[-1]
        left = arrivals
        if time_s >= last_s:
            return time_s + left / last_rate if last_rate > 0 else math.inf
        index = bisect_right(self.points, time_s, key=lambda point: point[0])
        for end_s, end_rate in self.points[index:]:
            start_s, start_rate = self.points[index - 1]
            index += 1
            slope = (end_rate - start_rate) / (end_s - start_s) if end_s > start_s else 0.0
            rate = start_rate + slope * (time_s - start_s)
            area = (rate + end_rate) / 2 * (end_s - time_s)
            if area > left or (area == left > 0):
                return min(time_s + _reach(left, rate, slope), end_s)
            left -= area
            time_s = end_s
        return time_s + left / last_rate if last_rate > 0 else math.inf


def unit_gaps(pattern: ArrivalPattern, smoothness: float, rng: Random) -> Iterator[float]:
    """Gaps between arrivals at one arrival a second, mean 1. At other rates, time runs that much faster.

    gamma: of shape `smoothness`, so with a coefficient of variation of 1 / sqrt(smoothness); poisson is shape 1, constant
    its limit. vLLM's --burstiness is the same number.
    """
    match pattern:
        case "constant":
            return repeat(1.0)
        case "poisson":
            return iter(partial(rng.expovariate, 1.0), None)
        case "gamma":
            return iter(partial(rng.gammavariate, smoothness, 1.0 / smoothness), None)


def _reach(area: float, rate: float, slope: float) -> float:
    """x where rate * x + slope * x² / 2 is the area; in the form that loses no digits."""
    if slope == 0.0:
        return area / rate if area else 0.0
    return 2 * area / (rate + math.sqrt(max(rate * rate + 2 * slope * area, 0.0))) if area else 0.0
