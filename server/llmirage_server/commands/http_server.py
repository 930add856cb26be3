"""`llmirage serve`: settings become the app, and the app a server on a port: uvicorn, started quietly and ended at once."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import logging
import math
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
import uvicorn
from starlette.types import ASGIApp

from llmirage_server.app import WEBSOCKETS, LlmirageApp, create_app
from llmirage_server.cluster.cluster import Cluster
from llmirage_server.cluster.kv.recorded_tree import BlockHasher
from llmirage_server.commands.banner import banner, farewell, machine_cost, pacing_json, served
from llmirage_server.commands.http_protocol import BoundedProtocol, ConnectionLimits, load_websockets
from llmirage_server.commands.ports import FleetPorts, TlsHandshake
from llmirage_server.commands.serve import ServeSettings
from llmirage_server.config import ClusterConfig, ConfigError
from llmirage_server.config.file import make_config
from llmirage_server.config.ineffective import effect_notes
from llmirage_server.telemetry.journal import access_line
from llmirage_shared.command_line import environment_note
from llmirage_shared.settings import at_call, instance_of, settings_of

if TYPE_CHECKING:
    from llmirage_server.telemetry.kv_events import KVEvents, Registrations

if sys.platform != "win32":
    import resource

logger = logging.getLogger("llmirage.access")

GRACE_S = 1.0  # for connections whose client does not read, after the others were ended properly
_POLL_S = 0.05
serve_with_workers: Callable[..., int] = at_call("llmirage_server.commands.serve_workers:serve_with_workers")  # few do
make_kv_events: Callable[..., KVEvents] = at_call("llmirage_server.telemetry.kv_events:KVEvents")  # of an extra
make_registrations: Callable[..., Registrations] = at_call("llmirage_server.telemetry.kv_events:Registrations")
_MANY_FILES = 65_536
_MOST_PORT = 65_535
_OTHER_FILES = 64  # files that are no connections


class PortInUseError(OSError):
    """The address cannot be bound; the message says why."""


def bind(host: str, port: int, shared: bool = False) -> socket.socket:
    """Return a bound socket. port 0: any free one. shared: several may have the port. Raises PortInUseError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise PortInUseError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    return bound


def base_url(bound: socket.socket, scheme: str = "http") -> str:
    """Return the URL that a client on this machine would use."""
    host, port = bound.getsockname()[:2]
    if host in ("0.0.0.0", "::", "127.0.0.1", "::1"):
        host = "localhost" if host != "::1" else "[::1]"
    elif ":" in host:
        host = f"[{host}]"
    return f"{scheme}://{host}:{port}"


def connection_limits(most: int | None, **more: Any) -> ConnectionLimits:
    """`most` connections, or as many as the process may have files: its limit is raised to what the system allows.

    more: other limits.
    """
    files = _allowed_files()
    room = max(1, files - _OTHER_FILES)
    if most is not None and most > room:
        logging.getLogger("llmirage").warning(
            "At most %d connections, not %d: the process may open %d files (ulimit -Hn).", room, most, files
        )
    return ConnectionLimits(room if most is None else min(most, room), **more)


def _allowed_files() -> int:
    """How many files and sockets this process may open, after raising the soft limit to the hard one."""
    if sys.platform == "win32":  # where the limit is not one of the process
        return _MANY_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, _MANY_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _MANY_FILES if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return int(soft)
    return int(wanted)


