"""`llmirage serve --workers N`: the processes of one server, forked from this one: an engine, and N that answer HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType

import click

from llmirage_server.app import create_app
from llmirage_server.commands.http_server import Fleet, Listening, LiveServer, bind, prepare, say_farewell, tune
from llmirage_server.commands.ports import FleetPorts
from llmirage_server.config import ClusterConfig, ConfigError
from llmirage_server.service.text import TextLoader
from llmirage_server.workers.engine import Hub, SharedDriver
from llmirage_server.workers.remote import HttpWorker

_PR_SET_PDEATHSIG = 1  # prctl.h
_RESTART_S = 0.2
_END = getattr(signal, "SIGUSR1", signal.SIGTERM)  # of the engine process; Windows has none
# Settings of what one process must see: all requests in their order, or the user's own code.
_OF_ONE_PROCESS = (
    "script", "faults", "replay", "upstream", "rate_limit", "token_limit", "trace_out", "record_workload", "sent_stamps",
)  # fmt: skip


def serve_with_workers(
    config: ClusterConfig, listening: Listening, tls: tuple[str, str] | None, bound: socket.socket
) -> int:
    """Run the server; return its exit status. bound: has the port. Raises ConfigError, PortInUseError."""
    _check(config)
    with contextlib.ExitStack() as opened:
        engine = opened.enter_context(socket.socket(socket.AF_UNIX))
        engine.bind(b"\0llmirage-" + os.urandom(16).hex().encode())
        engine.listen(1024)
        worker = HttpWorker(config, engine.getsockname())
        fleet = Fleet(worker.app, listening, bound, tls is not None, opened)
        worker.load()  # before processes part: they share the memory
        port: int = bound.getsockname()[1]
        bound.close()
        shared = [opened.enter_context(bind(listening.host, port, True)) for _ in range(listening.http_workers)]
        processes = _Processes(listening.http_workers, [engine, *shared, *fleet.sockets])
        text = worker.app.service.text
        processes.engine = processes.fork(lambda: _run_engine(config, listening, fleet, engine, text), [engine], _END)

        def start(number: int) -> int:
            own = slice(number, None, listening.http_workers)
            sockets = [shared[number], *fleet.sockets[own]]
            return processes.fork(lambda: _run_worker(worker, listening, tls, sockets, own), sockets)

        return processes.supervise(start)


def _check(config: ClusterConfig) -> None:
    if sys.platform != "linux":
        raise ConfigError(["--workers: several processes need Linux; serve without it"])
    if config.speed == float("inf"):
        raise ConfigError(["--workers: at --speed max one process makes the cluster wait for its clients; serve without it"])
    named = [name for name in _OF_ONE_PROCESS if getattr(config, name)] + ["replies"] * (":" in config.replies)
    if named:
        raise ConfigError([f"--workers: {name} needs one process for all requests; serve without it" for name in named])


class _Processes:
    """The processes of a server, seen from their parent, which does nothing else. engine: the process with the cluster."""

    engine: int

    def __init__(self, workers: int, sockets: Sequence[socket.socket]) -> None:
        """sockets: all; a process closes those that are not its own."""
        self._sockets = sockets
        self._workers = dict.fromkeys(range(workers), 0)
        self._stopping = False

    def fork(self, run: Callable[[], int], own: Sequence[socket.socket], end: int = signal.SIGTERM) -> int:
        """Run a function in a process of its own; return the number of that. end: the signal at which it ends."""
        sys.stdout.flush()
        sys.stderr.flush()
        parent = os.getpid()
        if pid := os.fork():
            return pid
        status = 1
        try:
            for sig in (signal.SIGINT, signal.SIGTERM):
                signal.signal(sig, signal.SIG_DFL)
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, end)
            if os.getppid() == parent:
                for each in self._sockets:
                    if each not in own:
                        each.close()
                status = run()
        except ConfigError as error:
            status = 2
            for problem in error.problems:
                click.echo(f"llmirage serve: {problem}", err=True)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def supervise(self, start: Callable[[int], int]) -> int:
        """Keep the workers going until the server ends; return its exit status. start: starts a worker by its number."""
        for sig in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sig, self._stop)
        for number in self._workers:
            self._workers[number] = start(number)
        status = 0
        while True:
            pid, code = os.wait()
            ended = os.waitstatus_to_exitcode(code)
            how = f"exit status {ended}" if ended >= 0 else signal.Signals(-ended).name
            if pid == self.engine:
                if not self._stopping and ended != 2:  # which has said why
                    click.echo(f"llmirage serve: the engine process has ended ({how}), and the server with it", err=True)
                    status = 1
                self._stop()
                for worker in filter(None, self._workers.values()):
                    os.waitpid(worker, 0)
                return status or (ended if ended in (0, 2) else 1)
            number = next(number for number, worker in self._workers.items() if worker == pid)
            self._workers[number] = 0
            if not self._stopping and ended < 0:
                click.echo(f"llmirage serve: worker {number} has ended ({how}); another one begins", err=True)
                time.sleep(_RESTART_S)
            elif not self._stopping:  # by itself, as the next one would
                click.echo(f"llmirage serve: worker {number} has ended ({how}), and the server with it", err=True)
                status = 1
                self._stop()
            if not self._stopping:
                self._workers[number] = start(number)
            elif not any(self._workers.values()):
                os.kill(self.engine, _END)

    def _stop(self, sig: int = 0, frame: FrameType | None = None) -> None:
        end = signal.SIGKILL if self._stopping and sig == signal.SIGINT else signal.SIGTERM
        self._stopping = True
        for each in self._sockets:
            each.close()
        for worker in filter(None, self._workers.values()):
            os.kill(worker, end)


class _WorkerServer(LiveServer):
    """A server that leaves the SIGINT of a terminal, which goes to all processes, to its parent."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig != signal.SIGINT:
            super().handle_exit(sig, frame)


