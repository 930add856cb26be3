"""httpx's own transport, for endpoints that TimedTransport does not reach: behind a proxy, or over HTTP/2."""

from __future__ import annotations

import asyncio
import re
import ssl
import time
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from ipaddress import ip_address, ip_network
from itertools import groupby
from operator import attrgetter
from typing import Any, ClassVar, TypeVar
from urllib.request import getproxies_environment

import httpx

from llmirage_client.targets.fault import Fault, FaultKind, as_exception, fault_of
from llmirage_client.targets.target import TransportUse, run_clock
from llmirage_client.targets.timed_stream import StampedStream
from llmirage_client.targets.timed_transport import Origin
from llmirage_shared.plural import rounded
from llmirage_shared.virtual_time import wake

T = TypeVar("T")

_SCHEMES = ("http", "https", "socks5", "socks5h")
_MOST_STREAMS = 100  # of a connection: what httpcore asks for, and does not exceed
# Of a connection of HTTP/2, before another takes its place. Servers end one some time, nginx and hypercorn after 1,000
# requests, and let those under way finish; httpcore 1.0 fails these when it reads the server's GOAWAY.
_MOST_REQUESTS = 500


def proxy_of(address: str) -> str | None:
    """Return the URL of the proxy that the environment names for a URL; None: there is none.

    HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, also in small letters, as httpx reads them. NO_PROXY may have networks
    (10.0.0.0/8), too. Raises ValueError, without the credentials that the proxy's URL may have.
    """
    named, url = getproxies_environment(), httpx.URL(address)
    name = url.scheme if named.get(url.scheme) else "all"
    text = named.get(name)
    if not text or any(_excludes(entry.strip(), url) for entry in named.get("no", "").split(",")):
        return None
    text = text if "://" in text else f"http://{text}"
    try:
        proxy = httpx.URL(text)
    except httpx.InvalidURL:
        proxy = httpx.URL("")
    if proxy.scheme not in _SCHEMES or not proxy.host:
        raise ValueError(
            f"{name.upper()}_PROXY is not the URL of a proxy: it begins with {', '.join(_SCHEMES[:-1])} or socks5h"
        )
    return text


def _excludes(entry: str, url: httpx.URL) -> bool:
    """Return whether an entry of NO_PROXY is about the URL."""
    scheme, _, place = entry.rpartition("://")
    if not place or scheme not in ("", "all", url.scheme):
        return False
    with suppress(ValueError):
        return ip_address(url.host) in ip_network(re.sub(r"[\[\]]", "", place), strict=False)
    host, _, port = place.rpartition(":") if re.search(r"[^:]:\d+$", place) else (place, "", "")
    if port and int(port) != Origin.of(url).port:
        return False
    host = host.strip("[]").lower()
    if scheme or host == "localhost":
        return url.host == host
    name = host.removeprefix("*")
    return name == "" or url.host.endswith(name if name.startswith(".") else f".{name}") or url.host == name


def httpx_transport(
    address: str, proxy: str | None, http2: bool, context: ssl.SSLContext, proxy_context: ssl.SSLContext | None = None
) -> HttpxTransport:
    """Return the transport to an API root. proxy_context: for a proxy that is reached over TLS itself; None: the defaults.

    HTTP/2 is negotiated over TLS, and taken for granted without. Raises ValueError for what needs a package that is missing,
    and for what such a proxy cannot carry.
    """
    url = None if proxy is None else httpx.URL(proxy)
    if http2 and find_spec("h2") is None:
        raise ValueError("http2 needs the package h2: pip install 'llmirage[http2]'")
    if url is not None and url.scheme.startswith("socks") and find_spec("socksio") is None:
        raise ValueError("the SOCKS proxy of the environment needs the package socksio: pip install 'llmirage[socks]'")
    plain = address.startswith("http:")
    if http2 and plain and url is not None and not url.scheme.startswith("socks"):
        raise ValueError(f"http2: the HTTP proxy of the environment carries HTTP/1.1 alone to {address}")
    if ":" in httpx.URL(address).host and url is not None and not url.scheme.startswith("socks"):
        raise ValueError(
            f"an HTTP proxy cannot be asked for {address}: httpx writes addresses of IPv6 without their brackets"
        )
    trusted = None
    if url is not None:
        over_tls = url.scheme == "https"
        trusted = httpx.Proxy(url, ssl_context=(proxy_context or ssl.create_default_context()) if over_tls else None)

    def make() -> httpx.AsyncHTTPTransport:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=None)
        return httpx.AsyncHTTPTransport(
            verify=context, trust_env=False, http1=not (http2 and plain), http2=http2, limits=limits, proxy=trusted
        )

    how = ["HTTP/2"] if http2 else []
    if trusted is not None:
        how.append(f"proxy {trusted.url}".rstrip("/"))
    host = None if trusted is None else f"{trusted.url.netloc.decode('ascii')} (the proxy)"
    return HttpxTransport(make, TransportUse(", ".join(how)), host, http2)


