"""The clock that stamps a run's events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from llmirage_shared.virtual_time import SimulatedTimeLoop


def run_clock(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """Return the precise clock with loop.time()'s base.

    time.monotonic() on a loop of real time, because uvloop rounds its own time to milliseconds; else the loop's.
    """
    return loop.time if isinstance(loop, SimulatedTimeLoop) else time.monotonic


def wake(waiter: asyncio.Future[None]) -> None:
    """Let the waiting task go on, unless that was done before."""
    if not waiter.done():
        waiter.set_result(None)
