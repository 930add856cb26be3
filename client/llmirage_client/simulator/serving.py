"""A server within this process: its app, the thread on which it runs once that is needed, and the calls of its owner.

Several servers live side by side. Nothing of the process is changed: no signal handlers, no limits, no logging.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from llmirage_client.simulator.memory import BridgedCall, MemoryTransport
from llmirage_client.targets.fault import Fault, FaultKind
from llmirage_server.app import LlmirageApp, create_app
from llmirage_server.config import ClusterConfig, ConfigError
from llmirage_server.config.file import make_config
from llmirage_server.telemetry.journal import JournalEntry
from llmirage_shared.settings import at_call
from llmirage_shared.virtual_time import SkippingLoop, VirtualTimeLoop, precise_clock

__all__ = ["ClusterConfig", "Serving"]

if TYPE_CHECKING:
    from llmirage_server.faults.rule import FaultRule
    from llmirage_server.telemetry.verdict import RuleVerdict

T = TypeVar("T")

_GRACE_S = 1.0  # for requests under way when the server closes
_TURNS = 50  # of the loop
_numbers = itertools.count(1)

# uvicorn, only for a port.
bind = at_call("llmirage_server.commands.http_server:bind")
base_url = at_call("llmirage_server.commands.http_server:base_url")
open_port = at_call("llmirage_server.commands.ports:OpenPort")


# A server is ready without what is asked of it later.
judge: Callable[..., list[RuleVerdict]] = at_call("llmirage_server.telemetry.verdict:judge")
node_of = at_call("llmirage_shared.yaml_lines:node_of")
read_rules: Callable[..., list[FaultRule]] = at_call("llmirage_server.faults.rule:read_rules")

# In a library, warnings go where its user sends them, and nowhere else.
_log = logging.getLogger("llmirage")
_log.addHandler(logging.NullHandler())


class HostedApp:
    """url: of the port; None without one."""

    def __init__(self, app: LlmirageApp, *, skips: bool, host: str = "127.0.0.1", port: int | None = None) -> None:
        """Start the thread. skips: its clock skips waits of clients. port: None for none, 0 for a free one.

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
        """Call back on the app's loop. Raises ConnectionError when the host is closed."""
        try:
            self.loop.call_soon_threadsafe(callback, *values)
        except RuntimeError:
            raise ConnectionError("the server is closed") from None

    def do(self, work: Callable[[], T]) -> T:
        """Do some work on the app's thread, and return its result."""
        done: concurrent.futures.Future[T] = concurrent.futures.Future()

        def act() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        self.call_soon(act)
        return done.result()

    def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the app's loop, and return its result."""
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
                try:
                    loop.run_until_complete(self._serve(ready))
                except Exception:
                    if not ready.done():
                        raise
                    _log.exception("the server failed")
                loop.run_until_complete(asyncio.sleep(0))  # begin calls that came meanwhile, so that they end too
                loop.run_until_complete(_cancelled(asyncio.all_tasks(loop)))
                loop.run_until_complete(loop.shutdown_asyncgens())
                loop.run_until_complete(loop.shutdown_default_executor())
        except BaseException as error:
            ready.set_exception(error)
        finally:
            if self._bound is not None:
                self._bound.close()

    async def _serve(self, ready: concurrent.futures.Future[None]) -> None:
        app, text = self._app, self._app.service.text
        self._stopping = asyncio.Event()
        if isinstance(self.loop, SkippingLoop):
            hear = self.loop.hear
            app.journal.observers.append(lambda _: hear())
        if self._bound is not None:
            self._port = open_port(app, self._bound)
            await self._port.open()
        app.resume()
        if app.config.tokenizer is not None:
            text.load()  # what is wrong with it is an error of the start
        ready.set_result(None)
        text.load()
        await self._stopping.wait()
        app.close()
        if self._port is not None:
            await self._port.close(_GRACE_S)
        if self._calls:
            await asyncio.wait(list(self._calls), timeout=_GRACE_S)
        await app.closed()

    def _stop(self) -> None:
        if self._stopping is not None:
            self._stopping.set()

    def _begin(self, call: BridgedCall) -> None:
        if isinstance(self.loop, SkippingLoop):
            self.loop.hear()
        task = self.loop.create_task(call.run(self._app))
        self._calls[task] = call
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        call = self._calls.pop(task)
        if task.cancelled():  # perhaps before its first step
            call.returned(Fault(FaultKind.CLOSED, "the server closed"), None)

    def _awaited(self) -> bool:
        """Tell whether clients wait for the cluster, and none is still busy with a request or with what it has got."""
        if self._app.upstream is not None or not all(call.reader_waits for call in self._calls.values()):
            return False
        if self._port is not None and self._port.receiving:
            return False
        return bool(self._calls or self._app.service.responses.under_way or (self._port is not None and self._port.busy))