class LiveServer(uvicorn.Server):
    """A uvicorn server that ends open streams by itself and takes SIGINT and SIGTERM for a normal end."""

    def __init__(
        self,
        app: ASGIApp,
        close: Callable[[], None],
        on_start: Callable[[], None] = lambda: None,
        *,
        limits: ConnectionLimits | None = None,
        busy: Callable[[], bool] = lambda: False,
        drain_s: float = 0.0,
        tls: tuple[str, str] | None = None,
        fleet: FleetPorts | None = None,
    ) -> None:
        """close: ends the responses that are under way. busy: refuses new ones, and says whether there are any still.

        drain_s: how long these may go on after a signal. tls: files of a certificate and its key. fleet: the last ports.
        """
        self.limits = limits or connection_limits(None)
        cert, key = tls or (None, None)
        super().__init__(
            uvicorn.Config(
                app,
                http=partial(BoundedProtocol, limits=self.limits),  # type: ignore[arg-type]  # it is called as a class is
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=self.limits.idle_s,
                timeout_graceful_shutdown=math.ceil(GRACE_S),
                ssl_certfile=cert,
                ssl_keyfile=key,
            )
        )
        self._fleet = fleet
        self._busy = busy
        self._drain_s = drain_s
        self._close = close
        self._on_start = on_start

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if (context := self.config.ssl) is not None:
            self.config.http_protocol_class = partial(  # type: ignore[assignment]  # it is called as a class is
                TlsHandshake, self.config.http_protocol_class, context, self.limits
            )
            self.config.ssl = None
        await super().startup(sockets)
        self._on_start()
        if self._fleet is not None:
            self._fleet.start(self)
        if self.limits.websockets:
            self._loading = asyncio.create_task(asyncio.to_thread(load_websockets))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._fleet is not None:
            self._fleet.stop()
        for server in self.servers:
            server.close()
        until_s = time.monotonic() + self._drain_s
        while self._drain_s and self._busy() and time.monotonic() < until_s and not self.force_exit:
            await asyncio.sleep(_POLL_S)
        self._close()
        # A client that does not read cannot be told; uvicorn would log its response as an error.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Without uvicorn's own bookkeeping, which would raise the signal again after the end.
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


class Listening(ServeSettings):
    """Settings of `serve` for its ports and their traffic, and what follows from them."""

    def fleet_sockets(self, engines: int) -> Iterator[socket.socket]:
        """Yield a bound socket for each engine: the ports after the routed one, or any free ones where that was any.

        Raises ConfigError without as many ports, PortInUseError.
        """
        if self.fleet_ranks and not self.fleet:
            raise ConfigError(["fleet_ranks needs --fleet"])
        if self.fleet and self.port + engines > _MOST_PORT:
            raise ConfigError([f"--fleet: {engines} ports after {self.port} go beyond {_MOST_PORT}"])
        for number in range(1, engines + 1 if self.fleet else 1):
            yield bind(self.host, self.port and self.port + number)

    def limits(self, app: LlmirageApp) -> ConnectionLimits:
        """Return the limits of the connections of one process."""
        config, most = app.config, self.max_connections
        return connection_limits(
            None if most is None else -(-most // self.http_workers),
            websockets=WEBSOCKETS if config.websocket_limit_s and find_spec("wsproto") is not None else (),
            message_bytes=config.max_body_mib << 20,
            unread=app.unread,
        )

    def kv_events(self, cluster: Cluster, address: str, adapters: Mapping[int, str]) -> KVEvents | None:
        """Return the publisher of KV events at an address, None without. adapters: names by number. Raises ConfigError."""
        if self.kv_events_port is None:
            if self.kv_events_replay_port is not None:
                raise ConfigError(["kv_events_replay_port needs kv_events_port"])
            return None
        hasher = BlockHasher(self.kv_events_hash, self.kv_events_seed, adapters)
        ports, topic, form = (self.kv_events_port, self.kv_events_replay_port), self.kv_events_topic, self.kv_events_format
        try:
            return make_kv_events(cluster, hasher, address, *ports, topic, form)
        except ImportError as error:
            raise ConfigError([f"kv_events_port needs ZeroMQ: pip install 'llmirage[zmq]' ({error})"]) from None
        except OSError as error:
            raise ConfigError([f"kv_events_port: {error}"]) from None

    def discoverable(self, engines: Iterable[tuple[str | None, socket.socket]]) -> list[tuple[str, str]]:
        """Return role and address of those that a router's discovery is told of, by role and socket. Raises ConfigError."""
        if self.discovery_address is None:
            return []
        found = [(role, self._reached_at(bound)) for role, bound in engines if role in ("prefill", "decode")]
        if not found:
            raise ConfigError(
                ["discovery_address needs --fleet with pools of role prefill and decode, or kv_transfer.mode of one engine"]
            )
        return found

    def registrations(self, found: list[tuple[str, str]], there: Callable[[], list[bool]]) -> Registrations | None:
        """Return what registers `discoverable` engines, None without. Raises ConfigError."""
        try:
            return make_registrations(self.discovery_address, found, there) if found else None
        except ImportError as error:
            raise ConfigError([f"discovery_address needs ZeroMQ: pip install 'llmirage[zmq]' ({error})"]) from None

    def _reached_at(self, bound: socket.socket) -> str:
        """Return the HOST:PORT at which the router reaches a socket: if it listens at all of them, by the route there."""
        host, port = bound.getsockname()[:2]
        router, _, router_port = (self.discovery_address or "").rpartition(":")
        if host in ("0.0.0.0", "::"):
            try:
                with socket.socket(bound.family, socket.SOCK_DGRAM) as route:
                    route.connect((router.strip("[]"), int(router_port)))  # nothing is sent
                    host = route.getsockname()[0]
            except OSError as error:
                raise ConfigError([f"discovery_address {self.discovery_address}: {error.strerror}"]) from None
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def tls(self) -> tuple[str, str] | None:
        """Return the files of the certificate and its key, None without. Raises ConfigError for unusable files."""
        if self.tls_cert is None and self.tls_key is None:
            return None
        if self.tls_cert is None or self.tls_key is None:
            raise ConfigError(["--tls-cert and --tls-key belong together"])
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.tls_cert, self.tls_key)
        except OSError as error:  # SSLError is one
            raise ConfigError([f"--tls-cert {self.tls_cert}, --tls-key {self.tls_key}: {error}"]) from None
        return self.tls_cert, self.tls_key


