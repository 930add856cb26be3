"""The highest traffic that meets a condition, by bisection on a grid of loads that is the same for every condition.

On one fixed grid a stricter condition, one that holds at fewer loads, never ends higher. That is true whatever the noise of
single simulations, and without assuming that the condition holds at every load below the highest.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from llmirage_client.size.trial import Trial

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
    low = -1 if place is None else place
    clear = [trial for trial in trials.values() if trial.clear]
    return GridSearch(
        None if place is None else trials[grid[place]],
        trials[grid[low + 1]] if low + 1 < len(grid) else None,
        max((trial.amount for trial in clear if trial.met), default=None),
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
    clear = [trial for trial in trials.values() if trial.clear]
    return GridSearch(
        trials.get(low),
        trials.get(high),
        max((trial.amount for trial in clear if trial.met and trial.amount <= grid[max(low, 0)]), default=None),
        min((trial.amount for trial in clear if not trial.met), default=None),
    )


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
