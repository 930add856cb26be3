"""The ports of a fleet: that of an instance which is gone refuses connections, as that of a process which has ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Sequence
from functools import partial

import uvicorn

logger = logging.getLogger("llmirage")

_POLL_S = 0.1


class FleetPorts:
    """Closes and opens ports as instances go and come. No other process takes them meanwhile, unless in that very moment."""

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
