"""A worker: runs its share of a run in this process and tells what happens, in events."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import time
import traceback
from collections.abc import Callable, Sequence

from llmirage_client.load.calls import CONTENT_ERRORS, short_prompts
from llmirage_client.load.runner import Heartbeat, Runner, put_loop_first, run_on_best_loop
from llmirage_client.measure.record import Record, RunResult
from llmirage_client.report.records_file import RunClock, record_line
from llmirage_client.targets.target import TransportUse
from llmirage_client.workers.job import Begin, Event, Failed, Finished, Job, Progressed, Ready

WORD_S = 1.0  # a worker says at least so often that it is there
FLUSH_S = 0.05  # what a worker that is killed may have finished and not told


class _NoTarget(Exception):
    """The endpoint cannot be one, as seen from this machine; the message is for the user."""


class Worker:
    """`run` in one thread; `begin` and `cancel` from any other. tell: called in the thread of `run`; must not block."""

    def __init__(self, job: Job, tell: Callable[[Event], None]) -> None:
        self._job = job
        self._tell = tell
        self._name = f"llmirage-{job.options.share.index + 1}"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runner: Runner | None = None
        self._cancel_reason: str | None = None
        self._begin: asyncio.Future[Begin | None] | None = None
        self._clock = RunClock(0.0, 0.0)
        self._zero_s = 0.0
        self._late_start_s = 0.0
        self._lines: list[bytes] = []
        self._counts = self._reported_counts = (0, 0, 0)
        self._told_s = 0.0

    def run(self) -> None:
        """Return when everything is told: Finished or Failed comes last."""
        try:
            run_on_best_loop(self._main)
        except Exception as error:
            self._flush()
            self._tell(_failure(error))

    def begin(self, begin: Begin) -> None:
        """Begin the phase for which the worker is ready."""
        self._in_loop(lambda: self._open(begin))

    def cancel(self, reason: str) -> None:
        """Stop sending; cancel requests in flight and record them as cancelled."""
        self._cancel_reason = self._cancel_reason or reason
        self._in_loop(self._stop)

    def _in_loop(self, do: Callable[[], None]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it is over
                self._loop.call_soon_threadsafe(do)

    async def _main(self) -> None:
        job, self._loop = self._job, asyncio.get_running_loop()
        short_prompts(job.workload, job.options)  # loads the tokenizer, if the run needs one, before it begins
        try:
            target = job.endpoint.target()
        except ValueError as error:
            raise _NoTarget(str(error)) from None
        self._runner = Runner(job.workload, job.options, target, self, self._keep, self._gate)
        if self._cancel_reason is not None:
            self._stop()
        put_loop_first()
        try:
            async with Heartbeat(self._flush) as heartbeat:
                result = await self._runner.run()
        finally:
            await target.close()
        self._flush()
        self._tell(self._finished(self._runner, result, heartbeat, target.uses()))

    def update(self, done: int, errors: int, in_flight: int) -> None:
        """Take the runner's progress."""
        self._counts = (done, errors, in_flight)

    async def _gate(self, phase: str) -> None:
        assert self._loop is not None
        self._begin = self._loop.create_future()
        self._tell(Ready(phase))
        begin = await self._begin
        if begin is None:
            return
        self._zero_s = begin.zero_s
        self._clock = RunClock(begin.zero_s, begin.zero_unix_s, self._job.options.speed)
        self._late_start_s = max(time.monotonic() - begin.at_s, 0.0)
        while (left_s := begin.at_s - time.monotonic()) > 0:  # uvloop's timers are due up to a millisecond early
            await asyncio.sleep(left_s)

    def _open(self, begin: Begin | None) -> None:
        if self._begin is not None and not self._begin.done():
            self._begin.set_result(begin)

    def _stop(self) -> None:
        if self._runner is not None:
            self._runner.cancel(self._cancel_reason or "")
            self._open(None)

    def _keep(self, record: Record) -> None:
        if not self._lines and self._loop is not None:
            self._loop.call_later(FLUSH_S, self._flush)
        self._lines.append(record_line(record, self._clock, self._name))

    def _flush(self) -> None:
        now_s = time.monotonic()
        if not self._lines and self._counts == self._reported_counts and now_s < self._told_s + WORD_S:
            return
        self._told_s = now_s
        lines, self._lines = b"".join(self._lines), []
        self._reported_counts = self._counts
        self._tell(Progressed(lines, *self._counts))

    def _finished(
        self, runner: Runner, result: RunResult, heartbeat: Heartbeat, transports: Sequence[TransportUse]
    ) -> Finished:
        return Finished(
            branch_stats=result.branch_stats,
            inputs=pickle.dumps(result.inputs, protocol=5),
            notes=tuple(result.notes),
            endpoint=result.endpoint,
            cpu_s=heartbeat.cpu_s,
            lag_s=tuple(heartbeat.lag_s),
            end_s=result.end_s - self._zero_s,
            late_start_s=self._late_start_s,
            roots_taken=runner.roots_taken,
            cancel_reason=result.cancel_reason,
            transports=transports,
        )


def _failure(error: Exception) -> Failed:
    if isinstance(error, (*CONTENT_ERRORS, _NoTarget)):
        return Failed(str(error), refused=True)
    return Failed("".join(traceback.format_exception(error)))
