"""The server's own pace: stalls of its event loop, and how late the tokens of a stream left."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable

from llmirage_server.cluster.request import Request
from llmirage_server.drivers.live import Driver
from llmirage_shared.statistics import ServedTimes

BLOCK_S = 0.1
_EVERY_S = 0.05
_SAY_AGAIN_S = 10.0

logger = logging.getLogger("llmirage")


class LoopWatch:
    """A watch that wakes up at fixed times.

    A wake-up that comes more than 0.1 s late is a block, if this process has computed for 0.1 s meanwhile: else the machine
    had no processor for it.

    blocks: how many there were; longest_s: how late the latest was.
    """

    def __init__(self, ready: Callable[[], bool] = lambda: True) -> None:
        """ready: whether what is loaded at the start is there; before that nothing counts."""
        self.blocks = 0
        self.longest_s = 0.0
        self._ready = ready
        self._waiting: asyncio.TimerHandle | None = None
        self._say_again_s = 0.0

    def start(self) -> None:
        """Watch the running loop from now on."""
        self._loop = asyncio.get_running_loop()
        self._wait()

    def stop(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()

    def late(self, late_s: float, computed_s: float) -> bool:
        """Take note of one wake-up; whether it was a block. computed_s: CPU time of this process since the one before."""
        if late_s <= BLOCK_S or computed_s <= BLOCK_S or not self._ready():
            return False
        self.blocks += 1
        self.longest_s = max(self.longest_s, late_s)
        return True

    def _wait(self) -> None:
        self._computed_s, self._due_s = time.process_time(), self._loop.time() + _EVERY_S
        self._waiting = self._loop.call_at(self._due_s, self._wake_up)

    def _wake_up(self) -> None:
        late_s = self._loop.time() - self._due_s
        if self.late(late_s, time.process_time() - self._computed_s) and self._due_s >= self._say_again_s:
            self._say_again_s = self._due_s + _SAY_AGAIN_S
            logger.warning("The event loop was held up for %.2f s: %d times over %g s so far.", late_s, self.blocks, BLOCK_S)
        self._wait()

    def exposition(self) -> str:
        """Return the counts in Prometheus's text format 0.0.4."""
        return (
            "# HELP llmirage:event_loop_blocks_total Times that the event loop was held up for more than 0.1 s.\n"
            "# TYPE llmirage:event_loop_blocks_total counter\n"
            f"llmirage:event_loop_blocks_total {self.blocks:.1f}\n"
            "# HELP llmirage:event_loop_block_seconds_max The longest of these times, in seconds.\n"
            "# TYPE llmirage:event_loop_block_seconds_max gauge\n"
            f"llmirage:event_loop_block_seconds_max {self.longest_s:.6f}\n"
        )


class SentTimes:
    """Times of the first and the last token of a stream; those before the first that shows do not count. Cluster time."""

    __slots__ = ("_driver", "_first_due_s", "_first_sent_s", "_gaps", "_last_sent_s")

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._first_due_s = self._first_sent_s = self._last_sent_s = math.nan
        self._gaps = 0  # between tokens, from the first that shows on

    def first_shows(self, request: Request, place: int, written: bool) -> None:
        """Note that the first visible token came with the last step. place: in the reply; written: it has left, too."""
        if math.isnan(self._first_due_s):
            self._first_due_s = self._driver.reached_s if place else request.first_token_s
            self._gaps = request.output_tokens - 1 - place
            if written:
                self._first_sent_s = self._driver.now_s

    def written(self, last: bool) -> None:
        """All bytes so far have left. last: the end of the response is among them."""
        now_s = self._driver.now_s
        if math.isnan(self._first_sent_s) and not math.isnan(self._first_due_s):
            self._first_sent_s = now_s
        if last:
            self._last_sent_s = now_s

    def count(self, request: Request, served: ServedTimes) -> None:
        """Add them to those of the server, if the whole stream was sent and the cluster's time goes by a clock."""
        first_s, sent_s, last_s = self._first_due_s, self._first_sent_s, self._last_sent_s
        if not math.isnan(sent_s + last_s) and self._driver.speed < math.inf:
            arrival_s = request.arrival_s
            served.ended(first_s - arrival_s, sent_s - arrival_s, self._gaps, request.finished_s - first_s, last_s - sent_s)
