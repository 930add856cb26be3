"""An asyncio event loop whose clock jumps: a timer is due the moment nothing else is left to do.

Everything that runs on it is exact and repeatable: `asyncio.sleep(3600)` takes no time, and `loop.time()` afterwards has
moved by 3600.0 to the last bit. The clock starts at 0. Work handed to an executor runs at once, in place, and takes no
virtual time.
No real input or output is possible: a task that waits for a socket waits for ever, which the loop reports as a deadlock.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class VirtualDeadlockError(RuntimeError):
    """Every task waits for something that nothing will ever bring."""


class _JumpingSelector(selectors.SelectSelector):
    """Instead of waiting for the next timer, moves the loop's clock to it."""

    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise VirtualDeadlockError("virtual time stands still: every task waits and no timer is set")
        if timeout > 0:
            self.loop.jump()
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Use it through `run`, or as the loop of an `asyncio.Runner(loop_factory=VirtualTimeLoop)`."""

    # asyncio keeps its timers in a heap, earliest first; the base loop drops cancelled ones from the top before it selects.
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self) -> None:
        self._now = 0.0
        selector = _JumpingSelector()
        super().__init__(selector)
        selector.loop = self
        self._clock_resolution = math.ulp(0.0)

    def time(self) -> float:
        return self._now

    def jump(self) -> None:
        """Moves the clock to the next timer."""
        self._now = max(self._now, self._scheduled[0].when())
        # The base loop fires timers earlier than now + resolution: one last bit, so that none fires before its time.
        self._clock_resolution = math.ulp(self._now)

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def run(main: Coroutine[Any, Any, T]) -> T:
    """Runs `main` to its end in virtual time. Raises VirtualDeadlockError when nothing can go on."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def precise_clock() -> Callable[[], float]:
    """The running loop's clock at full precision: uvloop rounds its own to milliseconds, on the base of time.monotonic."""
    loop = asyncio.get_running_loop()
    return loop.time if isinstance(loop, VirtualTimeLoop) else time.monotonic