def serve(**flags: Any) -> None:
    """Run `llmirage serve`."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    listening = instance_of(Listening, {name: flags.pop(name) for name in settings_of(Listening)})
    try:
        config = make_config(listening.cluster_file, flags)
        for note in effect_notes([config]):
            click.echo(f"llmirage serve: {note}", err=True)
        sys.exit(_serve(config, listening, listening.tls()))
    except ConfigError as error:
        for problem in error.problems:
            click.echo(f"llmirage serve: {problem}", err=True)
        if note := environment_note():
            click.echo(f"llmirage serve: {note}", err=True)
        sys.exit(2)


def _serve(config: ClusterConfig, listening: Listening, tls: tuple[str, str] | None) -> int:
    try:
        with contextlib.ExitStack() as opened:
            bound = opened.enter_context(bind(listening.host, listening.port))  # first: a port in use is told at once
            if listening.http_workers > 1:
                return serve_with_workers(config, listening, tls, bound)
            app = create_app(config, page=not listening.no_ui)
            fleet = Fleet(app, listening, bound, tls is not None, opened)
            started, tuned = prepare(app, listening, fleet, opened), tune(app)

            def on_start() -> None:
                tuned()
                started()

            server = LiveServer(
                app,
                app.close,
                on_start,
                limits=listening.limits(app),
                busy=app.service.responses.busy,
                drain_s=listening.shutdown_timeout_s,
                tls=tls,
                fleet=FleetPorts(fleet.sockets, lambda: fleet.there(app)) if fleet.sockets else None,
            )
            server.run(sockets=[bound, *fleet.sockets])
    except PortInUseError as error:
        click.echo(f"llmirage serve: {error}", err=True)
        return 1
    say_farewell(app, listening)
    return 0


class Fleet:
    """The ports of a server for single engines, and the URLs of all its ports.

    sockets, urls: by port; none without a fleet. engines: the instance and the rank (-1: all) of each, by its number.
    discoverable: role and address of each for a router's discovery.
    """

    def __init__(
        self, app: LlmirageApp, listening: Listening, bound: socket.socket, tls: bool, opened: contextlib.ExitStack
    ) -> None:
        """Bind them. bound: of the routed port. Raises PortInUseError, ConfigError."""
        by_rank = listening.fleet_ranks
        engines = [one for one in app.driver.rank_snapshots() if by_rank or not one.rank]
        self.sockets = [opened.enter_context(each) for each in listening.fleet_sockets(len(engines))]
        self.engines = {
            each.getsockname()[1]: (one.index, one.rank if by_rank else -1)
            for each, one in zip(self.sockets, engines, strict=bool(self.sockets))
        }
        scheme = "https" if tls else "http"
        self.host: str = bound.getsockname()[0]
        self.url, self.urls = base_url(bound, scheme), [base_url(each, scheme) for each in self.sockets]
        app.ports = self.engines
        mode = app.config.kv_transfer.mode if app.config.kv_transfer is not None else None
        ports = zip([one.role for one in engines], self.sockets, strict=True) if self.sockets else [(mode, bound)]
        self.discoverable = listening.discoverable(ports)
        if listening.fleet_file is not None:
            try:
                Path(listening.fleet_file).write_text("".join([f"{each}\n" for each in self.urls]))
            except OSError as error:
                raise ConfigError([f"fleet_file: {listening.fleet_file}: {error.strerror}"]) from None

    def there(self, app: LlmirageApp) -> list[bool]:
        """Tell which ports have an instance that answers. app: has the cluster."""
        there = app.instances_there()
        return [there[index] for index, _ in self.engines.values()]


def prepare(app: LlmirageApp, listening: Listening, fleet: Fleet, opened: contextlib.ExitStack) -> Callable[[], None]:
    """Prepare the process that has the cluster; return what to call when the ports are open. Raises ConfigError."""
    opened.callback(app.close_files)  # Ctrl-C ends the server without the end of its life cycle
    events = listening.kv_events(app.driver.cluster, fleet.host, app.adapters.names)
    if events is not None:
        opened.callback(events.close)
        app.held["kv_events"] = events.bytes_kept
    registrations = listening.registrations(fleet.discoverable, lambda: fleet.there(app))
    if registrations is not None:
        opened.callback(registrations.close)
    if app.config.tokenizer is not None:
        app.service.text.load()  # a tokenizer that cannot be loaded is a configuration error, told before the start
    if listening.access_log:
        logger.setLevel(logging.INFO)
        app.journal.observers.append(lambda entry: logger.info("%s", access_line(entry)))
    cost = machine_cost()

    def started() -> None:
        if events is not None:
            events.start()
        if registrations is not None:
            registrations.start()
        if fleet.sockets:
            app.driver.start()  # engines that run before their first request
        shown = served(app, fleet.url, fleet.urls) if listening.json else banner(app, fleet.url, cost, fleet.urls)
        click.echo(json.dumps(shown) if listening.json else shown)

    return started


def say_farewell(app: LlmirageApp, listening: Listening) -> None:
    """Print how well times were kept."""
    summary = app.driver.pacing.summary()
    if listening.json:
        click.echo(json.dumps({"pacing": pacing_json(summary)}))
    elif text := farewell(summary):
        click.echo(text)


def tune(app: LlmirageApp) -> Callable[[], None]:
    """Prepare this process for an event loop that shall not wait; return what to call on the loop."""
    # Few passes over what is older, for which tokens would wait. Those over new objects are many and short: one object may
    # be the list of 30,000 texts of a reply, and a pass walks them all.
    gc.set_threshold(2_000, 50, 200)
    # The loop lets others have the interpreter at each write, and gets it back from a thread that plans after as long.
    sys.setswitchinterval(0.0005)
    has_glibc = keep_heap_small()

    def begin() -> None:
        app.loop_watch.start()
        if has_glibc:
            trim_heap()
        app.service.text.in_thread(gc.freeze)  # what is loaded by then stays: no pass need walk it

    return begin


_LARGE_BYTES = 1 << 20  # above a read from a connection (256 KiB), below the tables of what the server keeps
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # malloc.h of glibc
_TRIM_AFTER_S, _TRIM_EVERY_S = 0.1, 1.0


def keep_heap_small() -> bool:
    """Give each large block a mapping of its own, and all threads one heap for the others. Return whether it is done.

    glibc does the first, too, but once such a block was freed, the next ones of its size come from the heap. The table of a
    dict that gains and loses entries is made anew now and then; in the heap each leaves a hole that small blocks divide, the
    next table does not fit in, and the heap grows. A heap of each thread has holes of its own.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
        return bool(mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)) and bool(mallopt(_M_ARENA_MAX, 1))
    except (AttributeError, OSError):  # another C library
        return False


def trim_heap(trimmed_s: float = 0.0) -> None:
    """Return free pages of the heap to the system where much was computed, and so given back; look again in a second.

    It takes a millisecond, and one more for each 10 MB that are returned. trimmed_s: the CPU time at the last trim.
    """
    if (now_s := time.process_time()) - trimmed_s >= _TRIM_AFTER_S:
        trimmed_s = now_s
        ctypes.CDLL(None).malloc_trim(0)
    asyncio.get_running_loop().call_later(_TRIM_EVERY_S, trim_heap, trimmed_s)
