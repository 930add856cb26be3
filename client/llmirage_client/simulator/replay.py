"""Requests of a measured run, served again by a simulated cluster at their measured times."""

from __future__ import annotations

import dataclasses
import heapq
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmirage_client.simulator.engine import ClusterConfig, ConfigError, Request, new_cluster, plan_of
from llmirage_server.perf.engines.engine import Engine
from llmirage_server.perf.engines.lookup import find_engine
from llmirage_shared.statistics import Floats, Ints

_FIRST_ID = 1 << 20  # above every vocabulary


@dataclass(frozen=True, slots=True)
class ReplayRequests:
    """Requests in the order in which they were sent; arrays of one length n.

    due_s: seconds from the first one; where after[i] >= 0, seconds after the end of request after[i], which comes before it.
    prompt, output: tokens, at least 1. A prompt begins with the first shared[i] tokens of the prompt and the reply of
    request continues[i]; where that is -1, of a prefix that all have in common. conversation: a number, for routers that
    keep a conversation together.
    """

    due_s: Floats
    after: Ints
    prompt: Ints
    output: Ints
    shared: Ints
    continues: Ints
    conversation: Ints

    def __len__(self) -> int:
        return self.due_s.size


@dataclass(frozen=True, slots=True)
class ReplayTimes:
    """Seconds on the cluster's clock, by request; NaN for a request that the cluster cannot serve."""

    start_s: Floats
    first_s: Floats
    end_s: Floats


def replay(config: ClusterConfig, requests: ReplayRequests) -> ReplayTimes:
    """Return the times of these requests on the cluster. Raises ConfigError."""
    n = len(requests)
    cluster = new_cluster(config)
    keys = _Keys(requests)
    followers: dict[int, list[int]] = {}
    for row, before in enumerate(requests.after.tolist()):
        if before >= 0:
            followers.setdefault(before, []).append(row)
    due_s = requests.due_s.tolist()
    due = [(due_s[row], row) for row in range(n) if requests.after[row] < 0]
    heapq.heapify(due)
    times = np.full((3, n), np.nan)

    def over(row: int, now: float) -> None:
        for follower in followers.pop(row, ()):
            heapq.heappush(due, (now + due_s[follower], follower))

    while True:
        ends = cluster.advance(due[0][0] if due else math.inf, 1)
        for end in ends:
            for request in end.emitted:
                if request.failed or request.produced == len(request.output):
                    row = request.id
                    if not request.failed:
                        times[:, row] = request.tag, request.first_token_s, request.finished_s
                    request.forget_tokens()
                    over(row, end.time_s)
        if ends:
            continue
        if not due:
            return ReplayTimes(times[0], times[1], times[2])
        now, row = heapq.heappop(due)
        request = Request.of_key(row, keys.of(row), int(requests.prompt[row]), f"conversation {requests.conversation[row]}")
        request.tag = now
        try:
            cluster.submit(request, now)
        except ValueError:  # longer than the cluster has room for
            over(row, now)


def engine_fields(config: ClusterConfig) -> dict[str, Any]:
    """Return the profile of the cluster's engine by field, `base` and `name` among them, and `block_size` as it is used.

    Raises ConfigError for a cluster whose pools have several engines, or fixed times.
    """
    pools = plan_of(config)
    engines = {pool.deployment.engine.name: pool.deployment.engine for pool in pools}
    if len(engines) > 1:
        raise ConfigError([f"one engine is calibrated at a time; this cluster has {' and '.join(engines)}"])
    if any(pool.config.fixed_times for pool in pools):
        raise ConfigError(["fixed times (ttft_ms, itl_ms) have nothing to calibrate: leave them out"])
    engine = pools[0].deployment.engine
    return _fields(engine) | {"block_size": pools[0].deployment.block_size}


def named_fields(name: str) -> dict[str, Any]:
    """Return the profile of one of the package's engines by field."""
    return _fields(find_engine(name))


def _fields(engine: Engine) -> dict[str, Any]:
    return {"base": engine.base} | dataclasses.asdict(engine)


def with_engine(config: ClusterConfig, engine: str, block_size: int) -> ClusterConfig:
    """Return the cluster with another engine file in all pools, and the block size that it had."""
    change: dict[str, Any] = {"engine": engine, "block_size": block_size}
    pools = tuple(dataclasses.replace(pool, **change) for pool in config.pools)
    return dataclasses.replace(config, pools=pools, **change)


class _Keys:
    """Token ids whose common prefixes are exactly those of the requests."""

    def __init__(self, requests: ReplayRequests) -> None:
        self._requests = requests
        self._continued = set(requests.continues.tolist())
        self._made: dict[int, bytes] = {}
        alone = requests.continues < 0
        longest = int(requests.shared[alone].max(initial=0))
        self._common = np.arange(_FIRST_ID, _FIRST_ID + longest, dtype=np.int32).tobytes()
        self._next = _FIRST_ID + longest

    def of(self, row: int) -> bytes:
        """Prompt and reply of a request. Requests are taken in order, so that the one it continues has its ids already."""
        requests = self._requests
        before, shared = int(requests.continues[row]), int(requests.shared[row])
        source = self._made.get(before, b"") if before >= 0 else self._common
        begin = source[: 4 * min(shared, int(requests.prompt[row]))]
        more = int(requests.prompt[row] + requests.output[row]) - len(begin) // 4
        first = self._next
        self._next += more
        if self._next >= 1 << 31:  # the cache has evicted the first ones by then
            first, self._next = _FIRST_ID + len(self._common) // 4, _FIRST_ID + len(self._common) // 4 + more
        key = begin + np.arange(first, first + more, dtype=np.int32).tobytes()
        if row in self._continued:
            self._made[row] = key
        return key
