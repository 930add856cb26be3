"""The choices of one response in flight in the cluster, and the stream of their tokens.

Streaming is the hot path: a token that is due becomes bytes on its connection without a task switch or a JSON encoder.
The driver's tick steps the server's `send` coroutine itself. Under uvicorn that runs through at once unless the connection's
buffer is full; then, and under any `send` that is not uvicorn's own, the response's task takes over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from starlette.types import Message, Receive, Scope, Send

from llmirage_server.api.chunks import chunks_due
from llmirage_server.api.connected import while_connected
from llmirage_server.api.exchange import HttpExchange
from llmirage_server.api.response import Response
from llmirage_server.api.suspended_send import SuspendedSend
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.routers import RouterError
from llmirage_server.drivers.live import Driver
from llmirage_server.replies.reply import Reply
from llmirage_server.telemetry.journal import JournalEntry, Outcome
from llmirage_server.telemetry.metrics import PrometheusMetrics
from llmirage_server.telemetry.sent_times import SentTimes
from llmirage_shared.served_times import ServedTimes
from llmirage_shared.virtual_time import VirtualTimeLoop
from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.output import event, usage

logger = logging.getLogger("llmirage")

PING_S = 15
SLICE = 64  # choices submitted together: some milliseconds
WATCH_AFTER_S = 0.005  # from the headers on


@dataclass(slots=True, frozen=True)
class Choice:
    """One reply and its request in the cluster."""

    reply: Reply
    request: Request
    echo: str  # text that the response repeats before the reply
    joined: bool = False  # tokens that come together leave in one chunk

    @property
    def finished(self) -> bool:
        """Whether the cluster is done with it."""
        return self.request.failed or self.request.produced >= len(self.request.output)


class OpenResponse(Protocol):
    """A response in progress, which can be ended from outside."""

    def abort(self, error: ApiError) -> None: ...


class GenerationHost(Protocol):
    """What a generation needs of the service."""

    driver: Driver
    shown_usage: Callable[[dict[str, Any]], dict[str, Any]]  # an object of it in the dialect's form
    metrics: PrometheusMetrics
    served: ServedTimes
    under_way: set[Generation]
    open_responses: set[OpenResponse]


class ChoiceWriter(Protocol):
    """Writes the tokens of one choice. The calls' ranges follow each other without gaps, from the first token on."""

    def tokens(self, start: int, end: int) -> bytes:
        """What tokens [start, end) of the reply add to the stream."""
        ...

    def ending(self) -> bytes:
        """What follows the last token."""
        ...


@dataclass(slots=True, eq=False)
class Generation:
    """The choices of one response, prompt-major: `n` for each prompt."""

    host: GenerationHost
    choices: list[Choice]
    n: int
    arrived_s: float  # when their request reached the server, see HttpExchange
    entry: JournalEntry  # of their request
    usage_instead: Mapping[str, int] | None = None  # counts to report instead of the real ones

    def start(self) -> None:
        """Submit all choices to the cluster. Their requests' tags must be set.

        Raises ApiError if no instance will ever take them, or if a router of the user's own fails.
        """
        self._submit(self.choices, last=True)

    async def start_in_slices(self, ended: Callable[[], bool]) -> None:
        """As `start`, with a turn of the loop for others between slices. Nothing more is submitted once it has `ended`."""
        for first in range(0, len(self.choices), SLICE):
            if first:
                await asyncio.sleep(0)
                if ended():
                    return
            self._submit(self.choices[first : first + SLICE], last=first + SLICE >= len(self.choices))

    def _submit(self, choices: Sequence[Choice], last: bool) -> None:
        self.host.under_way.add(self)
        try:
            self.host.driver.submit([choice.request for choice in choices], self.arrived_s, last=last)
        except RouterError as error:
            self.stop()
            logger.error("%s", error)
            raise errors.internal_error(str(error)) from None
        if any(choice.request.failed for choice in choices):
            self.stop()
            raise errors.no_instance()

    @property
    def instance(self) -> int:
        """The instance that serves the first choice now, -1 for none."""
        return self.choices[0].request.instance

    def stop(self) -> None:
        """Free what unfinished choices hold in the cluster. Call it at every end; calling it again does nothing."""
        unfinished = [choice.request for choice in self.choices if not choice.finished]
        if unfinished:
            self.host.driver.cancel(unfinished)
        if self in self.host.under_way:
            self.host.under_way.remove(self)
            for choice in self.choices:
                self.host.metrics.ended(choice.request, choice.reply.finish_reason)
            for first in range(0, len(self.choices), self.n):
                self.host.metrics.answered([choice.request for choice in self.choices[first : first + self.n]])
            self.entry.generated([choice.request for choice in self.choices], self.n, self.choices[0].reply)
        for choice in self.choices:
            choice.request.tag = None  # it leads back here: memory is free at once only where nothing goes in a circle

    def usage(self) -> dict[str, Any]:
        """Prompt tokens count once for each prompt, whatever n is."""
        return self._usage(self.choices[:: self.n], [(choice, choice.request.produced) for choice in self.choices])

    def usage_at(self, choice: Choice, sent: int) -> dict[str, Any]:
        """Of one choice, when so many of its tokens were written."""
        return self.host.shown_usage(self._usage([choice], [(choice, sent)]))

    def _usage(self, prompts: Sequence[Choice], produced: Sequence[tuple[Choice, int]]) -> dict[str, Any]:
        thought = [min(tokens, choice.reply.reasoning_tokens) for choice, tokens in produced if choice.reply.parts]
        counts = {
            "prompt_tokens": sum(choice.request.prompt_tokens for choice in prompts),
            "completion_tokens": sum([tokens for _, tokens in produced]),
            "cached_tokens": sum(choice.request.cached_tokens for choice in prompts),
            "reasoning_tokens": sum(thought),
        }
        return usage(**(counts | dict(self.usage_instead or {})))

    def shown_usage(self) -> dict[str, Any]:
        """`usage` as chat and completions show it."""
        return self.host.shown_usage(self.usage())


