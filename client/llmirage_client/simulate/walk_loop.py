"""Virtual time without asyncio: what is ready now, in order, then the next timer or the next request that is over.

What happens at one instant happens in the order in which it would on llmirage_shared.virtual_time's loop, where each
conversation is a task: the two runners of studies agree to the last bit.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Any

from llmirage_client.simulator.engine import ClusterRun
from llmirage_shared import virtual_time
from llmirage_shared.virtual_time import StandstillError, VirtualDeadlockError

Act = Callable[[], object]
Timer = list[Any]
"""When, a serial number, and the act; None once it is cancelled."""


class WalkLoop:
    """ready: what happens now, first come, first served. now: seconds, from 0."""

    def __init__(self, cluster: ClusterRun) -> None:
        self.cluster = cluster
        self.now = 0.0
        self.ready: deque[Act] = deque()
        self._timers: list[Timer] = []  # a heap
        self._serial = count()
        self._asked = self._stopped = False
        self._urgent: Act | None = None
        self._timeless, self._timeless_at_s = 0, math.nan  # requests that took no time, at that time

    def time(self) -> float:
        return self.now

    def at(self, when_s: float, act: Act) -> Timer:
        """Acts at that time, after what was to be done then before."""
        timer: Timer = [when_s, next(self._serial), act]
        heapq.heappush(self._timers, timer)
        return timer

    def soon(self, act: Act) -> None:
        """Acts as soon as nothing else is being done; from a signal handler, too."""
        self._urgent = act
        self._asked = True

    def stop(self) -> None:
        """`run` returns after what is being done now, or as soon as it begins."""
        self._stopped = self._asked = True

    def run(self) -> None:
        """Goes on until somebody stops it. Raises VirtualDeadlockError when nothing will ever happen."""
        ready, timers, popleft, heappop = self.ready, self._timers, self.ready.popleft, heapq.heappop
        run_cluster, forever = self.cluster.run, math.inf
        while True:
            while ready:
                popleft()()
            if self._asked:
                if self._heed():
                    return
                continue
            to = forever
            if timers:
                to, _, act = timers[0]
                if act is None:
                    heappop(timers)
                    continue
            reached = run_cluster(to)
            if reached > self.now:
                if reached == forever:
                    if not ready:
                        raise VirtualDeadlockError(self._why_nothing_happens())
                    continue
                self.now = reached
            if reached == to:
                ready.append(heappop(timers)[2])
                while timers and timers[0][0] <= reached:
                    act = heappop(timers)[2]
                    if act is not None:
                        ready.append(act)

    def _heed(self) -> bool:
        """Does what was asked for meanwhile; True if it is to stop. A signal may come between any two lines."""
        self._asked = False
        act, self._urgent = self._urgent, None
        if act is not None:
            act()
        if self._stopped and not self.ready:
            self._stopped = False
            return True
        if self._stopped:
            self._asked = True
        return False

    def took_no_time(self) -> None:
        """A request was over the moment it went out. Raises StandstillError when that goes on for ever."""
        self._timeless = self._timeless + 1 if self._timeless_at_s == self.now else 1
        self._timeless_at_s = self.now
        if self._timeless > virtual_time.TURNS_AT_ONE_TIME:
            raise StandstillError(self.now)

    def _why_nothing_happens(self) -> str:
        left = self.cluster.under_way
        waiting = "1 request is under way that" if left == 1 else f"{left:,} requests are under way that"
        return f"virtual time stands still at {self.now:g} s: no timer is set, and {waiting} the cluster will never end"
