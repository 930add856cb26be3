"""Drivers for the API in process, on a loop of virtual time: whole replies, or streams with an observer.

For whole replies, no task is switched for a token: between two turns of the loop, when no task can continue, the cluster
runs to the next timer, or to the next end of a request if that comes first. The times of a reply's tokens are known
afterwards (`PLANS`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field

from llmirage_server.cluster.cluster import Cluster
from llmirage_server.cluster.request import QueueWait, Request, StepEnd
from llmirage_server.drivers.live import Driver, PacedDriver, Receiver
from llmirage_server.drivers.virtual import ClusterRun, InFlightRequest, Observer
from llmirage_server.replies.reply import Reply, ReplyRequest, ReplySource
from llmirage_shared.virtual_time import VirtualTimeLoop


@dataclass(slots=True)
class Plans:
    """The submitted requests and the replies that the endpoints made of one API request."""

    flights: list[InFlightRequest] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)


PLANS: ContextVar[Plans] = ContextVar("plans")  # of the request that the running task carries out


class _ReportedRequest(InFlightRequest):
    """A submitted request that notifies its receiver when it finishes."""

    __slots__ = ("_receiver",)

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self._receiver: Receiver = request.tag

    def over(self) -> None:
        self._receiver.tokens_due(self.request)


class WholeReplyDriver(Driver):
    """The driver of a service that does not stream: requests are reported when they finish. Create it on the loop."""

    def __init__(self, cluster: Cluster, observer: Observer) -> None:
        super().__init__(cluster)
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualTimeLoop):
            raise RuntimeError("whole replies need a loop of virtual time (llmirage_shared.virtual_time)")
        self._loop = loop
        self._run = ClusterRun(cluster, observer)
        loop.source = self._run.run

    @property
    def waits(self) -> list[QueueWait]:
        """Waits of finished requests, in that order."""
        return self._run.waits

    def submit(self, requests: Iterable[Request], arrived_s: float = math.inf, *, last: bool = True) -> None:
        plans, now = PLANS.get(), self._sync()
        for request in requests:
            flight = _ReportedRequest(request)
            self._run.submit(flight, now)
            plans.flights.append(flight)

    def cancel(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._run.cancel(request, self._sync())

    def _sync(self) -> float:
        return asyncio.get_running_loop().time()

    def _schedule_next_event(self) -> None: ...


class RecordedReplies:
    """A source of replies that records them, so that the times of their tokens can be set beside them."""

    def __init__(self, source: ReplySource) -> None:
        self._source = source

    def reply(self, request: ReplyRequest) -> Reply:
        reply = self._source.reply(request)
        if (plans := PLANS.get(None)) is not None:
            plans.replies.append(reply)
        return reply


class ObservedDriver(PacedDriver):
    """The live driver on a loop of virtual time, with an observer that reads between two events. Create it on the loop.

    waits: of finished requests, in that order.
    """

    def __init__(self, cluster: Cluster, observer: Observer) -> None:
        super().__init__(cluster)
        self.waits: list[QueueWait] = []
        self._observer = observer
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualTimeLoop):
            raise RuntimeError("an observer needs a loop of virtual time (llmirage_shared.virtual_time)")
        loop.source = self._observe

    def cancel(self, requests: Iterable[Request]) -> None:
        given = list(requests)
        open_ones = [request for request in given if math.isnan(request.finished_s) and not request.failed]
        open_ones = [request for request in open_ones if not request.cancelled]
        super().cancel(given)
        now = self.cluster.reached_s
        self.waits += [request.wait(now) for request in open_ones]

    def _observe(self, to: float) -> float:
        """Let the observer read until `to`, when the next timer is due: the cluster's events are among the timers."""
        observer = self._observer
        while observer.next_s < to:
            if self.cluster.next_event_time() == math.inf:
                observer.skip(to)
                break
            observer.observe(observer.next_s)
        return to

    def _deliver(self, events: list[StepEnd]) -> None:
        super()._deliver(events)
        reported = [(request, event.time_s) for event in events for request in event.emitted]
        over = {request: now for request, now in reported if request.finished_s <= now or request.failed}
        self.waits += [request.wait(now) for request, now in over.items()]
