"""Results of a run at several loads, one PointResult each, and the answer of a search."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist

import numpy as np

from llmirage_client.measure.metrics import Metrics
from llmirage_client.measure.record import Repeats
from llmirage_client.measure.slo import Objective, Verdict, judge_failures
from llmirage_shared.plural import plural, rounded
from llmirage_shared.statistics import Floats

CONFIDENCE = 0.95
LOOKS = 5  # how often the requests of one load are judged, with more of them each time
_WRONG = (1 - CONFIDENCE) / LOOKS  # chance of a wrong verdict at each


@dataclass(slots=True)
class PooledVerdict:
    """The requests of all runs at one load, judged together."""

    objectives: Sequence[Objective]
    runs: list[int] = field(default_factory=list)  # requests of each
    _values: dict[str, list[Floats]] = field(default_factory=dict)  # by metric tag
    _failed: int = 0
    _last: Metrics | None = None

    def add(self, metrics: Metrics) -> None:
        """Add the requests of one run."""
        self._last = metrics
        self.runs.append(int(metrics.whole_run.get("completed_request_count", 0)))
        self._failed += int(metrics.whole_run.get("error_request_count", 0))
        for tag in {objective.metric.tag for objective in self.objectives}:
            if tag in metrics.basis.found:
                values = metrics.basis.found[tag]
                self._values.setdefault(tag, []).append(values[~np.isnan(values)])

    @property
    def requests(self) -> int:
        return sum(self.runs)

    @property
    def met(self) -> bool | None:
        """True where every objective is met, False where one is missed, None where that is too close to tell."""
        found = [self._judged(objective) for objective in self.objectives]
        return False if False in found else None if None in found else True

    def _judged(self, objective: Objective) -> bool | None:
        assert self._last is not None
        allowed, values = allowed_share(objective), self._values.get(objective.metric.tag)
        if objective.metric.tag == "request_error_rate" and allowed:
            return _share_met(self._failed, self.requests, allowed)
        if values and allowed:
            pooled = np.concatenate(values)
            return _share_met(sum(not objective.met_by(float(value)) for value in pooled), pooled.size, allowed)
        if values and objective.statistic == "avg":
            return _mean_met(objective, np.concatenate(values))
        return Verdict(objective, objective.value(self._last)).met


def least_requests(objectives: Sequence[Objective]) -> int:
    """Return how many requests it takes to confirm the objectives when none of them breaks one."""
    shares = [share for objective in objectives if (share := allowed_share(objective))]
    return max((math.ceil(math.log(_WRONG) / math.log1p(-share)) for share in shares), default=1)


def allowed_share(objective: Objective) -> float | None:
    """Return the share of requests that may break the objective's limit; None where it is about no share, or about all."""
    statistic = objective.statistic or ""
    if objective.metric.tag == "request_error_rate" and objective.comparison.startswith("<"):
        share = objective.limit / 100
    elif statistic.startswith("p") and statistic[1:].isdigit():
        share = int(statistic[1:]) / 100
        share = 1 - share if objective.comparison.startswith("<") else share
    else:
        return None
    return share if 0 < share < 1 else None


def _share_met(broken: int, requests: int, allowed: float) -> bool | None:
    if _binomial_tail(range(broken + 1), requests, allowed) <= _WRONG:
        return True
    return False if _binomial_tail(range(broken, requests + 1), requests, allowed) <= _WRONG else None


def _mean_met(objective: Objective, values: Floats) -> bool | None:
    error = NormalDist().inv_cdf(1 - _WRONG) * float(values.std(ddof=1)) / math.sqrt(values.size) if values.size > 1 else 0.0
    mean = float(values.mean())
    ends = {objective.met_by(mean - error), objective.met_by(mean + error)}
    return ends.pop() if len(ends) == 1 else None


def _binomial_tail(counts: range, requests: int, share: float) -> float:
    """Return the probability of these counts among so many requests, each with probability `share`."""
    yes, no, all_ = math.log(share), math.log1p(-share), math.lgamma(requests + 1)
    return math.fsum(
        math.exp(all_ - math.lgamma(k + 1) - math.lgamma(requests - k + 1) + k * yes + (requests - k) * no) for k in counts
    )


_ERROR_CHARACTERS = 120
_SURPLUS = 0.1  # over the rate asked for


def point_name(variable: str, load: float) -> str:
    """Return a text such as "concurrency 4" or "request rate 2.5"."""
    return f"{variable.replace('_', ' ')} {load:g}"


