"""When a phase of a run ends: at its request cap, when its time is over, or when somebody stops it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from llmirage_shared.virtual_time import precise_clock


class Stop:
    """Says whether one more request may go out, and tells who listens once none may.

    request_count: the literal cap on requests, None for no cap; with 0 it has ended.
    closed: no new conversation begins; those that began go on. ended: no request goes out any more.
    """

    def __init__(self, request_count: int | None, clock: Callable[[], float]) -> None:
        self.closed = self.ended = request_count == 0
        self._left = request_count
        self.clock = clock
        self._listeners: list[Callable[[], None]] = []

    def listen(self, heard: Callable[[], None]) -> None:
        """heard is called when the phase closes and when it ends."""
        self._listeners.append(heard)

    def permit(self) -> bool:
        """Takes the permission for one request; False when the phase has ended."""
        if self.ended:
            return False
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                self.end()
        return True

    def close(self) -> None:
        """No conversation begins from now on; those under way send all their turns. Idempotent."""
        self.closed = True
        for heard in self._listeners:
            heard()

    def end(self) -> None:
        """No request goes out from now on; those in flight go on. Idempotent."""
        self.ended = True
        self.close()


class LiveStop(Stop):
    """On an asyncio loop: make it on the running one. Once no request may go out it wakes everybody who waits."""

    def __init__(self, request_count: int | None = None) -> None:
        super().__init__(request_count, precise_clock())
        self._loop = asyncio.get_running_loop()
        self._waiters: set[asyncio.Future[None]] = set()

    def end(self) -> None:
        super().end()
        for waiter in tuple(self._waiters):
            wake(waiter)

    def waiter(self) -> asyncio.Future[None]:
        """A future that is done, at the latest, when the phase ends; anybody may `wake` it before."""
        waiter = self._loop.create_future()
        if self.ended:
            waiter.set_result(None)
        else:
            self._waiters.add(waiter)
            waiter.add_done_callback(self._waiters.discard)
        return waiter

    async def wait_until(self, when_s: float) -> None:
        """Returns at that time of the clock, never before, or when the phase ends."""
        while self.clock() < when_s and not self.ended:  # uvloop's timers are due up to a millisecond early
            waiter = self.waiter()
            timer = self._loop.call_at(when_s, wake, waiter)
            try:
                await waiter
            finally:
                timer.cancel()


def wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