def transport_notes(uses: Iterable[TransportUse]) -> list[str]:
    """Return the report's notes on requests that went through httpx's own transport.

    Those of several servers or workers count together.
    """
    notes = []
    for how, same in groupby(sorted(uses, key=attrgetter("how")), attrgetter("how")):
        each = list(same)
        requests, cpu_s = sum(use.requests for use in each), sum(use.cpu_s for use in each)
        if requests:
            notes.append(
                f"Requests went through httpx's own transport ({how}): about {rounded(cpu_s / requests * 1e3, 2)} ms of CPU "
                "each more than over direct connections, as measured in this run (docs/load.md)."
            )
        if "HTTP/2" in how and (older := sorted(frozenset().union(*[use.versions for use in each]) - {"HTTP/2"})):
            notes.append(f"http2: the server chose {' and '.join(older)}.")
        if left := sum(use.left_unsaid for use in each):
            gave_up = f"Requests over HTTP/2 that were given up: {left:,}."
            notes.append(f"{gave_up} httpx told the server only when others on their connections had ended.")
    return notes


@types.coroutine
def _metered(work: Coroutine[Any, Any, T], use: TransportUse) -> Generator[Any, Any, T]:
    """Await, and add to `use` the CPU time of this thread while it is in `work`."""
    step: Callable[[Any], Any] = work.send
    value: Any = None
    while True:
        begun_s = time.thread_time()
        try:
            awaited = step(value)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            use.cpu_s += time.thread_time() - begun_s
        try:
            step, value = work.send, (yield awaited)
        except BaseException as error:
            step, value = work.throw, error


@dataclass(slots=True)
class _Attempt:
    """Progress of sending a request, from the events of httpcore's `trace` extension.

    on_streams: told how many requests a connection may carry at a time. connecting: nothing of the request itself is out.
    at_proxy: the proxy is being reached, not yet the endpoint behind it. kept: no connection was opened for it.
    """

    clock: Callable[[], float]
    on_sent: Callable[[], None] | None
    on_streams: Callable[[int], None]
    limit: asyncio.Timeout
    at_proxy: bool
    connecting: bool = True
    kept: bool = True
    http2: bool = False
    headers_s: float | None = None

    async def trace(self, event: str, info: dict[str, Any]) -> None:
        protocol, _, what = event.partition(".")
        if what == "connect_tcp.started":
            self.kept = False
        elif what == "start_tls.started" and protocol != "connection":
            self.at_proxy = False
        elif what == "send_request_headers.started" and info["request"].method != b"CONNECT":
            self.connecting = False
            self.limit.reschedule(None)
            self.http2 = protocol == "http2"
            if not self.http2:
                self.on_streams(1)
        elif what == "send_request_body.complete" and not self.connecting and self.on_sent is not None:
            self.on_sent()
        elif what == "receive_remote_settings.complete":
            stated = info["return_value"].changed_settings.get(3)  # SETTINGS_MAX_CONCURRENT_STREAMS
            self.on_streams(1 if stated is None else max(min(stated.new_value, _MOST_STREAMS), 1))  # as httpcore does
        elif what == "receive_response_headers.complete" and not self.connecting:
            self.headers_s = self.clock()


@dataclass(slots=True, eq=False)
class _Lane:
    """A pool of httpcore with one connection.

    For each request httpcore looks at all that it has, with a system call for those
    that are idle, which takes 2 ms of CPU with 50 of them.
    """

    transport: httpx.AsyncBaseTransport
    in_flight: int = 0
    requests: int = 0


