"""Requests of httpx and httpx2, sync or async, from any thread or loop, to an app in a thread of this process.

`BridgeTransport` serves both libraries: it answers in the classes of the library that asks. Read timeouts count on the
server's clock, so that a stall of a minute in virtual time meets a timeout of ten seconds without anybody waiting for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import anyio

from llmirage_client.simulator.memory import MemoryTransport, http_scope, library_of
from llmirage_shared.virtual_time import VirtualTimeLoop


@dataclass(frozen=True, slots=True)
class _Head:
    status: int
    headers: list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class _Broken:
    """error: the name of the exception that httpx and httpx2 have for it."""

    error: str
    message: str


class _Complete:
    """The body is complete."""


_Item = _Head | bytes | _Broken | _Complete
_Message = MutableMapping[str, Any]


class Host(Protocol):
    """Where the app runs."""

    loop: asyncio.AbstractEventLoop

    def begin(self, call: BridgedCall) -> None: ...

    def call_soon(self, callback: Callable[..., object], *values: Any) -> None: ...


class BridgedCall:
    """One request: `run` answers it on the app's loop, and the caller takes what comes, in its own thread or task.

    reader_waits: whether the caller has taken everything and waits for more. left: whether it wants no more. Its `send`
    never suspends, which spares the app a task switch for every piece.
    """

    may_be_stepped = True

    def __init__(self, scope: _Message, body: bytes, read_s: float | None) -> None:
        self.reader_waits = True
        self.left = False
        self._scope = scope
        self._body: bytes | None = body
        self._read_s = read_s
        self._items: deque[_Item] = deque()
        self._lock = threading.Lock()
        self._wake: Callable[[], None] | None = None
        self._host: Host | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._over = False
        self._gone: asyncio.Future[None] | None = None

    # --- on the app's loop ------------------------------------------------------------------------------------------

    async def run(self, app: Any, host: Host) -> None:
        self._host, self._gone = host, host.loop.create_future()
        self._arm()
        try:
            await app(self._scope, self._receive, self._send)
            if not self._over:
                self._put(_Broken("RemoteProtocolError", "the app returned before the response was complete"))
        except asyncio.CancelledError:
            self._put(_Broken("RemoteProtocolError", "the server closed"))
            raise
        except ConnectionAbortedError as error:
            self._put(_Broken("RemoteProtocolError", str(error)))
        except ConnectionError as error:
            self._put(_Broken("ReadError", str(error)))
        except Exception as error:
            self._put(_Broken("ReadError", f"the app failed: {error!r}"))
        finally:
            self._disarm()

    async def _receive(self) -> _Message:
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        assert self._gone is not None
        await asyncio.shield(self._gone)
        return {"type": "http.disconnect"}

    async def _send(self, message: _Message) -> None:
        if message["type"] == "http.response.start":
            self._put(_Head(message["status"], list(message.get("headers", ()))))
        elif message["type"] == "http.response.body":
            if data := message.get("body"):
                self._put(bytes(data))
            if not message.get("more_body"):
                self._put(_Complete())

    def _put(self, item: _Item) -> None:
        if self._over:
            return
        self._over = isinstance(item, _Broken | _Complete)
        self._disarm()
        with self._lock:
            self._items.append(item)
            wake, self._wake, self.reader_waits = self._wake, None, False
        if wake is not None:
            wake()

    def _note_waiting(self) -> None:
        with self._lock:
            self.reader_waits = self._wake is not None
        if self.reader_waits:
            self._arm()

    def _arm(self) -> None:
        if self._read_s is not None and self._timer is None and not self._over and self._host is not None:
            self._timer = self._host.loop.call_later(self._read_s, self._time_out)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        self._put(_Broken("ReadTimeout", f"nothing came for {self._read_s:g} s"))
        self._leave()

    def _leave(self) -> None:
        self.left = True
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    # --- for the caller ---------------------------------------------------------------------------------------------

    def take(self, wake: Callable[[], None]) -> _Item | None:
        """What has come, pieces of the body as one. None: `wake` will be called once, from another thread, when there is."""
        with self._lock:
            item = self._items.popleft() if self._items else None
            if item is None:
                self._wake = wake
            if isinstance(item, bytes):
                pieces = [item]
                while self._items and isinstance(piece := self._items[0], bytes):
                    pieces.append(piece)
                    self._items.popleft()
                item = b"".join(pieces)
        if item is None and self._host is not None:
            with contextlib.suppress(ConnectionError):
                self._host.call_soon(self._note_waiting)
        return item

    def wait(self) -> _Item:
        event = threading.Event()
        while (item := self.take(event.set)) is None:
            event.wait()
            event.clear()
        return item

    async def wait_async(self) -> _Item:
        while True:
            event = anyio.Event()
            if (item := self.take(_from_thread(event.set))) is not None:
                return item
            await event.wait()

    def leave(self) -> None:
        """The caller wants no more."""
        if self._host is not None and not self._over:
            self.left = True
            with contextlib.suppress(ConnectionError):
                self._host.call_soon(self._leave)


def _from_thread(callback: Callable[[], object]) -> Callable[[], None]:
    """What calls back on the running loop, asyncio's or trio's, when it is called in another thread."""
    try:
        soon: Callable[..., object] = asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:
        soon = sys.modules["trio"].lowlevel.current_trio_token().run_sync_soon

    def call() -> None:
        with contextlib.suppress(RuntimeError):  # the loop of a caller that has left may be closed
            soon(callback)

    return call


class _BridgedBody:
    """A response's body, sync and async. library: httpx or httpx2."""

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
        if isinstance(item, _Broken):
            raise getattr(self.library, item.error)(item.message)

    def close(self) -> None:
        self._call.leave()

    async def aclose(self) -> None:
        self._call.leave()


