"""How much traffic a given cluster carries before it misses an objective."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llmirage_client.simulator.deployments import Refused, Shape
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.size import ladder
from llmirage_client.size.solo import one_user
from llmirage_client.size.trial import Trial, Trials

_LOWEST_SHARE = 0.01  # of the most that the roofline leaves possible
_TOP_UNKNOWN = 1e4  # requests/s or users, where it says nothing


@dataclass(frozen=True, slots=True)
class Carried:
    """trial: at the most that meets the objectives; None: not even the least does. beyond: the next load, which does not.

    reason: why nothing does.
    """

    shape: Shape | None
    config: ClusterConfig
    trial: Trial | None
    beyond: Trial | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MaxRates:
    """carried: the most first, by GPU."""

    carried: tuple[Carried, ...]
    refused: tuple[Refused, ...]
    simulations: int
    requests: int
    cpu_s: float


def max_rates(
    base: ClusterConfig,
    shapes: Sequence[Shape],
    refused: Sequence[Refused],
    trials: Trials,
    instances: int,
    progress: Callable[[str], None] = lambda line: None,
) -> MaxRates:
    """Of each shape in so many instances; of the cluster as it is, if it has pools. Raises ConfigError, SimulationError."""
    begun_s = time.process_time()
    configs: list[tuple[Shape | None, ClusterConfig]]
    configs = [(None, base)] if base.pools else [(shape, shape.config(base, instances)) for shape in shapes]
    found = []
    for shape, config in configs:
        progress("the cluster" if shape is None else f"{shape.gpu} {shape.split}")
        found.append(_carried(shape, config, trials))
    found.sort(key=lambda one: -(one.trial.amount / one.trial.figures["gpus"] if one.trial is not None else 0.0))
    return MaxRates(tuple(found), tuple(refused), trials.count, trials.requests, time.process_time() - begun_s)


def _carried(shape: Shape | None, config: ClusterConfig, trials: Trials) -> Carried:
    source = trials.traffic.source
    bounds = trials.bounds(config)
    missed = [verdict for verdict in one_user(trials.objectives, source.sizes, bounds) if not verdict.met]
    if missed:
        return Carried(shape, config, None, None, f"one user alone misses {'; '.join(map(str, missed))} at best")
    lengths = source.lengths
    by_rate = trials.traffic.kind == "request_rate"
    instances = sum(pool.instances for pool in config.all_pools)
    rungs: list[float] | list[int]
    if by_rate:
        most = bounds.most_requests_per_s(lengths) if lengths is not None else None
        rungs = (
            ladder.rates(_start_top(trials, config), 1e-4) if most is None else ladder.rates(most * instances, _LOWEST_SHARE)
        )
    else:
        users = bounds.most_running(lengths) if lengths is not None else None
        rungs = ladder.users((users or 1024) * instances)
    place = ladder.highest(rungs, lambda amount: trials.run(config, amount).met)
    if place is None:
        lowest = trials.run(config, rungs[0], to_the_end=True)
        return Carried(shape, config, None, None, f"even at {lowest.traffic}: {lowest.reason}")
    beyond = trials.run(config, rungs[place + 1]) if place + 1 < len(rungs) else None
    return Carried(shape, config, trials.run(config, rungs[place]), beyond)


def _start_top(trials: Trials, config: ClusterConfig) -> float:
    """A rate that is missed, where the roofline names none: the first of 1, 4, 16, ..."""
    rate = 1.0
    while rate < _TOP_UNKNOWN and trials.run(config, rate).met:
        rate *= 4
    return rate
