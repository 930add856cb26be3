"""The hot path: tokens that are due become bytes on their connection, without a task switch or a JSON encoder.

sse-starlette's EventSourceResponse keeps its ping, disconnect and shutdown handling. Its per-chunk path is replaced: the
driver's tick steps the server's `send` coroutine itself. Under uvicorn that runs through at once unless the connection's
buffer is full; then, and under any `send` that is not uvicorn's own, the response's task takes over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Sequence
from typing import Any

from sse_starlette.sse import EventSourceResponse
from starlette.types import Message, Receive, Scope, Send

from llmirage_server.api.exchange import Exchange
from llmirage_server.api.generation import Choice, Generation
from llmirage_server.api.writers import ChoiceWriter
from llmirage_server.cluster.request import Request
from llmirage_shared.wire import errors
from llmirage_shared.wire.chunks import event
from llmirage_shared.wire.errors import ApiError

PING_S = 15


class TokenStream(EventSourceResponse):
    """Streams the choices of one generation."""

    def __init__(
        self,
        generation: Generation,
        exchange: Exchange,
        writers: Sequence[ChoiceWriter],
        closing: Callable[[], bytes],
        failed: Callable[[ApiError], bytes] = lambda error: event(error.body()),
        opening: bytes = b"",
    ) -> None:
        """writers: one for each choice; closing: what ends the response; failed: what ends it when it cannot go on.

        opening: what leaves before the first token is due.
        """
        super().__init__(_NO_CONTENT, ping=PING_S, sep="\n")
        self.raw_headers = exchange.response_headers(b"text/event-stream; charset=utf-8")
        self.raw_headers += _STREAM_HEADERS
        self._generation = generation
        self._closing = closing
        self._failed = failed
        self._unfinished = len(generation.choices)
        self._send: Send | None = None
        self._direct = False  # the tick may step `send` itself
        self._pending: list[bytes] = [opening] if opening else []
        self._last = False  # the end of the response is pending or sent
        self._suspended: _Suspended | None = None
        self._wake_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for choice, writer in zip(generation.choices, writers, strict=True):
            choice.request.tag = _ChoiceStream(self, choice, writer)
        generation.start()
        generation.service.open_responses.add(self)

    def end_of_choice(self) -> bytes:
        """One more choice is complete: what must follow its last chunk in the response."""
        self._unfinished -= 1
        return b"" if self._unfinished else self._closing()

    def write(self, data: bytes) -> None:
        """Send bytes now if the connection takes them, else as soon as it does."""
        last = self._unfinished == 0
        if not self._direct or (last and self._send_lock.locked()):  # a ping is being sent: do not end before it
            self._pending.append(data)
            self._last = last
            self._wake()
            return
        assert self._send is not None
        if last:
            self._last = True
            self.active = False
        # `send` is a coroutine function in every ASGI server, though its type only promises an awaitable
        sending: Coroutine[Any, Any, None] = self._send(_body(data, last))  # type: ignore[assignment]
        try:
            waits_for = sending.send(None)
        except StopIteration:
            if last:
                self._wake()
        except Exception as error:
            self._fail(error)
        else:
            self._direct = False
            self._suspended = _Suspended(sending, waits_for)
            self._wake()

    def abort(self, error: ApiError) -> None:
        """End the stream with an error event. What was written before it stays valid."""
        self._generation.stop()  # tokens that are due by now leave before the error, and may be the last
        if self._unfinished:
            self._unfinished = 0
            self.write(self._failed(error))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await asyncio.sleep(0)  # one turn, in which the driver delivers what is due at once
            if self._last:  # all of it was: there is nothing to watch over, and the watching would cost more than the rest
                await self._stream_response(send)
            else:
                await super().__call__(scope, receive, send)
        finally:
            self._direct = False
            self._generation.service.open_responses.discard(self)
            self._generation.stop()

    async def _stream_response(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._send = send
        steppable = _is_steppable(send)
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
            if last:
                async with self._send_lock:
                    self.active = False
                    await send(_body(data, last))
            else:
                await send(_body(data, last))

    def _wake(self) -> None:
        if not self._wake_up.done():
            self._wake_up.set_result(None)

    def _fail(self, error: Exception) -> None:
        if not self._wake_up.done():
            self._wake_up.set_exception(error)


class _ChoiceStream:
    """Receives the tokens of one choice."""

    __slots__ = ("_sent", "_stream", "_total", "_writer")

    def __init__(self, stream: TokenStream, choice: Choice, writer: ChoiceWriter) -> None:
        self._stream = stream
        self._writer = writer
        self._total = len(choice.reply.ids)
        self._sent = 0

    def tokens_due(self, request: Request) -> None:
        sent, produced = self._sent, request.produced
        if sent == self._total:  # the stream was aborted, or the cluster repeats itself
            return
        if request.failed:
            self._sent = self._total
            # Not now: taking the other choices back would ask the driver for the time in the middle of its round.
            asyncio.get_running_loop().call_soon(self._stream.abort, errors.instance_lost())
            return
        self._sent = produced
        data = self._writer.tokens(sent, produced)
        if produced >= self._total:
            data += self._writer.ending() + self._stream.end_of_choice()
        if data:
            self._stream.write(data)


class _Suspended:
    """Carries on, inside a task, a coroutine that was stepped once outside and yielded the future it waits for."""

    __slots__ = ("_coroutine", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, None], waits_for: Any) -> None:
        self._coroutine = coroutine
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, Any, None]:
        waits_for = self._waits_for
        while True:
            try:
                value = yield waits_for
            except BaseException as error:
                step = self._coroutine.throw(error)
            else:
                try:
                    step = self._coroutine.send(value)
                except StopIteration:
                    return
            waits_for = step


async def warm_up() -> None:
    """Serve a stream to nobody: anyio loads parts of itself, some 15 ms of it, with the first response it watches over."""

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def send(_: Message) -> None: ...

    await EventSourceResponse(_NO_CONTENT)({"type": "http", "method": "POST"}, receive, send)


class _NoContent(AsyncIterator[bytes]):
    """EventSourceResponse wants an iterator; the stream does not come through one."""

    async def __anext__(self) -> bytes:
        raise StopAsyncIteration


_NO_CONTENT = _NoContent()
_STREAM_HEADERS = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


def _body(data: bytes, last: bool) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": not last}


def _is_steppable(send: Send) -> bool:
    """Whether `send` may run outside a task.

    Uvicorn's own is known to suspend on nothing but a plain future; that of an object with `never_suspends` on nothing.
    """
    owner = getattr(send, "__self__", None)
    return type(owner).__module__.startswith("uvicorn.") or getattr(owner, "never_suspends", False) is True
