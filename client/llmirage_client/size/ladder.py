"""The highest traffic that meets a condition, on a ladder of loads that is the same for every condition.

Bisection on one fixed ladder is monotone: a stricter condition, one that holds on fewer rungs, never ends higher. That is so
whatever the noise of single simulations, and needs no assumption that the condition holds below the highest rung.
"""

from __future__ import annotations

from collections.abc import Callable

STEP = 1.02  # from rung to rung


def rates(top: float, lowest_share: float) -> list[float]:
    """Requests per second from `lowest_share` of `top` up to it, 2 % apart, with three digits."""
    rungs, rate = [], top
    while rate >= top * lowest_share:
        rungs.append(float(f"{rate:.3g}"))
        rate /= STEP
    return sorted(set(rungs))


def users(top: int) -> list[int]:
    """1, 2, 3, ... up to `top`, about 2 % apart where that is more than one."""
    rungs, number = [], 1
    while number <= top:
        rungs.append(number)
        number = max(number + 1, round(number * STEP))
    return rungs


def highest(rungs: list[float] | list[int], met: Callable[[float], bool]) -> int | None:
    """The index of the rung that bisection ends on; None: not even the lowest."""
    low, high = -1, len(rungs)
    while high - low > 1:
        middle = (low + high) // 2
        if met(rungs[middle]):
            low = middle
        else:
            high = middle
    return None if low < 0 else low
