"""A workload through the API of a server in this process, on an event loop of virtual time."""

from __future__ import annotations

import asyncio
import math
from functools import partial

from llmirage_client.load.options import RunOptions
from llmirage_client.load.runner import Runner
from llmirage_client.load.variation import variation_of
from llmirage_client.measure.record import RunResult
from llmirage_client.simulate.cluster_series import SeriesSampler
from llmirage_client.simulate.id_planner import IdPlanner
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.simulator.in_process import WholeProtocol, WholeReplies
from llmirage_client.workload.session import Workload
from llmirage_shared import virtual_time


class ApiRun:
    """streamed: by the whole protocol, as over a network.

    Else the server's endpoints are asked for whole replies, and the cluster says when their tokens came: for texts, which
    the engine alone could not read.
    """

    rows = None

    def __init__(self, config: ClusterConfig, workload: Workload, options: RunOptions, streamed: bool) -> None:
        """Raises ConfigError."""
        self._workload, self._options = workload, options
        self._server = WholeProtocol(config) if streamed else WholeReplies(config)
        self.cluster = self._server.cluster
        self._runner: Runner | None = None
        self._cancel_reason: str | None = None

    @property
    def roots_taken(self) -> int:
        return 0 if self._runner is None else self._runner.roots_taken

    @property
    def requests_over(self) -> int:
        return 0 if self._runner is None else self._runner.requests_over

    def cancel(self, reason: str) -> None:
        """Nothing more goes out; what is in flight is cancelled."""
        self._cancel_reason = self._cancel_reason or reason
        if self._runner is not None:
            self._runner.cancel(reason)

    interrupt = cancel

    @property
    def waited_s(self) -> list[float]:
        """Of requests that are over, in that order: from arrival to the first step."""
        return self._server.waited_s

    def run(self, observer: SeriesSampler, max_time_s: float | None, reason: str) -> RunResult:
        """Raises VirtualDeadlockError and StandstillError. reason: why it is cancelled at max_time_s."""
        return virtual_time.run(self._run(observer, max_time_s, reason))

    async def _run(self, observer: SeriesSampler, max_time_s: float | None, reason: str) -> RunResult:
        loop = asyncio.get_running_loop()
        target = self._server.open(observer)
        planner = IdPlanner(self._options, variation_of(self._workload, self._options))
        self._runner = Runner(self._workload, self._options, target, planner=planner, keep_bodies=False)
        if self._cancel_reason is not None:
            self._runner.cancel(self._cancel_reason)
        if max_time_s is not None:
            loop.call_at(max_time_s, partial(self.cancel, reason))
        try:
            return await self._runner.run()
        finally:
            end_s = loop.time()
            observer.next_s = math.inf  # closing may take time, which is not the run's
            await target.close()
            observer.finish(end_s)
