"""The event loop of a load, its garbage collection, and a watch on how late the loop is."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


def run_on_best_loop(main: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Run the coroutine to its end, on uvloop where there is one."""
    try:
        import uvloop
    except ImportError:  # not made for every platform
        return asyncio.run(main())
    return uvloop.run(main())


def put_loop_first() -> None:
    """Keep other work of this process from holding up the loop.

    The cycle collector would walk the workload and all records again and again: up to 7 % of the run's CPU. A thread that
    writes prompts would hold the interpreter for 5 ms each time that the loop has something to do.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    sys.setswitchinterval(0.0005)


BEAT_S = 0.1


class Heartbeat:
    """A watch on the client itself while it loads an endpoint, as an async context manager.

    lag_s: lateness of each beat in seconds.
    cpu_s: CPU time of this process inside the block.
    """

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