@cache
def _body_class(library: Any) -> type[_BridgedBody]:
    bases = (_BridgedBody, library.SyncByteStream, library.AsyncByteStream)
    return type("BridgedBody", bases, {"library": library})


class BridgeTransport:
    """The transport for Client and AsyncClient of httpx and httpx2. host: gives where the app runs when a request comes."""

    def __init__(self, app: Any, host: Callable[[], Host]) -> None:
        self._app = app
        self._host = host
        self._memory: tuple[asyncio.AbstractEventLoop, MemoryTransport] | None = None  # of the last loop of virtual time

    def handle_request(self, request: Any) -> Any:
        library, call = self._begin(request, request.read())
        try:
            head = call.wait()
        except BaseException:
            call.leave()
            raise
        return _response(library, call, head)

    async def handle_async_request(self, request: Any) -> Any:
        with contextlib.suppress(RuntimeError):
            loop = asyncio.get_running_loop()
            if isinstance(loop, VirtualTimeLoop):
                return await self._of_loop(loop).handle_async_request(request)
        library, call = self._begin(request, await request.aread())
        try:
            head = await call.wait_async()
        except BaseException:
            call.leave()
            raise
        return _response(library, call, head)

    def _begin(self, request: Any, body: bytes) -> tuple[Any, BridgedCall]:
        library = library_of(request)
        call = BridgedCall(http_scope(request), body, (request.extensions.get("timeout") or {}).get("read"))
        try:
            self._host().begin(call)
        except ConnectionError as error:
            raise library.ConnectError(str(error), request=request) from None
        return library, call

    def _of_loop(self, loop: asyncio.AbstractEventLoop) -> MemoryTransport:
        """On a loop of virtual time the app runs on the caller's own loop."""
        if self._memory is None or self._memory[0] is not loop:
            self._memory = loop, MemoryTransport(self._app)
        return self._memory[1]

    def close(self) -> None:
        """Nothing: the server outlives its clients."""

    async def aclose(self) -> None:
        """As `close`."""

    def __enter__(self) -> BridgeTransport:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> BridgeTransport:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _response(library: Any, call: BridgedCall, head: _Item) -> Any:
    if isinstance(head, _Broken):
        raise getattr(library, head.error)(head.message)
    assert isinstance(head, _Head)
    body = _body_class(library)(call)
    return library.Response(head.status, headers=head.headers, stream=body, extensions={"http_version": b"HTTP/1.1"})
