"""The highest traffic that meets a condition, by bisection on a grid of loads that is the same for every condition.

On one fixed grid a stricter condition, one that holds at fewer loads, never ends higher. That is true whatever the noise of
single simulations, and without assuming that the condition holds at every load below the highest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llmirage_client.size.trial import Trial

STEP = 1.02  # from one load of the grid to the next


def rate_grid(top: float, lowest_share: float) -> list[float]:
    """Requests per second from `lowest_share` of `top` up to it, 2 % apart, rounded to three digits."""
    grid, rate = [], top
    while rate >= top * lowest_share:
        grid.append(float(f"{rate:.3g}"))
        rate /= STEP
    return sorted(set(grid))


def user_grid(top: int) -> list[int]:
    """1, 2, 3, ... up to `top`, about 2 % apart where that is more than one."""
    grid, users = [], 1
    while users <= top:
        grid.append(users)
        users = max(users + 1, round(users * STEP))
    return grid


@dataclass(frozen=True, slots=True)
class GridSearch:
    """met: the trial at the load on which bisection ends; None: not even the lowest meets the condition. missed: at the next
    load of the grid; None: the highest load meets it. clearly_met, clearly_missed: loads that do so beyond the noise.
    """

    met: Trial | None
    missed: Trial | None
    clearly_met: float | None
    clearly_missed: float | None


def search_grid(grid: list[float] | list[int], run: Callable[[float], Trial], *, top_first: bool = False) -> GridSearch:
    """Bisection for the highest load of the grid whose trial is met. top_first: see `highest_met`."""
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


def highest_met(grid: list[float] | list[int], met: Callable[[float], bool], *, top_first: bool = False) -> int | None:
    """The index of the load that bisection ends on; None: not even the lowest meets the condition.

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
