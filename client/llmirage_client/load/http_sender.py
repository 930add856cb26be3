"""The sender of requests to a target, over HTTP or through an API in this process, with a record of each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from llmirage_client.load.calls import Planned, headers
from llmirage_client.load.conversation import Conversation, Identifiers
from llmirage_client.load.options import RunOptions
from llmirage_client.load.prompts_ahead import PromptsAhead
from llmirage_client.load.sender import BY_RUN, ON_PURPOSE, Sender
from llmirage_client.measure.record import Exchange, Record, RequestError
from llmirage_client.targets.target import Call, Target

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
        self._inputs: list[dict[str, Any]] = []
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

    def inputs(self) -> list[dict[str, Any]]:
        """Return the content of inputs.json: every conversation's bodies as they were sent."""
        return self._inputs

    def _payloads_of(self, conversation: Conversation) -> list[Mapping[str, Any]]:
        payloads = self._payloads.get(conversation.number)
        if payloads is None:
            payloads = self._payloads[conversation.number] = []
            name = conversation.session.id
            self._names[name] += 1
            repeated = f"#{self._names[name]}" if self._names[name] > 1 else ""  # names are unique in inputs.json
            self._inputs.append({"session_id": name + repeated, "payloads": payloads})
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
    loop = asyncio.get_running_loop()
    sending = loop.create_task(_to(target, call))
    timer: asyncio.TimerHandle | None = None
    gave_up = False

    def give_up() -> None:
        nonlocal gave_up
        gave_up = sending.cancel()

    def sent() -> None:
        nonlocal timer
        if timer is not None:  # it had to be sent again
            timer.cancel()
        timer = loop.call_at(target.now() + delay_s, give_up)

    call.on_sent = sent
    try:
        return await sending
    except asyncio.CancelledError:
        if gave_up:
            raise GaveUp from None
        raise
    finally:
        if timer is not None:
            timer.cancel()


async def _to(target: Target, call: Call) -> Exchange:
    return await target.send(call)
