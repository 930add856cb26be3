"""Gives the cluster virtual time, without HTTP: requests go in, and come back when they are over.

`ClusterRun` needs nobody but the caller, who says how far time may go. `VirtualDriver` is the same on an asyncio loop of
virtual time: between two turns of the loop, when no task can go on, the cluster runs to the next timer, or to the next
request that is over if that comes first. No task is switched for a token.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from llmirage_server.cluster.cluster import Cluster
from llmirage_server.cluster.request import Request, StepEnd
from llmirage_server.drivers.live import Driver, Receiver
from llmirage_server.replies.reply import Reply, ReplyRequest, ReplySource
from llmirage_shared.virtual_time import VirtualTimeLoop

Times = npt.NDArray[np.float64]


class Flight:
    """A request under way, and who is told when it is over. `times` tells when its tokens came."""

    __slots__ = ("request", "token_s")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.token_s: list[float] = []  # of tokens that the cluster tells of one by one

    def over(self) -> None:
        """It has finished or failed; never called for a cancelled one."""

    @property
    def times(self) -> Times:
        """When each token that was produced came, cluster time, float64, shape (produced,)."""
        spans = self.request.spans
        if not spans:
            return np.array(self.token_s)
        pieces = [np.array(ends_s[first : last + 1]) for ends_s, first, last in spans]
        return np.sort(np.concatenate([*pieces, np.array(self.token_s)]))

    @property
    def arrivals(self) -> Times:
        """The same, but tokens that one step brought together (speculation) came as one."""
        times = self.times
        return times[np.append(True, times[1:] > times[:-1])] if len(times) > 1 else times


class Onlooker(Protocol):
    """Somebody who reads the state of the cluster now and then."""

    next_s: float  # when

    def look(self, now: float) -> None:
        """It is that time."""
        ...

    def skip(self, to: float) -> None:
        """Nothing will happen until then."""
        ...


class ClusterRun:
    """Requests on their way through a cluster, in the caller's virtual time."""

    def __init__(self, cluster: Cluster, onlooker: Onlooker | None = None) -> None:
        self.cluster = cluster
        self.under_way = 0
        self.waited_s: list[float] = []  # of requests that are over, in that order: from arrival to the first step
        self._onlooker = onlooker

    def submit(self, flight: Flight, now: float) -> None:
        """Hand a request to the cluster; `flight.over` is called when it has finished or failed.

        It may have failed at once: then `over` is not called. Raises ValueError and RouterError as Cluster.submit does.
        """
        request = flight.request
        request.tag = flight
        self.cluster.submit(request, now)
        if request.failed:
            request.tag = None  # the cluster will tell of it with its next events, and nobody waits for that
        else:
            self.under_way += 1

    def cancel(self, request: Request, now: float) -> None:
        """Take a request back; harmless when it is over."""
        if not (request.failed or request.cancelled or not math.isnan(request.finished_s)):
            self.under_way -= 1
            self.cluster.cancel(request, now)
            self.waited_s.append((now if math.isnan(request.admitted_s) else request.admitted_s) - request.arrival_s)

    def run(self, to: float) -> float:
        """Let the cluster run until `to`, or until requests are over: all that are so at the first such instant.

        Returns the time reached.
        """
        cluster, onlooker = self.cluster, self._onlooker
        while True:
            stop = to if onlooker is None or to < onlooker.next_s else onlooker.next_s
            ends = cluster.advance_to_next(stop)
            if ends:
                if self._note(ends):
                    return ends[-1].time_s
                continue
            if onlooker is not None and stop == onlooker.next_s:
                if cluster.next_event_time() == math.inf:
                    onlooker.skip(to)
                    return to
                onlooker.look(stop)
            if stop == to:
                return to

    def _note(self, ends: list[StepEnd]) -> bool:
        """Write down when tokens came; True if a request is over."""
        any_over = False
        for end in ends:
            now = end.time_s
            for request in end.emitted:
                flight: Flight | None = request.tag
                if flight is None:
                    continue  # it failed when it was submitted
                if not request.failed:
                    token_s = flight.token_s
                    told = len(token_s)
                    for _, first, last in request.spans:
                        told += last - first + 1
                    if told < request.produced:  # by one, but for speculation
                        token_s += [now] * (request.produced - told)
                if request.finished_s <= now or request.failed:
                    any_over = True
                    self.under_way -= 1
                    self.waited_s.append(request.admitted_s - request.arrival_s)
                    flight.over()
        return any_over


# --- on a loop of virtual time -------------------------------------------------------------------------------------------


class CallbackFlight(Flight):
    """Calls a function with its request."""

    __slots__ = ("_over",)

    def __init__(self, request: Request, over: Callable[[Request], None]) -> None:
        super().__init__(request)
        self._over = over

    def over(self) -> None:
        self._over(self.request)


class VirtualDriver:
    """Drives a cluster by a loop's time. Make it on the loop."""

    def __init__(self, cluster: Cluster, onlooker: Onlooker | None = None) -> None:
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualTimeLoop):
            raise RuntimeError("the direct door needs a loop of virtual time (llmirage_shared.virtual_time)")
        self.cluster = cluster
        self._loop = loop
        self._run = ClusterRun(cluster, onlooker)
        loop.source = self._run.run

    @property
    def under_way(self) -> int:
        return self._run.under_way

    @property
    def waited_s(self) -> list[float]:
        """Of requests that are over, in that order: from arrival to the first step."""
        return self._run.waited_s

    def submit(self, request: Request, over: Callable[[Request], None]) -> Flight:
        """Hand a request to the cluster; `over` is called when it has finished or failed, never for a cancelled one.

        It may have failed at once: then `over` is not called. Raises ValueError and RouterError as Cluster.submit does.
        """
        flight = CallbackFlight(request, over)
        self._run.submit(flight, self._loop.time())
        return flight

    def cancel(self, request: Request) -> None:
        """Take a request back; harmless when it is over."""
        self._run.cancel(request, self._loop.time())


# --- for the server's own endpoints, asked for whole replies -------------------------------------------------------------


@dataclass(slots=True)
class Plans:
    """What the endpoints made of one request: how long it takes is in `flights`, what is said in `replies`."""

    flights: list[Flight] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)


PLANS: ContextVar[Plans] = ContextVar("plans")  # of the request that the running task carries out


class DirectDriver(Driver):
    """The driver of a service whose replies are not streamed: it is told of each once, when it is over."""

    def __init__(self, virtual: VirtualDriver) -> None:
        super().__init__(virtual.cluster)
        self._virtual = virtual

    def submit(self, requests: Iterable[Request], arrived_s: float = math.inf) -> None:
        plans = PLANS.get()
        for request in requests:
            receiver: Receiver = request.tag
            plans.flights.append(self._virtual.submit(request, receiver.tokens_due))

    def cancel(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._virtual.cancel(request)

    def _sync(self) -> float:
        return asyncio.get_running_loop().time()

    def _schedule_next_event(self) -> None: ...


class NotedReplies:
    """A source of replies that remembers what it said, for whoever put the tokens' times beside it."""

    def __init__(self, source: ReplySource) -> None:
        self._source = source

    def reply(self, request: ReplyRequest) -> Reply:
        reply = self._source.reply(request)
        if (plans := PLANS.get(None)) is not None:
            plans.replies.append(reply)
        return reply
