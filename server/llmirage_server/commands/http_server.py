"""`llmirage serve`: settings become the app, and the app a server on a port: uvicorn, started quietly and ended at once."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import click
import uvicorn
from sse_starlette.sse import AppStatus
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from llmirage_server.api.exchange import ARRIVED
from llmirage_server.app import create_app
from llmirage_server.commands.banner import banner, farewell
from llmirage_server.config import ClusterConfig, ConfigError
from llmirage_server.config.file import make_config
from llmirage_server.telemetry.access_log import access_line
from llmirage_server.telemetry.client_connection import CONNECTION, ClientConnection
from llmirage_shared.command_line import environment_note

logger = logging.getLogger("llmirage.access")

GRACE_S = 1  # for connections whose client does not read, after the others were ended properly
KEEP_ALIVE_S = 75  # agents think and run tools between two requests on one connection


class PortInUseError(OSError):
    """The address cannot be bound; the message says why."""


def bind(host: str, port: int) -> socket.socket:
    """Return a bound socket. port 0: any free one. Raises PortInUseError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise PortInUseError(f"cannot listen on {host} port {port}: {error.strerror}") from None
    return bound


def base_url(bound: socket.socket) -> str:
    """The URL that a client on this machine would use."""
    host, port = bound.getsockname()[:2]
    if host in ("0.0.0.0", "::", "127.0.0.1", "::1"):
        host = "localhost" if host != "::1" else "[::1]"
    elif ":" in host:
        host = f"[{host}]"
    return f"http://{host}:{port}"


class StampingProtocol(HttpToolsProtocol):
    """Notes when each request had come, before it waits for its turn: in a burst the others' are worked on first.

    It also notes how the client uses the connection, for the verdict. Times are those of precise_clock on a live loop.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._connection = ClientConnection(time.monotonic())
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.closed(time.monotonic())
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.blocked(time.monotonic())
        super().pause_writing()

    def resume_writing(self) -> None:
        self._connection.unblocked(time.monotonic())
        super().resume_writing()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"][CONNECTION] = self._connection
        self._connection.unused_since_s = None

    def on_response_complete(self) -> None:
        if not self.pipeline:
            self._connection.unused_since_s = time.monotonic()
        super().on_response_complete()

    def on_message_complete(self) -> None:
        if not self.pipeline:  # else it waits for the reply to the one before, on the same connection
            self.scope["state"][ARRIVED] = time.monotonic()
        super().on_message_complete()


class LiveServer(uvicorn.Server):
    """A uvicorn server that ends open streams by itself and takes SIGINT and SIGTERM for a normal end."""

    def __init__(self, app: ASGIApp, close: Callable[[], None], on_start: Callable[[], None] = lambda: None) -> None:
        """close: ends the responses that are under way."""
        super().__init__(
            uvicorn.Config(
                app,
                http=StampingProtocol,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=GRACE_S,
            )
        )
        self._close = close
        self._on_start = on_start
        # sse-starlette would cut streams off at some moment after the signal; `shutdown` ends them properly.
        AppStatus.enable_automatic_graceful_drain = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._close()
        # A client that does not read cannot be told; uvicorn would log its response as an error.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Without uvicorn's own bookkeeping, which would raise the signal again after the end.
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def serve(cluster_file: str | None, host: str, port: int, access_log: bool, no_ui: bool, **flags: Any) -> None:
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    try:
        config = make_config(cluster_file, flags)
        sys.exit(_serve(config, host, port, access_log, not no_ui))
    except ConfigError as error:
        for problem in error.problems:
            click.echo(f"llmirage serve: {problem}", err=True)
        if note := environment_note():
            click.echo(f"llmirage serve: {note}", err=True)
        sys.exit(2)


def _serve(config: ClusterConfig, host: str, port: int, access_log: bool, page: bool) -> int:
    try:
        bound = bind(host, port)  # first of all, so that a port in use is told at once
    except PortInUseError as error:
        click.echo(f"llmirage serve: {error}", err=True)
        return 1
    with bound:
        app = create_app(config, page=page)
        if config.tokenizer is not None:
            app.service.text.load()  # a tokenizer that cannot be loaded is a configuration error, told before the start
        if access_log:
            logger.setLevel(logging.INFO)
            app.service.journal.observers.append(lambda entry: logger.info("%s", access_line(entry)))
        # Fewer collections: what requests leave behind is small, and each pass costs time that tokens wait.
        gc.set_threshold(20_000, 20, 50)
        server = LiveServer(app, app.service.close, lambda: click.echo(banner(app, base_url(bound))))
        server.run(sockets=[bound])
    if summary := farewell(app.driver.pacing.summary()):
        click.echo(summary)
    return 0
