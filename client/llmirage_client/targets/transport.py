"""An httpx transport whose cost per request and per chunk stays small however many streams are open.

    async with httpx.AsyncClient(transport=LeanTransport()) as client: ...

It speaks HTTP/1.1, with and without TLS, and keeps connections. It does not follow redirects, use proxies or store cookies:
the client above it does what it is asked to. The same transport for httpx2 is in transport_httpx2.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, ClassVar

import httpx

from llmirage_client.targets.connection import Incoming, Want
from llmirage_client.targets.fault import Fault, FaultKind
from llmirage_client.targets.pool import ConnectionPool, Lease, Origin, Timeouts

_EXCEPTION_NAMES: Mapping[FaultKind, str] = {
    FaultKind.DNS: "ConnectError",
    FaultKind.REFUSED: "ConnectError",
    FaultKind.CONNECT: "ConnectError",
    FaultKind.TLS: "ConnectError",
    FaultKind.CONNECT_TIMEOUT: "ConnectTimeout",
    FaultKind.READ_TIMEOUT: "ReadTimeout",
    FaultKind.POOL_TIMEOUT: "PoolTimeout",
    FaultKind.RESET: "ReadError",
    FaultKind.CLOSED: "RemoteProtocolError",
    FaultKind.PROTOCOL: "RemoteProtocolError",
    FaultKind.LOCAL: "LocalProtocolError",
    FaultKind.SCHEME: "UnsupportedProtocol",
}


def exceptions_of(library: Any) -> dict[FaultKind, type[Exception]]:
    """Which exception of httpx, or of its successor, each fault becomes."""
    return {kind: getattr(library, name) for kind, name in _EXCEPTION_NAMES.items()}


class BodyStream:
    """A reply's body. Iterating gives bytes as they come; `collect` gives them with their arrival times, at the end."""

    exceptions: ClassVar[Mapping[FaultKind, type[Exception]]]

    def __init__(self, pool: ConnectionPool, lease: Lease, read_s: float | None) -> None:
        self._pool = pool
        self._lease: Lease | None = lease
        self._read_s = read_s
        self.incoming: Incoming = lease.incoming

    async def __aiter__(self) -> AsyncIterator[bytes]:
        incoming = self.incoming
        while True:
            try:
                await incoming.wait(Want.BYTES, self._read_s)
            except Fault as fault:
                raise self.exceptions[fault.kind](fault.message) from fault
            if not incoming.segments:
                return
            segments, incoming.segments = incoming.segments, []
            yield segments[0][1] if len(segments) == 1 else b"".join([data for _, data in segments])

    async def collect(self) -> Incoming:
        """Wait for the end without waking for what comes before it. A fault is left in the reply, beside what arrived."""
        with suppress(Fault):
            await self.incoming.wait(Want.END, self._read_s)
        return self.incoming

    async def aclose(self) -> None:
        if self._lease is not None:
            lease, self._lease = self._lease, None
            self._pool.release(lease)


class TransportCore:
    """All of the transport that does not depend on which library's classes it answers with."""

    response: ClassVar[Any]
    stream: ClassVar[type[BodyStream]]
    exceptions: ClassVar[Mapping[FaultKind, type[Exception]]]

    def __init__(self, *, verify: ssl.SSLContext | bool = True, max_connections: int | None = None) -> None:
        """verify: False to accept any certificate, or a context; max_connections: requests under way at once."""
        context = verify if isinstance(verify, ssl.SSLContext) else None
        if verify is False:
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        self._pool = ConnectionPool(context, max_connections)

    async def handle_async_request(self, request: Any) -> Any:
        limits = request.extensions.get("timeout") or {}
        timeouts = Timeouts(limits.get("connect"), limits.get("read"), limits.get("pool"))
        body = await request.aread()
        try:
            lease = await self._pool.request(
                _origin(request.url),
                _head(request, len(body)) + body,
                bodyless=request.method == "HEAD",
                timeouts=timeouts,
                on_sent=request.extensions.get("on_sent"),
            )
        except Fault as fault:
            raise self.exceptions[fault.kind](fault.message) from fault
        incoming = lease.incoming
        return self.response(
            incoming.status,
            headers=incoming.headers,
            stream=self.stream(self._pool, lease, timeouts.read_s),
            extensions={"http_version": b"HTTP/1.1", "reason_phrase": incoming.reason},
        )

    async def aclose(self) -> None:
        self._pool.close()


def _origin(url: Any) -> Origin:
    scheme = url.raw_scheme
    if scheme not in (b"http", b"https"):
        raise Fault(FaultKind.SCHEME, f"only http and https URLs can be requested, not {str(url)!r}")
    tls = scheme == b"https"
    return Origin(tls, url.raw_host.decode("ascii"), url.port or (443 if tls else 80))


def _head(request: Any, body_bytes: int) -> bytes:
    lines = [b"%b %b HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    for name, value in request.headers.raw:
        if name.lower() == b"transfer-encoding":  # the body was read whole, so its length is known
            name, value = b"Content-Length", b"%d" % body_bytes
        lines.append(b"%b: %b" % (name, value))
    head = b"\r\n".join(lines)
    if head.count(b"\n") != len(lines) - 1 or head.count(b"\r") != len(lines) - 1:
        raise Fault(FaultKind.LOCAL, "a header contains a line break")
    return head + b"\r\n\r\n"


class _HttpxStream(BodyStream, httpx.AsyncByteStream):
    exceptions = exceptions_of(httpx)


class LeanTransport(TransportCore, httpx.AsyncBaseTransport):
    """The transport for httpx.AsyncClient."""

    response = httpx.Response
    stream = _HttpxStream
    exceptions = exceptions_of(httpx)