class TokenStream(Response):
    """Streams the choices of one generation."""

    def __init__(
        self,
        generation: Generation,
        exchange: HttpExchange,
        writers: Sequence[ChoiceWriter],
        closing: Callable[[], bytes],
        failed: Callable[[ApiError], bytes] | None = None,
        opening: bytes = b"",
        pings: bool = True,
    ) -> None:
        """writers: one for each choice. closing: what ends the response. failed: what ends it after an
        error, in another form than the dialect's. opening: what is sent before the first token is due.
        pings: a connection that is silent is kept from being closed on its way.
        """
        super().__init__()
        self._pings = pings
        self._generation = generation
        self._exchange = exchange
        self._writers = writers
        self._closing = closing
        self._failed = failed or (lambda error: event(exchange.dialect.event_error(error)))
        self._unfinished = len(generation.choices)
        self._send: Send | None = None
        self._direct = False  # the tick may step `send` itself
        self._pending: list[bytes] = [opening] if opening else []
        self._last = False  # the end of the response is pending or sent
        self._aborted = False
        self._suspended: SuspendedSend | None = None
        self._times = SentTimes(generation.host.driver)
        self._wake_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self) -> Self:
        """Start the generation. Raises ApiError if that fails: nothing has been sent yet."""
        self.raw_headers = self._exchange.response_headers(b"text/event-stream; charset=utf-8")
        self.raw_headers += _STREAM_HEADERS
        for choice, writer in zip(self._generation.choices, self._writers, strict=True):
            choice.request.tag = _ChoiceStream(self, choice, writer)
        self._generation.start()
        self._generation.host.open_responses.add(self)
        return self

    @property
    def outcome(self) -> Outcome:
        """How the response ended, once it has."""
        sent = self._last and not self._pending and self._suspended is None
        return "failed" if self._aborted else "complete" if sent else "client_left"

    def end_of_choice(self) -> bytes:
        """One more choice is complete: what must follow its last chunk in the response."""
        self._unfinished -= 1
        if self._unfinished:
            return b""
        try:
            return self._closing()
        except ApiError as error:  # the response could not be stored
            self._aborted = True
            return self._failed(error)

    def first_shows(self, request: Request, place: int) -> None:
        """The token at `place` of the reply, the first that shows, was handed to `write`."""
        self._times.first_shows(request, place, written=not self._pending)

    def write(self, data: bytes) -> None:
        """Send bytes now if the connection takes them, else as soon as it does."""
        last = self._unfinished == 0
        if not self._direct:
            self._pending.append(data)
            self._last = last
            self._wake()
            return
        assert self._send is not None
        self._last = last
        self._step(self._send({"type": "http.response.body", "body": data, "more_body": not last}))
        if last and self._suspended is None:
            self._times.written(last)
            self._wake()

    def _step(self, sending: Awaitable[None]) -> None:
        """Let `send` run to its end, or to where it waits: then the response's task carries it on."""
        coroutine: Coroutine[Any, Any, None] = sending  # type: ignore[assignment]  # in every ASGI server
        try:
            waits_for = coroutine.send(None)
        except StopIteration:
            pass
        except Exception as error:
            self._fail(error)
        else:
            self._direct = False
            self._suspended = SuspendedSend(coroutine, waits_for)
            self._wake()

    def abort(self, error: ApiError) -> None:
        """End the stream with an error event. What was written before it stays valid."""
        self._generation.stop()  # tokens that are due by now leave before the error, and may be the last
        if self._unfinished:
            self._unfinished = 0
            self._aborted = True
            self.write(self._failed(error))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await asyncio.sleep(0)  # one turn of the loop, in which the driver delivers what is due at once
            if self._last:  # that was all: watching the connection would cost more than the rest of the request
                await self._stream_response(send)
            else:
                if is_steppable(send):
                    self._open(send)
                # First tokens, and a short reply, need not wait for the tasks that watch the connection: half a millisecond.
                if self._direct and not isinstance(asyncio.get_running_loop(), VirtualTimeLoop):
                    await asyncio.wait((self._wake_up,), timeout=WATCH_AFTER_S)
                if self._direct and self._wake_up.done():  # all was sent, or `send` failed
                    self._wake_up.result()
                else:
                    await self._watch(receive, send)
        finally:
            self._direct = False
            generation, exchange = self._generation, self._exchange
            generation.host.open_responses.discard(self)
            generation.stop()
            if len(generation.choices) == 1 and not (self._aborted or exchange.fault or exchange.held_s):
                self._times.count(generation.choices[0].request, generation.host.served)

    async def _watch(self, receive: Receive, send: Send) -> None:
        """Stream until all is sent or the client has left."""
        self._next_ping = asyncio.get_running_loop().call_later(PING_S, self._ping)
        try:
            await while_connected(self._stream_response(send), receive)
        finally:
            self._next_ping.cancel()

    def _ping(self) -> None:
        self._next_ping = asyncio.get_running_loop().call_later(PING_S, self._ping)
        if self._pings and not (self._last or self._pending or self._suspended):
            self.write(_PING)

    def _open(self, send: Send) -> None:
        """Send the headers and what is pending, as far as the connection takes it."""
        self._send, self._direct = send, True
        self._step(send(self._start()))
        if self._direct and self._pending:
            pending, self._pending = self._pending, []
            self._wake_up = asyncio.get_running_loop().create_future()
            self._step(send(_body(b"".join(pending), False)))
            self._times.written(False)

    def _start(self) -> Message:
        return {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}

    async def _stream_response(self, send: Send) -> None:
        if self._send is None:
            self._send = send
            await send(self._start())
        steppable = is_steppable(send)
        while True:
            await self._catch_up(send)
            if self._last:
                return
            self._direct = steppable
            await self._wake_up
            self._wake_up = asyncio.get_running_loop().create_future()

    async def _catch_up(self, send: Send) -> None:
        """Send what the tick could not."""
        while self._suspended is not None or self._pending:
            if self._suspended is not None:
                suspended, self._suspended = self._suspended, None
                await suspended
                continue
            data, last = b"".join(self._pending), self._last
            self._pending.clear()
            await send(_body(data, last))
            self._times.written(last)

    def _wake(self) -> None:
        if not self._wake_up.done():
            self._wake_up.set_result(None)

    def _fail(self, error: Exception) -> None:
        if not self._wake_up.done():
            self._wake_up.set_exception(error)


