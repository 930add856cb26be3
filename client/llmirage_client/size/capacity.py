"""How many instances of one shape carry a traffic.

Small clusters are simulated whole, from the fewest instances that the roofline allows upwards. Where more than SAMPLED are
needed, SAMPLED instances are simulated with their share of the traffic: bisection finds the most they carry, and division
gives the number of instances.

Single simulations are noisy. Still, a stricter objective must never need fewer instances, nor a doubled traffic. The first
holds because every decision here rests on a condition that stricter objectives meet on fewer clusters only. For the second,
a cluster must also meet the objectives at a half of the traffic, a quarter, and so on, down to a traffic that it carries
beyond doubt, or to one at which requests hardly ever meet: there, a user alone stands for all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from llmirage_client.measure.slo import Verdict
from llmirage_client.simulator.deployments import InstanceShape
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.size.rate_grid import rate_grid, search_grid, user_grid
from llmirage_client.size.trial import Trial, Trials
from llmirage_client.size.unloaded_bound import missed_unloaded

SAMPLED = 8  # instances
_MEETING = 0.01  # requests in flight on an instance, about: a second one is there for 1 in 100
_LOWEST_SHARE = 0.005  # of the most that sampled instances can carry: the lowest load of the grid
_PATIENCE = 4  # failures after which a user alone is simulated: if that fails, every number does
_UNKNOWN_FLOOR_PER_S = 0.002  # requests/s of an instance of which no bound is known


@dataclass(frozen=True, slots=True)
class Capacity:
    """A number of instances that suffices. trial: the simulation that shows it; sampled: of SAMPLED instances.

    fewest, most: the numbers between which noise leaves the answer.
    """

    shape: InstanceShape
    instances: int
    trial: Trial
    fewest: int
    most: int
    sampled: bool = False

    @property
    def gpus(self) -> int:
        return self.shape.gpus * self.instances


class CapacitySearch:
    """The search for one shape, a simulation or a bisection at a time.

    least: the fewest instances that may still suffice; None: no number does, for the `reason`. nearest: the verdict that
    came closest then.
    """

    def __init__(self, shape: InstanceShape, base: ClusterConfig, trials: Trials) -> None:
        self.shape = shape
        self.reason = ""
        self.nearest: Verdict | None = None
        self._base = base
        self._trials = trials
        self._traffic = trials.traffic
        lengths = self._traffic.source.lengths
        bounds = trials.bounds(self._config(1))
        self._most = bounds.most_requests_per_s(lengths) if lengths is not None else None
        self._alone_s = bounds.latency_s(lengths) if lengths is not None else None
        self._found: Capacity | None = None
        self._failures = 0
        self._doubted: int | None = None  # the fewest instances that may suffice after all
        self.least: int | None = 1
        if self._by_rate and self._most is not None:
            self.least = max(1, math.ceil(self._traffic.amount / self._most))
        if missed := missed_unloaded(trials.objectives, self._traffic.source.sizes, bounds):
            reasons = "; ".join(map(_at_best, missed))
            self._give_up(f"unloaded: {reasons}", max(missed, key=lambda verdict: verdict.load))

    @property
    def _by_rate(self) -> bool:
        return self._traffic.kind == "request_rate"

    def _config(self, instances: int) -> ClusterConfig:
        return self.shape.config(self._base, instances)

    def step(self) -> Capacity | None:
        """Judge `least` instances. Where they do not suffice, `least` grows. Raises ConfigError, SimulationError.

        What it returns must still be judged with less traffic: see `suffices_below`.
        """
        assert self.least is not None
        if self._found is not None:
            return self._found
        if self.least > SAMPLED:
            return self._sample()
        instances = self.least
        trial = self._judge(instances, self._traffic.amount)
        if trial.met:
            return Capacity(self.shape, instances, trial, self._doubted or instances, instances + (not trial.clear))
        self._grow(trial)
        return None

    def suffices_below(self, capacity: Capacity) -> bool:
        """Whether it suffices with less traffic, too. Where it does not, `least` grows."""
        trial, amount = capacity.trial, self._traffic.amount
        while not (capacity.sampled or trial.alone or trial.beyond_doubt):
            amount = amount / 2 if self._by_rate else amount // 2
            trial = self._judge(capacity.instances, amount)
            if not trial.met_by_latency:
                self._grow(trial)
                return False
        return True

    def _judge(self, instances: int, amount: float) -> Trial:
        config = self._config(instances)
        return self._trials.alone(config) if amount < self._floor(instances) else self._trials.run(config, amount)

    def _grow(self, missed: Trial) -> None:
        """One instance more, unless a user alone misses the objectives."""
        assert self.least is not None
        self._doubted = None if missed.clear else self._doubted or self.least
        self._failures += 1
        if self._failures == _PATIENCE and self._never():
            return
        self.least += 1

    def _floor(self, instances: int) -> float:
        """The traffic below which a user alone stands for it."""
        if not self._by_rate:
            return instances
        return instances * (_MEETING / self._alone_s if self._alone_s is not None else _UNKNOWN_FLOOR_PER_S)

    def _sample(self) -> Capacity | None:
        """Find what SAMPLED instances carry; `least` is then final."""
        config = self._config(SAMPLED)
        if self._by_rate:
            top = SAMPLED * (self._most if self._most is not None else self._traffic.amount)
            grid: list[float] | list[int] = rate_grid(top, _LOWEST_SHARE)
        else:
            grid = user_grid(SAMPLED * self._most_users())
        search = search_grid(grid, lambda amount: self._trials.run(config, amount))
        if search.met is None:
            if not self._never():
                fewest = math.floor(SAMPLED * self._traffic.amount / grid[0])
                self._give_up(
                    f"more than {fewest:,} instances needed", None if search.missed is None else search.missed.tightest
                )
            return None
        carried, low, high = search.met.amount, search.clearly_met, search.clearly_missed
        needed, most = (
            max(SAMPLED + 1, math.ceil(SAMPLED * self._traffic.amount / one)) for one in (carried, low or carried)
        )
        fewest = needed if high is None else max(SAMPLED + 1, math.floor(SAMPLED * self._traffic.amount / high) + 1)
        self._found = Capacity(self.shape, needed, search.met, min(fewest, needed), most, sampled=True)
        unchanged = needed == self.least
        self.least = needed
        return self._found if unchanged else None

    def _most_users(self) -> int:
        """Users of one instance beyond which some always wait."""
        lengths = self._traffic.source.lengths
        known = self._trials.bounds(self._config(1)).most_running(lengths) if lengths is not None else None
        return known or 1024

    def _never(self) -> bool:
        """Whether a user alone misses the objectives, and so any number of instances does."""
        alone = self._trials.alone(self._config(1))
        if alone.met_by_latency:
            return False
        estimate = "" if alone.clear else f" (an estimate from {alone.counted:,} requests)"
        self._give_up(f"even one user at a time misses: {alone.reason}{estimate}", alone.tightest)
        return True

    def _give_up(self, reason: str, nearest: Verdict | None) -> None:
        self.least, self.reason, self.nearest = None, reason, nearest


def _at_best(verdict: Verdict) -> str:
    objective = verdict.objective
    return f"{objective.text} cannot be met, at best it is {verdict.value:,.4g} {objective.metric.unit}"
