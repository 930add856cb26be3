"""Virtual time without an event loop: ready callbacks in order, then the next timer or the next request to finish.

It plays the conversations of a simulation. Events of one instant happen in the order of llmirage_shared.virtual_time's loop
with load.runner's interpreter: both give the same times to the last bit.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

from llmirage_client.load.conversation import Conversation
from llmirage_client.simulator.engine import ClusterRun
from llmirage_shared import standstill
from llmirage_shared.standstill import StandstillError, VirtualDeadlockError

Callback = Callable[[], object]


class QueueTimer:
    """A timer. callback: None once it has been called or cancelled."""

    __slots__ = ("callback",)
    callback: Callback | None

    def cancel(self) -> None:
        self.callback = None


class EventQueue:
    """The queue of one run.

    ready: callbacks to run now, first come, first served, and conversations to resume.
    time_s: now, from 0.
    send, end: see load.phase.Interpreter.
    resume: plays a conversation.
    """

    send: Callable[[Conversation], bool]
    end: Callable[[Conversation, bool], bool]
    resume: Callable[[Conversation], None]

    def __init__(self, cluster: ClusterRun) -> None:
        self.cluster = cluster
        self.time_s = 0.0
        self.ready: deque[Callback | Conversation] = deque()
        self.call_soon: Callable[[Callback], None] = self.ready.append
        self.play: Callable[[Conversation], None] = self.ready.append
        self._timers: list[tuple[float, int, QueueTimer]] = []  # a heap
        self._serial = count()
        self._interrupted = self._stopped = False
        self._interrupt: Callback | None = None
        self.close()
        self._timeless, self._timeless_at_s = 0, math.nan  # requests that took no time, at that time

    def now(self) -> float:
        return self.time_s

    def call_at(self, when_s: float, callback: Callback) -> QueueTimer:
        timer = QueueTimer()
        timer.callback = callback
        heapq.heappush(self._timers, (when_s, next(self._serial), timer))
        return timer

    def interrupt(self, callback: Callback) -> None:
        """Call it as soon as nothing is ready; for signal handlers, which may come at any point."""
        self._interrupt = callback
        self._interrupted = True

    def stop(self) -> None:
        """Let `run` return when nothing is ready any more."""
        self._stopped = self._interrupted = True

    def close(self) -> None:
        """Drop the callbacks that play conversations, so that no cycle keeps a finished run."""
        self.send = self.end = self.resume = _closed

    def run(self) -> None:
        """Run until stopped. Raises VirtualDeadlockError when nothing will ever happen."""
        ready, timers, popleft, heappop = self.ready, self._timers, self.ready.popleft, heapq.heappop
        run_cluster, resume, forever = self.cluster.run, self.resume, math.inf
        while True:
            while ready:
                each = popleft()
                if isinstance(each, Conversation):
                    resume(each)
                else:
                    each()
            if self._interrupted:
                if self._poll():
                    return
                continue
            to = forever
            if timers:
                to, _, timer = timers[0]
                if timer.callback is None:
                    heappop(timers)
                    continue
            reached = run_cluster(to)
            if reached > self.time_s:
                if reached == forever:
                    if not ready:
                        raise VirtualDeadlockError(self._why_nothing_happens())
                    continue
                self.time_s = reached
            while reached == to:
                heappop(timers)
                callback, timer.callback = timer.callback, None  # which may refer back to the timer
                if callback is not None:
                    ready.append(callback)
                if not timers:
                    break
                to, _, timer = timers[0]

    def _poll(self) -> bool:
        """Run a requested interruption; return True if the queue is to stop. A signal may come between any two lines."""
        self._interrupted = False
        callback, self._interrupt = self._interrupt, None
        if callback is not None:
            callback()
        if self._stopped and not self.ready:
            self._stopped = False
            return True
        if self._stopped:
            self._interrupted = True
        return False

    def took_no_time(self) -> None:
        """Note a request that ended the moment it was sent. Raises StandstillError when that repeats for ever."""
        self._timeless = self._timeless + 1 if self._timeless_at_s == self.time_s else 1
        self._timeless_at_s = self.time_s
        if self._timeless > standstill.TURNS_AT_ONE_TIME:
            raise StandstillError(self.time_s)

    def _why_nothing_happens(self) -> str:
        left = self.cluster.under_way
        waiting = "1 request is under way that" if left == 1 else f"{left:,} requests are under way that"
        return f"virtual time stands still at {self.time_s:g} s: no timer is set, and {waiting} the cluster will never end"


def _closed(*_: object) -> Any:
    raise RuntimeError("no requests are sent: the run has not begun, or is over")
