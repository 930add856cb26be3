"""When root conversations start: as slots come free, at a rate, or when the file says. Users at a pace are in users.py."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from llmirage_client.load.rates import RateSeries
from llmirage_client.load.slots import Slots
from llmirage_client.load.stop import Stop, wake
from llmirage_client.workload.session import Session

_STEPS_TO_SEND = 3  # of the event loop: a conversation starts, its pre-session children go out, its first turn goes out

Start = Callable[[Session, float], None]
"""Starts a root's conversation, which was due at that time of the run's clock. Its slot is free again when its whole tree is
done: `Arrivals.tree_done` says so."""


class Arrivals:
    """A closed loop: a new root as soon as a slot is free. Also the base of the other ways to arrive."""

    def __init__(self, roots: Iterator[Session], start: Start, stop: Stop, slots: Slots) -> None:
        self.roots = roots
        self.stop = stop
        self._slots = slots
        self._start = start
        self._changed = asyncio.Event()
        self._only_time = False
        stop.listen(self._changed.set)

    async def drive(self) -> None:
        """Starts roots until there are no more, or no more may start."""
        self._slots.open(self.stop.clock())
        while await self.slot() and (session := next(self.roots, None)) is not None:
            self.begin(session, self.stop.clock())
            await asyncio.sleep(0)  # let it go out before the next is prepared

    async def turn(self, ready_s: float, previous_s: float) -> float:
        """Called before each further turn of a root that waits for no children. Returns when the turn may go out.

        ready_s: when the conversation itself was ready for it; previous_s: when its previous turn was due. The result is
        the time at which this one was due.
        """
        return ready_s

    def tree_done(self) -> None:
        self._slots.taken -= 1
        self.note_change()

    @property
    def idle(self) -> bool:
        """Whether no conversation is under way."""
        return self._slots.taken == 0

    async def slot(self) -> bool:
        """Waits for a free slot; False when no conversation may begin any more instead."""
        while not self.stop.closed and not self.slot_free():
            await self.change(self._slots.next_s(self.stop.clock()))
        return not self.stop.closed

    def slot_free(self) -> bool:
        return self._slots.free(self.stop.clock())

    async def change(self, until_s: float = math.inf) -> None:
        """Returns at that time, or when a tree is done, a turn has become ready or the phase closes or ends."""
        self._changed.clear()
        if math.isinf(until_s):
            await self._changed.wait()
            return
        timer = asyncio.get_running_loop().call_at(until_s, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            timer.cancel()

    async def until(self, due_s: float) -> None:
        """Returns at that time, or when the phase closes."""
        while self.stop.clock() < due_s and not self.stop.closed:
            await self._time_passes(due_s)

    async def _time_passes(self, due_s: float) -> None:
        """As `change`, but what trees and turns do wakes nobody until the last tree is done."""
        self._only_time = True
        try:
            await self.change(due_s)
        finally:
            self._only_time = False

    def note_change(self) -> None:
        if not self._only_time or self.idle:
            self._changed.set()

    def begin(self, session: Session, due_s: float) -> None:
        self._slots.taken += 1
        self._start(session, due_s)


class Schedule(Arrivals):
    """Roots start at their own arrival times, counted from now; a limit of slots may hold them back further."""

    def __init__(self, roots: Iterator[Session], start: Start, stop: Stop, slots: Slots, speed: float) -> None:
        super().__init__(roots, start, stop, slots)
        self._speed = speed

    async def drive(self) -> None:
        origin_s = self.stop.clock()
        self._slots.open(origin_s)
        for session in self.roots:
            due_s = origin_s + (session.arrival_s or 0.0) / self._speed
            await self.until(due_s)
            if not await self.slot():
                return
            self.begin(session, due_s)


@dataclass(slots=True)
class _ReadyTurn:
    """A turn that waits for a tick. due_s: the time of that tick, once it came."""

    waiter: asyncio.Future[None]
    due_s: float


class AtRate(Arrivals):
    """One turn of a root conversation per tick: a further turn of a running one if any is ready, else a new root.

    Ticks are absolute: a late one does not move those after it. A tick that finds nothing to send waits for something, and
    the ticks after it count from there: a backlog of missed ticks would come out as a burst.
    """

    def __init__(
        self,
        roots: Iterator[Session],
        start: Start,
        stop: Stop,
        slots: Slots,
        rates: RateSeries,
        gaps: Iterator[float],
        speed: float,
        first_gap: float = 0.0,
    ) -> None:
        """first_gap, gaps: from the start to the first tick and between ticks, at one tick a second. Rates and gaps count
        time at the speed of the cluster.
        """
        super().__init__(roots, start, stop, slots)
        self._rates = rates
        self._gaps = gaps
        self._first_gap = first_gap
        self._speed = speed
        self._ready: deque[_ReadyTurn] = deque()
        self._upcoming: Session | None = None

    async def turn(self, ready_s: float, previous_s: float) -> float:
        turn = _ReadyTurn(self.stop.waiter(), ready_s)
        self._ready.append(turn)
        self.note_change()
        await turn.waiter
        return turn.due_s

    async def drive(self) -> None:
        origin_s = self.stop.clock()
        self._slots.open(origin_s)
        time_s = self._rates.after(0.0, self._first_gap)
        while await self._tick(origin_s + time_s / self._speed):
            held_back = False
            while not self._can_send():
                if self._over():
                    return
                await self.change(self._slots.next_s(self.stop.clock()))
                held_back = True
            if self.stop.ended():
                return
            if held_back:
                time_s = max(time_s, (self.stop.clock() - origin_s) * self._speed)
            due_s = origin_s + time_s / self._speed
            if self._ready:
                turn = self._ready.popleft()
                turn.due_s = due_s
                wake(turn.waiter)
            elif self._upcoming:
                self.begin(self._upcoming, due_s)
                self._upcoming = None
            time_s = self._rates.after(time_s, next(self._gaps))
        for _ in range(_STEPS_TO_SEND):
            await asyncio.sleep(0)  # what had the last tick goes out
        self.stop.end()  # a rate that has come to nothing for good sends nothing more

    def _can_send(self) -> bool:
        return bool(self._ready) or (not self.stop.closed and self.slot_free() and self._more())

    def _over(self) -> bool:
        """Whether nothing will ever be sent again."""
        return self.stop.ended() or (self.idle and (self.stop.closed or not self._more()))

    def _more(self) -> bool:
        """Whether there is another root to begin; it is taken only when it is asked for."""
        if self._upcoming is None:
            self._upcoming = next(self.roots, None)
        return self._upcoming is not None

    async def _tick(self, due_s: float) -> bool:
        """Waits for the time; False when it never comes, or nothing will be left to send then."""
        while self.stop.clock() < due_s and not self._over():
            if math.isinf(due_s):
                return False
            await self._time_passes(due_s)
        return True
