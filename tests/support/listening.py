"""A server on a port, in a thread of the test's process."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from typing import Any

from llmirage_server.app import LlmirageApp, create_app
from llmirage_server.commands.http_protocol import ConnectionLimits
from llmirage_server.commands.http_server import LiveServer, bind
from llmirage_server.config import ClusterConfig


class Listening:
    """A server in a thread. limits: of its connections. small_buffers: the system holds few bytes for a client.

    tls: the files of a certificate and its key.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        drain_s: float = 0.0,
        small_buffers: bool = False,
        tls: tuple[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.limits = limits
        self.app: LlmirageApp = create_app(ClusterConfig(**({"ttft_ms": 0.0, "itl_ms": 0.0} | settings)))
        self.app.unread = limits.unread
        self._bound = bind("127.0.0.1", 0)
        if small_buffers:
            self._bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.address: tuple[str, int] = self._bound.getsockname()
        self.server = LiveServer(
            self.app, self.app.close, limits=limits, busy=self.app.service.responses.busy, drain_s=drain_s, tls=tls
        )
        self._thread = threading.Thread(target=asyncio.run, args=[self._serve()])

    def __enter__(self) -> Listening:
        self._thread.start()
        while not self.server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self._thread.join(10)
        self._bound.close()
        assert not self._thread.is_alive()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        await self.server.serve([self._bound])

    @property
    def url(self) -> str:
        return "http://{}:{}".format(*self.address)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=10)
