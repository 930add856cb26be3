"""An ASGI app in this process behind clients of httpx or httpx2: the whole protocol, streamed, without sockets.

    async with httpx.AsyncClient(transport=MemoryTransport(create_app()), base_url="http://llmirage") as client: ...

On a loop of virtual time (`llmirage_shared.virtual_time.run`) it takes no time either: requests reach the app in the order
in which they were sent, each before the next, so that a run is repeatable to the last bit. httpx's own ASGITransport returns
a reply only when it is complete.

With a host the app runs on a loop in another thread, and clients may be sync or async, on any thread or loop. Read timeouts
count on the app's clock then, so that a stall of a minute in virtual time meets a timeout of ten seconds without a wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol
from urllib.parse import unquote

import anyio

from llmirage_client.targets.fault import Fault, FaultKind, as_exception
from llmirage_client.targets.target import run_clock
from llmirage_client.targets.timed_stream import TimedStream
from llmirage_shared.virtual_time import VirtualTimeLoop, wake

_GRACE_S = 1.0

Message = MutableMapping[str, Any]
Headers = Sequence[tuple[bytes, bytes]]
App = Callable[[Any, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]


class AppCall(ABC):
    """A request in an ASGI app; subclasses take the answer. `run` it on the app's loop.

    `send` never suspends, which spares the app a task switch for every piece.

    Attributes:
        left: The caller wants no more.
    """

    may_be_stepped = True

    def __init__(self, scope: Message, body: bytes) -> None:
        self.left = False
        self._scope = scope
        self._body: bytes | None = body
        self._gone: asyncio.Future[None] | None = None

    async def run(self, app: App) -> None:
        """Let the app answer."""
        self._gone = asyncio.get_running_loop().create_future()
        if self.left:
            self._gone.set_result(None)
        fault, error = None, None
        try:
            await app(self._scope, self.receive, self.send)
        except asyncio.CancelledError:
            fault = Fault(FaultKind.CLOSED, "the server closed")
            raise
        except ConnectionError as broken:
            kind = FaultKind.CLOSED if isinstance(broken, ConnectionAbortedError) else FaultKind.RESET
            fault = Fault(kind, str(broken))
        except Exception as failed:
            fault, error = Fault(FaultKind.RESET, f"the app failed: {failed!r}"), failed
        finally:
            self.returned(fault, error)

    async def receive(self) -> Message:
        """Return the request with its body, then wait until the caller has left: ASGI's `receive`."""
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        assert self._gone is not None
        self.waits()
        await asyncio.shield(self._gone)
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """Take a message of the app: ASGI's `send`."""
        if message["type"] == "http.response.body":
            if data := message.get("body"):
                self.received(data)
            if not message.get("more_body"):
                self.complete()
        elif message["type"] == "http.response.start":
            self.started(message["status"], list(message.get("headers", ())))

    @abstractmethod
    def started(self, status: int, headers: Headers) -> None:
        """Take the head of the response."""

    @abstractmethod
    def received(self, data: bytes) -> None:
        """Take a piece of the body."""

    @abstractmethod
    def complete(self) -> None:
        """Take the end of the body."""

    @abstractmethod
    def returned(self, fault: Fault | None, error: Exception | None) -> None:
        """Take the end of the app. fault: the reason for which the response broke off. error: an exception of the app."""

    @abstractmethod
    def waits(self) -> None:
        """Note that the app has read the request."""

    def leave(self) -> None:
        """Tell the app that the caller wants no more; on the app's loop."""
        self.left = True
        if self._gone is not None:
            wake(self._gone)


# --- an app on the caller's own loop ------------------------------------------------------------------------------------


