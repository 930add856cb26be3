"""The choices of one response in flight in the cluster, and the stream of their tokens.

Streaming is the hot path: a token that is due becomes bytes on its connection without a task switch or a JSON encoder.
The driver's tick steps the server's `send` coroutine itself. Under uvicorn that runs through at once unless the connection's
buffer is full; then, and under any `send` that is not uvicorn's own, the task of the event stream takes over.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, Self

from starlette.types import Message, Receive, Scope, Send

from llmirage_server.cluster.request import Request
from llmirage_server.cluster.routers import RouterError
from llmirage_server.drivers.live import Driver
from llmirage_server.http.event_stream import (
    PING_S,
    STREAM_HEADERS,
    EventStream,
    Shutdown,
    SuspendedSend,
    is_steppable,
    server_send,
    transport_of,
    unsent_bytes,
)
from llmirage_server.http.exchange import TOKEN_BYTES, HttpExchange
from llmirage_server.http.turns import turn
from llmirage_server.replies.reply import Part, Reply
from llmirage_server.telemetry.journal import JournalEntry, Outcome
from llmirage_server.telemetry.metrics import PrometheusMetrics
from llmirage_server.telemetry.pace import SentTimes
from llmirage_shared.statistics import ServedTimes
from llmirage_shared.virtual_time import VirtualTimeLoop
from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.output import event, usage

if TYPE_CHECKING:
    from llmirage_server.telemetry.traces.served import Ended
    from llmirage_server.telemetry.traces.tracing import SentStamps, StreamStamps

logger = logging.getLogger("llmirage")

SLICE = 64  # choices submitted together: some milliseconds
_AT_ONCE = 256  # tokens that are written in one piece: 64 KB of a plain stream
_MOST_PENDING = 64 << 10  # bytes written for a connection that takes no more; what is due beyond is written when it does
_MOST_ALL_PENDING = 64 << 20  # of all such connections, in equal parts
WATCH_AFTER_S = 0.005  # from the headers on
EVENT_SOURCE_AFTER_S = 5.0  # the same; its tasks cost as much CPU time as ten tokens that are each due at a time of its own


@dataclass(slots=True)
class Choice:
    """One reply and its request in the cluster."""

    reply: Reply
    request: Request
    echo: str  # text that the response repeats before the reply
    joined: bool = False  # tokens that come together leave in one chunk

    @property
    def finished(self) -> bool:
        """The cluster has computed all tokens, or failed."""
        return self.request.failed or self.request.produced >= self.request.output_tokens


class OpenResponse(Protocol):
    """A response in progress, which can be ended from outside."""

    def abort(self, error: ApiError) -> None: ...


class ResponsesInProgress:
    """The responses of a server that have not ended, and the times and metrics of those that have.

    Attributes:
        driver: The driver of the cluster that makes their tokens.
        metrics: The counts of requests and tokens.
        shown_usage: Returns a usage object in the dialect's form.
        served: The times at which tokens left.
        shutdown: Ends streams whose client does not read.
        under_way: The generations that the metrics have not counted yet.
        open: The responses that can be ended from outside.
        held: What else holds bytes, by its name.
        elsewhere: Returns the requests of other processes that the metrics have not counted yet.
        refusal: Returns the error that all new requests get; None: they are served.
        stamps: The times at which tokens are sent; None: they are not written.
    """

    def __init__(
        self, driver: Driver, metrics: PrometheusMetrics, shown_usage: Callable[[dict[str, Any]], dict[str, Any]] = dict
    ) -> None:
        self.driver = driver
        self.metrics = metrics
        self.shown_usage = shown_usage
        self.served = ServedTimes()
        self.shutdown = Shutdown()
        self.under_way: set[Generation] = set()
        self.open: set[OpenResponse] = set()
        self.held: dict[str, Callable[[], int]] = {}
        self.elsewhere: Callable[[], list[Request]] = list
        self.refusal: Callable[[], ApiError] | None = None
        self.stamps: SentStamps | None = None
        # With the reason for which a request ended, and after the last one of a prompt all of that.
        self._uncounted: deque[tuple[Request, str, Sequence[Choice]]] = deque()

    def busy(self) -> bool:
        """Refuse new responses, and tell whether any is in progress."""
        self.refusal = errors.shutting_down
        return bool(self.open)

    def close(self) -> None:
        """End every response with an error that the client understands, and refuse new ones."""
        self.pause(errors.shutting_down)
        self.shutdown.begin()

    def pause(self, refusal: Callable[[], ApiError]) -> None:
        """End every response with this error, and refuse new ones with it, until `resume`."""
        self.refusal = refusal
        for response in list(self.open):
            response.abort(refusal())

    def resume(self) -> None:
        """Take new requests again."""
        self.refusal = None

    def check_open(self) -> None:
        """Raise ApiError while all new requests are refused."""
        if self.refusal is not None:
            raise self.refusal()

    def bytes_kept(self) -> int:
        """Return the bytes that streams have written and their clients have not read."""
        return sum([stream.bytes_kept() for stream in self.open if isinstance(stream, TokenStream)])

    def planned_bytes(self) -> int:
        """Return the bytes of prompts and replies in the cluster, about."""
        return sum([len(request.key) + TOKEN_BYTES * request.output_tokens for request in self.requests()])

    def requests(self) -> list[Request]:
        """Return the requests that the metrics have not counted yet."""
        under_way = [choice.request for generation in self.under_way for choice in generation.choices]
        return [*under_way, *[request for request, _, _ in self._uncounted], *self.elsewhere()]

    def count(self, generation: Generation) -> None:
        """Let the metrics count a generation that has ended, with all others some choices in each turn of the loop."""
        self.under_way.remove(generation)
        waiting = bool(self._uncounted)
        for place, choice in enumerate(generation.choices, 1):
            of_prompt = generation.choices[place - generation.n : place] if place % generation.n == 0 else ()
            self._uncounted.append((choice.request, choice.reply.finish_reason, of_prompt))
        if not waiting:
            self._count()

    def _count(self) -> None:
        for _ in range(min(SLICE, len(self._uncounted))):
            request, finish_reason, of_prompt = self._uncounted.popleft()
            self.metrics.ended(request, finish_reason)
            if of_prompt:
                self.metrics.answered([choice.request for choice in of_prompt])
        if self._uncounted:
            asyncio.get_running_loop().call_soon(self._count)


class ChoiceWriter(Protocol):
    """Writes the tokens of one choice. The calls' ranges follow each other without gaps, from the first token on."""

    def tokens(self, start: int, end: int) -> bytes:
        """Return the bytes that tokens [start, end) of the reply add to the stream."""
        ...

    def ending(self) -> bytes:
        """Return the bytes after the last token."""
        ...