def _run_worker(
    worker: HttpWorker, listening: Listening, tls: tuple[str, str] | None, sockets: Sequence[socket.socket], own: slice
) -> int:
    """Answer HTTP until a signal. sockets: the routed port, and the worker's own part of the fleet."""
    app, fleet = worker.app, list(sockets[1:])
    tuned = tune(app)

    def on_start() -> None:
        tuned()
        worker.ready()

    _WorkerServer(
        worker,
        worker.close,
        on_start,
        limits=listening.limits(app),
        busy=worker.busy,
        drain_s=listening.shutdown_timeout_s,
        tls=tls,
        fleet=FleetPorts(fleet, lambda: worker.there[own] if worker.there else [True] * len(fleet)) if fleet else None,
    ).run(sockets=list(sockets))
    return 0


def _run_engine(config: ClusterConfig, listening: Listening, fleet: Fleet, listener: socket.socket, text: TextLoader) -> int:
    """Own the cluster, and answer what workers forward, until the parent ends it, after all of them."""
    for sig in (signal.SIGINT, signal.SIGTERM):  # which may be sent to all processes at once
        signal.signal(sig, signal.SIG_IGN)
    with contextlib.ExitStack() as opened:
        app = create_app(
            config, page=not listening.no_ui, make_driver=lambda cluster: SharedDriver(cluster, config.speed), text=text
        )
        app.ports = fleet.engines
        app.make_routes()
        started, tuned = prepare(app, listening, fleet, opened), tune(app)

        async def run() -> None:
            loop, end = asyncio.get_running_loop(), asyncio.Event()
            loop.add_signal_handler(_END, end.set)
            async with app.router.lifespan_context(app):
                hub = Hub(app, listening.http_workers, started)
                server = await loop.create_unix_server(hub.connection, sock=listener)
                tuned()
                following = loop.create_task(hub.follow(lambda: fleet.there(app))) if fleet.sockets else None
                await end.wait()
                server.close()
                if following is not None:
                    following.cancel()

        uvicorn_config = LiveServer(app, app.close).config
        with asyncio.Runner(loop_factory=uvicorn_config.get_loop_factory()) as runner:
            runner.run(run())
    say_farewell(app, listening)
    return 0
