"""Turns in token counts, straight to the cluster: what a simulation of lengths alone needs of a target and a recorder.

The same phases, arrivals, waits and stop conditions drive it as every run. A request is a row here; what a report needs of
it is worked out after the run, for all requests at once, and records are made when somebody asks for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

from llmirage_client.load.conversation import Conversation, Identifiers
from llmirage_client.load.stop import wake
from llmirage_client.measure.record import CANCELLED, Exchange, Record, RequestError
from llmirage_client.study.token_streams import TokenStreams
from llmirage_client.targets.simulator import Flight, Request, RouterError, VirtualDriver
from llmirage_client.workload.session import TokenSpec

_LOST = RequestError(None, "stream_error", "the instance that served the request was lost")
_NO_INSTANCE = RequestError(503, "http_error", "no instance is there for the request, now or later")
_CANCELLED = RequestError(499, CANCELLED, "cancelled by the client before the reply was complete")


class TokenRow:
    """One request of a run, and what a phase asks of an exchange."""

    __slots__ = (
        "conversation",
        "end_s",
        "error",
        "flight",
        "issued_s",
        "joined",
        "measured",
        "request",
        "start_s",
        "turn_index",
    )
    message = None
    items = None
    response_id = None

    def __init__(
        self, conversation: Conversation, turn_index: int, request: Request, issued_s: float, start_s: float
    ) -> None:
        self.conversation = conversation
        self.turn_index = turn_index
        self.request = request
        self.issued_s = issued_s
        self.start_s = start_s
        self.end_s: float | None = None
        self.error: RequestError | None = None
        self.flight: Flight | None = None
        self.measured = True
        self.joined: tuple[str, ...] = ()


class TokenPlanner:
    """Plans a turn as a request to the cluster; see TokenStreams."""

    def __init__(self, streams: TokenStreams) -> None:
        self._streams = streams
        self._ids = count()

    def plan(self, conversation: Conversation, turn_index: int) -> Request:
        spec = conversation.session.turns[turn_index].tokens
        assert isinstance(spec, TokenSpec)
        key = self._streams.call(conversation, turn_index, spec)
        return Request.of_key(next(self._ids), key, spec.input_tokens, conversation.affinity_id)


class TokenRecorder:
    """Sends requests to a simulated cluster and keeps a row of each, in the order in which they were over."""

    def __init__(self, driver: VirtualDriver, streams: TokenStreams, identifiers: Identifiers) -> None:
        self._driver = driver
        self._streams = streams
        self._identifiers = identifiers
        self._loop = asyncio.get_running_loop()
        self.rows: list[TokenRow] = []
        self.apis = {"completions"}
        self.counted: range | None = None  # which requests count, by the order in which they were planned; None: all
        self.on_row: Callable[[TokenRow], None] | None = None  # called as each request is over

    async def send(
        self, conversation: Conversation, turn_index: int, request: Request, issued_s: float, phase: str
    ) -> TokenRow:
        """Sends one request and keeps its row, also when the task is cancelled meanwhile."""
        loop = self._loop
        row = TokenRow(conversation, turn_index, request, issued_s, loop.time())
        row.measured = phase == "profiling" and (self.counted is None or request.id in self.counted)
        if conversation.gates:
            row.joined = tuple(child.correlation_id for child in conversation.gates.get(turn_index, ()))
        conversation.last_turn_index = turn_index
        done: asyncio.Future[None] = loop.create_future()
        try:
            row.flight = self._driver.submit(request, lambda _: wake(done))
        except ValueError as error:
            row.error = RequestError(400, "http_error", str(error))
        except RouterError as error:
            row.error = RequestError(500, "http_error", str(error))
        if row.error is None:
            if request.failed:
                row.error = _NO_INSTANCE
            else:
                await self._wait(row, done)
        if row.error is not None:
            self._streams.failed(conversation)
        request.forget_tokens()
        row.end_s = loop.time()
        self.rows.append(row)
        if self.on_row is not None:
            self.on_row(row)
        return row

    async def _wait(self, row: TokenRow, done: asyncio.Future[None]) -> None:
        request = row.request
        try:
            await done
        except asyncio.CancelledError:
            self._driver.cancel(request)
            row.error = _CANCELLED
            row.end_s = self._loop.time()
            self.rows.append(row)
            raise
        if request.failed:
            row.error = _LOST

    @property
    def records(self) -> list[Record]:
        """None yet: see `made_records`."""
        return []

    def made_records(self) -> list[Record]:
        """A record of every row."""
        return [self.record(row) for row in self.rows]

    def record(self, row: TokenRow) -> Record:
        """What a run through the whole protocol would have written down."""
        conversation, request = row.conversation, row.request
        stamps = row.flight.arrivals.tolist() if row.flight is not None else []
        ok = row.error is None
        exchange = Exchange(
            start_s=row.start_s,
            end_s=row.end_s,
            token_s=stamps,
            first_output_s=stamps[0] if stamps else None,
            status=200 if row.flight is not None else None,
            streamed=True,
            finish_reason="length" if ok else None,
            usage=_usage(request) if ok else None,
            error=row.error,
        )
        parent = conversation.parent
        return Record(
            session_num=conversation.number,
            conversation_id=conversation.session.id,
            turn_index=row.turn_index,
            request_id=self._identifiers.make("request", conversation.correlation_id, row.turn_index),
            correlation_id=conversation.correlation_id,
            root_correlation_id=conversation.root_correlation_id,
            parent_correlation_id=parent.correlation_id if parent else None,
            agent_depth=conversation.depth,
            issued_s=row.issued_s,
            exchange=exchange,
            phase="profiling" if row.measured else "warmup",
            cancelled=row.error is _CANCELLED,
            input_tokens=request.prompt_tokens,
            output_tokens_asked=request.output_tokens,
            branch_mode=conversation.branch_mode,
            parent_turn_index=conversation.parent_turn_index,
            joined=row.joined,
        )

    def inputs(self) -> list[dict[str, Any]]:
        """There are no bodies."""
        return []

    def show_progress(self) -> None: ...


def is_cancelled(row: TokenRow) -> bool:
    return row.error is _CANCELLED


def _usage(request: Request) -> dict[str, Any]:
    prompt_tokens = request.prompt_tokens
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": request.produced,
        "total_tokens": prompt_tokens + request.produced,
        "prompt_tokens_details": {"cached_tokens": request.cached_tokens},
    }
