"""Drivers on an event loop: they supply the cluster's time and hand due tokens to their receivers.

`PacedDriver` maps the loop's clock to cluster time: one alarm, always set to the absolute time of the next event, however
late the last one was handled. `FreeDriver` (`--speed max`) never waits: the cluster runs in short slices of CPU time.
"""

from __future__ import annotations

import abc
import asyncio
import ctypes
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from llmirage_server.cluster.cluster import Cluster
from llmirage_server.cluster.lifecycle.lifecycle import Action, State
from llmirage_server.cluster.request import Adapter, Request, StepEnd
from llmirage_server.cluster.snapshots import InstanceSnapshot
from llmirage_server.drivers.pacing import Pacing, Queue, Saturation
from llmirage_shared.virtual_time import SimulatedTimeLoop, VirtualTimeLoop, precise_clock

logger = logging.getLogger("llmirage")

SLICE_S = 0.002  # of computing, before other work of the loop gets its turn
_STEPS = 16  # step ends between two readings of the clock
_GATHER_S = 0.02  # for which slices wait while requests come: steps and writes of many cost less
GAP_S = 0.0005  # minimum between two wake-ups by an alarm, on average over
_BURST = 8  # of them
_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK_CLOEXEC = 0o2004000
_TFD_TIMER_ABSTIME = 1


class Receiver(Protocol):
    """The interface of a request's `tag`: called whenever `request.produced` has grown, at most once a tick."""

    def tokens_due(self, request: Request) -> None: ...


