"""Whether a run can still meet its objectives: told of each request as it is over, certain whenever it says no."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from llmirage_client.measure.slo import Objective
from llmirage_client.simulate.token_rows import TokenRow

_Value = Callable[[float, float, float, int], float]

# Start, first and last token (s) and number of tokens of a request -> the metric, in ms.
_VALUES: dict[str, _Value] = {
    "time_to_first_token": lambda start, first, last, tokens: (first - start) * 1e3,
    "request_latency": lambda start, first, last, tokens: (last - start) * 1e3,
    "inter_token_latency": lambda start, first, last, tokens: (last - first) * 1e3 / (tokens - 1) if tokens > 1 else 0.0,
}


@dataclass(slots=True)
class _Count:
    """One objective: how many requests may be beyond its limit, or what their sum may reach."""

    objective: Objective
    value: _Value
    spare: int
    most: float  # of what the values are above `floor`, together
    floor: float = 0.0
    beyond: int = 0
    total: float = 0.0


class Hopeless:
    """Ask for each of `count` requests that count: `hopeless(row)` is a sentence once it cannot be met any more.

    failures: whether one failed request settles it. floors: what a metric is at least in every request, in ms, by its tag.
    """

    def __init__(
        self, objectives: Sequence[Objective], count: int, failures: bool, floors: Mapping[str, float] = MappingProxyType({})
    ) -> None:
        self._failures = failures
        self._count = count
        made = (_count(objective, count, floors.get(objective.metric.tag, 0.0)) for objective in objectives)
        self._counts = [count for count in made if count is not None]

    def __call__(self, row: TokenRow) -> str | None:
        if row.error is not None:
            return f"a request failed: {row.error.message}" if self._failures else None
        first, last, tokens = _stamps(row)
        for count in self._counts:
            value = count.value(row.start_s, first, last, tokens)
            count.total += value - count.floor
            count.beyond += not count.objective.met_by(value)
            if count.beyond > count.spare:
                return f"{count.objective.text}: missed by {count.beyond:,} requests of {self._count:,} so far"
            if count.total > count.most:
                return f"{count.objective.text}: missed whatever the remaining requests do"
        return None


def _count(objective: Objective, count: int, floor: float) -> _Count | None:
    """None for objectives that only the whole run can tell of."""
    value, statistic = _VALUES.get(objective.metric.tag), objective.statistic
    if value is None or statistic is None or objective.comparison[0] != "<":
        return None
    if statistic == "avg":
        return _Count(objective, value, count, (objective.limit - floor) * count + 1e-9 * objective.limit * count, floor)
    if statistic == "max":
        return _Count(objective, value, 0, math.inf)
    if statistic[0] != "p":
        return None
    place = math.floor((count - 1) * float(statistic[1:]) / 100.0)  # numpy's: at or below the percentile
    return _Count(objective, value, count - place - 1, math.inf)


def _stamps(row: TokenRow) -> tuple[float, float, int]:
    """When the first and the last token came, and how many there were."""
    spans = row.request.spans
    if spans and not row.token_s:
        first_of_s, first, _ = spans[0]
        last_of_s, _, last = spans[-1]
        return first_of_s[first], last_of_s[last], sum([end - begin + 1 for _, begin, end in spans])
    times = row.arrivals
    return (float(times[0]), float(times[-1]), len(times)) if len(times) else (math.nan, math.nan, 0)
