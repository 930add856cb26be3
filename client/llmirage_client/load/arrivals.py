"""Arrival processes of root conversations: as slots come free, at a rate, at the file's times, or users at a pace.

Each process is a generator, `steps`, that yields when to resume it; load.phase plays it.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Protocol

from llmirage_client.load.conversation import Conversation
from llmirage_client.load.options import Share
from llmirage_client.measure.submission import PerformanceWindow
from llmirage_client.workload.rates import RateSeries
from llmirage_client.workload.session import Session


class Stop:
    """The end of a phase: at its request cap, when its time is over, or when it is stopped.

    request_count: the literal cap on requests, None for no cap; with 0 it has ended.
    closed: no new conversation begins; started ones continue.
    ended: no further request is sent.
    """

    def __init__(self, request_count: int | None, clock: Callable[[], float]) -> None:
        self.closed = self.ended = request_count == 0
        self._left = request_count
        self.clock = clock
        self._listeners: list[Callable[[], None]] = []

    def listen(self, heard: Callable[[], None]) -> None:
        """Call `heard` when the phase closes and when it ends."""
        self._listeners.append(heard)

    def permit(self) -> bool:
        """Take the permission for one request; return False if the phase has ended."""
        if self.ended:
            return False
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                self.end()
        return True

    def close(self) -> None:
        """Begin no further conversation; started ones send all their turns. Idempotent."""
        self.closed = True
        for heard in self._listeners:
            heard()

    def end(self) -> None:
        """Send no further request; those in flight continue. Idempotent."""
        self.ended = True
        self.close()


class Slots:
    """Slots for root conversations that run at the same time.

    There are `limit` slots (None: no limit); with a ramp, one at first and the others one by one, all after ramp_s. share:
    has its own part of these slots.
    """

    def __init__(self, limit: int | None, ramp_s: float = 0.0, share: Share | None = None) -> None:
        self.taken = 0
        self._share = share or Share()
        self._limit = math.inf if limit is None else self._share.part(limit)
        self._step_s = ramp_s / (limit - 1) if limit is not None and limit > 1 and ramp_s else 0.0
        self._opened_s = 0.0

    def open(self, now_s: float) -> None:
        """Start the ramp now."""
        self._opened_s = now_s

    def free(self, now_s: float) -> bool:
        return self.taken < self._limit and (not self._step_s or self._opens_s(self.taken) <= now_s)

    def next_s(self, now_s: float) -> float:
        """Return when the ramp opens the next missing slot; infinite when only a conversation's end does."""
        waits_for_ramp = self._step_s and self.taken < self._limit
        return max(self._opens_s(self.taken), now_s) if waits_for_ramp else math.inf

    def _opens_s(self, place: int) -> float:
        """Return when its own slot of that number opens, from 0."""
        return self._opened_s + (self._share.index + place * self._share.of) * self._step_s


AT_ONCE = -math.inf  # yielded by `steps` to be resumed after everything that is ready now
_ROUNDS_TO_SEND = 3  # a conversation starts, its pre-session children go out, its first turn goes out

Steps = Generator[float, None, None]
Start = Callable[[Session, float], None]
"""Starts a root's conversation, which was due at that time of the run's clock. Its slot is free again when its whole tree is
done: `Arrivals.tree_done` says so."""


class PacedTurn(Protocol):
    """A further turn of a root that waits for a tick."""

    def go(self, due_s: float) -> None:
        """Send the turn, which was due at that time."""
        ...