def refusal_of(submitted: Sequence[Request]) -> ApiError | None:
    """Return the error of requests that the cluster has not taken; None: it has."""
    if not any(request.failed for request in submitted):
        return None
    dropped = [request.dropped for request in submitted if request.dropped]
    return errors.lost(dropped[0]) if dropped else errors.no_instance()


def chunks_due(writer: ChoiceWriter, request: Request, sent: int, most: int = sys.maxsize) -> tuple[bytes, int]:
    """Return the bytes that go out now of a request's tokens from `sent` on, and the count of tokens sent by then.

    most: tokens to write, or those of one interval if that has more.
    """
    if request.stream is None:
        end = request.produced if request.produced <= sent + most else sent + most
        return writer.tokens(sent, end), end
    until = min(request.produced, sent + max(most, request.stream.tokens))
    ends = [sent, *request.stream.ends(sent, until, request.output_tokens)]
    return b"".join([writer.tokens(start, end) for start, end in pairwise(ends)]), ends[-1]


def said_together(parts: Sequence[Part], start: int, end: int, joined: bool) -> Iterable[range]:
    """Return the tokens of each event with text: one, or if they are joined all from `start` to `end` of one part."""
    if not joined:
        return [range(place, place + 1) for place in range(start, end)]
    edges = {edge for part in parts for edge in (part.start, part.end) if start < edge < end}
    return [range(*pair) for pair in pairwise(sorted({start, end, *edges}))]


