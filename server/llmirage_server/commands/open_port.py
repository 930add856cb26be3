"""A port within a running event loop: what uvicorn.Server is to a process that does nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from functools import partial

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from llmirage_server.commands.http_protocol import BoundedProtocol, ConnectionLimits

_MOST_CONNECTIONS = 4096
_TURNS = 3  # of the loop, in which transports that are closed say so


class OpenPort:
    """Serves an app on a bound socket. No signals, no lifespan, no process-wide settings: those are the caller's."""

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
        """Whether a request is under way."""
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