class Driver(abc.ABC):
    """The base of both drivers. Call all methods on the event loop's thread."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.pacing = Pacing()
        self.saturation = Saturation(lambda: self.cluster.snapshot())
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clock: Callable[[], float] = lambda: 0.0

    def submit(self, requests: Iterable[Request], arrived_s: float = math.inf, *, last: bool = True) -> None:
        """Submit requests to the cluster; their tags are Receivers. The first tokens come in a later turn of the loop.

        arrived_s: when they reached this server, seconds on `precise_clock`; inf or a future time means now. The server's
        own work since then takes none of the cluster's time, unless the cluster has already advanced further. Not last: more
        that arrived together follow in another call, until which the cluster does not advance on their account.
        """
        self._begin_here()
        at, age_s = self._sync_to_arrival(arrived_s)
        for request in requests:
            request.age_s = age_s
            self.cluster.submit(request, at)
            self.saturation.submitted(request)
        if not last:
            return
        now_s = self._clock()
        self.saturation.check(at, now_s)
        self.pacing.front_end.add(max(now_s - arrived_s, 0.0))
        self._schedule_next_event()

    def start(self) -> None:
        """Start the cluster's time now, and not with the first request."""
        self._begin_here()
        self._schedule_next_event()

    @property
    def speed(self) -> float:
        """Seconds of cluster time in a second; inf: without waiting."""
        return math.inf

    def set_speed(self, speed: float) -> None:
        """Change the speed from now on, if there is one to change. speed: above 0, finite."""
        raise TypeError(f"{type(self).__name__} has no speed that can be changed")

    def cancel(self, requests: Iterable[Request]) -> None:
        """Cancel requests, finished ones too: their KV and batch slots are free at once."""
        now = self._sync()
        for request in requests:
            self.cluster.cancel(request, now)
        self._schedule_next_event()

    def release(self, request: Request) -> None:
        """Free the KV that a finished request keeps, see Cluster.release."""
        self.cluster.release(request, self._sync())
        self._schedule_next_event()

    def clear_cache(self, only: int = -1) -> None:
        """Evict the KV that no request uses. only: on this instance."""
        if self._loop is not None:
            self.cluster.clear_cache(self._sync(), only)
            self._schedule_next_event()

    def load_adapter(self, adapter: Adapter, instances: Sequence[int]) -> float:
        """Load a LoRA adapter on these instances; return the seconds that this takes them, in cluster time."""
        self._begin_here()
        return self.cluster.load_adapter(adapter, instances, self._sync())

    def unload_adapter(self, adapter: Adapter, instances: Sequence[int]) -> None:
        """Free the memory of a LoRA adapter on these instances."""
        self._begin_here()
        self.cluster.unload_adapter(adapter, instances, self._sync())

    def act(self, action: Action, instance: int, restart_after_s: float | None = None) -> None:
        """Let an instance start, stop or crash now. Raises ValueError naming what is wrong."""
        self._begin_here()
        self.cluster.act(action, instance, self._sync(), restart_after_s)
        self._schedule_next_event()

    async def placed(self, request: Request) -> None:
        """Return when a submitted request has its place in the cluster, and what is due at once was delivered."""
        await asyncio.sleep(0)

    @property
    def reached_s(self) -> float:
        """The cluster's time of the last step."""
        return self.cluster.reached_s

    @property
    def now_s(self) -> float:
        """Cluster time in seconds, without advancing it."""
        return max(self.cluster.reached_s, 0.0)

    def snapshot(self, only: int = -1) -> list[InstanceSnapshot]:
        """Return the state of every instance, now. only: of this one."""
        self._catch_up()
        return self.cluster.snapshot() if only < 0 else [self.cluster.snapshot_of(only)]

    def rank_snapshots(self, only: int = -1, rank: int = -1) -> list[InstanceSnapshot]:
        """Return the state of every data-parallel rank, now: of all instances in order, or of one. rank: of this alone."""
        self._catch_up()
        return [one for one in self.cluster.rank_snapshots(only) if rank in (-1, one.rank)]

    def phases(self) -> list[State]:
        """Return the lifecycle phase of every instance, now."""
        self._catch_up()
        return self.cluster.phases()

    def _catch_up(self) -> None:
        if self._loop is not None:
            self.cluster.catch_up(self._sync())

    def saturated(self) -> list[Queue]:
        """Return the queues of the models for which more requests arrive than the cluster serves."""
        if self._loop is not None:
            self.saturation.check(self._sync(), self._clock())
        return self.saturation.queues()

    def _begin_here(self) -> None:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._begin(loop)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the clock with the first request on a loop, or continue it if the app moved to another loop."""
        self._loop = loop
        self._clock = precise_clock()

    @abc.abstractmethod
    def _sync(self) -> float:
        """Advance the cluster to the present; return it (cluster time, seconds)."""

    def _sync_to_arrival(self, arrived_s: float) -> tuple[float, float]:
        """Advance the cluster to an arrival; return the time reached, and by how much it is later than the arrival."""
        return self._sync(), 0.0

    @abc.abstractmethod
    def _schedule_next_event(self) -> None:
        """Schedule the next event."""

    def _run_cluster(self, to: float) -> list[StepEnd]:
        """Advance the cluster up to `to`, or for one slice of CPU time if that ends first."""
        cluster, stop_s = self.cluster, self._clock() + SLICE_S
        events = cluster.advance(to, _STEPS)
        while (next_s := cluster.next_event_time()) <= to and next_s < math.inf and self._clock() < stop_s:
            events += cluster.advance(to, _STEPS)
        if cluster.router_errors:
            for error in cluster.router_errors:
                logger.error("%s", error)
            cluster.router_errors.clear()
        return events

    def _deliver(self, events: list[StepEnd]) -> None:
        if len(events) == 1:
            due: Iterable[Request] = events[0].emitted
        else:
            due = dict.fromkeys([request for event in events for request in event.emitted])
        for request in due:
            receiver: Receiver | None = request.tag
            if receiver is None:  # it was stopped, and the cluster tells of it once more
                continue
            try:
                receiver.tokens_due(request)
            except Exception:  # a broken connection must not stop the cluster
                logger.exception("A reply could not be delivered")


class PacedDriver(Driver):
    """Wall time times `speed` is cluster time."""

    gap_s = GAP_S  # between two wake-ups, on average

    def __init__(self, cluster: Cluster, speed: float = 1.0) -> None:
        super().__init__(cluster)
        self.pacing = Pacing(speed)
        self._speed = speed
        self._start_s = 0.0  # wall time at which the cluster's clock was 0
        self._alarm: Alarm | None = None
        self._event_s = math.inf  # cluster time for which the alarm is set

    @property
    def speed(self) -> float:
        return self._speed

    def set_speed(self, speed: float) -> None:
        if self._loop is None:
            self._speed = speed
        else:
            reached = self._sync()
            self._speed = speed
            self._start_s = self._clock() - reached / speed
            self._event_s = math.nan
            self._schedule_next_event()
        self.pacing.set_speed(speed)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        reached = 0.0 if self._loop is None else self._now()
        super()._begin(loop)
        # In virtual time both clocks begin together, so that cluster times are the loop's to the last bit.
        together = isinstance(loop, VirtualTimeLoop) and not reached
        self._start_s = 0.0 if together else self._clock() - reached / self._speed
        if self._alarm is not None:
            self._alarm.clear()
        self._alarm = make_alarm(loop, self._tick, self.gap_s)
        self._event_s = math.inf

    @property
    def now_s(self) -> float:
        return 0.0 if self._loop is None else self._now()

    def _now(self) -> float:
        return (self._clock() - self._start_s) * self._speed

    def _sync(self) -> float:
        return self._sync_to(self._now())

    def _sync_to(self, to: float) -> float:
        if self.cluster.next_event_time() <= to:
            self._advance(to)
        # A cluster that computes slower than its time passes is behind: requests arrive at the time that it has reached.
        return min(to, self.cluster.next_event_time())

    def _sync_to_arrival(self, arrived_s: float) -> tuple[float, float]:
        if arrived_s >= self._clock():
            return self._sync(), 0.0
        arrival = (arrived_s - self._start_s) * self._speed
        at = max(self._sync_to(max(arrival, 0.0)), self.cluster.reached_s)
        return at, max(at - arrival, 0.0)

    def _advance(self, to: float) -> None:
        events = self._run_cluster(to)
        self._deliver(events)
        if events:
            self._count_lateness(events)

    def _count_lateness(self, events: list[StepEnd]) -> None:
        """Record the lateness of steps, those that end at one instant at once: with fixed times there are many."""
        sent_s, time_s, tokens = self._clock(), events[0].time_s, 0
        for event in events:
            if event.time_s != time_s:
                self.pacing.sent(sent_s - self._wall(time_s), tokens, sent_s)
                time_s, tokens = event.time_s, 0
            tokens += event.tokens or len(event.emitted)
        self.pacing.sent(sent_s - self._wall(time_s), tokens, sent_s)

    def _wall(self, cluster_s: float) -> float:
        return self._start_s + cluster_s / self._speed

    def _schedule_next_event(self) -> None:
        event_s = self._next_event_s()
        if event_s == self._event_s:
            return
        assert self._alarm is not None
        self._event_s = event_s
        if event_s == math.inf:
            self._alarm.clear()
        else:
            self._alarm.set(self._wall(event_s))

    def _next_event_s(self) -> float:
        """Return the cluster time for which the alarm is to be set."""
        return self.cluster.next_event_time()

    def _tick(self) -> None:
        event_s, self._event_s = self._event_s, math.nan  # nan equals no time: the next event is always scheduled
        now_s = self._clock()
        if now_s >= self._wall(event_s):
            # At least to the event: converting between the clocks may round the present to just before it.
            self._advance(max((now_s - self._start_s) * self._speed, event_s))
        self._schedule_next_event()


class FreeDriver(Driver):
    """A driver that never waits: cluster time is the time that the cluster has reached."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._scheduled = False
        self._arrived = False  # a request, since it was last to run a slice
        self._ran_s = 0.0  # when the last slice ended

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        super()._begin(loop)
        self._scheduled = False

    def _sync(self) -> float:
        return 0.0  # an earlier time than the one reached counts as that one

    def _sync_to_arrival(self, arrived_s: float) -> tuple[float, float]:
        self._arrived = True
        return super()._sync_to_arrival(arrived_s)

    def _schedule_next_event(self) -> None:
        if not self._scheduled and self.cluster.next_event_time() < math.inf:
            assert self._loop is not None
            self._scheduled = True
            self._loop.call_soon(self._run_slice)

    def _run_slice(self) -> None:
        self._scheduled = False
        arrived, self._arrived = self._arrived, False
        if not arrived or self._clock() >= self._ran_s + _GATHER_S:
            self._deliver(self._run_cluster(math.inf))
            self._ran_s = self._clock()
        self._schedule_next_event()


