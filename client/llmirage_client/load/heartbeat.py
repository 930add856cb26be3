"""Watches the client itself while it loads an endpoint: how late its event loop is, and how much CPU it takes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

BEAT_S = 0.1


class Heartbeat:
    """`async with` it. lag_s: how late each beat came, in seconds. cpu_s: CPU time of this process inside the block."""

    def __init__(self, on_beat: Callable[[], None]) -> None:
        self._on_beat = on_beat
        self.lag_s: list[float] = []
        self.cpu_s = 0.0

    async def __aenter__(self) -> Heartbeat:
        self._cpu_start_s = time.process_time()
        self._loop = asyncio.get_running_loop()
        self._due_s = time.monotonic()
        self._arm()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._timer.cancel()
        self.cpu_s = time.process_time() - self._cpu_start_s

    def _arm(self) -> None:
        self._due_s = max(self._due_s + BEAT_S, time.monotonic())
        self._timer = self._loop.call_at(self._due_s, self._beat)

    def _beat(self) -> None:
        self.lag_s.append(max(time.monotonic() - self._due_s, 0.0))
        self._on_beat()
        self._arm()
