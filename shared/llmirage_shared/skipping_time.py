"""An asyncio event loop with real input and output that skips waiting: what would come in ten minutes comes at once.

Its clock is the real one plus what was skipped. It skips to the next timer when there is nothing else to do, the owner says
that a caller waits for the timers, and for QUIET_S nothing has come from outside: requests that are sent together arrive
together. Without a wait, time passes as it does elsewhere.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
from typing import Any

from llmirage_shared.virtual_time import SimulatedTimeLoop

QUIET_S = 0.002


class SkippingLoop(SimulatedTimeLoop):
    """awaited: whether a caller waits for what the timers bring."""

    def __init__(self, awaited: Callable[[], bool]) -> None:
        self.awaited = awaited
        self.skipped_s = 0.0
        self.quiet = True  # nothing has come since the last skip
        self.target_s: float | None = None  # of `advance`
        self._reached: asyncio.Future[None] | None = None
        super().__init__(_SkippingSelector(self))

    def time(self) -> float:
        return time.monotonic() + self.skipped_s

    def hear(self) -> None:
        """Something has come from outside, or may come now: more may follow at once."""
        self.quiet = False

    async def advance(self, seconds: float) -> None:
        """Let that much time pass without waiting, with all that happens in it."""
        self.target_s, self._reached = self.time() + seconds, self.create_future()
        await self._reached

    def reach(self) -> None:
        """The time that `advance` asked for has come."""
        reached, self.target_s, self._reached = self._reached, None, None
        if reached is not None:
            self.call_soon(_end, reached)

    def is_own(self, descriptor: int) -> bool:
        """Whether it is the pipe through which other threads wake this loop."""
        pipe: Any = self._ssock  # type: ignore[attr-defined]  # the same from Python 3.11 to 3.14
        return pipe is not None and descriptor == pipe.fileno()


def _end(reached: asyncio.Future[None]) -> None:
    if not reached.done():
        reached.set_result(None)


class _SkippingSelector(selectors.DefaultSelector):
    def __init__(self, loop: SkippingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """timeout: until the next timer; None: there is none."""
        loop = self._loop
        if timeout is not None and timeout <= 0:
            return self._noted(super().select(0))
        if loop.target_s is not None:
            if events := self._noted(super().select(0)):
                return events
            left_s = loop.target_s - loop.time()
            if timeout is None or timeout >= left_s:
                loop.skipped_s += max(left_s, 0.0)
                loop.reach()
            else:
                loop.skipped_s += timeout
            return []
        if timeout is None or not loop.awaited():
            return self._noted(super().select(timeout))
        began_s = time.monotonic()
        events = super().select(0 if loop.quiet else min(timeout, QUIET_S))
        if events:
            return self._noted(events)
        loop.quiet = True
        loop.skipped_s += max(timeout - (time.monotonic() - began_s), 0.0)
        return []

    def _noted(self, events: list[tuple[selectors.SelectorKey, int]]) -> list[tuple[selectors.SelectorKey, int]]:
        for key, mask in events:
            if mask & selectors.EVENT_READ and not self._loop.is_own(key.fd):
                self._loop.hear()
        return events
