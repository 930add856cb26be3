"""Stop a simulation as soon as its objectives can no longer be met. It never stops a run that could still meet them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from llmirage_client.measure.slo import Objective
from llmirage_client.simulate.token_rows import TokenRow

Metric = Callable[[float, float, float, int], float]

# Start, first and last token (s) and number of tokens of a request -> the metric in ms, in the order of operations of
# measure.request_metrics, so that a value at its limit is judged here as it is in the end.
METRICS: dict[str, Metric] = {
    "time_to_first_token": lambda start, first, last, tokens: (first - start) * 1e3,
    "request_latency": lambda start, first, last, tokens: (last - start) * 1e3,
    "inter_token_latency": lambda start, first, last, tokens: (
        ((last - start) - (first - start)) / (tokens - 1) * 1e3 if tokens > 1 else 0.0
    ),
}


@dataclass(slots=True)
class _Budget:
    """What one objective leaves to spend: requests that may miss its limit, or a sum of values above `floor`."""

    objective: Objective
    metric: Metric
    may_miss: int
    most_sum: float
    floor: float = 0.0
    missed: int = 0
    sum: float = 0.0


class EarlyStop:
    """Call it with each finished request that counts, `count` in all. A sentence says that the objectives are out of reach.

    failures: one failed request settles it. floors: the least value of a metric in any request, in ms, by its tag.
    slack: so many times what the objectives allow must be used up, where these requests are not all that may count.
    """

    def __init__(
        self,
        objectives: Sequence[Objective],
        count: int,
        failures: bool,
        floors: Mapping[str, float] = MappingProxyType({}),
        slack: float = 1.0,
    ) -> None:
        self._failures = failures
        self._count = count
        made = (_budget(objective, count, floors.get(objective.metric.tag, 0.0)) for objective in objectives)
        self._budgets = [budget for budget in made if budget is not None]
        for budget in self._budgets:
            budget.may_miss, budget.most_sum = int(budget.may_miss * slack), budget.most_sum * slack

    def __call__(self, row: TokenRow) -> str | None:
        if row.error is not None:
            return f"a request failed: {row.error.message}" if self._failures else None
        first, last, tokens = stamps(row)
        for budget in self._budgets:
            value = budget.metric(row.start_s, first, last, tokens)
            budget.sum += value - budget.floor
            budget.missed += not budget.objective.met_by(value)
            if budget.missed > budget.may_miss:
                return f"{budget.objective.text}: missed by {budget.missed:,} requests of {self._count:,} so far"
            if budget.sum > budget.most_sum:
                return f"{budget.objective.text}: missed whatever the remaining requests do"
        return None


def _budget(objective: Objective, count: int, floor: float) -> _Budget | None:
    """None for objectives that only the whole run can judge."""
    metric, statistic = METRICS.get(objective.metric.tag), objective.statistic
    if metric is None or statistic is None or objective.comparison[0] != "<":
        return None
    if statistic == "avg":
        most = (objective.limit - floor) * count + 1e-9 * objective.limit * count  # the second part: rounding of the sum
        return _Budget(objective, metric, count, most, floor)
    if statistic == "max":
        return _Budget(objective, metric, 0, math.inf)
    if statistic[0] != "p":
        return None
    place = math.floor((count - 1) * float(statistic[1:]) / 100.0)  # the order statistic at or below the percentile
    return _Budget(objective, metric, count - place - 1, math.inf)


def stamps(row: TokenRow) -> tuple[float, float, int]:
    """When the first and the last token came, and how many there were."""
    spans = row.request.spans
    if spans and not row.token_s and row.request.stream is None:
        first_of_s, first, _ = spans[0]
        last_of_s, _, last = spans[-1]
        return first_of_s[first], last_of_s[last], sum([end - begin + 1 for _, begin, end in spans])
    times = row.arrivals
    return (float(times[0]), float(times[-1]), len(times)) if len(times) else (math.nan, math.nan, 0)
