"""TLS handshakes that count as connections and have a deadline.

asyncio shows a server's protocol nothing before the handshake is over, and uvicorn does not pass its
`ssl_handshake_timeout` on. So the port is one without TLS, and each connection changes to TLS by itself.
"""

from __future__ import annotations

import asyncio
import ssl
from asyncio import sslproto
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from uvicorn.server import ServerState

if TYPE_CHECKING:
    from llmirage_server.commands.http_protocol import ConnectionLimits

_BUFFER_BYTES = 32 << 10  # asyncio's 256 KiB for each connection are written over when it is made; a record has 16 KiB


class TlsHandshake(asyncio.Protocol):
    """A connection until its handshake is done. Then the protocol takes its place that `make` makes."""

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