async def _cancelled(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Return when they have ended: what still answers, and what libraries keep running on a loop."""
    others = [task for task in tasks if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class Serving:
    """skips: whether its clock skips what clients would only wait for."""

    def __init__(
        self, cluster_file: str | None, settings: Mapping[str, Any], *, script: Mapping[str, Any] | None, skips: bool
    ) -> None:
        """Make the app. Raises ConfigError."""
        self.app = create_app(make_config(cluster_file, settings), script=script)
        self.app.journal.keeps_bodies = True
        self.transport = MemoryTransport(self.app, self._hosted)
        self._skips = skips
        self._host: HostedApp | None = None
        self._starting = threading.Lock()
        self._closed = False

    @property
    def url(self) -> str | None:
        return None if self._host is None else self._host.url

    @property
    def models(self) -> tuple[str, ...]:
        return self.app.model_names

    @property
    def api_key(self) -> str | None:
        return next(iter(self.app.config.api_key), None)

    def open(self, host: str, port: int) -> None:
        """Listen on a port. Raises OSError for one in use, RuntimeError if the app runs already without one."""
        if self._host is not None:
            raise RuntimeError("it was asked before: start it before its first request, for instance in a `with` statement")
        self._host = HostedApp(self.app, skips=self._skips, host=host, port=port)

    def close(self) -> None:
        with self._starting:
            closed, self._closed = self._closed, True
        if closed:
            return
        if self._host is not None:
            self._host.close()
        else:
            self.app.close()

    def entries(self) -> list[JournalEntry]:
        """Return the journal's entries; those of requests whose clients have left are complete."""
        if self._host is not None and not self._host.closed:
            self._host.wait_for(self._host.settle())
        return list(self.app.journal.entries)

    def judged(self, unused_s: float) -> list[RuleVerdict]:
        return judge(self.entries(), self._clock(), unused_s)

    def metrics(self) -> str:
        return self._do(self._exposition)

    def _exposition(self) -> str:
        self.app.make_routes()  # of which batches count
        return self.app.exposition()

    def now_s(self) -> float:
        return self._do(lambda: self.app.driver.now_s)

    def add_script(self, rules: Mapping[str, Any], replace: bool) -> None:
        """Put rules before all others, or in their place. Raises ConfigError."""

        def add() -> None:
            service = self.app.service
            scripts = service.scripts or self.app.new_scripts()
            (scripts.replace if replace else scripts.add)(rules)
            service.scripts = scripts

        self._do(add)

    def add_faults(self, given: Sequence[Any], place: str) -> list[FaultRule]:
        """place: what messages call the list. Raises ConfigError."""
        problems: list[str] = []
        node = node_of(list(given))
        rules = read_rules(
            node, place, lambda _, where, problem: problems.append(f"{where}: {problem}"), place, imports=True
        )
        if problems:
            raise ConfigError(problems)
        self._do(lambda: self.app.faults.add(rules))
        return rules

    def remove_fault(self, number: int) -> bool:
        return self._do(lambda: self.app.faults.remove(number))

    def advance(self, seconds: float) -> None:
        """Let time pass for the app. Raises ConfigError."""
        if not self._skips:
            raise ConfigError(["advance needs virtual time: Server(virtual_time=True)"])
        if _running_virtual_loop() is not None:
            raise ConfigError(["advance: on a loop of virtual time `await asyncio.sleep(seconds)` lets time pass"])
        host = self._hosted()
        assert isinstance(host.loop, SkippingLoop)
        host.do(self.app.driver.start)
        host.wait_for(host.loop.advance(seconds))

    def reset(self) -> None:
        def forget() -> None:
            self.app.journal.clear()
            self.app.faults.clear()
            self.app.service.scripts = None
            self.app.driver.clear_cache()

        self._do(forget)

    def _hosted(self) -> HostedApp:
        """Return the host of the app: a thread, from the first request on."""
        with self._starting:
            if self._closed:
                raise ConnectionError("the server is closed")
            if self._host is None:
                self._host = HostedApp(self.app, skips=self._skips)
        return self._host

    def _do(self, work: Callable[[], T]) -> T:
        """On the app's thread, if it has one."""
        if self._host is None or self._host.closed:
            return work()
        return self._host.do(work)

    def _clock(self) -> float:
        if self._host is not None:
            return self._host.now_s()
        return precise_clock()() if _running_virtual_loop() is not None else 0.0


def _running_virtual_loop() -> VirtualTimeLoop | None:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    return loop if isinstance(loop, VirtualTimeLoop) else None
