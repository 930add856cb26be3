"""An ASGI app in this process behind a client of httpx or httpx2: the whole protocol, streamed, without sockets.

    async with httpx.AsyncClient(transport=MemoryTransport(create_app()), base_url="http://llmirage") as client: ...

On a loop of virtual time (`llmirage_shared.virtual_time.run`) it takes no time either: requests reach the app in the order
in which they were sent, each before the next, so that a run is repeatable to the last bit. httpx's own ASGITransport returns
a reply only when it is complete.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from functools import cache
from typing import Any
from urllib.parse import unquote

from llmirage_client.targets.clock import run_clock, wake
from llmirage_client.targets.fault import Fault, FaultKind, as_exception
from llmirage_client.targets.timed_stream import TimedStream
from llmirage_shared.virtual_time import VirtualTimeLoop

_GRACE_S = 1.0

Message = MutableMapping[str, Any]
App = Callable[[Any, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]


def library_of(request: Any) -> Any:
    """Return the module, httpx or httpx2, of a request: their classes share no base."""
    names = (kind.__module__.partition(".")[0] for kind in type(request).__mro__)
    return sys.modules[next(name for name in names if name in ("httpx", "httpx2"))]


class _AppCall(TimedStream):
    """One request in the app, and the body of its response. `send` never suspends, which spares the app a task switch for
    every piece.
    """

    may_be_stepped = True

    def __init__(self, body: bytes, read_s: float | None, entered: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(loop)
        self.read_s = read_s
        self.started: asyncio.Future[None] = loop.create_future()
        self.status = 0
        self._now = run_clock(loop)
        self._body: bytes | None = body
        self._entered = entered
        self._gone: asyncio.Future[None] = loop.create_future()

    async def run(self, app: App, scope: Message) -> None:
        try:
            await app(scope, self.receive, self.send)
            if not self.started.done() and not self._gone.done():
                raise RuntimeError("the app returned without a response")
        except Exception as error:
            kind = FaultKind.CLOSED if isinstance(error, ConnectionAbortedError) else FaultKind.RESET
            broken = Fault(kind, str(error) if isinstance(error, ConnectionError) else f"the app failed: {error!r}")
            if self.started.done():
                self._end(broken)
            else:
                self.started.set_exception(broken if isinstance(error, ConnectionError) else error)
        finally:
            self._entered()
            self._end()

    async def receive(self) -> Message:
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        self._entered()
        await asyncio.shield(self._gone)
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            if data := message.get("body"):
                self.segments.append((self._now(), data))
                if not self._for_end:
                    self._wake()
            if not message.get("more_body"):
                self._end()
        elif message["type"] == "http.response.start" and not self.started.done():
            self.status = message["status"]
            self.headers = list(message.get("headers", ()))
            self.headers_s = self._now()
            self.started.set_result(None)
            self._entered()

    def leave(self) -> None:
        """The client wants no more."""
        wake(self._gone)

    async def aclose(self) -> None:
        self.leave()

    def _end(self, fault: Fault | None = None) -> None:
        if self.end_s is None:
            self.end_s = self._now()
            self.fault = fault
            self._wake()


@cache
def _call_class(library: Any) -> type[_AppCall]:
    return type("AppCall", (_AppCall, library.AsyncByteStream), {"library": library})


class MemoryTransport:
    """The transport for AsyncClient of httpx and httpx2: it answers in the classes of the library that asks."""

    def __init__(self, app: Any) -> None:
        """app: any ASGI application. Its lifespan events are not sent."""
        self._app: App = app
        self._calls: dict[asyncio.Task[None], _AppCall] = {}
        self._last: asyncio.Future[None] | None = None  # when the request before has been taken in

    async def handle_async_request(self, request: Any) -> Any:
        body, library = await request.aread(), library_of(request)
        loop = asyncio.get_running_loop()
        entered = loop.create_future()
        if isinstance(loop, VirtualTimeLoop):
            before, self._last = self._last, entered
            if before is not None and not before.done():
                await asyncio.shield(before)
        limits = request.extensions.get("timeout") or {}
        call = _call_class(library)(body, limits.get("read"), lambda: wake(entered))
        task = loop.create_task(call.run(self._app, http_scope(request)))
        self._calls[task] = call
        task.add_done_callback(lambda done: self._calls.pop(done, None))
        if on_sent := request.extensions.get("on_sent"):
            on_sent()
        try:
            await asyncio.shield(call.started)
        except asyncio.CancelledError:
            call.leave()
            wake(entered)
            raise
        except Fault as fault:
            raise as_exception(fault, library) from fault
        return library.Response(call.status, headers=call.headers, stream=call, extensions={"http_version": b"HTTP/1.1"})

    async def __aenter__(self) -> MemoryTransport:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

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