@dataclass(slots=True, eq=False)
class Generation:
    """The choices of one response, prompt-major: `n` for each prompt."""

    responses: ResponsesInProgress
    choices: list[Choice]
    n: int
    arrived_s: float  # when their request reached the server, see HttpExchange
    entry: JournalEntry  # of their request
    usage_instead: Mapping[str, int] | None = None  # counts to report instead of the real ones
    audio_tokens: int = 0  # of the prompts
    cached: Callable[[int], int] = int  # of a prompt's cached tokens, those that the dialect reports
    traced: Ended | None = None  # takes what has become of the choices
    handed_over: dict[str, Any] = field(default_factory=dict)  # keys of an answer, for the decode instance

    def start(self) -> None:
        """Submit all choices to the cluster. Their requests' tags must be set.

        Raises ApiError if no instance will ever take them, or if a router of the user's own fails.
        """
        self._submit(self.choices, last=True)

    async def start_in_slices(self, ended: Callable[[], bool]) -> None:
        """As `start`, with a turn of the loop for others between slices. Nothing more is submitted once it has `ended`."""
        for first in range(0, len(self.choices), SLICE):
            if first:
                await turn()
                if ended():
                    return
            self._submit(self.choices[first : first + SLICE], last=first + SLICE >= len(self.choices))

    def _submit(self, choices: Sequence[Choice], last: bool) -> None:
        self.responses.under_way.add(self)
        try:
            self.responses.driver.submit([choice.request for choice in choices], self.arrived_s, last=last)
        except RouterError as error:
            self.stop()
            logger.error("%s", error)
            raise errors.internal_error(str(error)) from None
        if (refusal := refusal_of([choice.request for choice in choices])) is not None:
            self.stop()
            raise refusal

    @property
    def instance(self) -> int:
        """The instance that serves the first choice now, -1 for none."""
        return self.choices[0].request.instance

    def stop(self) -> None:
        """Free what unfinished choices hold in the cluster. Call it at every end; calling it again does nothing."""
        unfinished = [choice.request for choice in self.choices if not choice.finished]
        if unfinished:
            self.responses.driver.cancel(unfinished)
        if self in self.responses.under_way:
            requests = [choice.request for choice in self.choices]
            self.responses.count(self)
            self.entry.generated(requests, self.n, self.choices[0].reply)
            if self.traced is not None:
                self.traced(requests, [choice.reply for choice in self.choices])
        for choice in self.choices:
            choice.request.tag = None  # it leads back here: memory is free at once only where nothing goes in a circle

    def usage(self, cached: Callable[[int], int] | None = None) -> dict[str, Any]:
        """Prompt tokens count once for each prompt, whatever n is. cached: how to count those, in another API."""
        produced = [(choice, choice.request.produced) for choice in self.choices]
        return self._usage(self.choices[:: self.n], produced, cached)

    def usage_at(self, choice: Choice, sent: int) -> dict[str, Any]:
        """Return the usage of one choice when `sent` of its tokens were written."""
        return self.responses.shown_usage(self._usage([choice], [(choice, sent)]))

    def _usage(
        self, prompts: Sequence[Choice], produced: Sequence[tuple[Choice, int]], cached: Callable[[int], int] | None = None
    ) -> dict[str, Any]:
        count = cached or self.cached
        thought = [min(tokens, choice.reply.reasoning_tokens) for choice, tokens in produced if choice.reply.parts]
        counts = {
            "prompt_tokens": sum(choice.request.prompt_tokens for choice in prompts),
            "completion_tokens": sum([tokens for _, tokens in produced]),
            "cached_tokens": sum(count(choice.request.cached_tokens) for choice in prompts),
            "reasoning_tokens": sum(thought),
            "audio_tokens": self.audio_tokens,
        }
        return usage(**(counts | dict(self.usage_instead or {})))

    def shown_usage(self) -> dict[str, Any]:
        """`usage` as chat and completions show it."""
        return self.responses.shown_usage(self.usage())


