"""The time that files and batches expire by."""

from __future__ import annotations

import asyncio
import time

from llmirage_shared.virtual_time import VirtualTimeLoop


class EpochClock:
    """Seconds since 1970. On a loop in virtual time they pass as its time does."""

    def __init__(self) -> None:
        self._began_s = time.time()

    def __call__(self) -> float:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return time.time()
        return self._began_s + loop.time() if isinstance(loop, VirtualTimeLoop) else time.time()


class Breaks:
    """Lets others have the event loop every two milliseconds of long work."""

    SLICE_S = 0.002

    def __init__(self) -> None:
        self._clock = time.perf_counter
        self._until_s = self._clock() + self.SLICE_S

    async def maybe(self) -> None:
        if self._clock() > self._until_s:
            await asyncio.sleep(0)
            self._until_s = self._clock() + self.SLICE_S
