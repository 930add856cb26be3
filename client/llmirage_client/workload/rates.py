"""Arrivals per second as a function of time: constant, growing over a ramp, by the hour, or along a series of points."""

from __future__ import annotations

import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmirage_client.settings import ArrivalPattern

if TYPE_CHECKING:
    from random import Random  # for its type alone: options are loaded for a help text, too


HOUR_S = 3600.0
_WORK = (0.1,) * 7 + (0.25, 0.6, 0.9, 1.0, 0.95, 0.8, 0.9, 1.0, 0.95, 0.85, 0.6, 0.4, 0.3, 0.2, 0.15, 0.1, 0.1)
_REGIONS = [max(_WORK[hour], 0.8 * _WORK[hour - 8]) for hour in range(24)]
SHAPES: Mapping[str, tuple[float, ...]] = {  # shares of the highest rate, by hour
    "office-hours": _WORK,
    "two-regions": tuple(share / max(_REGIONS) for share in _REGIONS),
    "batch-at-night": (1.0,) * 6 + (0.5,) + (0.1,) * 14 + (0.5, 1.0, 1.0),
}


def shape_name(text: str) -> str:
    """Return a name as SHAPES has them."""
    return text.strip().lower().replace("_", "-").replace(" ", "-")


@dataclass(slots=True, frozen=True)
class Spike:
    """A time in which the rate is so many times as high."""

    at_s: float
    lasts_s: float
    times: float


@dataclass(slots=True, frozen=True)
class RateSeries:
    """A rate that runs along straight lines between points (seconds, arrivals per second).

    The times begin at 0 and do not fall; two points of the same time are a step. After the last point its rate holds.
    """

    points: tuple[tuple[float, float], ...]

    @classmethod
    def constant(cls, per_s: float, ramp_s: float = 0.0) -> RateSeries:
        """Return the rate from the start, or growing to it from 0 within ramp_s."""
        return cls(((0.0, 0.0), (ramp_s, per_s)) if ramp_s else ((0.0, per_s),))

    @classmethod
    def hourly(cls, rates: Sequence[float]) -> RateSeries:
        return cls(
            tuple(point for hour, rate in enumerate(rates) for point in ((hour * HOUR_S, rate), ((hour + 1) * HOUR_S, rate)))
        )

    def spiked(self, spikes: Sequence[Spike]) -> RateSeries:
        """Return the series with spikes; where several meet, they multiply."""
        edges = [edge for spike in spikes for edge in (spike.at_s, spike.at_s + spike.lasts_s)]
        cuts, points = sorted({*edges, *(time_s for time_s, _ in self.points)}), list[tuple[float, float]]()
        for begin_s, end_s in pairwise(cuts):
            factor = math.prod(spike.times for spike in spikes if spike.at_s <= begin_s < spike.at_s + spike.lasts_s)
            points += [(begin_s, factor * self._rate(begin_s, after=True)), (end_s, factor * self._rate(end_s, after=False))]
        return RateSeries((*points, (cuts[-1], self._rate(cuts[-1], after=True))))

    def _rate(self, time_s: float, after: bool) -> float:
        """Return the rate just after, or just before, a time."""
        index = (bisect_right if after else bisect_left)(self.points, time_s, key=lambda point: point[0])
        if index in (0, len(self.points)):
            return self.points[index and -1][1]
        (start_s, start), (end_s, end) = self.points[index - 1 : index + 1]
        return start + (end - start) * (time_s - start_s) / (end_s - start_s)

    def until(self, time_s: float) -> float:
        """Return the number of arrivals up to a time, in the mean."""
        total, last = 0.0, (math.inf, self.points[-1][1])
        for (start_s, start), (end_s, _) in pairwise((*self.points, last)):
            if start_s < (stop_s := min(end_s, time_s)):
                total += (start + self._rate(stop_s, after=False)) / 2 * (stop_s - start_s)
        return total

    def after(self, time_s: float, arrivals: float) -> float:
        """Return when `arrivals` more arrivals are due, counted from time_s: where the area under the rate reaches them.

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
    """Return gaps between arrivals at one arrival a second, mean 1. At other rates, time runs that much faster.

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
    """Return x where rate * x + slope * x² / 2 is the area; in the form that loses no digits."""
    if slope == 0.0:
        return area / rate if area else 0.0
    return 2 * area / (rate + math.sqrt(max(rate * rate + 2 * slope * area, 0.0))) if area else 0.0


