"""Verdicts on objectives with stated confidence: is a difference from the limit more than chance?

A 99th percentile below a limit means that at most 1 % of requests are above it. Of n requests, k are above: a verdict holds
when that few (or that many) would be improbable if exactly 1 % were. Means are judged by their standard error. Requests
count as independent of each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

from llmirage_client.measure.arrays import Floats
from llmirage_client.measure.metrics import Metrics
from llmirage_client.measure.slo import Objective, Verdict

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
