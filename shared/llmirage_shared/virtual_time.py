"""Event loops in virtual time: one that jumps to the next timer when nothing is ready, and one with real input and output.

Code on a VirtualTimeLoop is exact and repeatable: `asyncio.sleep(3600)` takes no time, and `loop.time()` afterwards has
moved by 3600.0 to the last bit. The clock starts at 0. Timers of one instant fire in the order in which they were set. Work
for an executor runs at once, in place, and takes no virtual time. Real input and output is impossible: a task that waits for
a socket waits for ever, which the loop reports as a deadlock.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import selectors
import time
from asyncio import Handle, TimerHandle
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from itertools import count
from typing import Any, TypeVar, TypeVarTuple

from llmirage_shared import standstill
from llmirage_shared.standstill import StandstillError, VirtualDeadlockError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

QUIET_S = 0.002  # of outside input before a SkippingLoop skips
_CANCELLED_TIMERS = 256  # in the heap before it is cleaned
_TASKS_NAMED = 3  # in the message of a deadlock

Source = Callable[[float], float]
"""Something that runs in virtual time while no task can. Called with the time of the next timer (inf without one), it runs
until then, or until it has made something ready, and returns the time that it reached."""


class SimulatedTimeLoop(asyncio.SelectorEventLoop):
    """A loop whose clock may move without waiting: everything that is timed on it uses `loop.time()`.

    Work for an executor runs at once, in place: the clock cannot move while it is done.
    """

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


class VirtualTimeLoop(SimulatedTimeLoop):
    """An event loop for `run`, or for an `asyncio.Runner(loop_factory=VirtualTimeLoop)`.

    source: a process in virtual time beside tasks and timers, see `Source`.
    """

    _ready: deque[Handle]

    def __init__(self) -> None:
        self._now = 0.0
        self._timers: list[tuple[float, int, TimerHandle]] = []  # a heap
        self._serial = count()
        self._cancelled_timers = 0
        self._turns_s = 0.0  # the last instant
        self._turns = 0  # of the loop at that instant
        self.source: Source | None = None
        super().__init__()

    def time(self) -> float:
        return self._now

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> TimerHandle:
        handle = TimerHandle(when, callback, args, self, context)
        handle._scheduled = True  # type: ignore[attr-defined]  # so that the loop hears of its cancellation
        heapq.heappush(self._timers, (when, next(self._serial), handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> Handle:
        handle = Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    # Called by asyncio.BaseEventLoop, the same from Python 3.11 to 3.14.

    def _run_once(self) -> None:
        """Run one turn: the callbacks that are ready now. Those they make ready run in the next turn."""
        ready, timers = self._ready, self._timers
        if not ready:
            self._jump()
        if self._now > self._turns_s:
            self._turns_s, self._turns = self._now, 0
        self._turns += 1
        if self._turns > standstill.TURNS_AT_ONE_TIME:
            self._turns = 0
            raise StandstillError(self._now)
        while timers and timers[0][0] <= self._now:
            handle = heapq.heappop(timers)[2]
            handle._scheduled = False  # type: ignore[attr-defined]
            ready.append(handle)
        for _ in range(len(ready)):
            call = ready.popleft()
            if not call._cancelled:
                call._run()

    def _timer_handle_cancelled(self, _: TimerHandle) -> None:
        self._cancelled_timers += 1
        if self._cancelled_timers > _CANCELLED_TIMERS and 2 * self._cancelled_timers > len(self._timers):
            self._timers[:] = [timer for timer in self._timers if not timer[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled_timers = 0

    def _jump(self) -> None:
        """Move the clock to the next event."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
            self._cancelled_timers -= 1
        reached = timers[0][0] if timers else math.inf
        if self.source is not None:
            reached = self.source(reached)
        if reached == math.inf and not self._ready:
            raise VirtualDeadlockError(self._explain())
        if self._now < reached < math.inf:
            self._now = reached

    def _explain(self) -> str:
        tasks = asyncio.all_tasks(self)
        places = sorted({place for task in tasks if (place := _place(task))})
        shown = "; ".join(places[:_TASKS_NAMED]) + ("; ..." if len(places) > _TASKS_NAMED else "")
        waiting = f": {len(tasks)} of them, in {shown}" if places else ""
        return f"virtual time stands still at {self._now:g} s: every task waits and no timer is set{waiting}"