class RateSeriesError(ValueError):
    """A text or file that is no rate series; the message gives the place and the reason."""


def read_rate_series(text: str) -> RateSeries:
    """Return a series from points `seconds:rate` between commas, or from a file of points. Raises RateSeriesError.

    The file is AIPerf's JSON, {"points": [{"time_s": 0, "qps": 5}, ...]}, a JSON array of such objects or of pairs, or text
    with `seconds,rate` on each line, a heading and # comments apart.
    """
    points = [_inline_point(part) for part in text.split(",") if part.strip()]
    if points and None not in points:
        return _series([point for point in points if point is not None], "")
    if not text.strip():
        raise RateSeriesError("it is empty; points look like 0:1,60:10,120:10")
    path = Path(text)
    try:
        content = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise RateSeriesError(f"{text!r} is neither a file nor points such as 0:1,60:10,120:10") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RateSeriesError(f"{text}: {getattr(error, 'strerror', None) or error}") from None
    if content.lstrip()[:1] in ("{", "["):
        return _series(_json_points(content, text), f"{text}: ")
    return _series(_lines(content, text), f"{text}: ")


def series_text(text: str) -> str:
    """Return the text once it was validated: files show a series as it was given. Raises RateSeriesError."""
    read_rate_series(text)
    return text


def _inline_point(part: str) -> tuple[float, float] | None:
    time_s, colon, rate = part.partition(":")
    try:
        return (float(time_s), float(rate)) if colon else None
    except ValueError:
        return None


def _json_points(content: str, path: str) -> list[tuple[float, float]]:
    try:
        value = json.loads(content)
    except ValueError as error:
        raise RateSeriesError(f"{path}: not JSON: {error}") from None
    rows: Any = value.get("points") if isinstance(value, dict) else value
    if not isinstance(rows, list):
        raise RateSeriesError(f'{path}: there is no array "points" in it')
    points = []
    for index, row in enumerate(rows):
        pair = [row.get("time_s"), row.get("qps")] if isinstance(row, dict) else row
        if not (isinstance(pair, list) and len(pair) == 2 and all(_is_number(part) for part in pair)):
            raise RateSeriesError(f'{path}: points[{index}] is neither {{"time_s": 0, "qps": 5}} nor [0, 5]')
        points.append((float(pair[0]), float(pair[1])))
    return points


def _lines(content: str, path: str) -> list[tuple[float, float]]:
    points: list[tuple[float, float]] = []
    for number, line in enumerate(content.splitlines(), 1):
        words = line.partition("#")[0].replace(",", " ").split()
        if not words:
            continue
        try:
            time_s, rate = map(float, words)
        except ValueError:
            if not points and not any(character.isdigit() for character in line):
                continue  # a heading
            raise RateSeriesError(f"{path}: line {number}: {line.strip()!r} is not seconds,rate") from None
        points.append((time_s, rate))
    return points


def _series(points: Sequence[tuple[float, float]], where: str) -> RateSeries:
    if not points:
        raise RateSeriesError(f"{where}there is no point in it")
    for index, (time_s, rate) in enumerate(points):
        if not (0 <= time_s < math.inf and 0 <= rate < math.inf):
            raise RateSeriesError(f"{where}{time_s:g}:{rate:g}: times and rates are numbers from 0 up")
        if index and time_s < points[index - 1][0]:
            raise RateSeriesError(f"{where}{time_s:g} s comes after {points[index - 1][0]:g} s: times do not go back")
    if points[0][0] != 0:
        raise RateSeriesError(f"{where}the first point is at {points[0][0]:g} s; a series begins at 0 s")
    if not any(rate for _, rate in points):
        raise RateSeriesError(f"{where}every rate is 0, so nothing would ever be sent")
    return RateSeries(tuple(points))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
