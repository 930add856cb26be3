"""HTTP/1.1 connections within limits: how many, how large their headers are, how long these and unread bytes take."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from llmirage_server.api.event_stream import SEND_TIMEOUT_S
from llmirage_server.api.exchange import ARRIVED, MOST_BODY_BYTES
from llmirage_server.telemetry.client_connection import CONNECTION, ClientConnection
from llmirage_shared.settings import at_call
from llmirage_shared.virtual_time import precise_clock

# With the first upgrade, or in a thread before it: wsproto takes some 30 ms to import.
make_websocket: Callable[..., asyncio.Protocol] = at_call("llmirage_server.commands.websocket_protocol:WebSocketProtocol")
load_websockets: Callable[[], None] = at_call("llmirage_server.commands.websocket_protocol:loaded")

HEADER_BYTES = 64 * 1024
HEADER_S = 30.0  # from the first byte of a request, or from the connection, to the end of the headers
IDLE_S = 75  # agents think and run tools between two requests on one connection
_WEBSOCKET_VERSION = b"13"
_REASONS = {
    400: "Bad Request", 408: "Request Timeout", 426: "Upgrade Required", 431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}  # fmt: skip


@dataclass(slots=True)
class ConnectionLimits:
    """most: connections at once. idle_s: for how long one may be silent between two requests. unread_s: for how long the
    client may read nothing while a connection holds all that it can, whatever response that is of.

    refused: those that were over the limit, and those that were closed for their headers.
    websockets: the paths that may be upgraded to WebSocket; message_bytes: of a message there.
    """

    most: int
    header_bytes: int = HEADER_BYTES
    header_s: float = HEADER_S
    idle_s: int = IDLE_S
    unread_s: float = SEND_TIMEOUT_S
    refused: int = 0
    websockets: Collection[bytes] = ()
    message_bytes: int = MOST_BODY_BYTES


class StampingProtocol(HttpToolsProtocol):
    """Notes when each request had come, before it waits for its turn: in a burst the others' are worked on first.

    It also notes how the client uses the connection, for the verdict. Times are those of precise_clock.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._clock = precise_clock()
        self._connection = ClientConnection(self._clock())
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.closed(self._clock())
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.blocked(self._clock())
        super().pause_writing()

    def resume_writing(self) -> None:
        self._connection.unblocked(self._clock())
        super().resume_writing()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"][CONNECTION] = self._connection
        self._connection.unused_since_s = None

    def on_response_complete(self) -> None:
        if not self.pipeline:
            self._connection.unused_since_s = self._clock()
        super().on_response_complete()

    def on_message_complete(self) -> None:
        if not self.pipeline:  # else it waits for the reply to the one before, on the same connection
            self.scope["state"][ARRIVED] = self._clock()
        super().on_message_complete()


class BoundedProtocol(StampingProtocol):
    """One connection within limits."""

    def __init__(self, *, limits: ConnectionLimits, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self._limits = limits
        self.access_log = False
        self._header_bytes = 0  # of the request whose headers are not complete
        self._awaits_headers = True
        self._deadline: asyncio.TimerHandle | None = None
        self._reader: asyncio.TimerHandle | None = None  # the next look whether the client reads, while bytes wait for it

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._limits.most:
            self._refuse(503, f"The server has {self._limits.most} connections, its most (max_connections).")
        else:
            self._await_headers()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        self._stop_waiting_for_reader()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_waiting_for_reader()
        self._unset_keepalive_if_required()  # uvicorn keeps it where the client reset the connection
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._awaits_headers:
            self._header_bytes += len(data)
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self._awaits_headers and self._header_bytes > self._limits.header_bytes:
            self._refuse(431, f"The headers of a request have at most {self._limits.header_bytes} bytes.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._awaits_headers:
            self._await_headers()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()

    def _should_upgrade(self) -> bool:
        """Any other request to upgrade is answered as one without it, as HTTP allows."""
        return (
            self.parser.get_method() == b"GET"
            and self.url.partition(b"?")[0] in self._limits.websockets
            and self._get_upgrade() == b"websocket"
        )

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing to warn of."""

    def handle_websocket_upgrade(self) -> None:
        given = dict(self.headers)
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()  # after the response that is under way
        elif given.get(b"sec-websocket-version") != _WEBSOCKET_VERSION:
            self._refuse(426, "WebSocket connections are of version 13.", (b"sec-websocket-version", _WEBSOCKET_VERSION))
        elif not _is_key(given.get(b"sec-websocket-key", b"")):
            self._refuse(400, "The header Sec-WebSocket-Key must be 16 bytes in base64.")
        else:
            self.connections.discard(self)
            self.transport.set_protocol(
                make_websocket(
                    self.app, self._websocket_scope(), self.server_state, self.transport, self._limits.message_bytes
                )
            )

    def _websocket_scope(self) -> dict[str, Any]:
        parsed = httptools.parse_url(self.url)
        return {
            **self.scope,
            "type": "websocket",
            "scheme": "wss" if self.scheme == "https" else "ws",
            "path": self.root_path + unquote(parsed.path.decode("ascii")),
            "raw_path": self.root_path.encode() + parsed.path,
            "query_string": parsed.query or b"",
            "subprotocols": [],
            "extensions": {"websocket.http.response": {}},
        }

    def _await_headers(self) -> None:
        self._awaits_headers, self._header_bytes = True, 0
        self._deadline = self.loop.call_later(self._limits.header_s, self._too_slow)

    def _stop_waiting(self) -> None:
        self._awaits_headers = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _await_reader(self, last: int | None = None) -> None:
        """Close the connection if nothing was read since it held `last` bytes; closed in order, it would keep them."""
        held = self.transport.get_write_buffer_size()
        if last is not None and held >= last:
            self.transport.abort()
        else:
            self._reader = self.loop.call_later(self._limits.unread_s, self._await_reader, held)

    def _stop_waiting_for_reader(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None

    def _too_slow(self) -> None:
        self._refuse(408, f"The headers of a request come within {self._limits.header_s:g} s.")

    def _refuse(self, status: int, message: str, *more: tuple[bytes, bytes]) -> None:
        """Answer in the API's form, and close."""
        self._limits.refused += 1
        self._stop_waiting()
        error = {"message": message, "type": "server_error" if status == 503 else "invalid_request_error"}
        body = json.dumps({"error": {**error, "param": None, "code": None}}).encode()
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            "connection: close\r\n"
        )
        others = b"".join([name + b": " + value + b"\r\n" for name, value in more])
        self.transport.write(head.encode() + others + b"\r\n" + body)
        self.transport.close()


def _is_key(given: bytes) -> bool:
    try:
        return len(base64.b64decode(given, validate=True)) == 16
    except binascii.Error:
        return False