class _ChoiceStream:
    """Receives the tokens of one choice."""

    __slots__ = ("_sent", "_shows", "_stream", "_total", "_writer")

    def __init__(self, stream: TokenStream, choice: Choice, writer: ChoiceWriter) -> None:
        self._stream, self._writer = stream, writer
        self._total = len(choice.reply.ids)
        self._shows = next((place for place, piece in enumerate(choice.reply.pieces) if piece), -1)  # the first that does
        self._sent = 0

    def tokens_due(self, request: Request) -> None:
        sent, produced = self._sent, request.produced
        if sent == self._total:  # the stream was aborted, or the cluster repeats itself
            return
        if request.failed:
            self._sent = self._total
            # Later: cancelling the other choices asks the driver for the time, which must not happen inside its tick.
            asyncio.get_running_loop().call_soon(self._stream.abort, errors.instance_lost())
            return
        if request.stream is None:
            self._sent, data = produced, self._writer.tokens(sent, produced)
        else:
            data, self._sent = chunks_due(self._writer, request, sent)
        if produced >= self._total:
            data += self._writer.ending() + self._stream.end_of_choice()
        if data:
            self._stream.write(data)
        if sent <= self._shows < self._sent:
            self._stream.first_shows(request, self._shows)


_PING = b": ping\n\n"
_STREAM_HEADERS = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


def _body(data: bytes, last: bool) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": not last}


def is_steppable(send: Send) -> bool:
    """Whether `send` may run outside a task.

    Uvicorn's own, and that of an object with `may_be_stepped`, suspends on nothing but a plain future.
    """
    owner = getattr(send, "__self__", None)
    return type(owner).__module__.startswith("uvicorn.") or getattr(owner, "may_be_stepped", False) is True
