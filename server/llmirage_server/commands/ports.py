"""Ports: those of a fleet, those whose connections begin with TLS, and one within a running event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from asyncio import sslproto
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from llmirage_server.commands.http_protocol import BoundedProtocol, ConnectionLimits

logger = logging.getLogger("llmirage")

_POLL_S = 0.1


class FleetPorts:
    """Closes and opens ports as instances go and come, as those of processes that have ended refuse connections.

    No other process takes them meanwhile, unless in that very moment.
    """

    def __init__(self, bound: Sequence[socket.socket], there: Callable[[], Sequence[bool]]) -> None:
        """bound: by instance; the server listens at them. there: tells which instances there are."""
        self._bound: list[socket.socket | None] = list(bound)
        self._addresses = [(each.family, each.getsockname()) for each in bound]
        self._there = there
        self._open = [True] * len(bound)

    def start(self, server: uvicorn.Server) -> None:
        """Follow the instances until the server ends. server: it listens at the other ports first."""
        self._server = server
        self._listening = server.servers[len(server.servers) - len(self._bound) :]
        self._task = asyncio.get_running_loop().create_task(self._follow())

    def stop(self) -> None:
        self._task.cancel()

    async def _follow(self) -> None:
        while True:
            for index, (there, is_open) in enumerate(zip(self._there(), self._open, strict=True)):
                if there == is_open:
                    continue
                self._open[index] = there
                try:
                    await (self._listen(index) if there else self._refuse(index))
                except OSError as error:
                    port = self._addresses[index][1][1]
                    logger.warning("Port %d of instance %d was lost: %s.", port, index, error.strerror)
            await asyncio.sleep(_POLL_S)

    async def _refuse(self, index: int) -> None:
        """Close a port and its connections. A bound socket that does not listen keeps it."""
        port, bound = self._addresses[index][1][1], self._bound[index]
        if bound is not None and bound.fileno() >= 0:
            with contextlib.suppress(OSError):
                bound.shutdown(socket.SHUT_RDWR)  # other processes may have it, too
        self._listening[index].close()
        self._bound[index] = None
        for connection in list(self._server.server_state.connections):
            local, transport = getattr(connection, "server", None), getattr(connection, "transport", None)
            if local is not None and local[1] == port and transport is not None:
                transport.abort()
        self._bound[index] = self._bind(index)

    def _bind(self, index: int) -> socket.socket:
        family, address = self._addresses[index]
        bound = socket.socket(family, socket.SOCK_STREAM)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(address)
        except OSError:
            bound.close()
            raise
        return bound

    async def _listen(self, index: int) -> None:
        bound = self._bound[index] or self._bind(index)
        server, config = self._server, self._server.config
        made: Callable[..., asyncio.Protocol] = config.http_protocol_class
        protocol = partial(made, config=config, server_state=server.server_state, app_state=server.lifespan.state)
        loop = asyncio.get_running_loop()
        opened = await loop.create_server(protocol, sock=bound, backlog=config.backlog)
        server.servers[server.servers.index(self._listening[index])] = opened
        self._listening[index] = opened


_BUFFER_BYTES = 32 << 10  # asyncio's 256 KiB for each connection are written over when it is made; a record has 16 KiB


class TlsHandshake(asyncio.Protocol):
    """A connection until its handshake is done. Then the protocol takes its place that `make` makes.

    asyncio shows a server's protocol nothing before the handshake is over, and uvicorn does not pass its
    `ssl_handshake_timeout` on. So the port is one without TLS, and each connection, which counts as one and has a deadline,
    changes to TLS by itself.
    """

    def __init__(
        self, make: Callable[..., asyncio.Protocol], context: ssl.SSLContext, limits: ConnectionLimits, **uvicorns: Any
    ) -> None:
        """uvicorns: what uvicorn gives to its protocols."""
        sslproto.SSLProtocol.max_size = _BUFFER_BYTES  # for which there is no other way
        self._make: Callable[[], asyncio.Protocol] = lambda: make(**uvicorns)
        self._context = context
        self._limits = limits
        state: ServerState = uvicorns["server_state"]
        self._connections = state.connections
        self._early = b""  # what came before TLS has begun; later, what came with the end of the handshake
        self._lost = False
        self._transport: asyncio.Transport
        self._task: asyncio.Task[None]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        if len(self._connections) >= self._limits.most:
            self._limits.refused += 1
            transport.abort()
            return
        self._connections.add(self)  # type: ignore[arg-type]  # of which uvicorn only calls `shutdown`
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._shake_hands())
        loop.call_soon(loop.call_soon, self._pass_on)  # once `start_tls` has begun, and has begun TLS a turn later

    def data_received(self, data: bytes) -> None:
        self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True

    def shutdown(self) -> None:
        """End with the server."""
        self._transport.abort()

    def _pass_on(self) -> None:
        """Give to TLS what came before it read the connection itself."""
        early, self._early = self._early, b""
        tls: Any = self._transport.get_protocol()
        while early and tls is not self:
            buffer = tls.get_buffer(len(early))
            size = min(len(buffer), len(early))
            buffer[:size], early = early[:size], early[size:]
            tls.buffer_updated(size)

    async def _shake_hands(self) -> None:
        try:
            secured = await asyncio.get_running_loop().start_tls(
                self._transport, self, self._context, server_side=True, ssl_handshake_timeout=self._limits.header_s
            )
        except OSError:  # errors of TLS and timeouts are such
            self._limits.refused += 1
            self._transport.abort()
            return
        finally:
            self._connections.discard(self)
        if secured is None or self._lost:
            return
        protocol = self._make()
        secured.set_protocol(protocol)
        protocol.connection_made(secured)
        if self._early:
            protocol.data_received(self._early)


_MOST_CONNECTIONS = 4096
_TURNS = 3  # of the loop, in which transports that are closed say so


class OpenPort:
    """Serves an app on a bound socket, as uvicorn.Server does in a process that does nothing else.

    No signals, no lifespan, no process-wide settings: those are the caller's.
    """

    def __init__(self, app: ASGIApp, bound: socket.socket) -> None:
        self._bound = bound
        limits = ConnectionLimits(_MOST_CONNECTIONS)
        self._config = uvicorn.Config(
            app,
            ws="none",
            lifespan="off",
            log_config=None,
            server_header=False,
            date_header=False,
            timeout_keep_alive=limits.idle_s,
        )
        self._config.load()
        self._state = ServerState()
        self._protocol = partial(BoundedProtocol, limits=limits, config=self._config, server_state=self._state, app_state={})
        self._server: asyncio.Server | None = None

    @property
    def busy(self) -> bool:
        """True while a request is under way."""
        return bool(self._state.tasks)

    @property
    def receiving(self) -> bool:
        """Some client has yet to send a request, or the rest of one."""
        return any(isinstance(each, BoundedProtocol) and each.receiving for each in self._state.connections)

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._protocol, sock=self._bound, backlog=self._config.backlog)

    async def close(self, grace_s: float = 1.0) -> None:
        """Refuse new connections and close the old ones. Requests under way, whom the app has told, get a moment to end."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=grace_s)
        for task in list(self._state.tasks):
            task.cancel()
        for connection in list(self._state.connections):
            with contextlib.suppress(Exception):
                connection.transport.abort()
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        self._bound.close()