class TokenStream(EventStream):
    """Streams the choices of one generation.

    The event source has what the tick cannot write itself, and streams that last. In a short one, on a connection that takes
    all, it would do nothing but wait for the client to leave: it is not even made.
    """

    status_code = 200

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
        """Begin.

        Args:
            generation: The choices.
            exchange: The request.
            writers: The writer of each choice.
            closing: Returns the bytes that end the response.
            failed: Returns the bytes that end it after an error; None: an event in the dialect's form.
            opening: Bytes that are sent before the first token is due.
            pings: Pings keep a silent connection from being closed on its way.
        """
        self._ping_s = PING_S if pings else 0.0
        self._generation = generation
        self._exchange = exchange
        self._writers = writers
        self._closing = closing
        self._failed = failed or (lambda error: event(exchange.dialect.event_error(error)))
        self._unfinished = len(generation.choices)
        self.direct = False  # the tick may step the server's `send` itself
        self._pending: list[bytes] = [opening] if opening else []
        self._pending_bytes = self._opening_bytes = len(opening)
        self._owed: dict[_ChoiceStream, Request] = {}  # choices with tokens that are due and not written
        self._last = False  # the end of the response is pending or sent
        self._ended = False  # `send` was called with it
        self._complete = False  # the connection has taken it
        self._aborted = False
        self._client_left = False
        self._held = False  # by the cluster's gateway, as a gateway before an engine holds the head, too
        self._refusal: ApiError | None = None
        self._suspended: SuspendedSend | None = None
        self._times = SentTimes(generation.responses.driver)
        self._time = asyncio.get_running_loop().time
        self._wake_up: asyncio.Future[None] | None = None  # while it is sent
        self.stamps: StreamStamps | None = None
        if generation.responses.stamps is not None and len(generation.choices) == 1:
            self.stamps = generation.responses.stamps.begun(exchange.request_id, exchange.arrived_s)

    def start(self) -> Self:
        """Start the generation. Raises ApiError if that fails: nothing has been sent yet."""
        self.raw_headers = self._exchange.response_headers(b"text/event-stream; charset=utf-8")
        self.raw_headers += STREAM_HEADERS
        for choice, writer in zip(self._generation.choices, self._writers, strict=True):
            choice.request.tag = _ChoiceStream(self, choice, writer)
        self._generation.start()
        self._generation.responses.open.add(self)
        self._held = self._is_unplaced()
        return self

    def _is_unplaced(self) -> bool:
        requests = [choice.request for choice in self._generation.choices]
        return any(math.isnan(request.placed_s) and request.kv_from is None for request in requests)

    @property
    def outcome(self) -> Outcome:
        """The outcome of the response, once it has ended."""
        return "failed" if self._aborted else "complete" if self._complete else "client_left"

    @property
    def transport(self) -> Any:
        """The connection; None in process."""
        return transport_of(self._send)

    @property
    def takes_more(self) -> bool:
        """False while a client does not read what was written. The cluster's time goes on."""
        if self.direct:
            return True
        part = _MOST_ALL_PENDING // max(len(self._generation.responses.open), 1)
        return self._pending_bytes < min(part, _MOST_PENDING)

    def bytes_kept(self) -> int:
        """Return what was written and not sent, by the connection or before it."""
        return self._pending_bytes + (0 if self._wake_up is None else unsent_bytes(self._send))

    def owe(self, choice: _ChoiceStream, request: Request) -> None:
        """Let a choice write its tokens when the connection takes more."""
        self._owed[choice] = request
        self._wake()

    def _write_owed(self) -> None:
        while self._owed and self.takes_more:
            choice = next(iter(self._owed))
            choice.tokens_due(self._owed.pop(choice))

    def _take_pending(self) -> bytes:
        data = b"".join(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        return data

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
        """Note that the token at `place` of the reply, the first that shows, was handed to `write`."""
        self._times.first_shows(request, place, written=not self._pending)

    def write(self, data: bytes) -> None:
        """Send bytes now if the connection takes them, else as soon as it does."""
        self._last = last = self._unfinished == 0
        if not self.direct:
            self._pending.append(data)
            self._pending_bytes += len(data)
            self._wake()
            return
        self._sent_s = self._time()
        self._ended = last
        self._step(self._send({"type": "http.response.body", "body": data, "more_body": not last}))
        if last and self.direct:
            self._complete = True
            self._times.written(last)
            self._wake()

    def _step(self, sending: Awaitable[None]) -> None:
        """Let `send` run to its end, or to where it waits: then the event source's task carries it on."""
        coroutine: Coroutine[Any, Any, None] = sending  # type: ignore[assignment]  # in every ASGI server
        try:
            waits_for = coroutine.send(None)
        except StopIteration:
            return
        except Exception as error:
            self.direct = False
            if self._wake_up is not None and not self._wake_up.done():
                self._wake_up.set_exception(error)
        else:
            self.direct = False
            self._suspended = SuspendedSend(coroutine, waits_for)
            self._wake()

    def abort(self, error: ApiError) -> None:
        """End the stream with an error event. What was written before it stays valid."""
        self._generation.stop()  # tokens that are due by now leave before the error, and may be the last
        self._owed.clear()  # but those that a slow client has not waited for
        if self._unfinished:
            self._unfinished = 0
            self._aborted = True
            data = self._failed(error)
            if self._held:
                self._refusal = error
                self._wake()
            else:
                self.write(data)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send, self._send_head = server_send(scope, send), send
        self._begun = False  # the head was sent
        self._sent_s = self._time()
        try:
            await self._generation.responses.driver.placed(self._generation.choices[-1].request)
            self._wake_up = asyncio.get_running_loop().create_future()
            if self._held and self._is_unplaced():
                await self._leave_gateway()
            self._held = False
            if self._refusal is not None:
                refused = self._exchange.error(self._refusal)
                self.status_code = refused.status_code
                await refused(scope, receive, send)
                return
            if is_steppable(self._send) and not self._client_left:
                await self._send_directly()
            if not (self._complete or self._client_left):
                shutdown = self._generation.responses.shutdown
                super().__init__(self._rest(), self.raw_headers, shutdown, ping_s=self._ping_s, sent_s=self._sent_s)
                await super().__call__(scope, receive, self._deliver)
        finally:
            self.direct = False
            self._owed.clear()
            generation, exchange = self._generation, self._exchange
            generation.responses.open.discard(self)
            generation.stop()
            if self.stamps is not None:
                self.stamps.ended(self._complete, generation.choices[0].request.instance)
            if len(generation.choices) == 1 and not (self._aborted or exchange.fault or exchange.held_s):
                self._times.count(generation.choices[0].request, generation.responses.served)

    async def _leave_gateway(self) -> None:
        """Return when there is a token to send, the request is refused or the client has left."""
        loop = asyncio.get_running_loop()
        leaving = loop.create_task(self._exchange.client_left())
        leaving.add_done_callback(self._wake)
        try:
            while not (leaving.done() or self._refusal) and self._pending_bytes == self._opening_bytes:
                assert self._wake_up is not None
                await self._wake_up
                self._wake_up = loop.create_future()
            self._client_left = leaving.done()
        finally:
            leaving.cancel()

    async def _send_directly(self) -> None:
        """Send what is there, and let the tick send what follows, until there is something for the event source to do."""
        loop = asyncio.get_running_loop()
        self.direct = self._begun = True
        self._step(self._send_head({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}))
        if self.direct and self._pending:
            self.write(self._take_pending())
            self._write_owed()
            if self.direct:
                self._times.written(self._complete)
        if self._wake_up is not None and self._wake_up.done():
            self._wake_up.result()  # what `send` has raised
        if not isinstance(loop, VirtualTimeLoop):  # first tokens, and a short reply, need not wait for a task to be made
            await self._sent_by_tick(WATCH_AFTER_S)
        if self.direct and not self._complete:
            leaving = loop.create_task(self._exchange.client_left())
            leaving.add_done_callback(self._wake)
            try:
                await self._sent_by_tick(EVENT_SOURCE_AFTER_S)
                if leaving.done():
                    leaving.result()
                    self._client_left = True
            finally:
                leaving.cancel()

    async def _sent_by_tick(self, most_s: float) -> None:
        """Return when the tick has sent everything, or cannot send more; at the latest after `most_s` seconds."""
        if self.direct and not self._complete:
            loop = asyncio.get_running_loop()
            assert self._wake_up is not None
            enough = loop.call_later(most_s, self._wake)
            try:
                await self._wake_up
            finally:
                enough.cancel()
            self._wake_up = loop.create_future()

    async def _rest(self) -> AsyncIterator[bytes]:
        """Yield what the tick cannot write, since the connection is full or `send` needs a task; return at the end."""
        steppable = is_steppable(self._send)
        while True:
            if self._suspended is not None:
                await self._send_with_timeout(self._carry_on, {"type": "http.response.body"})
            elif self._pending:
                yield self._take_pending()
            elif self._owed:
                self._write_owed()
            elif self._last:
                return
            else:
                self.direct = steppable
                assert self._wake_up is not None
                await self._wake_up
                self._wake_up = asyncio.get_running_loop().create_future()

    async def _carry_on(self, _: Message) -> None:
        """End the send that the tick has begun."""
        assert self._suspended is not None
        await self._suspended
        self._suspended = None
        self._complete = self._ended
        self._times.written(self._complete)

    async def _deliver(self, message: Message) -> None:
        """`send` for the event source: its head and its end, unless the tick has sent them, and what lies between."""
        if message["type"] == "http.response.start":
            if not self._begun:
                await self._send_head(message)
            return
        last = self._last and not self._pending and not self._owed
        if self._ended or not (last or message["body"]):
            return
        self._ended = last
        await self._send({"type": "http.response.body", "body": message["body"], "more_body": not last})
        self._complete |= last
        self._times.written(last)

    def _wake(self, *_: object) -> None:
        if self._wake_up is not None and not self._wake_up.done():
            self._wake_up.set_result(None)


class _ChoiceStream:
    """Receives the tokens of one choice."""

    __slots__ = ("_sent", "_shows", "_stream", "_total", "_writer")

    def __init__(self, stream: TokenStream, choice: Choice, writer: ChoiceWriter) -> None:
        self._stream, self._writer = stream, writer
        self._total = len(choice.reply.ids)
        self._shows = next((place for place, piece in enumerate(choice.reply.pieces) if piece), -1)  # the first that does
        self._sent = 0

    def abort(self, error: ApiError) -> None:
        self._stream.abort(error)

    def tokens_due(self, request: Request) -> None:
        """Write the tokens that are due, as far as the connection takes them."""
        if self._sent == self._total:  # the stream was aborted, or the cluster repeats itself
            return
        if request.failed:
            self._sent = self._total
            # Later: cancelling the other choices asks the driver for the time, which must not happen inside its tick.
            asyncio.get_running_loop().call_soon(self._stream.abort, errors.lost(request.dropped))
            return
        stream = self._stream
        while (sent := self._sent) < request.produced:
            if not (stream.direct or stream.takes_more):
                stream.owe(self, request)
                return
            data, self._sent = chunks_due(self._writer, request, sent, _AT_ONCE)
            if self._sent == self._total:
                data += self._writer.ending() + stream.end_of_choice()
            if data:
                stream.write(data)
                if stream.stamps is not None:
                    stream.stamps.sent(self._sent, self._shows)
            if sent <= self._shows < self._sent:
                stream.first_shows(request, self._shows)
            if self._sent == sent:  # the rest waits for the end of an interval
                return
