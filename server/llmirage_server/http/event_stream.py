"""Event streams, which sse-starlette sends: pings, the client's leaving, a client that reads nothing, the server's end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Coroutine, Generator, Sequence
from typing import Any

import anyio
from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.types import Message, Receive, Scope, Send

PING_S = 15.0  # of silence
SEND_TIMEOUT_S = 300.0  # for which a client may take nothing of what waits for it
SHUTDOWN_GRACE_S = 0.8  # for the last event of a stream whose client does not read; servers wait 1 s for their connections
STREAM_HEADERS = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
SERVER_SEND = "llmirage.send"  # key in a scope: the `send` below middleware that leaves the bytes of bodies as they are

_PING = ServerSentEvent(comment="ping", sep="\n")
_NO_PING = ServerSentEvent(comment="no ping", sep="\n")
_NO_PING_BYTES = _NO_PING.encode()


class Shutdown:
    """The end of one server. begun: it is there."""

    def __init__(self) -> None:
        self.begun = False
        self._waiting: set[asyncio.Future[None]] = set()

    def begin(self) -> None:
        self.begun = True
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    async def wait(self) -> None:
        """Return when it has begun."""
        if self.begun:
            return
        waiting = asyncio.get_running_loop().create_future()
        self._waiting.add(waiting)
        try:
            await waiting
        finally:
            self._waiting.discard(waiting)


class EventStream(EventSourceResponse):
    """sse-starlette's response, of events that are bytes already.

    It differs in three ways: it ends with its own server, pings stay away while events come, and a client that takes
    nothing for `SEND_TIMEOUT_S` loses its connection, which would otherwise wait for it with its buffers.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        headers: Sequence[tuple[bytes, bytes]],
        shutdown: Shutdown,
        *,
        status: int = 200,
        ping_s: float = PING_S,
        sent_s: float | None = None,
        shutdown_event: anyio.Event | None = None,
        grace_s: float = SHUTDOWN_GRACE_S,
    ) -> None:
        """Begin.

        Args:
            events: The pieces of the body.
            headers: All headers.
            shutdown: Ends the stream with the server.
            status: The status of the response.
            ping_s: Seconds of silence before a ping, 0 for no pings.
            sent_s: The time on the loop's clock at which bytes were last sent of a response that has begun.
            shutdown_event: Is set when the server ends.
            grace_s: Seconds for which the events may continue then.
        """
        super().__init__(
            events,
            status,
            ping=ping_s,
            send_timeout=SEND_TIMEOUT_S,
            shutdown_event=shutdown_event,
            shutdown_grace_period=grace_s,
        )
        self.raw_headers = list(headers)
        self._shutdown = shutdown
        self._ping_s = ping_s
        self._time = asyncio.get_running_loop().time
        self._sent_s = self._time() if sent_s is None else sent_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.ping_message_factory = self._ping_if_silent
        self.ping_interval = max(self._sent_s + self._ping_s - self._time(), 0.001) if self._ping_s else 0
        try:
            await super().__call__(scope, receive, send)
        except* SendTimeoutError:
            if (transport := transport_of(server_send(scope, send))) is not None:
                transport.abort()  # closing it would wait until the client has read the rest
                while (await receive())["type"] != "http.disconnect":
                    pass
        finally:
            del self.ping_message_factory  # it leads back here

    # Each of the four tasks swallows its cancellation, with which only the end of the stream comes: of a task that ends
    # cancelled, anyio keeps the exception, its traceback and with it this stream in a cycle of references.

    async def _stream_response(self, send: Send) -> None:
        await _until_cancelled(super()._stream_response(send))

    async def _ping(self, send: Send) -> None:
        await _until_cancelled(super()._ping(send))

    async def _listen_for_disconnect(self, receive: Receive) -> None:
        await _until_cancelled(super()._listen_for_disconnect(receive))

    async def _listen_for_exit_signal_with_grace(self) -> None:
        await _until_cancelled(super()._listen_for_exit_signal_with_grace())

    async def _listen_for_exit_signal(self) -> None:  # type: ignore[override]  # the library's is static
        """As the library's, of this stream's server.

        The library's looks at the process every half second, in a task that never ends. Of several servers in a process each
        would end the streams of all, and a loop of virtual time would jump from look to look for ever.
        """
        await self._shutdown.wait()

    async def _send_with_timeout(self, send: Send, message: Message) -> None:
        if message.get("body") == _NO_PING_BYTES:
            return
        self._sent_s = math.inf  # a ping that waited beside it could come after the end
        try:
            await super()._send_with_timeout(send, message)
        finally:
            self._sent_s = self._time()

    def _ping_if_silent(self) -> ServerSentEvent:
        """Return a ping if nothing was sent for its interval; else none, and look again when that will be so."""
        left_s = min(self._sent_s + self._ping_s - self._time(), self._ping_s)
        due = left_s < 0.001
        self.ping_interval = self._ping_s if due else left_s
        return _PING if due else _NO_PING


async def _until_cancelled(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except asyncio.CancelledError:
        pass


def server_send(scope: Scope, send: Send) -> Send:
    """Return the HTTP server's own `send` if it is known. Messages that are not bytes of a body must go through `send`."""
    found: Send = scope.get(SERVER_SEND, send)
    return found


def transport_of(send: Send) -> Any:
    """Return the connection under the `send` of uvicorn; None in process."""
    return getattr(getattr(send, "__self__", None), "transport", None)


def unsent_bytes(send: Send) -> int:
    """Return the bytes that `send` was given and the client has not read, as far as this process has them."""
    transport = transport_of(send)
    waiting: int = getattr(getattr(send, "__self__", None), "unsent_bytes", 0)
    return waiting + (0 if transport is None else int(transport.get_write_buffer_size()))


def is_steppable(send: Send) -> bool:
    """Tell whether `send` may run outside a task.

    Uvicorn's own, and that of an object with `may_be_stepped`, suspends on nothing but a plain future.
    """
    owner = getattr(send, "__self__", None)
    return type(owner).__module__.startswith("uvicorn.") or getattr(owner, "may_be_stepped", False) is True


class SuspendedSend:
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