class _OwnLoopCall(AppCall, TimedStream):
    """A request of a task to an app on the same loop, and the body of its response."""

    def __init__(self, scope: Message, body: bytes, read_s: float | None, entered: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        AppCall.__init__(self, scope, body)
        TimedStream.__init__(self, loop)
        self.read_s = read_s
        self.head: asyncio.Future[int] = loop.create_future()  # its status
        self._now = run_clock(loop)
        self._entered = entered

    def waits(self) -> None:
        self._entered()

    def started(self, status: int, headers: Headers) -> None:
        if not self.head.done():
            self.headers = list(headers)
            self.headers_s = self._now()
            self.head.set_result(status)
            self.waits()

    def received(self, data: bytes) -> None:
        self.segments.append((self._now(), data))
        if not self._for_end:
            self._wake()

    def complete(self) -> None:
        self._end(None)

    def returned(self, fault: Fault | None, error: Exception | None) -> None:
        if not self.head.done():
            if fault is not None:
                self.head.set_exception(error or fault)
            elif not self.left:
                self.head.set_exception(RuntimeError("the app returned without a response"))
        self.waits()
        self._end(fault)

    async def aclose(self) -> None:
        self.leave()

    def _end(self, fault: Fault | None) -> None:
        if self.end_s is None:
            self.end_s = self._now()
            self.fault = fault
            self._wake()


@cache
def _own_loop_class(library: Any) -> type[_OwnLoopCall]:
    return type("OwnLoopCall", (_OwnLoopCall, library.AsyncByteStream), {"library": library})


# --- an app on the loop of a host ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Head:
    status: int
    headers: Headers


class _Complete:
    """The end of a body."""


_Item = _Head | bytes | Fault | _Complete


class Host(Protocol):
    """A loop in another thread on which an app runs."""

    loop: asyncio.AbstractEventLoop

    def begin(self, call: BridgedCall) -> None:
        """Run a call. Raises ConnectionError when the host is closed."""
        ...

    def call_soon(self, callback: Callable[..., object], *values: Any) -> None:
        """Call back on the loop. Raises ConnectionError when the host is closed."""
        ...


class BridgedCall(AppCall):
    """A request from any thread or loop to an app on the loop of a host.

    Attributes:
        reader_waits: The caller has taken everything and waits for more.
    """

    def __init__(self, host: Host, scope: Message, body: bytes, read_s: float | None) -> None:
        super().__init__(scope, body)
        self.reader_waits = True
        self._host = host
        self._read_s = read_s
        self._items: deque[_Item] = deque()
        self._lock = threading.Lock()
        self._wake: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._over = False

    async def run(self, app: App) -> None:
        self._arm()
        await super().run(app)

    def waits(self) -> None:
        """Do nothing: its caller is on a loop of its own."""

    def started(self, status: int, headers: Headers) -> None:
        self._put(_Head(status, headers))

    def received(self, data: bytes) -> None:
        self._put(bytes(data))

    def complete(self) -> None:
        self._put(_Complete())

    def returned(self, fault: Fault | None, error: Exception | None) -> None:
        self._put(fault or Fault(FaultKind.CLOSED, "the app returned before the response was complete"))
        self._disarm()

    def _put(self, item: _Item) -> None:
        if self._over:
            return
        self._over = isinstance(item, Fault | _Complete)
        self._disarm()
        with self._lock:
            self._items.append(item)
            wake_up, self._wake, self.reader_waits = self._wake, None, False
        if wake_up is not None:
            wake_up()

    def _note_waiting(self) -> None:
        with self._lock:
            self.reader_waits = self._wake is not None
        if self.reader_waits:
            self._arm()

    def _arm(self) -> None:
        if self._read_s is not None and self._timer is None and not self._over:
            self._timer = self._host.loop.call_later(self._read_s, self._time_out)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        self._put(Fault(FaultKind.TIMEOUT, f"nothing came for {self._read_s:g} s"))
        self.leave()

    # --- for the caller, in its own thread or task ------------------------------------------------------------------

    def take(self, wake_up: Callable[[], None]) -> _Item | None:
        """Return what has come, pieces of the body as one.

        None: nothing has; `wake_up` is called once, from another thread, when something has.
        """
        with self._lock:
            item = self._items.popleft() if self._items else None
            if item is None:
                self._wake = wake_up
            if isinstance(item, bytes):
                pieces = [item]
                while self._items and isinstance(piece := self._items[0], bytes):
                    pieces.append(piece)
                    self._items.popleft()
                item = b"".join(pieces)
        if item is None:
            with contextlib.suppress(ConnectionError):
                self._host.call_soon(self._note_waiting)
        return item

    def wait(self) -> _Item:
        """Block until something has come, and return it."""
        event = threading.Event()
        while (item := self.take(event.set)) is None:
            event.wait()
            event.clear()
        return item

    async def wait_async(self) -> _Item:
        """Wait until something has come, on asyncio or trio, and return it."""
        while True:
            event = anyio.Event()
            if (item := self.take(_from_thread(event.set))) is not None:
                return item
            await event.wait()

    def abandon(self) -> None:
        """Take no more."""
        if not self._over:
            self.left = True
            with contextlib.suppress(ConnectionError):
                self._host.call_soon(self.leave)


def _from_thread(callback: Callable[[], object]) -> Callable[[], None]:
    """Return a function for other threads that calls back on the running loop, asyncio's or trio's."""
    try:
        soon: Callable[..., object] = asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:
        soon = sys.modules["trio"].lowlevel.current_trio_token().run_sync_soon

    def call() -> None:
        with contextlib.suppress(RuntimeError):  # the loop of a caller that has left may be closed
            soon(callback)

    return call


class _BridgedBody:
    """The body of a response, sync and async. library: httpx or httpx2."""

    library: Any

    def __init__(self, call: BridgedCall) -> None:
        self._call = call

    def __iter__(self) -> Iterator[bytes]:
        while isinstance(item := self._call.wait(), bytes):
            yield item
        self._end(item)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while isinstance(item := await self._call.wait_async(), bytes):
            yield item
        self._end(item)

    def _end(self, item: _Item) -> None:
        if isinstance(item, Fault):
            raise as_exception(item, self.library)

    def close(self) -> None:
        self._call.abandon()

    async def aclose(self) -> None:
        self._call.abandon()


@cache
def _bridged_body_class(library: Any) -> type[_BridgedBody]:
    return type("BridgedBody", (_BridgedBody, library.SyncByteStream, library.AsyncByteStream), {"library": library})


# --- the transport ------------------------------------------------------------------------------------------------------


class MemoryTransport:
    """The transport for clients of httpx and httpx2: it answers in the classes of the library that asks."""

    def __init__(self, app: Any, host: Callable[[], Host] | None = None) -> None:
        """Send no lifespan events to the app.

        Args:
            app: Any ASGI application.
            host: Returns the host on which the app runs; it outlives its clients. On a loop of virtual time, and without a
                host, the app runs on the caller's own loop, and clients are async.
        """
        self._app: App = app
        self._host = host
        self._loop: asyncio.AbstractEventLoop | None = None  # the last on which the app ran beside its caller
        self._calls: dict[asyncio.Task[None], _OwnLoopCall] = {}
        self._last: asyncio.Future[None] | None = None  # when the request before has been taken in

    def handle_request(self, request: Any) -> Any:
        """Answer a request of a sync client."""
        library, call = self._hosted(request, request.read())
        try:
            head = call.wait()
        except BaseException:
            call.abandon()
            raise
        return _bridged_response(library, call, head)

    async def handle_async_request(self, request: Any) -> Any:
        """Answer a request of an async client."""
        if self._host is None or _on_virtual_time():
            return await self._on_own_loop(request)
        library, call = self._hosted(request, await request.aread())
        try:
            head = await call.wait_async()
        except BaseException:
            call.abandon()
            raise
        return _bridged_response(library, call, head)

    def _hosted(self, request: Any, body: bytes) -> tuple[Any, BridgedCall]:
        library = _library_of(request)
        if self._host is None:
            raise RuntimeError("a client without an event loop needs a host on which the app runs")
        try:
            host = self._host()
            call = BridgedCall(host, _http_scope(request), body, _read_s(request))
            host.begin(call)
        except ConnectionError as error:
            raise library.ConnectError(str(error), request=request) from None
        return library, call

    async def _on_own_loop(self, request: Any) -> Any:
        body, library = await request.aread(), _library_of(request)
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._calls, self._last = loop, {}, None
        entered = loop.create_future()
        if isinstance(loop, VirtualTimeLoop):
            before, self._last = self._last, entered
            if before is not None and not before.done():
                await asyncio.shield(before)
        call = _own_loop_class(library)(_http_scope(request), body, _read_s(request), lambda: wake(entered))
        task, calls = loop.create_task(call.run(self._app)), self._calls
        calls[task] = call
        task.add_done_callback(lambda done: calls.pop(done, None))
        if on_sent := request.extensions.get("on_sent"):
            on_sent()
        try:
            status = await asyncio.shield(call.head)
        except asyncio.CancelledError:
            call.leave()
            wake(entered)
            raise
        except Fault as fault:
            raise as_exception(fault, library) from fault
        return _response(library, status, call.headers, call)

    def close(self) -> None:
        """Do nothing: the host outlives its clients."""

    async def aclose(self) -> None:
        """Leave every request on the own loop; what the app has not ended within a second is cancelled."""
        if self._host is not None or not self._calls:
            return
        for call in self._calls.values():
            call.leave()
        _, slow = await asyncio.wait(list(self._calls), timeout=_GRACE_S)
        for task in slow:
            task.cancel()
        await asyncio.gather(*slow, return_exceptions=True)

    def __enter__(self) -> MemoryTransport:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> MemoryTransport:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _on_virtual_time() -> bool:
    try:
        return isinstance(asyncio.get_running_loop(), VirtualTimeLoop)
    except RuntimeError:  # trio's
        return False


def _bridged_response(library: Any, call: BridgedCall, head: _Item) -> Any:
    if isinstance(head, Fault):
        raise as_exception(head, library)
    assert isinstance(head, _Head)
    return _response(library, head.status, head.headers, _bridged_body_class(library)(call))


def _response(library: Any, status: int, headers: Headers, stream: Any) -> Any:
    return library.Response(status, headers=headers, stream=stream, extensions={"http_version": b"HTTP/1.1"})


def _library_of(request: Any) -> Any:
    """Return the module, httpx or httpx2, of a request: their classes share no base."""
    names = (kind.__module__.partition(".")[0] for kind in type(request).__mro__)
    return sys.modules[next(name for name in names if name in ("httpx", "httpx2"))]


def _read_s(request: Any) -> float | None:
    limit_s: float | None = (request.extensions.get("timeout") or {}).get("read")
    return limit_s


def _http_scope(request: Any) -> Message:
    """Return the ASGI scope of a request of httpx or httpx2."""
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
