"""The most traffic that a given cluster carries before it misses an objective.

Bisection ends close to the load at which a queue begins to grow, where short simulations tell least: a cluster that takes a
little more than it can answer looks well for a thousand requests. So the load that is found must meet the objectives for
several times as many requests, and else the highest below it that does. Loads are of one fixed grid: on it a stricter
condition, one that holds at fewer loads, never ends higher, whatever the noise of single simulations, and without assuming
that the condition holds at every load below the highest.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from llmirage_client.simulator.deployments import InstanceShape, units
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.size.traffic import missed_unloaded, tpot_limit_s
from llmirage_client.size.trial import Trial, Trials, wants_traffic

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


def max_rates(
    base: ClusterConfig,
    shapes: Sequence[InstanceShape],
    trials: Trials,
    instances: int,
) -> list[MaxRate]:
    """Return one for each shape, `instances` of it; for a cluster of pools, one for the cluster as it is.

    The first carries the most traffic per GPU. Raises ConfigError, SimulationError.
    """
    configs: list[tuple[InstanceShape | None, ClusterConfig]]
    configs = [(None, base)] if base.pools else [(shape, shape.config(base, instances)) for shape in shapes]
    found = []
    for place, (shape, config) in enumerate(configs):
        trials.begin("the cluster" if shape is None else f"{shape.gpu} {shape.split}", place, len(configs))
        found.append(_max_rate(shape, config, trials))
    found.sort(key=lambda one: -(one.trial.amount / one.trial.figures["gpus"] if one.trial is not None else 0.0))
    return found


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


STEP = 1.02  # from one load of the grid to the next

_FEW = 0.1  # of the most users: with whom their search begins
_DOWN = 4  # places below a start that is missed, for the next trial; then twice as many, ...
_EXPECTING = 7  # trials that begin where the limit is expected; after them it bisects
_LEAST_POWER = 0.3  # of the users, with which a figure grows; a smaller one would be noise
_NEAR = 9  # places of the answer, among which a trial should leave no doubt
_FURTHER = (3, 8)  # places beyond the answer, where noise may leave none


def rate_grid(top: float, lowest_share: float) -> list[float]:
    """Return requests per second from `lowest_share` of `top` up to it, 2 % apart, rounded to three digits."""
    grid, rate = [], top
    while rate >= top * lowest_share:
        grid.append(float(f"{rate:.3g}"))
        rate /= STEP
    return sorted(set(grid))


def user_grid(top: int) -> list[int]:
    """Return 1, 2, 3, ... up to `top`, about 2 % apart where that is more than one."""
    grid, users = [], 1
    while users <= top:
        grid.append(users)
        users = max(users + 1, round(users * STEP))
    return grid


@dataclass(frozen=True, slots=True)
class GridSearch:
    """Result of a search over a grid of loads.

    met: the trial at the load on which bisection ends; None: not even the lowest meets the condition. missed: at the next
    load of the grid; None: the highest load meets it. clearly_met, clearly_missed: loads that do so beyond the noise.
    """

    met: Trial | None
    missed: Trial | None
    clearly_met: float | None
    clearly_missed: float | None


def search_grid(grid: list[float] | list[int], run: Callable[[float], Trial], *, top_first: bool = False) -> GridSearch:
    """Search by bisection for the highest load of the grid whose trial is met. top_first: see `highest_met`."""
    trials: dict[float, Trial] = {}

    def met(amount: float) -> bool:
        trials[amount] = run(amount)
        return trials[amount].met

    place = highest_met(grid, met, top_first=top_first)
    return _ended(grid, trials, -1 if place is None else place)


def _ended(grid: Sequence[float], trials: Mapping[float, Trial], low: int) -> GridSearch:
    """Return the result of a search that ended at the place `low`; -1: below the grid. trials: by their loads."""
    clear = [trial for trial in trials.values() if trial.clear]
    return GridSearch(
        trials[grid[low]] if low >= 0 else None,
        trials[grid[low + 1]] if low + 1 < len(grid) else None,
        max((trial.amount for trial in clear if trial.met and trial.amount <= grid[max(low, 0)]), default=None),
        min((trial.amount for trial in clear if not trial.met), default=None),
    )


def search_users(
    grid: list[int],
    run: Callable[[float], Trial],
    *,
    start: float | None = None,
    run_last: Callable[[float], Trial] | None = None,
) -> GridSearch:
    """Search a grid of users at once, as `search_grid` does, with few trials of many users, which cost most.

    Begins near `start`, else with few, and continues where the used shares of the limits let the limit expect. run_last:
    instead of `run`, at a number that is the answer if it is met.
    """
    trials: dict[int, Trial] = {}
    run_last = run_last or run

    def tried(place: int, last: bool = False) -> Trial:
        if place not in trials:
            trials[place] = (run_last if last else run)(grid[place])
        return trials[place]

    low, high = -1, len(grid)
    place, down = bisect_left(grid, grid[-1] * _FEW), 0
    if start is not None:
        place, down = min(bisect_left(grid, start), len(grid) - 1), _DOWN
    while high - low > 1:
        if tried(place, place + 1 == high).met:
            low = place
        else:
            high = place
        expected = _expected(grid, trials, low, high) if len(trials) < _EXPECTING else None
        if low < 0 and down:
            place, down = max(high - down, 0), 2 * down
        elif expected is None or expected >= high:
            place = (low + high) // 2
        else:  # the place after it, whose failure makes the next trial the last
            place = min(max(expected, low) + 1, high - 1)
    for step in _FURTHER if 0 <= low < high < len(grid) else ():
        near = {place: trial for place, trial in trials.items() if abs(place - low) <= _NEAR and trial.clear}
        if low >= step and not any(trial.met for trial in near.values()):
            tried(low - step)
        if high + step < len(grid) and all(trial.met for trial in near.values()):
            tried(high + step)
    return _ended(grid, {grid[place]: trial for place, trial in trials.items()}, low)


def _expected(grid: list[int], trials: Mapping[int, Trial], low: int, high: int) -> int | None:
    """Return the expected place of the limit on the grid; None if the trials do not tell.

    The used share of the limit is taken to grow with a power of the users, as it does between the trials below and above it
    (else the last two below).
    """
    if low < 0:
        return None
    others = [place for place in sorted(trials) if place != low and 0 < trials[place].load < math.inf]
    other = high if high in others else max((place for place in others if place < low), default=None)
    power = 1.0
    below = trials[low].load
    if not 0 < below < math.inf:
        return None
    if other is not None and (ratio := math.log(trials[other].load / below) / math.log(grid[other] / grid[low])) > 0:
        power = max(ratio, _LEAST_POWER)
    users = grid[low] * min((1 / below) ** (1 / power), grid[-1] / grid[low])
    return bisect_right(grid, users) - 1 if users < grid[-1] else len(grid) - 1


def highest_met(grid: list[float] | list[int], met: Callable[[float], bool], *, top_first: bool = False) -> int | None:
    """Return the index of the load that bisection ends on; None: not even the lowest meets the condition.

    top_first: ask for the highest load before all others, where it may well be met.
    """
    low, high = -1, len(grid)
    if top_first:
        if met(grid[-1]):
            return len(grid) - 1
        high -= 1
    while high - low > 1:
        middle = (low + high) // 2
        if met(grid[middle]):
            low = middle
        else:
            high = middle
    return None if low < 0 else low