class Arrivals:
    """A closed loop: a new root as soon as a slot is free. Also the base of the other arrival processes.

    changed: called when a tree is finished, a turn has become ready, or the phase closes or ends.
    window: see PerformanceWindow.
    """

    def __init__(self, roots: Iterator[Session], start: Start, stop: Stop, slots: Slots) -> None:
        self.roots = roots
        self.stop = stop
        self.changed: Callable[[], None] = _nobody
        self._slots = slots
        self._start = start
        self.window = PerformanceWindow()
        self._used_up = self._finished = False
        self._only_time = False
        stop.listen(lambda: self.changed())

    def steps(self) -> Steps:
        """Start roots until there are no more, or no more may start.

        Yields the time at which to resume, or earlier when `changed` is called after it; or AT_ONCE.
        """
        self._slots.open(self.stop.clock())
        while (yield from self.slot()) and (session := next(self.roots, None)) is not None:
            self.begin(session, self.stop.clock())
            yield AT_ONCE  # let it go out before the next is prepared
        self._used_up = not self.stop.closed
        self._note_end(self._finished)

    def due_s(self, ready_s: float, previous_s: float) -> float | None:
        """Return when a further turn of a root that waits for no children is due; None: at its tick, see `queue`.

        ready_s: when the conversation itself is ready for it.
        previous_s: when its previous turn was due.
        """
        return ready_s

    def queue(self, turn: PacedTurn) -> None:
        """Queue a turn that is ready for a tick."""
        raise NotImplementedError

    def tree_done(self, root: Conversation) -> None:
        self._slots.taken -= 1
        self._note_end(True)
        self.note_change()

    def _note_end(self, finished: bool) -> None:
        self._finished = finished
        if finished and self._used_up and self.window.end_s is None:
            self.window.end_s = self.stop.clock()

    @property
    def idle(self) -> bool:
        """True if no conversation is in progress."""
        return self._slots.taken == 0

    def slot(self) -> Generator[float, None, bool]:
        """Wait for a free slot; return False once no conversation may begin any more."""
        stop, slots = self.stop, self._slots
        while not stop.closed and not slots.free(stop.clock()):
            yield slots.next_s(stop.clock())
        return not stop.closed

    def until(self, due_s: float) -> Steps:
        """Wait until `due_s` or until the phase closes. Finished conversations do not wake this wait."""
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
    """Roots at their own arrival times, counted from now; a limit of slots may delay them further."""

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

    Ticks are absolute: a late one does not move those after it. A tick that finds nothing to send waits, and the ticks after
    it count from there: a backlog of missed ticks would come out as a burst. With `of_roots` ticks are for new roots alone,
    and further turns are sent when they are ready.
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
        """Create the process.

        first_gap, gaps: from the start to the first tick and between ticks, at one tick a second. Rates and gaps count time
            at the speed of the cluster.
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
        """Send what had the last tick, and nothing more: the rate stays 0."""
        for _ in range(_ROUNDS_TO_SEND):
            yield AT_ONCE
        self.stop.end()

    def _root_may_begin(self) -> bool:
        if self.stop.closed or not self._slots.free(self.stop.clock()):
            return False
        return self._upcoming is not None or self._more()

    def _over(self) -> bool:
        """Return whether nothing will be sent any more."""
        return self.stop.ended or (self._slots.taken == 0 and (self.stop.closed or not self._more()))

    def _more(self) -> bool:
        """Return whether there is another root to begin; it is taken on demand."""
        if self._upcoming is None:
            self._upcoming = next(self.roots, None)
        return self._upcoming is not None


def _nobody() -> None: ...


class Users(Arrivals):
    """`users` seats, each of which sends a turn every users / rate seconds, so that all together keep the rate.

    A turn is later than that if its reply or think time is: the pace then counts from there, and nothing is caught up. When
    a conversation would have sent its last turn the next user takes the seat, whether or not replies were slow. The first
    users are at all stages of a conversation, as in a service that has run for long: seat i of n sends i / n of a
    conversation of mean length, from its first turn on, and seat 0 a whole one. As AIPerf's --user-centric-rate does.
    """

    def __init__(
        self,
        roots: Iterator[Session],
        start: Start,
        stop: Stop,
        slots: Slots,
        users: int,
        rate_per_s: float,
        mean_turns: float,
        speed: float,
        share: Share | None = None,
    ) -> None:
        """Create the process.

        rate_per_s: of all users together, in the time of the cluster.
        mean_turns: of the workload's roots.
        share: of the users.
        """
        super().__init__(roots, start, stop, slots)
        self._users = users
        self._share = share or Share()
        self._stagger_s = 1 / (rate_per_s * speed)
        self._gap_s = users / (rate_per_s * speed)
        self._turns = max(round(mean_turns) - 1, 1)

    def due_s(self, ready_s: float, previous_s: float) -> float | None:
        return max(ready_s, previous_s + self._gap_s)

    def steps(self) -> Steps:
        origin_s = self.stop.clock()
        self._slots.open(origin_s)
        seats = [
            (origin_s + place * self._stagger_s, turns)
            for place, turns in first_users(self._users, self._turns)
            if self._share.has(place)
        ]
        heapq.heapify(seats)
        while seats:
            due_s, turns = heapq.heappop(seats)
            yield from self.until(due_s)
            if not (yield from self.slot()) or (session := next(self.roots, None)) is None:
                return
            if turns is not None and turns < len(session.turns):
                session = replace(session, turns=session.turns[:turns])
            self.begin(session, due_s)
            heapq.heappush(seats, (due_s + max(len(session.turns), 1) * self._gap_s, None))


def first_users(users: int, turns: int) -> list[tuple[int, int | None]]:
    """Return for every seat its place in the order of starts, from 0, and the turns its first user has left (None: all).

    Neighbours in the order differ in age, so that users finish at an even pace from the beginning.
    """
    step = next((step for step in (turns, *range(2, users)) if math.gcd(step, users) == 1), 1)
    return [(seat * step % users, -(-seat * turns // users) if seat else None) for seat in range(users)]
