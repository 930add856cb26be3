"""How a request reaches an endpoint: over our own connections (targets.pool), or by any httpx transport."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import httpx

from llmirage_client.targets.fault import Fault, FaultKind


class Outgoing(NamedTuple):
    """A request as it goes out. on_sent: called as soon as all of it is written."""

    method: str
    url: str
    headers: Sequence[tuple[str, str]]
    body: bytes
    on_sent: Callable[[], None] | None = None


@dataclass(slots=True)
class Arrived:
    """What has come of a reply. Filled while it comes, so that it is there also when the rest is not waited for.

    segments: (arrival, bytes) of the body, oldest first. fault: why the body ended before its end.
    """

    status: int | None = None
    reason: str = ""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    headers_s: float | None = None
    segments: list[tuple[float, bytes]] = field(default_factory=list)
    end_s: float | None = None
    fault: Fault | None = None

    def header(self, name: bytes) -> str:
        """The value of a header, by its name in small letters; "" where there is none."""
        return next((value.decode("latin-1") for key, value in self.headers if key.lower() == name), "")

    @property
    def body(self) -> bytes:
        return b"".join([piece for _, piece in self.segments])


class Wire(Protocol):
    async def request(self, outgoing: Outgoing, arrived: Arrived) -> None:
        """Send, and wait for the whole reply. Raises Fault when none began, ValueError for what cannot be sent."""
        ...

    async def close(self) -> None: ...


class TimedStream(httpx.AsyncByteStream):
    """The body of a reply that knows when its bytes came: for transports that are read at once, after the end."""

    headers_s: float | None
    segments: list[tuple[float, bytes]]

    async def collect(self) -> tuple[float | None, Fault | None]:
        """Wait for the end without waking for what comes before it: when it came, and why the body ended before its end."""
        raise NotImplementedError


class HttpxWire:
    """Through an httpx transport, such as one that has the server in this process. `now` is the run's clock."""

    def __init__(
        self, transport: httpx.AsyncBaseTransport, now: Callable[[], float], connect_timeout_s: float | None = None
    ) -> None:
        self._transport = transport
        self._now = now
        self._timeout = {} if connect_timeout_s is None else {"timeout": {"connect": connect_timeout_s}}

    async def request(self, outgoing: Outgoing, arrived: Arrived) -> None:
        method, url, headers, body, on_sent = outgoing
        extensions = self._timeout if on_sent is None else {**self._timeout, "on_sent": on_sent}
        request = httpx.Request(method, url, headers=list(headers), content=body, extensions=extensions)
        try:
            response = await self._transport.handle_async_request(request)
        except httpx.TransportError as error:
            raise _fault(error) from error
        arrived.status, arrived.reason = response.status_code, response.reason_phrase
        arrived.headers = response.headers.raw
        stream = response.stream
        assert isinstance(stream, httpx.AsyncByteStream)
        try:
            if isinstance(stream, TimedStream):
                arrived.segments, arrived.headers_s = stream.segments, stream.headers_s
                arrived.end_s, arrived.fault = await stream.collect()
            else:
                arrived.headers_s = self._now()
                async for piece in stream:
                    arrived.segments.append((self._now(), piece))
                arrived.end_s = self._now()
        except httpx.TransportError as error:
            arrived.fault = _fault(error)
        finally:
            await stream.aclose()

    async def close(self) -> None:
        await self._transport.aclose()


def _fault(error: httpx.TransportError) -> Fault:
    """Ours, where the transport is ours."""
    cause = error.__cause__
    return cause if isinstance(cause, Fault) else Fault(FaultKind.CONNECT, str(error) or type(error).__name__)
