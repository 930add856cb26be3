"""One HTTP/1.1 connection, and the reply that is arriving on it.

The hot path is data_received: one clock reading and one parser call for whatever the socket gave. Nothing wakes the waiting
task until what it waits for is there (headers, any bytes, or the end), and bytes are kept with the time they arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import cast

import httptools

from llmirage_client.targets.fault import Fault, FaultKind

# While a consumer that reads piece by piece lags this far behind, the socket is not read.
HIGH_WATER_BYTES = 1 << 20


class Want(Enum):
    """What the task that waits for a reply wants to be woken for."""

    HEADERS = 0
    BYTES = 1
    END = 2


class Incoming:
    """The reply to one request. segments: (arrival, bytes) of the body as the parser cut it, oldest first.

    httptools calls the on_... methods. Each reply has a parser of its own, so that nothing of a reply outlives it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, bodyless: bool) -> None:
        self.status = 0
        self.reason = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.headers_s = 0.0  # arrival of the headers' last byte
        self.arrival_s = 0.0  # arrival of the bytes now being parsed; after the end, of the last byte
        self.segments: list[tuple[float, bytes]] = []
        self.done = False
        self.keep_alive = False
        self.fault: Fault | None = None
        self._loop = loop
        self._transport = transport
        self._bodyless = bodyless
        self._until_close = False
        self._buffered_bytes = 0
        self._paused = False
        self._want = Want.HEADERS
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._parse = self._parser.feed_data

    @property
    def untouched(self) -> bool:
        """True while not one byte of the reply has arrived."""
        return self.arrival_s == 0.0

    def feed(self, arrival_s: float, data: bytes) -> None:
        self.arrival_s = arrival_s
        if self.done:  # bytes behind the end of the reply: the connection cannot be trusted with another request
            self.keep_alive = False
            return
        try:
            self._parse(data)
        except httptools.HttpParserUpgrade:
            self.fail(Fault(FaultKind.PROTOCOL, "the server switched protocols, which was not asked for"))
        except httptools.HttpParserError as error:
            if not self.done:
                self.fail(Fault(FaultKind.PROTOCOL, f"not a valid HTTP response: {error}"))
        if self._want is Want.END and not self.done:
            return
        if self._waiter is not None and (self.done or self._has(self._want)):
            self._wake()
        if self._want is Want.BYTES:
            self._buffered_bytes += len(data)
            if self._buffered_bytes > HIGH_WATER_BYTES and not self._paused and not self.done:
                self._paused = True
                self._transport.pause_reading()

    def fail(self, fault: Fault) -> None:
        """End the reply with a fault. What arrived before stays in segments."""
        if not self.done:
            self.fault = fault
            self.done = True
            self.keep_alive = False
            self._wake()

    def lost(self, error: Exception | None) -> None:
        """The connection is gone."""
        if self.done:
            return
        if error is None and self._until_close:
            self.done = True
            self._wake()
            return
        if error is None or isinstance(error, ConnectionError):
            where = "before a reply came" if not self.status else "in the middle of the reply"
            how = "reset" if error else "closed"
            kind = FaultKind.RESET if error else FaultKind.CLOSED
            self.fail(Fault(kind, f"the server {how} the connection {where}"))
        else:
            self.fail(Fault(FaultKind.RESET, f"the connection failed: {error}"))

    async def wait(self, want: Want, idle_timeout_s: float | None = None) -> None:
        """Wait until what is wanted is there. Raises Fault when the reply failed before that, or nothing came for too long.

        Want.BYTES also returns at the end of the reply, when no more will come.
        """
        self._want = want
        if self._paused and (want is Want.END or not self.segments):
            self._paused = False
            self._buffered_bytes = 0
            self._transport.resume_reading()
        if not (self.done or self._has(want)):
            self._waiter = self._loop.create_future()
            if idle_timeout_s is not None:
                self._timer = self._loop.call_later(idle_timeout_s, self._idle, idle_timeout_s, self._loop.time())
            try:
                await self._waiter
            finally:
                self._waiter = None
                if self._timer is not None:
                    self._timer.cancel()
                    self._timer = None
        if self.fault is not None and not self._has(want):
            raise self.fault

    def _idle(self, timeout_s: float, since_s: float) -> None:
        """The read timeout counts from the last byte that came, so that a timer is set once and not for every chunk."""
        due_s = max(since_s, self.arrival_s) + timeout_s
        if self._loop.time() < due_s - 0.001:
            self._timer = self._loop.call_at(due_s, self._idle, timeout_s, since_s)
        else:
            self.fail(Fault(FaultKind.READ_TIMEOUT, f"nothing came for {timeout_s:g} s"))

    def _has(self, want: Want) -> bool:
        if want is Want.HEADERS:
            return self.status != 0
        return want is Want.BYTES and bool(self.segments)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def on_message_begin(self) -> None:
        self.headers = []
        self.reason = b""

    def on_status(self, reason: bytes) -> None:
        self.reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        status: int = self._parser.get_status_code()
        if status < 200 and status != 101:  # interim response, such as 100 or 103: the real one follows
            return
        self.status = status
        self.headers_s = self.arrival_s
        self.keep_alive = self._parser.should_keep_alive()
        if self._bodyless:  # reply to HEAD: its content-length announces bytes that never come
            self.done = True
            return
        names = {name.lower() for name, _ in self.headers}
        self._until_close = not (names & {b"content-length", b"transfer-encoding"}) and status not in (204, 304)

    def on_body(self, data: bytes) -> None:
        if not self.done:
            self.segments.append((self.arrival_s, data))

    def on_message_complete(self) -> None:
        if self.status:
            self.done = True


class Connection(asyncio.Protocol):
    """A socket that carries one request at a time."""

    transport: asyncio.Transport

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], on_lost: Callable[[Connection], None]
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._on_lost = on_lost
        self.closed = False
        self.used = False
        self.incoming: Incoming | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def begin(self, request: bytes, bodyless: bool) -> Incoming:
        """Write a whole request; the returned reply fills as bytes come."""
        incoming = self.incoming = Incoming(self._loop, self.transport, bodyless)
        self.used = True
        self.transport.write(request)
        return incoming

    def data_received(self, data: bytes) -> None:
        incoming = self.incoming
        if incoming is None:
            self.abort()  # bytes nobody asked for, such as the 408 some servers send before they close an idle connection
        else:
            incoming.feed(self._clock(), data)
            if incoming.fault is not None:
                self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self.incoming is not None:
            self.incoming.lost(exc)
        self._on_lost(self)

    def finish(self) -> bool:
        """The reply's user is done with it. True: the connection can carry the next request; else it is being closed."""
        incoming, self.incoming = self.incoming, None
        if incoming is not None and incoming.done and incoming.keep_alive and not self.closed:
            return True
        self.abort()
        return False

    def abort(self) -> None:
        self.closed = True
        self.transport.abort()
