"""Watches the event loop of a live server: whether something holds it up, so that every stream waits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

BLOCK_S = 0.1
_EVERY_S = 0.05
_SAY_AGAIN_S = 10.0

logger = logging.getLogger("llmirage")


class LoopWatch:
    """Wakes up at fixed times. A wake-up that comes more than 0.1 s late is a block, if this process has computed for 0.1 s
    meanwhile: else the machine had no processor for it.

    blocks: how many there were; longest_s: how late the latest was.
    """

    def __init__(self, ready: Callable[[], bool] = lambda: True) -> None:
        """ready: whether what is loaded at the start is there; before that nothing counts."""
        self.blocks = 0
        self.longest_s = 0.0
        self._ready = ready
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Watch the running loop from now on."""
        self._task = asyncio.get_running_loop().create_task(self._watch())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def late(self, late_s: float, computed_s: float) -> bool:
        """Take note of one wake-up; whether it was a block. computed_s: CPU time of this process since the one before."""
        if late_s <= BLOCK_S or computed_s <= BLOCK_S or not self._ready():
            return False
        self.blocks += 1
        self.longest_s = max(self.longest_s, late_s)
        return True

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        said_s = -_SAY_AGAIN_S
        while True:
            due_s, computed_s = loop.time() + _EVERY_S, time.process_time()
            await asyncio.sleep(_EVERY_S)
            late_s = loop.time() - due_s
            if self.late(late_s, time.process_time() - computed_s) and due_s - said_s >= _SAY_AGAIN_S:
                said_s = due_s
                logger.warning(
                    "The event loop was held up for %.2f s: %d times over %g s so far.", late_s, self.blocks, BLOCK_S
                )

    def exposition(self) -> str:
        """The counts in Prometheus's text format 0.0.4."""
        return (
            "# HELP llmirage:event_loop_blocks_total Times that the event loop was held up for more than 0.1 s.\n"
            "# TYPE llmirage:event_loop_blocks_total counter\n"
            f"llmirage:event_loop_blocks_total {self.blocks:.1f}\n"
            "# HELP llmirage:event_loop_block_seconds_max The longest of these times, in seconds.\n"
            "# TYPE llmirage:event_loop_block_seconds_max gauge\n"
            f"llmirage:event_loop_block_seconds_max {self.longest_s:.6f}\n"
        )