class Alarm(Protocol):
    """A callback at the time that was set last; a past time means as soon as possible.

    Event loops round timers to whole milliseconds: a fifth of the time between two tokens, and twice that time at `--speed
    10`. On Linux a timerfd wakes the loop within about 0.1 ms instead. On average alarms are at least half a millisecond
    apart, so that many events closer than that cost one wake-up; a few in a row are on time.
    """

    def set(self, due_s: float) -> None:
        """Set the alarm. due_s: seconds on the clock of `precise_clock`."""
        ...

    def clear(self) -> None:
        """Unset it, and stop watching the loop."""
        ...


def make_alarm(loop: asyncio.AbstractEventLoop, ring: Callable[[], None], gap_s: float = GAP_S) -> Alarm:
    """Return the most precise alarm for that loop. gap_s: see GAP_S."""
    if sys.platform == "linux" and not isinstance(loop, SimulatedTimeLoop):
        try:
            return TimerfdAlarm(loop, ring, gap_s)
        except (OSError, AttributeError):
            pass
    return LoopAlarm(loop, ring)


class LoopAlarm:
    """The loop's own timer: exact in virtual time, early or late by some milliseconds on other loops."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None

    def set(self, due_s: float) -> None:
        self.clear()
        self._handle = self._loop.call_at(due_s, self._ring)

    def clear(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class _Timespec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class TimerfdAlarm:
    """A timerfd that the loop polls. It is never read: setting it again makes it unreadable, and `clear` unregisters it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None], gap_s: float = GAP_S) -> None:
        """Open the timer. Raises OSError or AttributeError where the C library has no timerfd."""
        self._gap_s = gap_s
        self._fd = -1
        self._loop = loop
        self._ring = ring
        self._registered = False
        self._earliest_s = 0.0
        library = ctypes.PyDLL(None, use_errno=True)  # its calls wait for nothing: no other thread need run in them
        self._settime = library.timerfd_settime
        self._fd = library.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._time = _Timespec()
        self._time_pointer = ctypes.byref(self._time)

    def set(self, due_s: float) -> None:
        due_ns = int((due_s if due_s > self._earliest_s else self._earliest_s) * 1e9) or 1  # 0 would disarm it
        self._time.value_s, self._time.value_ns = divmod(due_ns, 1_000_000_000)
        self._settime(self._fd, _TFD_TIMER_ABSTIME, self._time_pointer, None)
        if not self._registered:
            self._registered = True
            self._loop.add_reader(self._fd, self._fire)

    def clear(self) -> None:
        if self._registered:
            self._registered = False
            if not self._loop.is_closed():
                self._loop.remove_reader(self._fd)

    def _fire(self) -> None:
        earliest_s = time.monotonic() - _BURST * self._gap_s
        self._earliest_s = (earliest_s if earliest_s > self._earliest_s else self._earliest_s) + self._gap_s
        self._ring()

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
