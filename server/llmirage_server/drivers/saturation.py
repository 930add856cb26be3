"""Detection of saturation: requests that wait long before their first step because the cluster serves too few."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llmirage_server.cluster.request import Request
from llmirage_server.cluster.snapshots import InstanceSnapshot

logger = logging.getLogger("llmirage")

LONG_WAIT_S = 5.0  # cluster time from arrival to the first step; in bursts of long prompts it is one or two seconds
CHECK_EVERY_S = 1.0
WARN_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Queue:
    """The requests for one model. waited_s: how long one of them has waited, or did wait, in cluster time."""

    model: str | None
    waiting: int
    running: int
    waited_s: float


class Saturation:
    """A watch that follows one request of each model at a time to its admission, and warns if that takes long."""

    def __init__(self, snapshot: Callable[[], Sequence[InstanceSnapshot]]) -> None:
        self._snapshot = snapshot
        self._followed: dict[str | None, Request] = {}
        self._waited_s: dict[str | None, float] = {}  # of saturated models
        self._next_check_s = float("-inf")
        self._next_warning_s = float("-inf")

    def submitted(self, request: Request) -> None:
        """Note a request that has arrived."""
        self._followed.setdefault(request.model, request)

    def check(self, now_s: float, wall_s: float) -> None:
        """Check the followed requests; call it often. now_s: cluster time; wall_s: any clock that paces the log."""
        if wall_s < self._next_check_s:
            return
        self._next_check_s = wall_s + CHECK_EVERY_S
        for model, request in list(self._followed.items()):
            admitted = not math.isnan(request.admitted_s)
            waited_s = (request.admitted_s if admitted else now_s) - request.arrival_s
            if admitted or request.cancelled or request.failed:
                del self._followed[model]
            if waited_s > LONG_WAIT_S and not request.failed:
                self._waited_s[model] = waited_s
            elif admitted:
                self._waited_s.pop(model, None)
        if self._waited_s and wall_s >= self._next_warning_s:
            self._next_warning_s = wall_s + WARN_EVERY_S
            for queue in self.queues():
                logger.warning(
                    "The simulated cluster is saturated: requests wait %.0f s before they start; %d wait and %d run%s.",
                    queue.waited_s,
                    queue.waiting,
                    queue.running,
                    f" for {queue.model}" if queue.model else "",
                )

    def queues(self) -> list[Queue]:
        """Return the queues of the models that were saturated at the last check and still have requests waiting."""
        if not self._waited_s:
            return []
        snapshots = self._snapshot()
        queues = []
        for model, waited_s in self._waited_s.items():
            serving = [instance for instance in snapshots if instance.model in (model, None)]
            waiting = sum(instance.waiting for instance in serving)
            if waiting:
                queues.append(Queue(model, waiting, sum(instance.running for instance in serving), waited_s))
        return queues
