"""A server within this process: its app, the thread that it runs on once that is needed, and what its owner asks of it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from llmirage_client.simulator.bridge import BridgeTransport
from llmirage_client.simulator.hosted import HostedApp
from llmirage_server.app import create_app
from llmirage_server.config import ClusterConfig, ConfigError
from llmirage_server.config.file import make_config
from llmirage_server.service.service import new_scripts
from llmirage_server.telemetry.journal import JournalEntry
from llmirage_shared.settings import at_call
from llmirage_shared.virtual_time import SkippingLoop, VirtualTimeLoop, precise_clock

__all__ = ["ClusterConfig", "Serving"]

if TYPE_CHECKING:
    from llmirage_server.faults.rule import FaultRule
    from llmirage_server.telemetry.verdict import RuleVerdict

T = TypeVar("T")

# A server is ready without what is asked of it later.
exposition: Callable[..., str] = at_call("llmirage_server.engines.engine_info:exposition")
judge: Callable[..., list[RuleVerdict]] = at_call("llmirage_server.telemetry.verdict:judge")
node_of = at_call("llmirage_shared.yaml_lines:node_of")
read_rules: Callable[..., list[FaultRule]] = at_call("llmirage_server.faults.rule:read_rules")

# In a library, warnings go where its user sends them, and nowhere else.
logging.getLogger("llmirage").addHandler(logging.NullHandler())


class Serving:
    """skips: whether its clock skips what clients would only wait for."""

    def __init__(
        self, cluster_file: str | None, settings: Mapping[str, Any], *, script: Mapping[str, Any] | None, skips: bool
    ) -> None:
        """Raises ConfigError."""
        self.app = create_app(make_config(cluster_file, settings), script=script)
        self.app.service.journal.keeps_bodies = True
        self.transport = BridgeTransport(self.app, self._hosted)
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
        """Raises OSError for a port in use, RuntimeError if it runs already without one."""
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
            self.app.service.close()

    def entries(self) -> list[JournalEntry]:
        """Those of requests whose clients have left are complete."""
        if self._host is not None and not self._host.closed:
            self._host.wait_for(self._host.settle())
        return list(self.app.service.journal.entries)

    def judged(self, unused_s: float) -> list[RuleVerdict]:
        return judge(self.entries(), self._clock(), unused_s)

    def metrics(self) -> str:
        return self._do(self._exposition)

    def _exposition(self) -> str:
        self.app.make_routes()  # of which batches count
        return exposition(self.app.service)

    def now_s(self) -> float:
        return self._do(lambda: self.app.driver.now_s)

    def add_script(self, rules: Mapping[str, Any], replace: bool) -> None:
        """Raises ConfigError."""

        def add() -> None:
            service = self.app.service
            scripts = service.scripts or new_scripts(service)
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
        self._do(lambda: self.app.service.faults.add(rules))
        return rules

    def remove_fault(self, number: int) -> bool:
        return self._do(lambda: self.app.service.faults.remove(number))

    def advance(self, seconds: float) -> None:
        """Raises ConfigError."""
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
            service = self.app.service
            service.journal.clear()
            service.faults.clear()
            service.scripts = None
            service.driver.clear_cache()

        self._do(forget)

    def _hosted(self) -> HostedApp:
        """Where the app runs: in a thread, from the first request on."""
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
