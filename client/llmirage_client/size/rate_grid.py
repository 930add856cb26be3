"""The highest traffic that meets a condition, by bisection on a grid of loads that is the same for every condition.

On one fixed grid a stricter condition, one that holds at fewer loads, never ends higher. That is true whatever the noise of
single simulations, and without assuming that the condition holds at every load below the highest.
"""

from __future__ import annotations

from collections.abc import Callable

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


def highest_met(grid: list[float] | list[int], met: Callable[[float], bool]) -> int | None:
    """The index of the load that bisection ends on; None: not even the lowest meets the condition."""
    low, high = -1, len(grid)
    while high - low > 1:
        middle = (low + high) // 2
        if met(grid[middle]):
            low = middle
        else:
            high = middle
    return None if low < 0 else low
