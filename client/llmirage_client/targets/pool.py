"""Connections kept for reuse, at a cost per request that does not grow with their number."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import httpx

from llmirage_client.targets.clock import run_clock
from llmirage_client.targets.connection import Connection, Incoming
from llmirage_client.targets.fault import Fault, FaultKind, connect_fault
from llmirage_client.targets.wire import Arrived, Outgoing

# A host name is resolved again after this long, so that a moved service is found and a burst of connections asks once.
ADDRESS_LIFE_S = 10.0


class Origin(NamedTuple):
    tls: bool
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(slots=True)
class _Place:
    """What is known of one origin. idle: ordered, the last is the freshest, so the rest can time out at the server."""

    idle: dict[Connection, None] = field(default_factory=dict)
    address: str | None = None
    address_until_s: float = 0.0


@dataclass(slots=True)
class Lease:
    """A connection in use for one request."""

    connection: Connection
    incoming: Incoming
    place: _Place


class ConnectionPool:
    """HTTP/1.1 connections of any number of origins. connect_timeout_s: for name, connection and TLS; None: no limit."""

    def __init__(self, ssl_context: ssl.SSLContext | None = None, connect_timeout_s: float | None = None) -> None:
        self._ssl_context = ssl_context
        self._connect_timeout_s = connect_timeout_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._places: dict[Origin, _Place] = {}
        self._open: set[Connection] = set()

    async def request(self, origin: Origin, request: bytes, on_sent: Callable[[], None] | None = None) -> Lease:
        """Send a whole request and wait for the reply's headers. Raises Fault.

        A kept connection may have been closed by the server just as we wrote; when nothing of a reply came on it, the
        request goes out once more, on a new connection.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # connections live and die with their loop
            self._loop = loop
            self._clock = run_clock(loop)
            self._places, self._open = {}, set()
        place = self._places.get(origin)
        if place is None:
            place = self._places[origin] = _Place()
        if place.idle:
            connection, _ = place.idle.popitem()
            try:
                return await self._exchange(connection, place, request, on_sent)
            except Fault as fault:
                stale = fault.kind in (FaultKind.RESET, FaultKind.CLOSED)
                if not stale or not (connection.incoming is None or connection.incoming.untouched):
                    raise
        connection = await self._connect(origin, place)
        return await self._exchange(connection, place, request, on_sent)

    def release(self, lease: Lease) -> None:
        """The reply has been used; or it is not wanted any more, then its connection is closed. Call once."""
        if lease.connection.finish():
            lease.place.idle[lease.connection] = None

    def close(self) -> None:
        for connection in list(self._open):
            connection.abort()
        for place in self._places.values():
            place.idle.clear()

    async def _exchange(
        self, connection: Connection, place: _Place, request: bytes, on_sent: Callable[[], None] | None
    ) -> Lease:
        incoming = connection.begin(request)
        if on_sent is not None:
            on_sent()
        try:
            await incoming.wait_for_headers()
        except BaseException:
            connection.abort()
            raise
        return Lease(connection, incoming, place)

    async def _connect(self, origin: Origin, place: _Place) -> Connection:
        loop, clock, timeout_s = asyncio.get_running_loop(), self._clock, self._connect_timeout_s

        def lost(connection: Connection) -> None:
            self._open.discard(connection)
            place.idle.pop(connection, None)

        known = place.address if place.address_until_s > clock() else None
        context = self._context() if origin.tls else None
        try:
            async with asyncio.timeout(timeout_s):
                transport, connection = await loop.create_connection(
                    lambda: Connection(loop, clock, lost),
                    known or origin.host,
                    origin.port,
                    ssl=context,
                    server_hostname=origin.host if context else None,
                )
        except TimeoutError as error:
            place.address = None
            if timeout_s is None:  # the limit of the operating system, not ours
                raise Fault(FaultKind.CONNECT, f"cannot connect to {origin}: {error}") from None
            raise Fault(FaultKind.CONNECT_TIMEOUT, f"no connection to {origin} within {timeout_s:g} s") from None
        except (OSError, UnicodeError) as error:
            place.address = None
            raise connect_fault(error, str(origin)) from None
        if known is None:
            peer = transport.get_extra_info("peername")
            place.address, place.address_until_s = peer[0] if peer else None, clock() + ADDRESS_LIFE_S
        self._open.add(connection)
        return connection

    def _context(self) -> ssl.SSLContext:
        if self._ssl_context is None:
            self._ssl_context = ssl.create_default_context()
        return self._ssl_context


class PoolWire:
    """Straight to kept connections: no objects of httpx are made on the way."""

    def __init__(self, ssl_context: ssl.SSLContext | None = None, connect_timeout_s: float | None = None) -> None:
        self._pool = ConnectionPool(ssl_context, connect_timeout_s)
        self._known: dict[tuple[str, str], tuple[Origin, tuple[str, str]]] = {}

    async def request(self, outgoing: Outgoing, arrived: Arrived) -> None:
        method, url, headers, body, on_sent = outgoing
        known = self._known.get((method, url))
        if known is None:
            known = self._known[method, url] = _start_of(method, httpx.URL(url))
        origin, start = known
        lines = [*start, *[f"{name}: {value}" for name, value in headers], f"Content-Length: {len(body)}", "\r\n"]
        head = "\r\n".join(lines)
        if head.count("\n") != len(lines) or head.count("\r") != len(lines):
            raise Fault(FaultKind.LOCAL, "a header contains a line break")
        lease = await self._pool.request(origin, head.encode("ascii") + body, on_sent)
        incoming = lease.incoming
        arrived.status, arrived.reason = incoming.status, incoming.reason.decode("latin-1")
        arrived.headers, arrived.headers_s = incoming.headers, incoming.headers_s
        arrived.segments = incoming.segments
        try:
            await incoming.wait_for_end()
            arrived.fault, arrived.end_s = incoming.fault, incoming.arrival_s
        finally:
            self._pool.release(lease)

    async def close(self) -> None:
        self._pool.close()


def _start_of(method: str, url: httpx.URL) -> tuple[Origin, tuple[str, str]]:
    """Where to, and the request's first two lines."""
    tls = url.scheme == "https"
    origin = Origin(tls, url.raw_host.decode("ascii"), url.port or (443 if tls else 80))
    return origin, (f"{method} {url.raw_path.decode('ascii')} HTTP/1.1", f"Host: {url.netloc.decode('ascii')}")
