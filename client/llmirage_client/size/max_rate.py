"""The most traffic that a given cluster carries before it misses an objective.

Bisection ends close to the load at which a queue begins to grow, where short simulations tell least: a cluster that takes a
little more than it can answer looks well for a thousand requests. So the load that is found must meet the objectives for
several times as many requests, and else the highest below it that does. A stricter objective is never carried further.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from llmirage_client.simulator.deployments import InstanceShape, Refused, units
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.size.rate_grid import GridSearch, rate_grid, search_grid, search_users, user_grid
from llmirage_client.size.traffic import missed_unloaded, tpot_limit_s
from llmirage_client.size.trial import Effort, Trial, Trials, wants_traffic

_LOWEST_SHARE = 0.01  # of the most that the roofline allows
_LOWEST_SHARE_UNKNOWN = 1e-4  # of a rate that was found to be too high, where the roofline says nothing
_TOP_UNKNOWN = 1e4  # requests/s
_START = 0.95  # of the users that the roofline expects: a trial that meets the objectives says where to go on
_DEVIATIONS = 2.0  # of a Poisson count, to each side


@dataclass(frozen=True, slots=True)
class MaxRate:
    """trial: at the most that meets the objectives; None: not even the least does, for the `reason`.

    beyond: the next load of the grid, which misses them; None: the highest that was tried meets them. between: loads
    between which noise leaves the answer.
    """

    shape: InstanceShape | None
    config: ClusterConfig
    trial: Trial | None
    beyond: Trial | None
    reason: str = ""
    between: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class MaxRates:
    """found: by the traffic carried per GPU, the most first."""

    found: tuple[MaxRate, ...]
    refused: tuple[Refused, ...]
    effort: Effort


def max_rates(
    base: ClusterConfig,
    shapes: Sequence[InstanceShape],
    refused: Sequence[Refused],
    trials: Trials,
    instances: int,
    progress: Callable[[str, int, int], None] = lambda name, place, count: None,
) -> MaxRates:
    """Return one for each shape, `instances` of it; for a cluster of pools, one for the cluster as it is.

    progress: told the name of each, its place and their count. Raises ConfigError, SimulationError.
    """
    configs: list[tuple[InstanceShape | None, ClusterConfig]]
    configs = [(None, base)] if base.pools else [(shape, shape.config(base, instances)) for shape in shapes]
    found = []
    for place, (shape, config) in enumerate(configs):
        progress("the cluster" if shape is None else f"{shape.gpu} {shape.split}", place, len(configs))
        found.append(_max_rate(shape, config, trials))
    found.sort(key=lambda one: -(one.trial.amount / one.trial.figures["gpus"] if one.trial is not None else 0.0))
    return MaxRates(tuple(found), tuple(refused), trials.effort)


def _max_rate(shape: InstanceShape | None, config: ClusterConfig, trials: Trials) -> MaxRate:
    source = trials.traffic.source
    bounds = trials.bounds(config)
    if missed := missed_unloaded(trials.objectives, source.sizes, bounds):
        return MaxRate(shape, config, None, None, f"missed even when unloaded: {'; '.join(map(str, missed))}")
    lengths = source.lengths
    instances = units(config)
    grid: Sequence[float]
    if trials.traffic.kind == "request_rate":
        most = bounds.most_requests_per_s(lengths) if lengths is not None else None
        if most is None:
            grid = rate_grid(_missed_rate(trials, config), _LOWEST_SHARE_UNKNOWN)
        else:
            grid = rate_grid(most * instances, _LOWEST_SHARE)
        search = search_grid(grid, lambda amount: trials.run(config, amount))
    else:
        users = bounds.most_running(lengths) if lengths is not None else None
        grid = user_grid((users or 1024) * instances)
        if any(wants_traffic(objective) for objective in trials.objectives):
            search = search_grid(grid, lambda amount: trials.run(config, amount), top_first=True)
        else:
            search = _search_users(list(grid), config, trials)
    if search.met is None:
        lowest = trials.run(config, grid[0], to_the_end=True)
        return MaxRate(shape, config, None, None, f"even at {lowest.traffic}: {lowest.reason}")
    highest = search.met.amount
    place = next(place for place, amount in enumerate(grid) if amount == highest)
    beyond, found = search.missed, trials.run_long(config, highest)
    while not found.met and place:
        place, beyond = place - 1, found
        found = trials.run_long(config, grid[place])
    if not found.met:
        return MaxRate(shape, config, None, None, f"even at {found.traffic}: {found.reason}")
    return MaxRate(shape, config, found, beyond, "", _between(found, search, source.clumping))


def _search_users(grid: list[int], config: ClusterConfig, trials: Trials) -> GridSearch:
    source = trials.traffic.source
    if source.single_turns:
        start = _users_expected(grid, config, trials)
        return search_users(
            grid, lambda users: trials.run(config, users), start=start, run_last=lambda users: trials.run_long(config, users)
        )
    search = search_users(
        grid, lambda users: trials.run_brief(config, users), run_last=lambda users: trials.run(config, users)
    )
    if search.met is None or (whole := trials.run(config, search.met.amount)).met:
        return search
    fewer = [users for users in grid if users < whole.amount] or grid[:1]
    search = search_users(fewer, lambda users: trials.run(config, users), start=fewer[-1])
    return replace(search, missed=search.missed or whole)


def _users_expected(grid: list[int], config: ClusterConfig, trials: Trials) -> float | None:
    """Return where the roofline expects the limit of TPOT or latency.

    None: there is no such objective, or it does not know.
    """
    lengths, bounds = trials.traffic.source.lengths, trials.bounds(config)
    if lengths is None:
        return None
    limit_s = tpot_limit_s(trials.objectives, lengths)
    if limit_s == math.inf or bounds.token_s(lengths, 1) is None:
        return None
    place = bisect_left(grid, limit_s, key=lambda users: bounds.token_s(lengths, users / units(config)) or 0.0)
    return grid[max(place - 1, 0)] * _START


def _between(found: Trial, search: GridSearch, clumping: float) -> tuple[float, float]:
    """Return the range in which the answers of most seeds lie.

    It holds the rates that the trials cannot tell apart, and those whose arrivals, in as many requests, may equal this
    rate's.
    """
    low, high = search.clearly_met or found.amount, search.clearly_missed or found.amount
    spread = _DEVIATIONS * math.sqrt(clumping / found.counted) if found.kind == "request_rate" else 0.0
    return min(low, found.amount * (1 - spread)), max(high, found.amount * (1 + spread))


def _missed_rate(trials: Trials, config: ClusterConfig) -> float:
    """Return a rate that misses the objectives, where the roofline names none: the first of 1, 4, 16, ..."""
    rate = 1.0
    while rate < _TOP_UNKNOWN and trials.run(config, rate).met:
        rate *= 4
    return rate
