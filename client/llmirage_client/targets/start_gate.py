"""Lets requests start a few at a time, so that a burst of them does not blind the client to the first replies."""

from __future__ import annotations

import asyncio
from collections import deque


class StartGate:
    """Passes at most `per_turn` starts in one turn of the event loop, in order.

    Between its turns a loop polls its sockets. Hundreds of requests that start in one turn keep it from doing so for tens of
    milliseconds, and every reply that comes meanwhile is stamped that much late.
    """

    def __init__(self, per_turn: int = 2) -> None:
        self._per_turn = per_turn
        self._passed = 0
        self._queue: deque[asyncio.Future[None]] = deque()
        self._ticking = False

    async def enter(self) -> None:
        """Return when this start may go ahead."""
        if self._passed < self._per_turn and not self._queue:
            self._passed += 1
            self._tick_later()
            return
        waiter = asyncio.get_running_loop().create_future()
        self._queue.append(waiter)
        self._tick_later()
        await waiter

    def _tick_later(self) -> None:
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        self._ticking = False
        self._passed = 0
        while self._queue and self._passed < self._per_turn:
            waiter = self._queue.popleft()
            if not waiter.done():  # cancelled while it waited
                waiter.set_result(None)
                self._passed += 1
        if self._passed:
            self._tick_later()
