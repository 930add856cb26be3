"""Confidence in simulated figures, and the end of a simulation that has settled its objectives.

A run stops once its objectives are out of reach, or once all intervals lie on one side of their limits.
Requests of one simulation depend on each other: a busy minute is slow for all. So their spread is taken over at
most BATCHES consecutive batches of equal numbers (batch means): of conversations, of batches that are no shorter than they
live. Interval and verdict do not look at each other's limit: an interval depends on the figures alone, and a stricter
objective is never decided earlier as met than a laxer one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from llmirage_client.measure.columns import Columns
from llmirage_client.measure.request_metrics import all_request_columns
from llmirage_client.measure.slo import Objective, Verdict
from llmirage_client.simulate.token_rows import TokenRow
from llmirage_shared.statistics import Floats

_MORE_OFTEN = 2.0
_LEAST_SHARE = 0.1  # of a run's duration, after which the rest is foreseen

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
    """The budget of one objective: requests that may miss its limit, or a sum of values above `floor`."""

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
    slack: the multiple of the allowed misses that must be used up, where these requests are not all that may count.
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


class EarlyStopInTime:
    """EarlyStop for a run of `duration_s` in which nobody knows how many requests there will be.

    It expects at most _MORE_OFTEN times as many in a second of the rest of the run as so far.
    """

    def __init__(self, objectives: Sequence[Objective], duration_s: float, failures: bool) -> None:
        self._failures = failures
        self._duration_s = duration_s
        made = (_budget(objective, 1, 0.0) for objective in objectives)
        self._budgets = [budget for budget in made if budget is not None]
        self._start_s, self._over = math.nan, 0

    def __call__(self, row: TokenRow) -> str | None:
        if not row.measured or row.end_s is None:
            return None
        if row.error is not None:
            return f"a request failed: {row.error.message}" if self._failures else None
        if not self._over:
            self._start_s = row.start_s
        self._over += 1
        first, last, tokens = stamps(row)
        for budget in self._budgets:
            value = budget.metric(row.start_s, first, last, tokens)
            budget.sum += value
            budget.missed += not budget.objective.met_by(value)
        share = (row.end_s - self._start_s) / self._duration_s
        if share < _LEAST_SHARE:
            return None
        expected = self._over + math.ceil(_MORE_OFTEN * self._over * max(1 / share - 1, 0.0))
        for budget in self._budgets:
            in_all = _budget(budget.objective, expected, 0.0)
            if in_all is not None and (budget.missed > in_all.may_miss or budget.sum > in_all.most_sum):
                return f"{budget.objective.text}: missed by {budget.missed:,} of {self._over:,} requests so far"
        return None


def _budget(objective: Objective, count: int, floor: float) -> _Budget | None:
    """Return None for objectives that only the whole run can judge."""
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
    """Return the times of the first and the last chunk, and the number of tokens: a chunk may have several."""
    spans, tokens = row.request.spans, row.request.produced
    if spans and not row.token_s and row.request.stream is None:
        first_of_s, first, _ = spans[0]
        last_of_s, _, last = spans[-1]
        return first_of_s[first], last_of_s[last], tokens
    times = row.arrivals
    return (float(times[0]), float(times[-1]), tokens) if len(times) else (math.nan, math.nan, 0)


BATCHES = 10
_FAR = 3.0  # times the requests beyond a limit that an objective allows: far more than noise explains
_FAR_IN_ALL = 2.0  # the same of all requests that may count, which are many
# Standard errors on each side of a figure, by the number of batches: it lies there in 95 of 100 simulations (Student's t).
_DEVIATIONS = {4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
FEWEST_BATCHES = min(_DEVIATIONS)


@dataclass(frozen=True, slots=True)
class Interval:
    """Where a figure lies in an endless simulation, in the unit of its metric; infinite where there are too few requests."""

    low: float
    high: float

    def clear(self, objective: Objective) -> bool | None:
        """Return whether all of it meets the objective, or all of it misses it; None: neither."""
        low, high = objective.met_by(self.low), objective.met_by(self.high)
        return low if low == high else None

    def worse(self, objective: Objective) -> float:
        """Return the end that is closer to missing the objective."""
        return self.high if objective.comparison[0] == "<" else self.low

    def load(self, objective: Objective) -> float:
        """Return the share of the limit that its worse end uses."""
        return Verdict(objective, self.worse(objective)).load


def interval_of(values: Floats, statistic: str, batches: int = BATCHES) -> Interval | None:
    """Return the interval of a statistic.

    values: of requests in the order in which they were sent; NaN where a request has none. None: of no such statistic.

    batches: FEWEST_BATCHES to BATCHES.
    """
    known, deviations = values[~np.isnan(values)], _DEVIATIONS[batches]
    if known.size < batches:
        return Interval(-math.inf, math.inf)
    if statistic == "avg":
        middle = float(known.mean())
        error = _error(known, batches)
        return Interval(middle - deviations * error, middle + deviations * error)
    if statistic[0] != "p":
        return None
    share = float(statistic[1:]) / 100
    figure = np.percentile(known, share * 100)
    error = max(_error((known > figure).astype(np.float64), batches), math.sqrt(share * (1 - share) / known.size))
    low, high = share - deviations * error, share + deviations * error
    if high < 1:
        return Interval(*np.percentile(known, [max(low, 0.0) * 100, high * 100]).tolist())
    # No request is as slow as that: the percentile of each batch says how far their own goes.
    spread = float(np.std([np.percentile(batch, share * 100) for batch in np.array_split(known, batches)], ddof=1))
    worst = float(figure) + deviations * spread / math.sqrt(batches)
    return Interval(float(np.percentile(known, max(low, 0.0) * 100)), worst)


def intervals_of(objectives: Sequence[Objective], columns: Columns, batches: int) -> tuple[Interval | None, ...]:
    """Return the interval of an objective over the measured requests; None if there is none."""
    rows = columns.rows(columns.measured)
    order, found = np.argsort(rows.start_s, kind="stable"), all_request_columns(rows, 1.0, {})
    return tuple(
        interval_of(np.where(rows.ok, found[one.metric.tag], np.nan)[order], one.statistic or "", batches)
        if one.metric.tag in METRICS.keys() & found.keys()
        else None
        for one in objectives
    )


def _error(values: Floats, batches: int) -> float:
    """Return the standard error of the mean of values that depend on their neighbours."""
    means = [batch.mean() for batch in np.array_split(values, batches)]
    return float(np.std(means, ddof=1)) / math.sqrt(batches)


class Looks:
    """Call it with each finished request that counts; it ends the simulation once its objectives are decided.

    first: number of the first request that counts. looks: after how many of them, in the order in which they were sent, it
    looks; the last is all. counted: how many it has looked at; 0: the run was stopped before, or the objectives are not of
    its kind. intervals: of the objectives, at the last look. batches: how many for so many requests, see `interval_of`.
    met_ends: whether objectives that are met end it before the last look.
    """

    def __init__(
        self,
        objectives: Sequence[Objective],
        first: int,
        looks: Sequence[int],
        failures: bool,
        floors: Mapping[str, float] = MappingProxyType({}),
        batches: Callable[[int], int] = lambda count: BATCHES,
        met_ends: bool = True,
    ) -> None:
        self._objectives = objectives
        self._first = first
        self._looks = list(looks)
        self._batches = batches
        self._met_ends = met_ends
        self._over = np.zeros(looks[-1], dtype=bool)
        self._values = {tag: np.full(looks[-1], np.nan) for tag in {one.metric.tag for one in objectives} & METRICS.keys()}
        self._left = looks[0]
        self._early = EarlyStop(objectives, looks[0], failures, floors, _FAR)
        self._late = EarlyStop(objectives, looks[-1], failures, floors, _FAR_IN_ALL)
        self.counted = 0
        self.intervals: list[Interval | None] = [None] * len(objectives)

    @property
    def clear(self) -> bool | None:
        """True if the objectives are met, as far as the intervals can tell; None: they cannot."""
        pairs = zip(self._objectives, self.intervals, strict=True)
        told = [None if interval is None else interval.clear(objective) for objective, interval in pairs]
        return False if False in told else None if None in told else True

    def __call__(self, row: TokenRow) -> str | int | None:
        place = row.request.id - self._first
        self._over[place] = True
        if row.error is None:
            first, last, tokens = stamps(row)
            for tag, values in self._values.items():
                if last > first or tag != "inter_token_latency":
                    values[place] = METRICS[tag](row.start_s, first, last, tokens)
        if not self.counted and place < self._looks[0] and (reason := self._early(row)):
            return reason
        if reason := self._late(row):
            return reason
        if not self._looks or place >= self._looks[0]:
            return None
        self._left -= 1
        while self._looks and not self._left:
            if self._look(self._looks.pop(0)):
                return self.counted
            if self._looks:
                self._left = int(np.count_nonzero(~self._over[: self._looks[0]]))
        return None

    def _look(self, count: int) -> bool:
        self.counted = count
        self.intervals = [
            interval_of(self._values[one.metric.tag][:count], one.statistic or "", self._batches(count))
            if one.metric.tag in self._values
            else None
            for one in self._objectives
        ]
        return self.clear is False or (self.clear is True and self._met_ends)
