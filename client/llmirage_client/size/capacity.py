"""How many instances of one shape carry a traffic.

Small clusters are simulated whole, from the fewest instances that the roofline allows upwards. Where more than SAMPLED are
needed, SAMPLED instances are simulated with their share of the traffic: bisection finds the most they carry, and division
gives the number of instances.

Single simulations are noisy. Still, a stricter objective must never need fewer instances, nor a doubled traffic. The first
holds because every decision here rests on a condition that stricter objectives meet on fewer clusters only. For the second,
a cluster must also meet the objectives at a half of the traffic, a quarter, and so on down to FLOOR_SHARE of the most it can
carry. Below that, one instance stands for all, with FLOOR_SHARE of the most it can carry.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from llmirage_client.measure.slo import Verdict
from llmirage_client.report.numbers import plural
from llmirage_client.simulator.deployments import InstanceShape
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.size.rate_grid import highest_met, rate_grid, user_grid
from llmirage_client.size.trial import Trial, Trials
from llmirage_client.size.unloaded_bound import missed_unloaded

SAMPLED = 8  # instances
FLOOR_SHARE = 0.1
_LOWEST_SHARE = 0.02  # of the most that sampled instances can carry: the lowest load of the grid
_PATIENCE = 4  # failures after which one instance at its floor is simulated: if that fails, every number does
_UNKNOWN_FLOOR_PER_S = 0.05  # requests/s of an instance of which no bound is known


@dataclass(frozen=True, slots=True)
class Capacity:
    """A number of instances that suffices. trial: the simulation that shows it; sampled: of SAMPLED instances."""

    shape: InstanceShape
    instances: int
    trial: Trial
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
        self._found: Capacity | None = None
        self._failures = 0
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
        amount = self._traffic.amount
        low = amount < self._floor(instances)
        trial = self._trials.run(*self._lowest()) if low else self._trials.run(self._config(instances), amount)
        if trial.met:
            return Capacity(self.shape, instances, trial)
        self._grow()
        return None

    def suffices_below(self, capacity: Capacity) -> bool:
        """Whether it suffices with less traffic, too. Where it does not, `least` grows."""
        if capacity.sampled:
            return True
        if all(self._trials.run(config, amount).met for config, amount in self._lower(capacity.instances)):
            return True
        self._grow()
        return False

    def _grow(self) -> None:
        """One instance more, unless the objectives are missed at next to no load."""
        assert self.least is not None
        self._failures += 1
        if self._failures == _PATIENCE:
            alone = self._trials.run(*self._lowest())
            if not alone.met:
                self._never(alone)
                return
        self.least += 1

    def _floor(self, instances: int) -> float:
        """The traffic below which one of the instances is judged with its share of this."""
        if not self._by_rate:
            return instances
        return instances * (FLOOR_SHARE * self._most if self._most is not None else _UNKNOWN_FLOOR_PER_S)

    def _lowest(self) -> tuple[ClusterConfig, float]:
        return self._config(1), self._floor(1)

    def _lower(self, instances: int) -> Iterator[tuple[ClusterConfig, float]]:
        """Clusters and the lesser traffic at which they must meet the objectives, too."""
        floor, amount = self._floor(instances), self._traffic.amount
        while (amount := amount / 2 if self._by_rate else amount // 2) >= floor:
            yield self._config(instances), amount
        yield self._lowest()

    def _sample(self) -> Capacity | None:
        """Find what SAMPLED instances carry; `least` is then final."""
        config = self._config(SAMPLED)
        if self._by_rate:
            top = SAMPLED * (self._most if self._most is not None else self._traffic.amount)
            grid: list[float] | list[int] = rate_grid(top, _LOWEST_SHARE)
        else:
            grid = user_grid(SAMPLED * self._most_users())
        place = highest_met(grid, lambda amount: self._trials.run(config, amount).met)
        if place is None:
            self._never(self._trials.run(config, grid[0]))
            return None
        carried = grid[place]
        needed = max(SAMPLED + 1, math.ceil(SAMPLED * self._traffic.amount / carried))
        self._found = Capacity(self.shape, needed, self._trials.run(config, carried), sampled=True)
        unchanged = needed == self.least
        self.least = needed
        return self._found if unchanged else None

    def _most_users(self) -> int:
        """Users of one instance beyond which some always wait."""
        lengths = self._traffic.source.lengths
        known = self._trials.bounds(self._config(1)).most_running(lengths) if lengths is not None else None
        return known or 1024

    def _never(self, trial: Trial) -> None:
        """It misses at next to no load, and so with any number of instances."""
        whole = self._trials.run(trial.config, trial.amount, to_the_end=True)
        instances = plural(whole.config.instances, "instance")
        self._give_up(f"even at {whole.traffic} on {instances}: {whole.reason}", whole.tightest)

    def _give_up(self, reason: str, nearest: Verdict | None) -> None:
        self.least, self.reason, self.nearest = None, reason, nearest


def _at_best(verdict: Verdict) -> str:
    objective = verdict.objective
    return f"{objective.text} cannot be met, at best it is {verdict.value:,.4g} {objective.metric.unit}"