def _place(task: asyncio.Task[Any]) -> str:
    """Return where a task waits: the innermost named function."""
    coroutine: Any = task.get_coro()
    place = ""
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        place = f"{frame.f_code.co_qualname} (line {frame.f_lineno})"
        coroutine = getattr(coroutine, "cr_await", None)
    return place


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end in virtual time. Raises VirtualDeadlockError if every task waits for ever."""
    results: list[T] = []

    async def keep() -> None:  # no return value: asyncio.Runner formats its task with the result to restore SIGINT
        results.append(await main)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(keep())
    return results[0]


def precise_clock() -> Callable[[], float]:
    """Return the running loop's clock at full precision: uvloop's own is time.monotonic rounded to milliseconds."""
    loop = asyncio.get_running_loop()
    return loop.time if isinstance(loop, SimulatedTimeLoop) else time.monotonic


class SkippingLoop(SimulatedTimeLoop):
    """An event loop with real input and output that skips waiting.

    Its clock is the real one plus the skipped time. It skips to the next timer when there is nothing else to do, the owner
    says that a caller waits for the timers, and for QUIET_S nothing has come from outside: requests that are sent together
    arrive together. Without a wait, time passes as on any other loop.

    awaited: returns whether a caller waits for the timers.
    """

    def __init__(self, awaited: Callable[[], bool]) -> None:
        self.awaited = awaited
        self.skipped_s = 0.0
        self.quiet = True  # nothing has come since the last skip
        self.target_s: float | None = None  # of `advance`
        self._reached: asyncio.Future[None] | None = None
        super().__init__(_SkippingSelector(self))

    def time(self) -> float:
        return time.monotonic() + self.skipped_s

    def hear(self) -> None:
        """Note input from outside: more may follow at once."""
        self.quiet = False

    async def advance(self, seconds: float) -> None:
        """Let that much time pass without waiting, with all that happens in it."""
        self.target_s, self._reached = self.time() + seconds, self.create_future()
        await self._reached

    def reach(self) -> None:
        """Resume the caller of `advance`, whose time has come."""
        reached, self.target_s, self._reached = self._reached, None, None
        if reached is not None:
            self.call_soon(wake, reached)

    def is_own(self, descriptor: int) -> bool:
        """Return whether it is the pipe through which other threads wake this loop."""
        pipe: Any = self._ssock  # type: ignore[attr-defined]  # the same from Python 3.11 to 3.14
        return pipe is not None and descriptor == pipe.fileno()


def wake(waiter: asyncio.Future[None]) -> None:
    """Let the waiting task go on, unless that was done before."""
    if not waiter.done():
        waiter.set_result(None)


class _SkippingSelector(selectors.DefaultSelector):
    def __init__(self, loop: SkippingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return ready events, or skip time. timeout: until the next timer; None: there is none."""
        loop = self._loop
        if timeout is not None and timeout <= 0:
            return self._noted(super().select(0))
        if loop.target_s is not None:
            if events := self._noted(super().select(0)):
                return events
            left_s = loop.target_s - loop.time()
            if timeout is None or timeout >= left_s:
                loop.skipped_s += max(left_s, 0.0)
                loop.reach()
            else:
                loop.skipped_s += timeout
            return []
        if timeout is None or not loop.awaited():
            return self._noted(super().select(timeout))
        began_s = time.monotonic()
        events = super().select(0 if loop.quiet else min(timeout, QUIET_S))
        if events:
            return self._noted(events)
        loop.quiet = True
        loop.skipped_s += max(timeout - (time.monotonic() - began_s), 0.0)
        return []

    def _noted(self, events: list[tuple[selectors.SelectorKey, int]]) -> list[tuple[selectors.SelectorKey, int]]:
        for key, mask in events:
            if mask & selectors.EVENT_READ and not self._loop.is_own(key.fd):
                self._loop.hear()
        return events
