"""One HTTP/1.1 connection, and the reply that is arriving on it.

The hot path is data_received: one clock reading and one parser call for each read of the socket. The waiting task wakes at
the headers and at the end only; bytes are kept with the time they arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import httptools

from llmirage_client.targets.fault import Fault, FaultKind

MOST_HEADER_BYTES = 1 << 20
MOST_REPLY_BYTES = 1 << 30


class Incoming:
    """The reply to one request. segments: (arrival, bytes) of the body as the parser cut it, oldest first.

    httptools calls the on_... methods. Each reply has a parser of its own, so that nothing of a reply outlives it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.status = 0
        self.reason = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.headers_s = 0.0  # arrival of the headers' last byte
        self.arrival_s = 0.0  # arrival of the bytes being parsed; after the end, of the last byte
        self.segments: list[tuple[float, bytes]] = []
        self.done = False
        self.keep_alive = False
        self.fault: Fault | None = None
        self._loop = loop
        self._until_close = False
        self._for_end = False
        self._waiter: asyncio.Future[None] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._parse = self._parser.feed_data
        self._received = 0
        self._most = MOST_HEADER_BYTES

    @property
    def untouched(self) -> bool:
        """True while not one byte of the reply has arrived."""
        return self.arrival_s == 0.0

    def feed(self, arrival_s: float, data: bytes) -> None:
        self.arrival_s = arrival_s
        if self.done:  # bytes after the end of the reply: the connection cannot carry another request
            self.keep_alive = False
            return
        try:
            self._parse(data)
        except httptools.HttpParserUpgrade:
            self.fail(Fault(FaultKind.PROTOCOL, "the server switched protocols without a request to do so"))
        except httptools.HttpParserError as error:
            if not self.done:
                self.fail(Fault(FaultKind.PROTOCOL, f"not a valid HTTP response: {error}"))
        self._received += len(data)
        if self._received > self._most and not self.done:
            what = "the headers of the reply have" if not self.status else "the reply has"
            self.fail(Fault(FaultKind.PROTOCOL, f"{what} more than {self._most >> 20} MiB"))
        if self._waiter is not None and (self.done or (self.status and not self._for_end)):
            self._wake()

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
            where = "before a reply came" if not self.status else "during the reply"
            how = "reset" if error else "closed"
            kind = FaultKind.RESET if error else FaultKind.CLOSED
            self.fail(Fault(kind, f"the server {how} the connection {where}"))
        else:
            self.fail(Fault(FaultKind.RESET, f"the connection failed: {error}"))

    async def wait_for_headers(self) -> None:
        """Raises Fault when the reply failed before its headers were complete."""
        if not self.done and not self.status:
            await self._wait()
        if self.fault is not None and not self.status:
            raise self.fault

    async def wait_for_end(self) -> None:
        """A reply that failed has a `fault` beside the segments that arrived."""
        self._for_end = True
        if not self.done:
            await self._wait()

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

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
        self._most = MOST_REPLY_BYTES
        self.headers_s = self.arrival_s
        self.keep_alive = self._parser.should_keep_alive()
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
        self.incoming: Incoming | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def begin(self, request: bytes) -> Incoming:
        """Write a whole request; the returned reply fills as bytes come."""
        incoming = self.incoming = Incoming(self._loop)
        self.transport.write(request)
        return incoming

    def data_received(self, data: bytes) -> None:
        incoming = self.incoming
        if incoming is None:
            self.abort()  # no request: such as the 408 that some servers send before they close an idle connection
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
        """The reply has been used. True: the connection can carry the next request; else it is being closed."""
        incoming, self.incoming = self.incoming, None
        if incoming is not None and incoming.done and incoming.keep_alive and not self.closed:
            return True
        self.abort()
        return False

    def abort(self) -> None:
        self.closed = True
        self.transport.abort()
