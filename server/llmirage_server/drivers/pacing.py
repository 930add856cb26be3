"""How late tokens leave: whether the server keeps up with the cluster that it simulates."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

logger = logging.getLogger("llmirage")

# Upper edges of the histogram's bins in seconds; the last bin is open.
EDGES_S: Sequence[float] = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
LATE_S = 0.02  # more than the gap between two tokens of a fast model
LATE_CLUSTER_S = 0.1  # in cluster time: at --speed N a wall second counts N times in a client's figures
TIMER_S = 0.001  # the precision that is expected of any machine
LATE_SHARE = 0.1  # of the tokens of a window; more is reported
WINDOW_S = 1.0
WARN_EVERY_S = 10.0


@dataclass(slots=True, frozen=True)
class PacingSummary:
    """The lag of all tokens so far: actual minus planned time of sending, seconds on the wall clock."""

    tokens: int
    mean_s: float
    p50_s: float  # upper edge of the bin that holds the median
    p99_s: float
    max_s: float
    late_tokens: int  # more than late_s late
    late_s: float


class Pacing:
    """A histogram of lag, and a warning when many tokens of a window left late.

    late_s: the lag from which on a token is late, on the wall clock: LATE_S, or LATE_CLUSTER_S at the cluster's speed.
    """

    def __init__(self, speed: float = 1.0) -> None:
        self.set_speed(speed)
        self.counts = [0] * (len(EDGES_S) + 1)
        self.tokens = 0
        self.late_tokens = 0
        self.sum_s = 0.0
        self.max_s = 0.0
        self._window_end_s = float("-inf")
        self._window_tokens = 0
        self._window_late = 0
        self._next_warning_s = float("-inf")

    def set_speed(self, speed: float) -> None:
        self.late_s = max(min(LATE_S, LATE_CLUSTER_S / speed), TIMER_S)
        self._speed = speed

    def sent(self, lag_s: float, tokens: int, now_s: float) -> None:
        """Record that `tokens` tokens left `lag_s` after they were due."""
        lag_s = max(lag_s, 0.0)
        self.tokens += tokens
        self.sum_s += lag_s * tokens
        self.max_s = max(self.max_s, lag_s)
        index = 0
        while index < len(EDGES_S) and lag_s > EDGES_S[index]:
            index += 1
        self.counts[index] += tokens
        if now_s >= self._window_end_s:
            self._close_window(now_s)
        self._window_tokens += tokens
        if lag_s > self.late_s:
            self.late_tokens += tokens
            self._window_late += tokens

    def _close_window(self, now_s: float) -> None:
        if self._window_late > LATE_SHARE * self._window_tokens and now_s >= self._next_warning_s:
            self._next_warning_s = now_s + WARN_EVERY_S
            logger.warning(
                "The server cannot keep up with the cluster it imitates: %d of the last %d tokens left more than %.3g ms "
                "late%s. Client-side latencies now measure this machine. Lower --speed or the load, or free some CPU.",
                self._window_late,
                self._window_tokens,
                self.late_s * 1000,
                f", which is {self.late_s * self._speed * 1000:g} ms of cluster time" if self._speed != 1 else "",
            )
        self._window_end_s = now_s + WINDOW_S
        self._window_tokens = self._window_late = 0

    def summary(self) -> PacingSummary:
        return PacingSummary(
            self.tokens,
            self.sum_s / self.tokens if self.tokens else 0.0,
            self._quantile(0.5),
            self._quantile(0.99),
            self.max_s,
            self.late_tokens,
            self.late_s,
        )

    def _quantile(self, share: float) -> float:
        seen = 0
        for count, edge in zip(self.counts, EDGES_S, strict=False):
            seen += count
            if seen >= share * self.tokens:
                return min(edge, self.max_s)
        return self.max_s
