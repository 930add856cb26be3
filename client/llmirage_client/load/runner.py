"""A run from start to end: an optional warm-up, then the workload, then everything that was measured."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from llmirage_client.load.any_runner import AnyRunner
from llmirage_client.load.conversation import NOTHING, REPLY, Conversation, Timer
from llmirage_client.load.http_sender import HttpSender, OnRecord, Planner, ProgressSink
from llmirage_client.load.options import RunOptions
from llmirage_client.load.phase import Phase
from llmirage_client.load.prompts_ahead import PromptsAhead
from llmirage_client.load.turn_calls import CallPlanner
from llmirage_client.load.variation import variation_of
from llmirage_client.measure.record import RunResult
from llmirage_client.targets.target import Target
from llmirage_client.workload.session import Workload
from llmirage_shared.virtual_time import precise_clock


class AsyncioInterpreter:
    """An interpreter of conversations on an asyncio event loop: real endpoints, or an API in this process.

    A conversation that runs is a task, which sends its requests; one that waits for anything else is none. Create it on the
    running loop.
    """

    def __init__(self, sender: HttpSender) -> None:
        self.now = precise_clock()
        self._sender = sender
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, phase: Phase) -> None:
        """Run a phase to its end. Raises what planning a request raises, after all requests have ended."""
        self._phase = phase
        self._sender.begin(phase.name)
        self._over = over = self._loop.create_future()
        try:
            self._guarded(lambda: phase.begin(self._end))
            await over
        except BaseException:  # an error, or the task of the run is cancelled
            phase.cancel()
            while self._tasks:
                await asyncio.wait(self._tasks)
            raise

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._loop.call_soon(self._guarded, callback)

    def call_at(self, when_s: float, callback: Callable[[], object]) -> Timer:
        return self._loop.call_at(when_s, self._guarded, callback)

    def play(self, conversation: Conversation) -> None:
        task = self._loop.create_task(self._play(conversation))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def send(self, conversation: Conversation) -> bool:
        """Leave the request to the task of the conversation, which has just played its rules."""
        conversation.waits = REPLY
        return True

    def end(self, conversation: Conversation, cut: bool) -> bool:
        """Return True: requests have ended before their conversation is resumed."""
        return True

    async def _play(self, conversation: Conversation) -> None:
        task = asyncio.current_task()
        try:
            self._phase.resume(conversation)
            while conversation.waits is REPLY:
                cut = False
                conversation.in_flight = task
                try:
                    await self._sender.send(conversation)
                except asyncio.CancelledError:
                    cut = conversation.cancelled
                    if not cut:
                        raise
                finally:
                    conversation.in_flight = None
                    conversation.waits = NOTHING
                self._phase.resume(conversation, cut)
        except Exception as error:
            self._fail(error)

    def _guarded(self, callback: Callable[[], object]) -> None:
        try:
            callback()
        except Exception as error:
            self._fail(error)

    def _end(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    def _fail(self, error: Exception) -> None:
        if not self._over.done():
            self._over.set_exception(error)


Gate = Callable[[str], Awaitable[None]]
"""Awaited before the phase of that name begins: where several workers wait for each other."""


async def run_workload(
    workload: Workload,
    options: RunOptions,
    target: Target,
    progress: ProgressSink | None = None,
    on_record: OnRecord | None = None,
) -> RunResult:
    """Run the workload to its end; on_record is called as each request ends.

    Raises nothing for failures of the endpoint, but one of load.calls.CONTENT_ERRORS for a request that is impossible.
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
        """Create a run. planner None: requests in the form of the endpoint's API. keep_bodies: for `RunResult.inputs`."""
        super().__init__(workload, options)
        self._target = target
        self._own_planner = CallPlanner(options, variation_of(workload, options)) if planner is None else None
        used = planner or self._own_planner
        assert used is not None
        self._sender = HttpSender(target, used, options, self._identifiers, progress, on_record, keep_bodies)
        self._gate = gate

    @property
    def requests_over(self) -> int:
        return len(self._sender.records)

    def show_progress(self) -> None:
        """Draw the progress again, so that its clock advances while no request ends."""
        self._sender.show_progress()

    async def run(self) -> RunResult:
        sender, interpreter = self._sender, AsyncioInterpreter(self._sender)
        if self._own_planner is not None:
            self._own_planner.prepare(self._workload)
            sender.writer = PromptsAhead(self._own_planner, self._options, self._identifiers)
        try:
            for name, options, rng in self._phases():
                phase = self._begin(name, options, rng, interpreter)
                if sender.writer is not None:
                    await sender.writer.begin(phase.upcoming)
                if self._gate is not None and self._cancel_reason is None:
                    await self._gate(name)
                start_s, start_unix_s = self._target.now(), time.time()
                await interpreter.run(phase)
        finally:
            if sender.writer is not None:
                sender.writer.close()
        times = start_s, start_unix_s, self._target.now()
        return self._result(phase, times, sender.records, sender.apis, sender.inputs())
