"""Virtual time without asyncio: what is ready now, in order, then the next timer or the next request that is over.

What happens at one instant happens in the order in which it would on llmirage_shared.virtual_time's loop, where each
conversation is a task: the two runners of studies agree to the last bit.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from itertools import count, repeat
from typing import Any

from llmirage_client.targets.simulator import ClusterRun
from llmirage_shared import virtual_time
from llmirage_shared.virtual_time import StandstillError, VirtualDeadlockError

_ACTS_PER_TURN = 20  # a bound for what is no endless loop yet: so many times as many acts as an asyncio loop may have turns

Act = Callable[[], object]
Timer = list[Any]
"""When, a serial number, and the act; None once it is cancelled."""


class WalkLoop:
    """ready: what happens now, first come, first served. now: seconds, from 0."""

    def __init__(self, cluster: ClusterRun) -> None:
        self.cluster = cluster
        self.now = 0.0
        self.ready: deque[Act] = deque()
        self.urgent: Act | None = None  # what a signal handler wishes to be done as soon as nothing else is being done
        self._timers: list[Timer] = []  # a heap
        self._serial = count()
        self._stopped = False

    def time(self) -> float:
        return self.now

    def at(self, when_s: float, act: Act) -> Timer:
        """Acts at that time, after what was to be done then before."""
        timer: Timer = [when_s, next(self._serial), act]
        heapq.heappush(self._timers, timer)
        return timer

    def stop(self) -> None:
        """`run` returns after what is being done now, or as soon as it begins."""
        self._stopped = True

    def run(self) -> None:
        """Goes on until somebody stops it.

        Raises VirtualDeadlockError when nothing will ever happen, and StandstillError when much does, but no time passes.
        """
        ready, timers, run_cluster, heappop = self.ready, self._timers, self.cluster.run, heapq.heappop
        most, rounds = virtual_time.TURNS_AT_ONE_TIME, 0
        while True:
            for _ in repeat(None, _ACTS_PER_TURN * most):
                if not ready:
                    break
                ready.popleft()()
            else:
                raise StandstillError(self.now)
            if self._stopped:
                self._stopped = False
                return
            if self.urgent is not None:
                act, self.urgent = self.urgent, None
                act()
                continue
            to = math.inf
            if timers:
                timer = timers[0]
                if timer[2] is None:
                    heappop(timers)
                    continue
                to = timer[0]
            reached = run_cluster(to)
            if self.now < reached < math.inf:
                self.now = reached
                rounds = 0
            else:
                rounds += 1
                if rounds > most:
                    raise StandstillError(self.now)
                if reached == math.inf and not ready:
                    raise VirtualDeadlockError(self._why_nothing_happens())
            if reached == to:
                while timers and timers[0][0] <= reached:
                    act = heappop(timers)[2]
                    if act is not None:
                        ready.append(act)

    def _why_nothing_happens(self) -> str:
        left = self.cluster.under_way
        waiting = "1 request is under way that" if left == 1 else f"{left:,} requests are under way that"
        return f"virtual time stands still at {self.now:g} s: no timer is set, and {waiting} the cluster will never end"