@dataclass(slots=True)
class PointResult:
    """variable: "concurrency" or "request_rate". number: the place in the sweep or search, from 1.

    status: the exit status of this point alone. behind: latency kept growing (see load.saturation).

    verdicts: of the objectives of a search, or of --slo. interrupted: it was stopped before its end.
    judged: by a search, after this and earlier runs at the load: met, missed or open.
    """

    variable: str
    load: float
    number: int
    speed: float
    metrics: Metrics
    status: int
    files: list[Path]
    behind: bool
    offered_per_s: float | None  # where that is clearly less than the rate asked for
    interrupted: bool = False
    repeats: Repeats | None = None
    verdicts: tuple[Verdict, ...] = ()
    judged: str = ""

    @property
    def name(self) -> str:
        return point_name(self.variable, self.load)

    @property
    def meets(self) -> bool:
        """True if the load counts as carried: every objective met, nothing failed, and a rate kept up with.

        Failures are left to the objectives when one of them is about the error rate.
        """
        if self.judged:
            return self.judged == "met"
        return not self.interrupted and not self.contradicted and all(verdict.met for verdict in self.verdicts)

    @property
    def contradicted(self) -> bool:
        """True where failures or a rate that was not kept say that the load is too high, whatever the objectives."""
        return any(self._against())

    @property
    def first_error(self) -> str:
        """The most frequent error in one line; empty when nothing failed."""
        return self.metrics.errors[0].error.one_line(_ERROR_CHARACTERS) if self.metrics.errors else ""

    @property
    def surplus(self) -> float | None:
        """The requests per second that were delivered, where that is clearly more than the rate asked for."""
        values = self.metrics.whole_run
        delivered = values.get("request_throughput")
        if self.variable != "request_rate" or delivered is None or delivered <= self.load * (1 + _SURPLUS):
            return None
        return delivered

    @property
    def surplus_note(self) -> str | None:
        if self.surplus is None:
            return None
        requests = int(self.metrics.whole_run.get("request_count", 0))
        return (
            f"{self.name}: {rounded(self.surplus, 3)} requests/s were delivered, not {self.load:g}, so the figures are "
            f"those of a higher load. {requests:,} requests are few for an exact rate of random arrivals (--request-count), "
            "or conversations have requests of children, which the rate does not count."
        )

    @property
    def mark(self) -> str:
        """The outcome of this point in a search."""
        return "cut off" if self.interrupted else self.judged or ("met" if self.meets else "missed")

    def reasons(self) -> str:
        """Return every objective with what was measured, and other reasons why the load is too high."""
        return "; ".join([*map(str, self.verdicts), *self._against()])

    def _against(self) -> Iterator[str]:
        values = self.metrics.whole_run
        failed, ok = values.get("error_request_count", 0), values.get("request_count", 0)
        if failed and not judge_failures(self.verdicts):
            yield f"{failed:,.0f} of {plural(failed + ok, 'request')} failed ({self.first_error})"
        elif not ok:
            yield "no request succeeded"
        if self.offered_per_s is not None:
            yield f"the workload offered only {rounded(self.offered_per_s, 3)} turns/s"
        if self.behind and self.variable == "request_rate":
            yield "latency kept growing"


@dataclass(slots=True, frozen=True)
class SearchAnswer:
    """best: the highest load that met the objectives, worst: the lowest that missed them; None where there was none.

    doubt: why it may not hold for other prompts; "": it does. open: loads too close to the limit to tell.
    """

    slo: str
    variable: str
    best: float | None
    worst: float | None
    lower: float
    upper: float
    interrupted: bool
    doubt: str = ""
    open: tuple[float, ...] = ()

    def __str__(self) -> str:
        return f"{self._sentence()} {self.doubt}".rstrip()

    def _sentence(self) -> str:
        what = self.variable.replace("_", " ")
        unit = " turns/s" if self.variable == "request_rate" else ""
        if self.interrupted:
            known = "no load is" if self.best is None else f"{what} {self.best:g}{unit} is the highest"
            return f"The search was interrupted. So far {known} known to meet {self.slo}."
        between = [load for load in self.open if load > (self.best or 0) and load < (self.worst or math.inf)]
        if between:
            met = "no load" if self.best is None else f"{what} {self.best:g}{unit}"
            missed = "no load tried" if self.worst is None else f"{self.worst:g}{unit}"
            too_close = " and ".join(f"{load:g}" for load in between)
            return (
                f"{met.capitalize()} is the highest known to meet {self.slo}, and {missed} the lowest known to miss it; "
                f"{too_close} too close to the limit to tell (confidence {CONFIDENCE:.0%})."
            )
        if self.best is None:
            return f"No load meets {self.slo}: even {what} {self.worst:g}{unit}, the lowest tried, misses it."
        if self.worst is None:
            return (
                f"Every load up to the bound meets {self.slo}: {what} {self.best:g}{unit} does, and no higher one was tried "
                "(find_max_upper_bound)."
            )
        return f"The highest {what} that meets {self.slo} is {self.best:g}{unit}; {self.worst:g} misses it."
