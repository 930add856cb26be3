"""When root conversations start: as slots come free, at a rate, or when the file says."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Iterator

from llmirage_client.load.options import RunOptions
from llmirage_client.load.stop import Stop, wake
from llmirage_client.workload.session import Session, Workload

Start = Callable[[Session, float], None]
"""Starts a root's conversation, which was due at that time of the run's clock. Its slot is free again when its whole tree is
done: `Arrivals.tree_done` says so."""


class Arrivals:
    """A closed loop: a new root as soon as one is done, `concurrency` of them at a time (None: no limit).

    Also the base of the other ways to arrive.
    """

    def __init__(self, roots: Iterator[Session], start: Start, stop: Stop, concurrency: int | None) -> None:
        self.roots = roots
        self.stop = stop
        self.running = 0
        self._start = start
        self._limit = math.inf if concurrency is None else concurrency
        self._changed = asyncio.Event()
        stop.waiter().add_done_callback(lambda _: self._changed.set())

    async def drive(self) -> None:
        """Starts roots until there are no more or the phase ends."""
        for session in self.roots:
            if not await self.slot():
                return
            self.begin(session, self.stop.clock())
            await asyncio.sleep(0)  # let it go out before the next is prepared

    async def turn(self) -> None:
        """Called before each further turn of a root that waits for no children: returns when it may go out."""

    def tree_done(self) -> None:
        self.running -= 1
        self._changed.set()

    @property
    def slot_free(self) -> bool:
        return self.running < self._limit

    async def slot(self) -> bool:
        """Waits for a free slot; False when the phase has ended instead."""
        while not self.slot_free and not self.stop.ended():
            await self.change()
        return not self.stop.ended()

    async def change(self) -> None:
        """Returns when a slot has come free, a turn has become ready or the phase has ended, since the call."""
        self._changed.clear()
        await self._changed.wait()

    def note_change(self) -> None:
        self._changed.set()

    def begin(self, session: Session, due_s: float) -> None:
        self.running += 1
        self._start(session, due_s)


class Schedule(Arrivals):
    """Roots start at their own arrival times, counted from now; a limit of slots may hold them back further."""

    def __init__(self, roots: Iterator[Session], start: Start, stop: Stop, concurrency: int | None, speed: float) -> None:
        super().__init__(roots, start, stop, concurrency)
        self._speed = speed

    async def drive(self) -> None:
        origin_s = self.stop.clock()
        for session in self.roots:
            due_s = origin_s + (session.arrival_s or 0.0) / self._speed
            await self.stop.wait_until(due_s)
            if not await self.slot():
                return
            self.begin(session, due_s)


class AtRate(Arrivals):
    """One turn of a root conversation per tick: a further turn of a running one if any is ready, else a new root.

    Ticks are absolute: a late one does not move those after it. A tick that finds nothing to send waits for something, and
    the ticks after it count from there: a backlog of missed ticks would come out as a burst.
    """

    def __init__(
        self, roots: Iterator[Session], start: Start, stop: Stop, concurrency: int | None, gaps_s: Iterator[float]
    ) -> None:
        super().__init__(roots, start, stop, concurrency)
        self._gaps_s = gaps_s
        self._ready: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        waiter = self.stop.waiter()
        self._ready.append(waiter)
        self.note_change()
        await waiter

    async def drive(self) -> None:
        due_s = self.stop.clock()
        upcoming = next(self.roots, None)
        for gap_s in self._gaps_s:
            await self.stop.wait_until(due_s)
            while not self._ready and not (upcoming and self.slot_free) and not self.stop.ended():
                if upcoming is None and self.running == 0:
                    return
                await self.change()
                due_s = max(due_s, self.stop.clock())
            if self.stop.ended():
                return
            if self._ready:
                wake(self._ready.popleft())
            elif upcoming:
                self.begin(upcoming, due_s)
                upcoming = next(self.roots, None)
            due_s += gap_s


def plan(workload: Workload, options: RunOptions) -> Iterator[Session]:
    """The roots to run, in order; without end when only a cap or a duration limits the run."""
    roots = [workload.sessions[root] for root in workload.roots]
    if options.fixed_schedule:
        roots.sort(key=lambda session: session.arrival_s or 0.0)
        return iter(roots[: options.num_conversations])
    count = options.num_conversations
    if count is None and options.request_count is None and options.benchmark_duration_s is None:
        count = len(roots) - workload.skipped
    return itertools.islice(itertools.cycle(roots), count)


def rate_gaps_s(options: RunOptions, rng: random.Random) -> Iterator[float]:
    """Seconds between the ticks of a rate, at the run's speed; exponential for a Poisson process."""
    assert options.request_rate_per_s is not None
    rate_per_s = options.request_rate_per_s * options.speed
    while True:
        yield rng.expovariate(rate_per_s) if options.arrival_pattern == "poisson" else 1.0 / rate_per_s


def arrivals(workload: Workload, options: RunOptions, start: Start, stop: Stop, rng: random.Random) -> Arrivals:
    """The way in which the options say that roots arrive."""
    roots = plan(workload, options)
    if options.fixed_schedule:
        return Schedule(roots, start, stop, options.concurrency, options.speed)
    if options.request_rate_per_s is not None:
        return AtRate(roots, start, stop, options.concurrency, rate_gaps_s(options, rng))
    return Arrivals(roots, start, stop, options.concurrency or 1)