class HttpxTransport(httpx.AsyncBaseTransport):
    """httpx's own transport with the stamps, faults, `on_sent` and retries of TimedTransport.

    A request that a kept connection lost is sent again. A piece of a body counts as arrived when it is handed over, after
    its bytes were parsed.

    httpcore lets requests wait for a free stream of one HTTP/2 connection; here they get another connection.
    """

    def __init__(
        self, make: Callable[[], httpx.AsyncBaseTransport], use: TransportUse, proxy: str | None, http2: bool
    ) -> None:
        """proxy: where it is, for messages. http2: connections may carry several requests at a time."""
        self.use = use
        self._make = make
        self._proxy = proxy
        self._streams = None if http2 else 1  # of a lane; None: not known
        self._asking: asyncio.Future[None] | None = None  # until the first request has found out
        self._lanes: set[_Lane] = set()
        self._free: dict[_Lane, None] = {}  # the last was used last

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and wait for the reply's headers. Raises httpx.TransportError, from a Fault."""
        while self._streams is None and self._asking is not None:
            await asyncio.shield(self._asking)
        if self._streams is None:
            self._asking = asyncio.get_running_loop().create_future()
        await request.aread()  # it may have to be sent twice
        try:
            response = await _metered(self._sent(request, request.extensions), self.use)
        finally:
            self._know(None)  # where it could not find out, the next request does
        self.use.requests += 1
        self.use.versions |= {response.extensions["http_version"].decode("ascii")}
        return response

    async def aclose(self) -> None:
        for lane in self._lanes:
            await lane.transport.aclose()

    def _know(self, streams: int | None) -> None:
        if self._streams is None:
            self._streams = streams
            if streams is not None and streams > 1:
                self._free.update(dict.fromkeys(self._lanes))
            if self._asking is not None:
                wake(self._asking)
                self._asking = None

    async def _sent(self, request: httpx.Request, given: Mapping[str, Any], again: bool = False) -> httpx.Response:
        clock, origin = run_clock(asyncio.get_running_loop()), str(Origin.of(request.url))
        connect_s = (given.get("timeout") or {}).get("connect")
        limit = asyncio.timeout(connect_s)
        attempt = _Attempt(clock, given.get("on_sent"), self._know, limit, self._proxy is not None)
        request.extensions = {"trace": attempt.trace}
        lane = self._enter(new=again)
        try:
            async with limit:
                response = await lane.transport.handle_async_request(request)
        except BaseException as error:
            await self._leave(lane, given_up=attempt.http2 and not isinstance(error, Exception))
            if not isinstance(error, Exception) or isinstance(error, UnicodeEncodeError):  # the latter: of a header
                raise
            fault = self._fault(error, attempt, origin, connect_s)
            if again or not attempt.kept or fault.kind not in (FaultKind.RESET, FaultKind.CLOSED):
                fault.__cause__ = error
                raise as_exception(fault, httpx) from fault
        else:
            response.stream = _HttpxStream(response, clock, attempt, self.use, partial(self._leave, lane))
            return response
        return await self._sent(request, given, again=True)

    def _enter(self, new: bool) -> _Lane:
        """Return a lane with room for a request."""
        if self._free and not new:
            lane, _ = self._free.popitem()
        else:
            lane = _Lane(self._make())
            self._lanes.add(lane)
        lane.in_flight += 1
        lane.requests += 1
        if lane.in_flight < (self._streams or 1) and lane.requests < _MOST_REQUESTS:
            self._free[lane] = None
        return lane

    async def _leave(self, lane: _Lane, given_up: bool) -> None:
        """Leave the lane.

        given_up: a request over HTTP/2, of which httpcore tells the server nothing until the connection is closed.
        """
        lane.in_flight -= 1
        if given_up:
            lane.requests = _MOST_REQUESTS
            self._free.pop(lane, None)
            self.use.left_unsaid += lane.in_flight > 0
        if lane.requests < _MOST_REQUESTS or self._streams == 1:
            self._free[lane] = None
        elif not lane.in_flight:
            self._lanes.discard(lane)
            await lane.transport.aclose()

    def _fault(self, error: Exception, attempt: _Attempt, origin: str, connect_s: float | None) -> Fault:
        address = self._proxy if self._proxy is not None and attempt.at_proxy else origin
        if isinstance(error, TimeoutError):
            return Fault(FaultKind.CONNECT_TIMEOUT, f"no connection to {address} within {connect_s:g} s")
        fault = fault_of(error, address, begun=False)
        if attempt.connecting and fault.kind in (FaultKind.RESET, FaultKind.CLOSED, FaultKind.PROTOCOL):
            return Fault(FaultKind.CONNECT, f"cannot connect to {address}: {str(error) or type(error).__name__}")
        if attempt.http2 and self._streams is None and fault.kind in (FaultKind.RESET, FaultKind.CLOSED, FaultKind.PROTOCOL):
            return Fault(FaultKind.PROTOCOL, f"{origin} closed the connection without a word of HTTP/2")
        return fault


class _HttpxStream(StampedStream, httpx.AsyncByteStream):
    library: ClassVar[Any] = httpx

    def __init__(
        self,
        response: httpx.Response,
        clock: Callable[[], float],
        attempt: _Attempt,
        use: TransportUse,
        leave: Callable[[bool], Awaitable[None]],
    ) -> None:
        super().__init__(response, clock)
        self.headers_s = attempt.headers_s or self.headers_s
        self._http2 = attempt.http2
        self._use = use
        self._leave: Callable[[bool], Awaitable[None]] | None = leave

    async def collect(self) -> None:
        await _metered(super().collect(), self._use)

    async def aclose(self) -> None:
        await super().aclose()
        leave, self._leave = self._leave, None
        if leave is not None:
            await leave(self._http2 and self.end_s is None)
