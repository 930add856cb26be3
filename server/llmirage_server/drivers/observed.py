"""The live server's driver on a loop of virtual time, with an observer that looks between two events of the cluster."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable

from llmirage_server.cluster.cluster import Cluster
from llmirage_server.cluster.request import Request, StepEnd
from llmirage_server.drivers.live import PacedDriver
from llmirage_server.drivers.virtual import Observer
from llmirage_shared.virtual_time import VirtualTimeLoop


class ObservedDriver(PacedDriver):
    """What ClusterRun tells of a simulation, for one that goes through the whole protocol. Make it on the loop.

    waited_s: of requests that are over, in that order: see Request.waited_s.
    """

    def __init__(self, cluster: Cluster, observer: Observer) -> None:
        super().__init__(cluster)
        self.waited_s: list[float] = []
        self._observer = observer
        loop = asyncio.get_running_loop()
        if not isinstance(loop, VirtualTimeLoop):
            raise RuntimeError("an observer needs a loop of virtual time (llmirage_shared.virtual_time)")
        loop.source = self._observe

    def cancel(self, requests: Iterable[Request]) -> None:
        given = list(requests)
        waits = [request for request in given if math.isnan(request.finished_s) and not request.failed]
        waits = [request for request in waits if not request.cancelled]
        super().cancel(given)
        now = self.cluster.reached_s
        self.waited_s += [request.waited_s(now) for request in waits]

    def _observe(self, to: float) -> float:
        """Nothing happens before `to`, when the next timer is due: those of the cluster's events are among them."""
        observer = self._observer
        while observer.next_s < to:
            if self.cluster.next_event_time() == math.inf:
                observer.skip(to)
                break
            observer.look(observer.next_s)
        return to

    def _deliver(self, events: list[StepEnd]) -> None:
        super()._deliver(events)
        told = [(request, event.time_s) for event in events for request in event.emitted]
        over = {request: now for request, now in told if request.finished_s <= now or request.failed}
        self.waited_s += [request.waited_s(now) for request, now in over.items()]
