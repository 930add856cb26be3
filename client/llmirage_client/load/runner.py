"""A run from start to end: an optional warm-up, then the workload, then everything that was measured."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from llmirage_client.load.any_runner import AnyRunner
from llmirage_client.load.asyncio_interpreter import AsyncioInterpreter
from llmirage_client.load.http_sender import HttpSender, OnRecord, Planner, ProgressSink
from llmirage_client.load.options import RunOptions
from llmirage_client.load.planner import CallPlanner
from llmirage_client.load.variation import variation_of
from llmirage_client.measure.record import RunResult
from llmirage_client.targets.target import Target
from llmirage_client.workload.session import Workload

Gate = Callable[[str], Awaitable[None]]
"""Awaited before the phase of that name begins: where several workers wait for each other."""


async def run_workload(
    workload: Workload,
    options: RunOptions,
    target: Target,
    progress: ProgressSink | None = None,
    on_record: OnRecord | None = None,
) -> RunResult:
    """Runs the workload to its end; on_record is called as each request ends.

    Raises nothing for what the endpoint does, but one of load.token_calls.CONTENT_ERRORS for a request that cannot be.
    """
    return await Runner(workload, options, target, progress, on_record).run()


class Runner(AnyRunner):
    """One run; `cancel` may end it early from a signal handler on the same loop."""

    def __init__(
        self,
        workload: Workload,
        options: RunOptions,
        target: Target,
        progress: ProgressSink | None = None,
        on_record: OnRecord | None = None,
        gate: Gate | None = None,
        planner: Planner | None = None,
        keep_bodies: bool = True,
    ) -> None:
        """planner: None: requests are as the endpoint's API has them. keep_bodies: for `RunResult.inputs`."""
        super().__init__(workload, options)
        self._target = target
        planner = planner or CallPlanner(options, variation_of(workload, options))
        self._sender = HttpSender(target, planner, options, self._identifiers, progress, on_record, keep_bodies)
        self._gate = gate

    @property
    def requests_over(self) -> int:
        return len(self._sender.records)

    def show_progress(self) -> None:
        """Draws the progress anew, so that its clock goes on while no request ends."""
        self._sender.show_progress()

    async def run(self) -> RunResult:
        sender, interpreter = self._sender, AsyncioInterpreter(self._sender)
        for name, options, rng in self._phases():
            if self._gate is not None and self._cancel_reason is None:
                await self._gate(name)
            start_s, start_unix_s = self._target.now(), time.time()
            phase = self._begin(name, options, rng, interpreter)
            await interpreter.run(phase)
        times = start_s, start_unix_s, self._target.now()
        return self._result(phase, times, sender.records, sender.apis, sender.inputs())
