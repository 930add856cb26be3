"""The server's app on an event loop in a thread of its own: in process, and on a port if one is asked for.

Several of them live side by side. Nothing of the process is changed: no signal handlers, no limits, no logging.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from llmirage_client.simulator.bridge import BridgedCall
from llmirage_shared.settings import at_call
from llmirage_shared.virtual_time import SkippingLoop

if TYPE_CHECKING:
    from llmirage_server.app import LlmirageApp

T = TypeVar("T")

_GRACE_S = 1.0  # for requests under way when the server closes
_TURNS = 50  # of the loop
_numbers = itertools.count(1)

# uvicorn, only for a port.
bind = at_call("llmirage_server.commands.http_server:bind")
base_url = at_call("llmirage_server.commands.http_server:base_url")
open_port = at_call("llmirage_server.commands.open_port:OpenPort")


class HostedApp:
    """url: of the port; None without one."""

    def __init__(self, app: LlmirageApp, *, skips: bool, host: str = "127.0.0.1", port: int | None = None) -> None:
        """skips: whether its clock skips what clients would only wait for. port: None for none, 0 for a free one.

        Raises OSError for a port that is in use.
        """
        self._app = app
        self._bound = None if port is None else bind(host, port)
        self.url: str | None = None if self._bound is None else base_url(self._bound)
        self._port: Any = None
        self._calls: dict[asyncio.Task[None], BridgedCall] = {}
        self._stopping: asyncio.Event | None = None
        self.closed = False
        self.loop: asyncio.AbstractEventLoop = SkippingLoop(self._awaited) if skips else asyncio.SelectorEventLoop()
        ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name=f"llmirage-{next(_numbers)}", daemon=True)
        self._thread.start()
        try:
            ready.result()
        except BaseException:
            self._thread.join()
            raise

    # --- for other threads ------------------------------------------------------------------------------------------

    def begin(self, call: BridgedCall) -> None:
        """Let the app answer. Raises ConnectionError when it is closed."""
        self.call_soon(self._begin, call)

    def call_soon(self, callback: Callable[..., object], *values: Any) -> None:
        """Raises ConnectionError when it is closed."""
        try:
            self.loop.call_soon_threadsafe(callback, *values)
        except RuntimeError:
            raise ConnectionError("the server is closed") from None

    def do(self, work: Callable[[], T]) -> T:
        """The result of some work on the app's thread."""
        done: concurrent.futures.Future[T] = concurrent.futures.Future()

        def act() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        self.call_soon(act)
        return done.result()

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine on the app's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    async def settle(self) -> None:
        """Let requests end whose clients have left."""
        for _ in range(_TURNS):
            if not any(call.left for call in self._calls.values()):
                return
            await asyncio.sleep(0)

    def now_s(self) -> float:
        """Seconds on the app's clock."""
        return self.loop.time()

    def close(self) -> None:
        """End what is under way, close the port, and wait until the thread has ended. A second call does nothing."""
        if not self.closed:
            self.closed = True
            with contextlib.suppress(ConnectionError):
                self.call_soon(self._stop)
            self._thread.join()

    # --- on the thread ----------------------------------------------------------------------------------------------

    def _run(self, ready: concurrent.futures.Future[None]) -> None:
        loop = self.loop
        try:
            with contextlib.closing(loop):
                loop.run_until_complete(self._serve(ready))
                loop.run_until_complete(_cancelled(asyncio.all_tasks(loop)))
                loop.run_until_complete(loop.shutdown_asyncgens())
                loop.run_until_complete(loop.shutdown_default_executor())
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)
        finally:
            if self._bound is not None:
                self._bound.close()

    async def _serve(self, ready: concurrent.futures.Future[None]) -> None:
        app, service = self._app, self._app.service
        self._stopping = asyncio.Event()
        if isinstance(self.loop, SkippingLoop):
            hear = self.loop.hear
            service.journal.observers.append(lambda _: hear())
        if self._bound is not None:
            self._port = open_port(app, self._bound)
            await self._port.open()
        app.resume()
        if app.config.tokenizer is not None:
            service.text.load()  # what is wrong with it is an error of the start
        ready.set_result(None)
        service.text.load()
        await self._stopping.wait()
        service.close()
        if self._port is not None:
            await self._port.close(_GRACE_S)
        if self._calls:
            await asyncio.wait(list(self._calls), timeout=_GRACE_S)
        if app.replay is not None:
            app.replay.close()
        if service.upstream is not None:
            await service.upstream.close()

    def _stop(self) -> None:
        if self._stopping is not None:
            self._stopping.set()

    def _begin(self, call: BridgedCall) -> None:
        if isinstance(self.loop, SkippingLoop):
            self.loop.hear()
        task = self.loop.create_task(call.run(self._app, self))
        self._calls[task] = call
        task.add_done_callback(lambda over: self._calls.pop(over, None))

    def _awaited(self) -> bool:
        """Whether clients wait for what the cluster will do, and none of them is still busy with what it has got."""
        service = self._app.service
        if service.upstream is not None or not all(call.reader_waits for call in self._calls.values()):
            return False
        return bool(self._calls or service.under_way or (self._port is not None and self._port.busy))


async def _cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Return when they have ended: what still answers, and what libraries keep running on a loop."""
    others = [task for task in tasks if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
