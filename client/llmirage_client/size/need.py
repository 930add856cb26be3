"""How many instances of one shape a traffic needs.

Small clusters are simulated whole, from the fewest instances that the roofline leaves possible upwards. Where more than
SLICE are needed, so many instances are simulated with their share of the traffic: the most they carry is found on a ladder
of loads, and the need follows by division.

Single simulations are noisy, and still a stricter objective must never need less, nor a doubled traffic. The first holds as
every decision here is about a condition that stricter objectives fulfil on fewer clusters only. For the second, a
cluster must also do at a half of the traffic, a quarter, and so on down to FLOOR_SHARE of what it carries at most; below
that one of its instances is judged, with FLOOR_SHARE of what it carries at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from llmirage_client.measure.slo import Objective, Verdict
from llmirage_client.simulator.deployments import Shape
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.size import ladder
from llmirage_client.size.solo import one_user
from llmirage_client.size.trial import Trial, Trials

SLICE = 8  # instances
FLOOR_SHARE = 0.1
_LOWEST_SHARE = 0.02  # of the most a slice can carry: the lowest rung
_PATIENCE = 4  # failures after which one instance with next to no load is looked at: if that fails, all do
_SOME_REQUESTS_PER_S = 0.05  # the floor of an instance of which no bound is known


@dataclass(frozen=True, slots=True)
class Fit:
    """So many instances do. trial: the simulation that shows it; sliced: of SLICE instances with their share."""

    shape: Shape
    instances: int
    trial: Trial
    sliced: bool = False

    @property
    def gpus(self) -> int:
        return self.shape.gpus * self.instances


class Need:
    """A search, step by step. least: so many instances at least; None: no number does, for the `reason`.

    nearest: the verdict that came closest where no number does.
    """

    def __init__(self, shape: Shape, base: ClusterConfig, trials: Trials) -> None:
        self.shape = shape
        self.reason = ""
        self.nearest: Verdict | None = None
        self._base = base
        self._trials = trials
        self._traffic = trials.traffic
        lengths = self._traffic.source.lengths
        bounds = trials.bounds(self._config(1))
        self._most = bounds.most_requests_per_s(lengths) if lengths is not None else None
        self._fit: Fit | None = None
        self._failures = 0
        self.least: int | None = 1
        if self._by_rate and self._most is not None:
            self.least = max(1, math.ceil(self._traffic.amount / self._most))
        missed = [v for v in one_user(trials.objectives, self._traffic.source.sizes, bounds) if not v.met]
        if missed:
            self._give_up(
                f"one user alone: {'; '.join(map(_at_best, missed))}",
                max(missed, key=lambda verdict: verdict.load),
            )

    @property
    def _by_rate(self) -> bool:
        return self._traffic.kind == "request_rate"

    def _config(self, instances: int) -> ClusterConfig:
        return self.shape.config(self._base, instances)

    def step(self) -> Fit | None:
        """Look at `least` instances; the fit if so many do, else `least` grows. Raises ConfigError, SimulationError.

        A fit is still to be looked at with less traffic: see `holds_below`.
        """
        assert self.least is not None
        if self._fit is not None:
            return self._fit
        if self.least > SLICE:
            return self._slice()
        instances = self.least
        amount = self._traffic.amount
        low = amount < self._floor(instances)
        trial = self._trials.run(*self._lowest()) if low else self._trials.run(self._config(instances), amount)
        if trial.met:
            return Fit(self.shape, instances, trial)
        self._next()
        return None

    def holds_below(self, fit: Fit) -> bool:
        """Whether a fit does with less traffic, too; where it does not, `least` grows."""
        if fit.sliced or all(self._trials.run(config, amount).met for config, amount in self._lower(fit.instances)):
            return True
        self._next()
        return False

    def _next(self) -> None:
        """One instance more; none, if the objectives are missed at next to no load."""
        assert self.least is not None
        self._failures += 1
        if self._failures == _PATIENCE:
            alone = self._trials.run(*self._lowest())
            if not alone.met:
                self._hopeless(alone)
                return
        self.least += 1

    def _floor(self, instances: int) -> float:
        """Traffic below which so many instances are judged by one of them with its part of that."""
        if not self._by_rate:
            return instances
        return instances * (FLOOR_SHARE * self._most if self._most is not None else _SOME_REQUESTS_PER_S)

    def _lowest(self) -> tuple[ClusterConfig, float]:
        return self._config(1), self._floor(1)

    def _lower(self, instances: int) -> Iterator[tuple[ClusterConfig, float]]:
        """Clusters and the lesser traffic at which they must do, too."""
        floor, amount = self._floor(instances), self._traffic.amount
        while (amount := amount / 2 if self._by_rate else amount // 2) >= floor:
            yield self._config(instances), amount
        yield self._lowest()

    def _slice(self) -> Fit | None:
        """Find what a slice carries; `least` is then final."""
        config = self._config(SLICE)
        if self._by_rate:
            top = SLICE * (self._most if self._most is not None else self._traffic.amount)
            rungs: list[float] | list[int] = ladder.rates(top, _LOWEST_SHARE)
        else:
            rungs = ladder.users(SLICE * self._most_users())
        place = ladder.highest(rungs, lambda amount: self._trials.run(config, amount).met)
        if place is None:
            self._hopeless(self._trials.run(config, rungs[0]))
            return None
        carried = rungs[place]
        needed = max(SLICE + 1, math.ceil(SLICE * self._traffic.amount / carried))
        self._fit = Fit(self.shape, needed, self._trials.run(config, carried), sliced=True)
        same = needed == self.least
        self.least = needed
        return self._fit if same else None

    def _most_users(self) -> int:
        """Users of one instance beyond which some always wait."""
        lengths = self._traffic.source.lengths
        known = self._trials.bounds(self._config(1)).most_running(lengths) if lengths is not None else None
        return known or 1024

    def _hopeless(self, trial: Trial) -> None:
        """It misses at next to no load, and so with any number of instances."""
        whole = self._trials.run(trial.config, trial.amount, to_the_end=True)
        self._give_up(f"even at {whole.traffic} on {_instances(whole)}: {whole.reason}", whole.tightest)

    def _give_up(self, reason: str, nearest: Verdict | None) -> None:
        self.least, self.reason, self.nearest = None, reason, nearest


def _instances(trial: Trial) -> str:
    count = trial.config.instances
    return "1 instance" if count == 1 else f"{count} instances"


def _at_best(verdict: Verdict) -> str:
    objective: Objective = verdict.objective
    return f"{objective.text} cannot be met, at best it is {verdict.value:,.4g} {objective.metric.unit}"
