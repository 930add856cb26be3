"""Runs on an asyncio event loop: the interpreter of conversations, the sender of their requests, the run, and its loop."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar

from llmirage_client.load.any_runner import AnyRunner
from llmirage_client.load.calls import Planned, headers
from llmirage_client.load.conversation import BY_RUN, NOTHING, ON_PURPOSE, REPLY, Conversation, Identifiers, Sender, Timer
from llmirage_client.load.options import RunOptions
from llmirage_client.load.phase import Phase
from llmirage_client.load.turn_calls import CallPlanner, PromptsAhead
from llmirage_client.load.variation import variation_of
from llmirage_client.measure.record import Exchange, Record, RequestError, RunResult
from llmirage_client.targets.target import Call, Target
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


OnRecord = Callable[[Record], None]


class ProgressSink(Protocol):
    """A display of the run's progress."""

    def update(self, done: int, errors: int, in_flight: int) -> None: ...


class Planner(Protocol):
    """The writer of requests."""

    def plan(self, conversation: Conversation, turn_index: int) -> Planned:
        """Return the request of a turn. Raises one of load.calls.CONTENT_ERRORS where there can be none."""
        ...

    def replied(self, conversation: Conversation, planned: Planned, exchange: Exchange) -> None:
        """Note the outcome of the request, which may become part of the next."""
        ...


class HttpSender(Sender):
    """A sender that keeps the records of a run in order of completion, and the bodies it sent for inputs.json.

    writer: writes the long prompts; None: the planner does.
    """

    def __init__(
        self,
        target: Target,
        planner: Planner,
        options: RunOptions,
        identifiers: Identifiers,
        progress: ProgressSink | None = None,
        on_record: OnRecord | None = None,
        keep_bodies: bool = True,
    ) -> None:
        super().__init__(options, identifiers)
        self._target = target
        self._planner = planner
        self._keep_bodies = keep_bodies
        self._options = options
        self._progress = progress
        self._on_record = on_record
        self._errors = 0
        self._in_flight = 0
        self._payloads: dict[int, list[Mapping[str, Any]]] = {}  # by the conversation's number
        self.inputs: list[dict[str, Any]] = []  # the content of inputs.json: each conversation's bodies as they were sent
        self._names: Counter[str] = Counter()
        self.writer: PromptsAhead | None = None
        self.records: list[Record] = []
        self.apis: set[str] = set()  # the names of those that were used

    async def send(self, conversation: Conversation) -> None:
        """Send the request of the present turn and record its outcome, also when the task is cancelled."""
        turn_index, phase = conversation.turn_index, self.phase
        assert turn_index is not None
        writer = self.writer
        if writer is not None and writer.is_long(conversation.session.turns[turn_index]):
            planned = await writer.plan(conversation, turn_index)
        else:
            planned = self._planner.plan(conversation, turn_index)
        request_id = self.request_id(conversation, turn_index)
        call = planned.call
        call.headers.update(headers(conversation, request_id, call, self._options))
        if phase == "profiling":
            self.apis.add(call.api)
            if self._keep_bodies:
                self._payloads_of(conversation).append(call.body)
        record = Record(
            session_num=conversation.number,
            conversation_id=conversation.session.id,
            turn_index=turn_index,
            request_id=request_id,
            correlation_id=conversation.correlation_id,
            root_correlation_id=conversation.root_correlation_id,
            parent_correlation_id=conversation.parent.correlation_id if conversation.parent else None,
            agent_depth=conversation.depth,
            issued_s=conversation.due_s,
            exchange=Exchange(start_s=self._target.now()),
            phase=phase,
            input_tokens=planned.input_tokens,
            input_tokens_asked=planned.input_tokens_asked,
            output_tokens_asked=planned.output_tokens,
            turns=len(conversation.session.turns),
            branch_mode=conversation.branch_mode,
            parent_turn_index=conversation.parent_turn_index,
            joined=conversation.joined(turn_index),
            tenant=conversation.tenant_of(turn_index),
        )
        self._in_flight += 1
        try:
            if self.is_cancelled_on_purpose(request_id):
                record.exchange = await send_for_a_time(self._target, call, self.cancellation_delay_s)
            else:
                record.exchange = await self._target.send(call)
        except GaveUp:
            self._note_cancelled(record, ON_PURPOSE)
        except asyncio.CancelledError:
            self._note_cancelled(record, BY_RUN)
            raise
        finally:
            self._in_flight -= 1
            self._keep(record)
        exchange = record.exchange
        self._planner.replied(conversation, planned, exchange)
        if writer is not None:
            writer.replied(conversation)
        self.end(conversation, exchange.error, self._target.now() if exchange.end_s is None else exchange.end_s)

    def _note_cancelled(self, record: Record, error: RequestError) -> None:
        record.cancelled = True
        record.exchange.end_s = self._target.now()
        record.exchange.error = error

    def _payloads_of(self, conversation: Conversation) -> list[Mapping[str, Any]]:
        payloads = self._payloads.get(conversation.number)
        if payloads is None:
            payloads = self._payloads[conversation.number] = []
            name = conversation.session.id
            self._names[name] += 1
            repeated = f"#{self._names[name]}" if self._names[name] > 1 else ""  # names are unique in inputs.json
            self.inputs.append({"session_id": name + repeated, "payloads": payloads})
        return payloads

    def show_progress(self) -> None:
        if self._progress is not None:
            self._progress.update(len(self.records), self._errors, self._in_flight)

    def _keep(self, record: Record) -> None:
        if self.is_overflow(record.exchange.error):  # it is counted, and no request that was measured
            return
        self.records.append(record)
        self._errors += record.exchange.error is not None and not record.cancelled
        if self._on_record is not None:
            self._on_record(record)
        self.show_progress()


