"""When root conversations start: as slots come free, at a rate, or when the file says. Users at a pace are in users.py.

Each way to arrive is a generator, `steps`, that says when it wants to go on; load.phase plays it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Protocol

from llmirage_client.load.rates import RateSeries
from llmirage_client.load.slots import Slots
from llmirage_client.load.stop import Stop
from llmirage_client.workload.session import Session

AT_ONCE = -math.inf  # what `steps` yields to go on as soon as what is ready now has had its turn
_ROUNDS_TO_SEND = 3  # a conversation starts, its pre-session children go out, its first turn goes out

Steps = Generator[float, None, None]
Start = Callable[[Session, float], None]
"""Starts a root's conversation, which was due at that time of the run's clock. Its slot is free again when its whole tree is
done: `Arrivals.tree_done` says so."""


class PacedTurn(Protocol):
    """A further turn of a root that waits for a tick."""

    def go(self, due_s: float) -> None:
        """It may go out; it was due at that time."""
        ...


class Arrivals:
    """A closed loop: a new root as soon as a slot is free. Also the base of the other ways to arrive.

    changed: what is to be called when a tree is done, a turn has become ready, or the phase closes or ends.
    """

    def __init__(self, roots: Iterator[Session], start: Start, stop: Stop, slots: Slots) -> None:
        self.roots = roots
        self.stop = stop
        self.changed: Callable[[], None] = _nobody
        self._slots = slots
        self._start = start
        self._only_time = False
        stop.listen(lambda: self.changed())

    def steps(self) -> Steps:
        """Starts roots until there are no more, or no more may start.

        Yields the time at which it is to go on, or earlier when `changed` is called from then on; or AT_ONCE.
        """
        self._slots.open(self.stop.clock())
        while (yield from self.slot()) and (session := next(self.roots, None)) is not None:
            self.begin(session, self.stop.clock())
            yield AT_ONCE  # let it go out before the next is prepared

    def due_s(self, ready_s: float, previous_s: float) -> float | None:
        """When a further turn of a root that waits for no children is due; None: at the tick that `queue` gives it.

        ready_s: when the conversation itself is ready for it; previous_s: when its previous turn was due.
        """
        return ready_s

    def queue(self, turn: PacedTurn) -> None:
        """The turn is ready for a tick."""
        raise NotImplementedError

    def tree_done(self) -> None:
        self._slots.taken -= 1
        self.note_change()

    @property
    def idle(self) -> bool:
        """Whether no conversation is under way."""
        return self._slots.taken == 0

    def slot(self) -> Generator[float, None, bool]:
        """Waits for a free slot; False when no conversation may begin any more instead."""
        stop, slots = self.stop, self._slots
        while not stop.closed and not slots.free(stop.clock()):
            yield slots.next_s(stop.clock())
        return not stop.closed

    def until(self, due_s: float) -> Steps:
        """Wait until that time or until the phase closes. Trees and turns that end meanwhile do not end this wait."""
        while self.stop.clock() < due_s and not self.stop.closed:
            self._only_time = True
            yield due_s
            self._only_time = False

    def note_change(self) -> None:
        if not self._only_time or self._slots.taken == 0:
            self.changed()

    def begin(self, session: Session, due_s: float) -> None:
        self._slots.taken += 1
        self._start(session, due_s)


class Schedule(Arrivals):
    """Roots start at their own arrival times, counted from now; a limit of slots may hold them back further."""

    def __init__(self, roots: Iterator[Session], start: Start, stop: Stop, slots: Slots, speed: float) -> None:
        super().__init__(roots, start, stop, slots)
        self._speed = speed

    def steps(self) -> Steps:
        origin_s = self.stop.clock()
        self._slots.open(origin_s)
        for session in self.roots:
            due_s = origin_s + (session.arrival_s or 0.0) / self._speed
            yield from self.until(due_s)
            if not (yield from self.slot()):
                return
            self.begin(session, due_s)


class AtRate(Arrivals):
    """One turn of a root conversation per tick: a further turn of a running one if any is ready, else a new root.

    Ticks are absolute: a late one does not move those after it. A tick that finds nothing to send waits for something, and
    the ticks after it count from there: a backlog of missed ticks would come out as a burst. With `of_roots` ticks are for
    new roots alone, and further turns go out when they are ready.
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
        of_roots: bool = False,
    ) -> None:
        """first_gap, gaps: from the start to the first tick and between ticks, at one tick a second. Rates and gaps count
        time at the speed of the cluster.
        """
        super().__init__(roots, start, stop, slots)
        self._rates = rates
        self._gaps = gaps
        self._first_gap = first_gap
        self._of_roots = of_roots
        self._speed = speed
        self._ready: deque[PacedTurn] = deque()
        self._upcoming: Session | None = None

    def due_s(self, ready_s: float, previous_s: float) -> float | None:
        return ready_s if self._of_roots else None

    def queue(self, turn: PacedTurn) -> None:
        self._ready.append(turn)
        self.note_change()

    def steps(self) -> Steps:
        stop, clock, ready, gaps = self.stop, self.stop.clock, self._ready, self._gaps
        after, speed = self._rates.after, self._speed
        origin_s = clock()
        self._slots.open(origin_s)
        time_s = after(0.0, self._first_gap)
        while True:
            due_s = origin_s + time_s / speed
            while clock() < due_s and not self._over():
                if due_s == math.inf:
                    yield from self._never_again()
                    return
                self._only_time = True
                yield due_s
                self._only_time = False
            if not ready and not self._root_may_begin():
                while not ready and not self._root_may_begin():
                    if self._over():
                        return
                    yield self._slots.next_s(clock())
                time_s = max(time_s, (clock() - origin_s) * speed)
                due_s = origin_s + time_s / speed
            if stop.ended:
                return
            if ready:
                ready.popleft().go(due_s)
            elif self._upcoming is not None:
                session, self._upcoming = self._upcoming, None
                self.begin(session, due_s)
            time_s = after(time_s, next(gaps))

    def _never_again(self) -> Steps:
        """The rate has come to nothing for good: what had the last tick goes out, and nothing more."""
        for _ in range(_ROUNDS_TO_SEND):
            yield AT_ONCE
        self.stop.end()

    def _root_may_begin(self) -> bool:
        if self.stop.closed or not self._slots.free(self.stop.clock()):
            return False
        return self._upcoming is not None or self._more()

    def _over(self) -> bool:
        """Whether nothing will ever be sent again."""
        return self.stop.ended or (self._slots.taken == 0 and (self.stop.closed or not self._more()))

    def _more(self) -> bool:
        """Whether there is another root to begin; it is taken only when it is asked for."""
        if self._upcoming is None:
            self._upcoming = next(self.roots, None)
        return self._upcoming is not None


def _nobody() -> None: ...
