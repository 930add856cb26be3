"""The pace of the server and its cluster: the lateness of tokens, and requests that wait long for their first step."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llmirage_server.cluster.request import Request
from llmirage_server.cluster.snapshots import InstanceSnapshot
from llmirage_shared.statistics import LogHistogram

logger = logging.getLogger("llmirage")

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
    p50_s: float
    p99_s: float
    max_s: float
    late_tokens: int  # more than late_s late
    late_s: float


class Pacing:
    """A histogram of lag, and a warning when many tokens of a window left late.

    All times are those of the wall clock.
    lags: of all tokens.
    front_end: from the arrival of each request until it was submitted to the cluster.
    late_s: the lag from which on a token is late: LATE_S, or LATE_CLUSTER_S at the cluster's speed.
    """

    def __init__(self, speed: float = 1.0) -> None:
        self.set_speed(speed)
        self.lags = LogHistogram()
        self.front_end = LogHistogram()
        self.late_tokens = 0
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
        if lag_s < 0.0:
            lag_s = 0.0
        self.lags.add(lag_s, tokens)
        if lag_s > self.max_s:
            self.max_s = lag_s
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
        lags = self.lags
        mean_s = lags.sum_s / lags.count if lags.count else 0.0
        p50_s, p99_s = (min(lags.quantile(share), self.max_s) for share in (0.5, 0.99))
        return PacingSummary(lags.count, mean_s, p50_s, p99_s, self.max_s, self.late_tokens, self.late_s)


LONG_WAIT_S = 5.0  # cluster time from arrival to the first step; in bursts of long prompts it is one or two seconds
CHECK_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Queue:
    """The requests for one model. waited_s: how long one of them has waited, or did wait, in cluster time."""

    model: str | None
    waiting: int
    running: int
    waited_s: float


class Saturation:
    """A watch that follows one request of each model at a time to its admission, and warns if that takes long."""

    def __init__(self, snapshot: Callable[[], Sequence[InstanceSnapshot]]) -> None:
        self._snapshot = snapshot
        self._followed: dict[str | None, Request] = {}
        self._waited_s: dict[str | None, float] = {}  # of saturated models
        self._next_check_s = float("-inf")
        self._next_warning_s = float("-inf")

    def submitted(self, request: Request) -> None:
        """Note a request that has arrived."""
        self._followed.setdefault(request.model, request)

    def check(self, now_s: float, wall_s: float) -> None:
        """Check the followed requests; call it often. now_s: cluster time; wall_s: any clock that paces the log."""
        if wall_s < self._next_check_s:
            return
        self._next_check_s = wall_s + CHECK_EVERY_S
        for model, request in list(self._followed.items()):
            admitted = not math.isnan(request.admitted_s)
            waited_s = (request.admitted_s if admitted else now_s) - request.arrival_s
            if admitted or request.cancelled or request.failed:
                del self._followed[model]
            if waited_s > LONG_WAIT_S and not request.failed:
                self._waited_s[model] = waited_s
            elif admitted:
                self._waited_s.pop(model, None)
        if self._waited_s and wall_s >= self._next_warning_s:
            self._next_warning_s = wall_s + WARN_EVERY_S
            for queue in self.queues():
                logger.warning(
                    "The simulated cluster is saturated: requests wait %.0f s before they start; %d wait and %d run%s.",
                    queue.waited_s,
                    queue.waiting,
                    queue.running,
                    f" for {queue.model}" if queue.model else "",
                )

    def queues(self) -> list[Queue]:
        """Return the queues of the models that were saturated at the last check and still have requests waiting."""
        if not self._waited_s:
            return []
        snapshots = self._snapshot()
        queues = []
        for model, waited_s in self._waited_s.items():
            serving = [instance for instance in snapshots if instance.model in (model, None)]
            waiting = sum(instance.waiting for instance in serving)
            if waiting:
                queues.append(Queue(model, waiting, sum(instance.running for instance in serving), waited_s))
        return queues