class GaveUp(Exception):
    """A cancellation on purpose before the reply was complete."""


async def send_for_a_time(target: Target, call: Call, delay_s: float) -> Exchange:
    """Send the call; raise GaveUp if the reply is not complete in time.

    delay_s: after the whole request was sent, on the run's clock.
    """
    limit = asyncio.timeout(None)
    call.on_sent = lambda: limit.reschedule(target.now() + delay_s)  # again, if it had to be sent again
    try:
        async with limit:
            return await asyncio.create_task(target.send(call))  # starts after the other requests of the same moment
    except TimeoutError:
        raise GaveUp from None


Gate = Callable[[str], Awaitable[None]]
"""Awaited before the phase of that name begins: where several workers wait for each other."""


class Runner(AnyRunner):
    """One run; `cancel` may end it early from a signal handler on the same loop.

    It raises nothing for failures of the endpoint, but one of load.calls.CONTENT_ERRORS for a request that is impossible.
    """

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
        """Create a run.

        on_record: called as each request ends. planner None: requests in the form of the endpoint's API. keep_bodies: for
        `RunResult.inputs`.
        """
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
        return self._result(phase, times, sender.records, sender.apis, sender.inputs)


_T = TypeVar("_T")


def run_on_best_loop(main: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Run the coroutine to its end, on uvloop where there is one."""
    try:
        import uvloop
    except ImportError:  # not made for every platform
        return asyncio.run(main())
    return uvloop.run(main())


def put_loop_first() -> None:
    """Keep other work of this process from holding up the loop.

    The cycle collector would walk the workload and all records again and again: up to 7 % of the run's CPU. A thread that
    writes prompts would hold the interpreter for 5 ms each time that the loop has something to do.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    sys.setswitchinterval(0.0005)


BEAT_S = 0.1


class Heartbeat:
    """A watch on the client itself while it loads an endpoint, as an async context manager.

    lag_s: lateness of each beat in seconds.
    cpu_s: CPU time of this process inside the block.
    """

    def __init__(self, on_beat: Callable[[], None]) -> None:
        self._on_beat = on_beat
        self.lag_s: list[float] = []
        self.cpu_s = 0.0

    async def __aenter__(self) -> Heartbeat:
        self._cpu_start_s = time.process_time()
        self._loop = asyncio.get_running_loop()
        self._due_s = time.monotonic()
        self._arm()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._timer.cancel()
        self.cpu_s = time.process_time() - self._cpu_start_s

    def _arm(self) -> None:
        self._due_s = max(self._due_s + BEAT_S, time.monotonic())
        self._timer = self._loop.call_at(self._due_s, self._beat)

    def _beat(self) -> None:
        self.lag_s.append(max(time.monotonic() - self._due_s, 0.0))
        self._on_beat()
        self._arm()
