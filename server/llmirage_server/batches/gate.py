"""The gate before the lines of batches: other requests come first."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable

from llmirage_server.service.models import ServedModel
from llmirage_server.service.service import Service

MOST_AT_ONCE = 64  # lines in the cluster: each takes memory, and a turn of the event loop when it ends
LINE_PRIORITY = 1_000_000  # of requests in the cluster: lower ones are served first by engines that have priorities
_WAITED_S = 0.1  # of cluster time: a request that has waited so long is not only waiting for the next step
_LOOK_AGAIN_S = 0.02


class Gate:
    """Counts the lines in the cluster. changed: a line has ended, or a batch is to stop."""

    def __init__(self, service: Service) -> None:
        self.changed = asyncio.Event()
        self._service = service
        self._inside: Counter[str] = Counter()  # by model

    def inside(self) -> int:
        return sum(self._inside.values())

    async def enter(self, served: ServedModel, stopped: Callable[[], bool]) -> bool:
        """Wait until another line may begin; False if it is stopped before."""
        most = max(1, served.seats // 2)
        while not stopped():
            self.changed.clear()
            is_full = self._inside[served.model] >= most or self.inside() >= MOST_AT_ONCE
            if not is_full and not self._others_wait():
                self._inside[served.model] += 1
                return True
            try:
                async with asyncio.timeout(None if is_full else _LOOK_AGAIN_S):
                    await self.changed.wait()
            except TimeoutError:
                pass
        return False

    async def until(self, reached: Callable[[], bool]) -> None:
        """Wait for something that `changed` tells of."""
        while not reached():
            self.changed.clear()
            await self.changed.wait()

    def leave(self, served: ServedModel) -> None:
        self._inside[served.model] -= 1
        self.changed.set()

    def _others_wait(self) -> bool:
        """Tell whether the server refuses requests now, or another request waits for a place in its engine's batch."""
        if self._service.responses.refusal is not None:
            return True
        latest_s = self._service.driver.now_s - _WAITED_S
        return any(
            math.isnan(request.admitted_s) and request.arrival_s < latest_s and request.priority < LINE_PRIORITY
            for request in self._service.responses.requests()
        )
