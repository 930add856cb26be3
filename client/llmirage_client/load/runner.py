"""A run from start to end: an optional warm-up, then the workload, then everything that was measured."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from llmirage_client.load.any_runner import AnyRunner
from llmirage_client.load.branches import Family
from llmirage_client.load.identifiers import Identifiers
from llmirage_client.load.options import RunOptions
from llmirage_client.load.phase import Phase
from llmirage_client.load.planner import Planner
from llmirage_client.load.recorder import OnRecord, ProgressSink, Recorder
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
    """Runs the workload to its end. Raises nothing for what the endpoint does; on_record is called as each request ends."""
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
    ) -> None:
        super().__init__(workload, options)
        self._target = target
        identifiers = Identifiers(options.seed)
        self._recorder = Recorder(target, options, identifiers, progress, on_record)
        self._family = Family(workload, identifiers, options.share)
        self._planner = Planner(options)
        self._gate = gate

    def show_progress(self) -> None:
        """Draws the progress anew, so that its clock goes on while no request ends."""
        self._recorder.show_progress()

    async def run(self) -> RunResult:
        for name, options, rng in self._phases():
            if self._gate is not None and self._cancel_reason is None:
                await self._gate(name)
            start_s, start_unix_s = self._target.now(), time.time()
            phase = Phase(name, self._workload, options, self._sampler, self._planner, self._recorder, self._family, rng)
            self._begin(phase)
            await phase.run()
        times = start_s, start_unix_s, self._target.now()
        recorder = self._recorder
        return self._result(phase, times, recorder.records, recorder.apis, recorder.inputs())
