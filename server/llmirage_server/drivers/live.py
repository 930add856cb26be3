"""Gives the cluster time, and carries the tokens that are due to whoever waits for them.

`PacedDriver` maps the loop's clock to cluster time: one alarm, always set to the absolute moment of the next event, however
late the last one was served. `FreeDriver` (`--speed max`) never waits: it lets the cluster run in short slices of CPU time.
"""

from __future__ import annotations

import abc
import asyncio
import itertools
import logging
import math
import operator
from collections.abc import Callable, Iterable
from typing import Protocol

from llmirage_server.cluster.cluster import Cluster
from llmirage_server.cluster.instances.base import InstanceSnapshot
from llmirage_server.cluster.request import Request, StepEnd
from llmirage_server.drivers.alarm import Alarm, make_alarm
from llmirage_server.drivers.pacing import Pacing
from llmirage_server.drivers.saturation import Queue, Saturation
from llmirage_shared.virtual_time import VirtualTimeLoop, precise_clock

logger = logging.getLogger("llmirage")

SLICE_S = 0.002  # how long the cluster may compute before other work of the loop gets its turn
_TIME = operator.attrgetter("time_s")
_STEPS = 16  # step ends between two looks at the clock


class Receiver(Protocol):
    """What a request's `tag` is: told whenever `request.produced` has grown, at most once a tick."""

    def tokens_due(self, request: Request) -> None: ...


class Driver(abc.ABC):
    """What both drivers share. All methods must be called on the event loop's thread."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.pacing = Pacing()
        self.saturation = Saturation(lambda: self.cluster.snapshot())
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clock: Callable[[], float] = lambda: 0.0

    def submit(self, requests: Iterable[Request], arrived_s: float = math.inf) -> None:
        """Hand requests to the cluster; their tags are Receivers. The first tokens come in a later turn of the loop.

        arrived_s: when they reached this server, seconds on `precise_clock`; inf or a time to come means now. What it did
        with them since then is its own work and takes none of the cluster's time, as far as that has not gone on already.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._begin(loop)
        at, age_s = self._reach_arrival(arrived_s)
        for request in requests:
            request.age_s = age_s
            self.cluster.submit(request, at)
            self.saturation.submitted(request)
        self.saturation.look(at, self._clock())
        self._wake()

    def cancel(self, requests: Iterable[Request]) -> None:
        """Take requests back, finished ones too: their KV and batch slots are free at once."""
        now = self._reach_now()
        for request in requests:
            self.cluster.cancel(request, now)
        self._wake()

    def clear_cache(self) -> None:
        """Let the cluster forget the KV that no request uses."""
        if self._loop is not None:
            self.cluster.clear_cache(self._reach_now())
            self._wake()

    def snapshot(self) -> list[InstanceSnapshot]:
        """The state of every instance, now."""
        if self._loop is not None:
            self.cluster.catch_up(self._reach_now())
        return self.cluster.snapshot()

    def saturated(self) -> list[Queue]:
        """The queues of the models for which more comes in than the cluster serves."""
        if self._loop is not None:
            self.saturation.look(self._reach_now(), self._clock())
        return self.saturation.queues()

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """The first request on a loop starts the clock, or carries it on if the app moved to another loop."""
        self._loop = loop
        self._clock = precise_clock()

    @abc.abstractmethod
    def _reach_now(self) -> float:
        """Bring the cluster up to the present and return it (cluster time, seconds)."""

    def _reach_arrival(self, arrived_s: float) -> tuple[float, float]:
        """Bring the cluster up to when something arrived; return the time reached, and how much later than that it is."""
        return self._reach_now(), 0.0

    @abc.abstractmethod
    def _wake(self) -> None:
        """See to it that the next event is served in time."""

    def _run_cluster(self, to: float) -> list[StepEnd]:
        """Let the cluster run up to `to`, or for one slice of CPU time if that comes first."""
        stop_s = self._clock() + SLICE_S
        events = self.cluster.advance(to, _STEPS)
        while (next_s := self.cluster.next_event_time()) <= to and next_s < math.inf and self._clock() < stop_s:
            events += self.cluster.advance(to, _STEPS)
        for error in self.cluster.router_errors:
            logger.error("%s", error)
        self.cluster.router_errors.clear()
        return events

    def _deliver(self, events: list[StepEnd]) -> None:
        if len(events) == 1:
            due: Iterable[Request] = events[0].emitted
        else:
            due = dict.fromkeys([request for event in events for request in event.emitted])
        for request in due:
            try:
                request.tag.tokens_due(request)
            except Exception:  # one broken connection must not stop the cluster
                logger.exception("A reply could not be delivered")


