"""An ASGI app in this process behind an HTTP client: all that does not depend on the client's library."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, ClassVar
from urllib.parse import unquote

from llmirage_client.targets.clock import run_clock, wake
from llmirage_client.targets.fault import Fault, FaultKind
from llmirage_shared.virtual_time import VirtualTimeLoop

_GRACE_S = 1.0

Message = MutableMapping[str, Any]
App = Callable[[Any, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]


class _Incoming:
    """A reply as the app sends it: what `connection.Incoming` is for one that comes over a socket."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.now = run_clock(loop)
        self.started: asyncio.Future[None] = loop.create_future()
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.headers_s: float | None = None
        self.segments: list[tuple[float, bytes]] = []
        self.end_s: float | None = None
        self.fault: Fault | None = None
        self._for_bytes = False
        self._waiter: asyncio.Future[None] | None = None
        self._loop = loop

    async def wait(self, for_bytes: bool) -> None:
        """Return at the end, or for_bytes as soon as there are any."""
        self._for_bytes = for_bytes
        while self.end_s is None and not (for_bytes and self.segments):
            self._waiter = self._loop.create_future()
            await self._waiter

    def arrived(self, data: bytes) -> None:
        self.segments.append((self.now(), data))
        if self._for_bytes:
            self._wake()

    def end(self, fault: Fault | None = None) -> None:
        if self.end_s is None:
            self.end_s = self.now()
            self.fault = fault
            self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            wake(waiter)


class _AppCall:
    """One request in the app. Its `send` never suspends, which spares the app a task switch for every piece."""

    may_be_stepped = True

    def __init__(self, body: bytes, entered: Callable[[], None]) -> None:
        self.incoming = _Incoming()
        self._body: bytes | None = body
        self._entered = entered
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, app: App, scope: Message) -> None:
        incoming = self.incoming
        try:
            await app(scope, self.receive, self.send)
            if not incoming.started.done() and not self._gone.done():
                raise RuntimeError("the app returned without a response")
        except Exception as error:
            kind = FaultKind.CLOSED if isinstance(error, ConnectionAbortedError) else FaultKind.RESET
            broken = Fault(kind, str(error) if isinstance(error, ConnectionError) else f"the app failed: {error!r}")
            if incoming.started.done():
                incoming.end(broken)
            else:
                incoming.started.set_exception(broken if isinstance(error, ConnectionError) else error)
        finally:
            self._entered()
            incoming.end()

    async def receive(self) -> Message:
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        self._entered()
        await asyncio.shield(self._gone)
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        incoming = self.incoming
        if message["type"] == "http.response.body":
            if data := message.get("body"):
                incoming.arrived(data)
            if not message.get("more_body"):
                incoming.end()
        elif message["type"] == "http.response.start" and not incoming.started.done():
            incoming.status = message["status"]
            incoming.headers = list(message.get("headers", ()))
            incoming.headers_s = incoming.now()
            incoming.started.set_result(None)
            self._entered()

    def leave(self) -> None:
        """The client wants no more."""
        wake(self._gone)


class MemoryStream:
    """A reply's body. Iterating gives bytes as they come; `collect` waits for the end, after which `segments` has all."""

    read_error: ClassVar[type[Exception]]
    protocol_error: ClassVar[type[Exception]]  # the connection was closed before the response was complete
    read_timeout: ClassVar[type[Exception]]

    def __init__(self, call: _AppCall, read_s: float | None) -> None:
        self._call = call
        self._read_s = read_s
        self._incoming = call.incoming
        self.headers_s = call.incoming.headers_s
        self.segments = call.incoming.segments

    async def __aiter__(self) -> AsyncIterator[bytes]:
        incoming = self._incoming
        while True:
            try:
                async with asyncio.timeout(self._read_s):
                    await incoming.wait(for_bytes=True)
            except TimeoutError as error:
                raise self.read_timeout(f"nothing came for {self._read_s:g} s") from error
            if not incoming.segments:
                if incoming.fault is not None:
                    raise self.broken(incoming.fault) from incoming.fault
                return
            data = b"".join([piece for _, piece in incoming.segments])
            incoming.segments.clear()
            yield data

    @classmethod
    def broken(cls, fault: Fault) -> Exception:
        """What the library raises for it."""
        return (cls.protocol_error if fault.kind is FaultKind.CLOSED else cls.read_error)(fault.message)

    async def collect(self) -> tuple[float | None, Fault | None]:
        await self._incoming.wait(for_bytes=False)
        return self._incoming.end_s, self._incoming.fault

    async def aclose(self) -> None:
        self._call.leave()


class MemoryCore:
    """All of the transport that does not depend on which library's classes it answers with."""

    response: ClassVar[Any]
    stream: ClassVar[type[MemoryStream]]

    def __init__(self, app: Any) -> None:
        """app: any ASGI application. Its lifespan events are not sent."""
        self._app: App = app
        self._calls: dict[asyncio.Task[None], _AppCall] = {}
        self._last: asyncio.Future[None] | None = None  # when the request before has been taken in

    async def handle_async_request(self, request: Any) -> Any:
        body = await request.aread()
        loop = asyncio.get_running_loop()
        entered = loop.create_future()
        if isinstance(loop, VirtualTimeLoop):
            before, self._last = self._last, entered
            if before is not None and not before.done():
                await asyncio.shield(before)
        call = _AppCall(body, lambda: wake(entered))
        task = loop.create_task(call.run(self._app, http_scope(request)))
        self._calls[task] = call
        task.add_done_callback(lambda done: self._calls.pop(done, None))
        if on_sent := request.extensions.get("on_sent"):
            on_sent()
        limits = request.extensions.get("timeout") or {}
        try:
            await asyncio.shield(call.incoming.started)
        except asyncio.CancelledError:
            call.leave()
            wake(entered)
            raise
        except Fault as fault:
            raise self.stream.broken(fault) from fault
        return self.response(
            call.incoming.status,
            headers=call.incoming.headers,
            stream=self.stream(call, limits.get("read")),
            extensions={"http_version": b"HTTP/1.1"},
        )

    async def aclose(self) -> None:
        """Leaves every request under way; what the app has not ended within a second is cancelled."""
        for call in self._calls.values():
            call.leave()
        if self._calls:
            _, slow = await asyncio.wait(list(self._calls), timeout=_GRACE_S)
            for task in slow:
                task.cancel()
            await asyncio.gather(*slow, return_exceptions=True)


def http_scope(request: Any) -> Message:
    """The ASGI scope of a request of httpx or httpx2."""
    url = request.url
    path, _, query = url.raw_path.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": url.scheme,
        "path": unquote(path.decode("ascii")),
        "raw_path": path,
        "query_string": query,
        "root_path": "",
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "client": ("127.0.0.1", 1),
        "server": (url.host, url.port or 80),
    }
