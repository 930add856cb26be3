"""HTTP/1.1 over kept connections, as a transport of httpx that stamps what arrives; and requests that it sends cheaply.

The hot path is data_received: one clock reading and one parser call for each read of the socket. The waiting task wakes at
the headers and at the end only; bytes are kept with the time they arrived. What a request costs does not grow with the
number of connections.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, cast

import httptools
import httpx

from llmirage_client.targets.fault import Fault, FaultKind, as_exception, broken_fault, connect_fault
from llmirage_client.targets.target import run_clock
from llmirage_client.targets.timed_stream import TimedStream, too_long

MOST_HEADER_BYTES = 1 << 20

# A host name is resolved again after this long, so that a moved service is found and a burst of connections asks once.
ADDRESS_LIFE_S = 10.0


class OutgoingRequest(httpx.Request):
    """A request whose URL, headers and stream become objects of httpx only when somebody looks at them: that takes 20 µs.

    extensions: besides httpx's, `on_sent`, called as soon as all of it is written; again if it had to be sent again.
    """

    def __init__(
        self, method: str, address: str, lines: Sequence[tuple[str, str]], body: bytes, extensions: Mapping[str, Any]
    ) -> None:
        """address: the URL. lines: the headers but for Host and Content-Length. Raises nothing; httpx.InvalidURL later."""
        self.method = method
        self.address = address
        self.lines = lines
        self.extensions = cast(dict[str, Any], extensions)
        self._content = body

    @cached_property
    def url(self) -> httpx.URL:  # type: ignore[override]
        return httpx.URL(self.address)

    @cached_property
    def headers(self) -> httpx.Headers:  # type: ignore[override]
        host = ("Host", self.url.netloc.decode("ascii"))
        return httpx.Headers([host, *self.lines, ("Content-Length", str(len(self._content)))])

    @cached_property
    def stream(self) -> httpx.ByteStream:  # type: ignore[override]
        return httpx.ByteStream(self._content)


class Origin(NamedTuple):
    """An address to connect to."""

    tls: bool
    host: str
    port: int

    @classmethod
    def of(cls, url: httpx.URL) -> Origin:
        tls = url.scheme == "https"
        return cls(tls, url.raw_host.decode("ascii"), url.port or (443 if tls else 80))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Incoming(TimedStream, httpx.AsyncByteStream):
    """The reply to one request. httptools calls the on_... methods, and cuts the body into segments.

    Each reply has a parser of its own, so that nothing of a reply outlives it.
    """

    library: ClassVar[Any] = httpx

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: Connection) -> None:
        super().__init__(loop)
        self.status = 0
        self.reason = b""
        self.arrival_s = 0.0  # of the bytes being parsed; after the end, of the last byte
        self.keep_alive = False
        self._connection = connection
        self._until_close = False
        self._parser = httptools.HttpResponseParser(self)
        self._parse = self._parser.feed_data
        self._received = 0

    @property
    def body_s(self) -> float | None:
        return self.segments[0][0] if self.segments else None

    @property
    def untouched(self) -> bool:
        """True while not one byte of the reply has arrived."""
        return self.arrival_s == 0.0

    def feed(self, arrival_s: float, data: bytes) -> None:
        self.arrival_s = arrival_s
        if self.end_s is not None:  # bytes after the end of the reply: the connection cannot carry another request
            self.keep_alive = False
            return
        try:
            self._parse(data)
        except httptools.HttpParserUpgrade:
            self.fail(Fault(FaultKind.PROTOCOL, "the server switched protocols without a request to do so"))
        except httptools.HttpParserError as error:
            if self.end_s is None:
                self.fail(Fault(FaultKind.PROTOCOL, f"not a valid HTTP response: {error}"))
        self._received += len(data)
        if self.end_s is None:
            if self.status:
                excess = self._excess(self._received)
            else:
                within = self._received <= MOST_HEADER_BYTES
                excess = None if within else too_long("the headers of the reply have", MOST_HEADER_BYTES)
            if excess is not None:
                self.fail(excess)
        if self._waiter is not None and (self.end_s is not None or (self.status and not self._for_end)):
            self._wake()

    def fail(self, fault: Fault) -> None:
        """End the reply with a fault. What arrived before stays in segments."""
        if self.end_s is None:
            self.fault = fault
            self.end_s = self.arrival_s
            self.keep_alive = False
            self._wake()

    def lost(self, error: Exception | None) -> None:
        """Handle the loss of the connection."""
        if self.end_s is not None:
            return
        if error is None and self._until_close:
            self.end_s = self.arrival_s
            self._wake()
        elif error is None or isinstance(error, ConnectionError):
            self.fail(broken_fault(error is not None, bool(self.status)))
        else:
            self.fail(Fault(FaultKind.RESET, f"the connection failed: {error}"))

    async def wait_for_headers(self) -> None:
        """Wait until the headers are complete. Raises Fault if the reply failed before."""
        if self.end_s is None and not self.status:
            await self._wait(for_end=False)
        if self.fault is not None and not self.status:
            raise self.fault

    async def aclose(self) -> None:
        """Release the connection after the reply; close it if the reply was not read to its end."""
        self._connection.finish(self)

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
        names = {name.lower() for name, _ in self.headers}
        self._until_close = not (names & {b"content-length", b"transfer-encoding"}) and status not in (204, 304)

    def on_body(self, data: bytes) -> None:
        if self.end_s is None:
            self.segments.append((self.arrival_s, data))

    def on_message_complete(self) -> None:
        if self.status:
            self.end_s = self.arrival_s


class TimedResponse(httpx.Response):
    """A response of which all but status and stream is made when somebody looks at it: that takes 3 µs."""

    def __init__(self, incoming: Incoming) -> None:
        self.status_code = incoming.status
        self.stream = self._incoming = incoming

    def __getattr__(self, name: str) -> Any:
        if "headers" in vars(self) or name == "_incoming":  # it is complete, and has none of that name
            raise AttributeError(name)
        given, incoming = dict(vars(self)), self._incoming
        extensions = {"http_version": b"HTTP/1.1", "reason_phrase": incoming.reason}
        super().__init__(incoming.status, headers=incoming.headers, stream=incoming, extensions=extensions)
        vars(self).update(given)  # what was set in the meantime
        return getattr(self, name)


@dataclass(slots=True)
class _Place:
    """State of one origin. idle: ordered, the last is the freshest, so the rest can time out at the server."""

    idle: dict[Connection, None] = field(default_factory=dict)
    address: str | None = None
    address_until_s: float = 0.0


class Connection(asyncio.Protocol):
    """A socket that carries one request at a time. opened: all of a transport; this one is among them while it is open."""

    transport: asyncio.Transport

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], place: _Place, opened: set[Connection]
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._place = place
        self._opened = opened
        self.closed = False
        self.incoming: Incoming | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._opened.add(self)

    def begin(self, request: bytes) -> Incoming:
        """Write a whole request; the returned reply fills as bytes come."""
        incoming = self.incoming = Incoming(self._loop, self)
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
        self._opened.discard(self)
        self._place.idle.pop(self, None)

    def finish(self, incoming: Incoming) -> None:
        """Let the connection carry the next request if this reply has left it in order for that; else close it."""
        if incoming is not self.incoming:  # finished before
            return
        self.incoming = None
        if incoming.end_s is not None and incoming.keep_alive and not self.closed:
            self._place.idle[self] = None
        else:
            self.abort()

    def abort(self) -> None:
        self.closed = True
        self.transport.abort()


class TimedTransport(httpx.AsyncBaseTransport):
    """Connections to any number of origins, which carry HTTP/1.1. The stream of a response is a TimedStream.

    Of a request's timeouts `connect` holds for name, connection and TLS together, `read` for those who iterate; there is no
    limit on the number of connections to wait for.
    """

    def __init__(self, ssl_context: ssl.SSLContext | None = None) -> None:
        self._ssl_context = ssl_context
        self._loop: asyncio.AbstractEventLoop | None = None
        self._places: dict[Origin, _Place] = {}
        self._open: set[Connection] = set()
        self._starts: dict[tuple[str, str], tuple[Origin, tuple[str, str]]] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and wait for the reply's headers. Raises httpx.TransportError, from a Fault.

        A kept connection may have been closed by the server just as we wrote; when nothing of a reply came on it, the
        request goes out once more, on a new connection.
        """
        try:
            body = request.content if isinstance(request, OutgoingRequest) else await request.aread()
            origin, data = self._written(request, body)
            incoming = await self._sent(origin, data, request.extensions)
            incoming.read_s = (request.extensions.get("timeout") or {}).get("read")
        except Fault as fault:
            raise as_exception(fault, httpx) from fault
        return TimedResponse(incoming)

    async def aclose(self) -> None:
        for connection in list(self._open):
            connection.abort()
        for place in self._places.values():
            place.idle.clear()

    def _written(self, request: httpx.Request, body: bytes) -> tuple[Origin, bytes]:
        """Return the bytes of a request, and where they go. Raises Fault."""
        if isinstance(request, OutgoingRequest) and "headers" not in vars(request):
            method, address = request.method, request.address
            known = self._starts.get((method, address))
            if known is None:
                known = self._starts[method, address] = _start_of(method, request.url)
            origin, start = known
            lines = [*start, *[f"{name}: {value}" for name, value in request.lines], f"Content-Length: {len(body)}", "\r\n"]
            encoding = "ascii"
        else:  # as httpx makes them: with Host, and with the framing of a body that need not have been known
            origin, (first, _) = _start_of(request.method, request.url)
            raw = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw]
            kept = [f"{name}: {value}" for name, value in raw if name.lower() not in ("content-length", "transfer-encoding")]
            lines = [first, *kept, f"Content-Length: {len(body)}", "\r\n"]
            encoding = "latin-1"
        head = "\r\n".join(lines)
        if head.count("\n") != len(lines) or head.count("\r") != len(lines):
            raise Fault(FaultKind.LOCAL, "a header contains a line break")
        return origin, head.encode(encoding) + body

    async def _sent(self, origin: Origin, data: bytes, extensions: Mapping[str, Any]) -> Incoming:
        """Return the reply to a request, its headers complete. Raises Fault."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # connections live and die with their loop
            self._loop = loop
            self._clock = run_clock(loop)
            self._places, self._open = {}, set()
        place = self._places.get(origin)
        if place is None:
            place = self._places[origin] = _Place()
        kept = place.idle.popitem()[0] if place.idle else None
        while True:
            connection = kept or await self._connect(origin, place, (extensions.get("timeout") or {}).get("connect"))
            incoming = connection.begin(data)
            if on_sent := extensions.get("on_sent"):
                on_sent()
            try:
                await incoming.wait_for_headers()
                return incoming
            except Fault as fault:
                connection.abort()
                stale = fault.kind in (FaultKind.RESET, FaultKind.CLOSED) and incoming.untouched
                if kept is None or not stale:
                    raise
                kept = None
            except BaseException:
                connection.abort()
                raise

    async def _connect(self, origin: Origin, place: _Place, timeout_s: float | None) -> Connection:
        loop, clock = asyncio.get_running_loop(), self._clock
        known = place.address if place.address_until_s > clock() else None
        context = self._context() if origin.tls else None
        try:
            async with asyncio.timeout(timeout_s):
                transport, connection = await loop.create_connection(
                    lambda: Connection(loop, clock, place, self._open),
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
        return connection

    def _context(self) -> ssl.SSLContext:
        if self._ssl_context is None:
            self._ssl_context = ssl.create_default_context()
        return self._ssl_context


def _start_of(method: str, url: httpx.URL) -> tuple[Origin, tuple[str, str]]:
    """Return the origin and the request's first two lines."""
    start = f"{method} {url.raw_path.decode('ascii')} HTTP/1.1", f"Host: {url.netloc.decode('ascii')}"
    return Origin.of(url), start