class PacedDriver(Driver):
    """Wall time times `speed` is cluster time."""

    def __init__(self, cluster: Cluster, speed: float = 1.0) -> None:
        super().__init__(cluster)
        self.pacing = Pacing(speed)
        self._speed = speed
        self._start_s = 0.0  # wall time at which the cluster's clock was 0
        self._alarm: Alarm | None = None
        self._event_s = math.inf  # cluster time the alarm is set for

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        reached = 0.0 if self._loop is None else self._now()
        super()._begin(loop)
        # Clusters in virtual time share its beginning, so that their times are the loop's to the last bit.
        together = isinstance(loop, VirtualTimeLoop) and not reached
        self._start_s = 0.0 if together else self._clock() - reached / self._speed
        if self._alarm is not None:
            self._alarm.clear()
        self._alarm = make_alarm(loop, self._tick)
        self._event_s = math.inf

    def _now(self) -> float:
        return (self._clock() - self._start_s) * self._speed

    def _reach_now(self) -> float:
        return self._reach(self._now())

    def _reach(self, to: float) -> float:
        if self.cluster.next_event_time() <= to:
            self._advance(to)
        # A cluster that computes slower than its time passes falls behind, and requests arrive when it is at.
        return min(to, self.cluster.next_event_time())

    def _reach_arrival(self, arrived_s: float) -> tuple[float, float]:
        if arrived_s >= self._clock():
            return self._reach_now(), 0.0
        arrival = (arrived_s - self._start_s) * self._speed
        at = max(self._reach(max(arrival, 0.0)), self.cluster.reached_s)
        return at, max(at - arrival, 0.0)

    def _advance(self, to: float) -> None:
        events = self._run_cluster(to)
        self._deliver(events)
        sent_s = self._clock()
        for time_s, together in itertools.groupby(events, key=_TIME):
            tokens = sum([event.tokens or len(event.emitted) for event in together])
            self.pacing.sent(sent_s - self._wall(time_s), tokens, sent_s)

    def _wall(self, cluster_s: float) -> float:
        return self._start_s + cluster_s / self._speed

    def _wake(self) -> None:
        event_s = self.cluster.next_event_time()
        if event_s == self._event_s:
            return
        assert self._alarm is not None
        self._event_s = event_s
        if event_s == math.inf:
            self._alarm.clear()
        else:
            self._alarm.set(self._wall(event_s))

    def _tick(self) -> None:
        event_s, self._event_s = self._event_s, math.nan  # nan equals no time: the next wake sets the alarm
        now_s = self._clock()
        if now_s >= self._wall(event_s):
            # At least to the event: converting between the clocks may have rounded the present to just before it.
            self._advance(max((now_s - self._start_s) * self._speed, event_s))
        self._wake()


class FreeDriver(Driver):
    """Time is what the cluster says it is; nothing ever waits for it."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._scheduled = False

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        super()._begin(loop)
        self._scheduled = False

    def _reach_now(self) -> float:
        return 0.0  # a time before the one reached counts as that one

    def _wake(self) -> None:
        if not self._scheduled and self.cluster.next_event_time() < math.inf:
            assert self._loop is not None
            self._scheduled = True
            self._loop.call_soon(self._run_slice)

    def _run_slice(self) -> None:
        self._scheduled = False
        self._deliver(self._run_cluster(math.inf))
        self._wake()
