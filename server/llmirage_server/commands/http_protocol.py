"""HTTP/1.1 connections within limits: how many, how large their headers are, how long requests and unread bytes take.

Neither uvicorn nor httptools has a setting for any of these (uvicorn's `h11_max_incomplete_event_size` is for h11). One
request of a connection is in progress at a time: what the client sends after it stays unparsed, and nothing more is read.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, Literal
from urllib.parse import unquote

import httptools
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from llmirage_server.http.byte_budget import HELD, ByteBudget, Held
from llmirage_server.http.event_stream import SEND_TIMEOUT_S
from llmirage_server.http.exchange import ARRIVED, MOST_BODY_BYTES
from llmirage_server.http.turns import turn, turn_has_room
from llmirage_server.telemetry.journal import CONNECTION, ClientConnection
from llmirage_shared.settings import at_call
from llmirage_shared.virtual_time import precise_clock
from llmirage_shared.wire import errors

# With the first upgrade, or in a thread before it: wsproto takes some 30 ms to import.
make_websocket: Callable[..., asyncio.Protocol] = at_call("llmirage_server.commands.websocket_protocol:WebSocketProtocol")
load_websockets: Callable[[], None] = at_call("llmirage_server.commands.websocket_protocol:loaded")

HEADER_BYTES = 64 * 1024
# From the first byte of a request, or from the connection, to the end of the headers; of a body, beside what its rate gives.
HEADER_S = 30.0
BODY_BYTES_PER_S = 32 << 10  # a body that comes more slowly is not waited for
_TURN_BYTES = 32 << 10  # after which no more is read in the same turn of the loop
_STEP_BYTES = 4 << 10  # of headers, or of what may be small chunks, that are parsed at once: half a millisecond
IDLE_S = 75  # agents think and run tools between two requests on one connection
_WEBSOCKET_VERSION = b"13"
_HEAD_END = b"\r\n\r\n"  # of headers; a chunked body ends so, too
_Phase = Literal["idle", "head", "body"]
"""States of a connection that waits: for a request, for the end of its headers, for the end of its body."""


@dataclass(slots=True)
class ConnectionLimits:
    """Limits of connections, and counts of those beyond them.

    most: connections at once. idle_s: for how long one may be silent between two requests. unread_s: for how long the
    client may read nothing while a connection holds all that it can, whatever response that is of. header_s: for headers; a
    body may take as long, and longer if body_bytes_per_s come. unread: what unfinished requests of all may hold.

    refused: those that were over the limit, and those that were closed for their headers.
    websockets: the paths that may be upgraded to WebSocket; message_bytes: of a message there.
    """

    most: int
    header_bytes: int = HEADER_BYTES
    header_s: float = HEADER_S
    body_bytes_per_s: float = BODY_BYTES_PER_S
    idle_s: int = IDLE_S
    unread_s: float = SEND_TIMEOUT_S
    refused: int = 0
    websockets: Collection[bytes] = ()
    message_bytes: int = MOST_BODY_BYTES
    unread: ByteBudget = field(default_factory=ByteBudget)


class _HeldFlow(FlowControl):
    """Reads nothing while bytes wait for their turn; uvicorn would, to see the client leave.

    waiting: for the request in progress. taking_turns: for others to compute. full: for the application to take the body.
    """

    waiting = taking_turns = full = False

    def pause_reading(self) -> None:
        self.full = True
        super().pause_reading()

    def resume_reading(self) -> None:
        self.full = False
        self.update()

    def update(self) -> None:
        if self.waiting or self.taking_turns or self.full:
            super().pause_reading()
        else:
            super().resume_reading()


async def _answered(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Let the application answer. What a request holds counts until it is done, even if the client left before."""
    try:
        await app(scope, receive, send)
    finally:
        scope["state"][HELD].release()


class BoundedProtocol(HttpToolsProtocol):
    """One connection within limits.

    It notes when each request had come, before it waits for its turn: in a burst the others' are worked on first; and how
    the client uses the connection, for the verdict. These times are those of precise_clock.
    """

    def __init__(self, *, limits: ConnectionLimits, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self.app = partial(_answered, self.app)
        self._limits = limits
        self.access_log = False
        self._held = Held(limits.unread)
        self._phase: _Phase = "head"
        self._answering = False  # a whole request has come, and its response is not complete
        self._body_left: int | None = None  # bytes of a body whose length is known
        self._last = b""  # the last bytes of a head, or of a chunked body, that is not complete
        self._grew = False  # the body, by the last bytes that came
        self._dry_bytes = 0  # that have come since the body last grew: headers, chunk extensions, trailers
        self._begun_s = 0.0  # when the wait for the headers, or for the body, began
        self._body_bytes = 0
        self._body_parts: list[bytes] = []
        self._as_if: list[tuple[bytes, bytes]] | None = None  # the headers of a request to upgrade that is answered without
        self._rest = b""  # what came after the request in progress, or waits for a turn of the loop, from _rest_at
        self._rest_at = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._reader: asyncio.TimerHandle | None = None  # the next look whether the client reads, while bytes wait for it

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._clock = precise_clock()
        self._connection = ClientConnection(self._clock())
        super().connection_made(transport)
        self.flow = _HeldFlow(transport)
        if len(self.connections) > self._limits.most:
            self._refuse(503, f"The server has {self._limits.most} connections, its most (max_connections).")
        else:
            self._await_rest()

    def pause_writing(self) -> None:
        self._connection.blocked(self._clock())
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        self._stop_waiting_for_reader()
        self._connection.unblocked(self._clock())
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_waiting_for_reader()
        self._unset_keepalive_if_required()  # uvicorn keeps it where the client reset the connection
        self._rest = b""
        self._held.abandon()
        self._connection.closed(self._clock())
        super().connection_lost(exc)

    # One request at a time: bytes are parsed up to the end of each, which is where its headers or its last chunk end, or
    # where its content-length says.

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._answering:
            self._put_by(data, 0)
        elif self._rest:  # TLS may have some more
            self._rest, self._rest_at = self._rest[self._rest_at :] + data, 0
        else:
            self._parse(data, 0)
        if len(data) > _TURN_BYTES:
            self._take_turns()

    def _take_turns(self) -> None:
        if isinstance(self.flow, _HeldFlow) and not self.flow.taking_turns and not self.transport.is_closing():
            self.flow.taking_turns = True
            self.flow.update()
            self._turn = self.loop.create_task(self._read_on(self.flow))

    async def _read_on(self, flow: _HeldFlow) -> None:
        """Parse and read more in later turns: uvloop would read some dozens of times in one."""
        await asyncio.sleep(0)
        await turn()
        while self._rest and not flow.waiting and not self.transport.is_closing():
            rest, self._rest = self._rest, b""
            self._parse(rest, self._rest_at)
            await asyncio.sleep(0)
            await turn()
        flow.taking_turns = False
        if not self.transport.is_closing():
            flow.update()

    def _parse(self, data: bytes, start: int) -> None:
        begun = start
        while start < len(data):
            if start > begun and self._left() < 0 and not turn_has_room(self.loop):
                self._rest, self._rest_at = data, start
                self._take_turns()
                break
            end = self._next_stop(data, start)
            size, self._grew = end - start, False
            if self._phase != "body" and self._dry_bytes + size > self._limits.header_bytes:
                self._refuse(431, f"The headers of a request have at most {self._limits.header_bytes} bytes.")
                return
            super().data_received(data[start:end] if end - start < len(data) else data)
            if self._as_if is not None:
                self._parse_without_upgrade()
            self._dry_bytes = 0 if self._grew else self._dry_bytes + size
            start = end
            if self.transport.is_closing() or self.transport.get_protocol() is not self:
                return
            if self._answering:
                if start < len(data):
                    self._put_by(data, start)
                break
        self._body_has_come()
        if self._answering:
            self._stop_waiting()
            if not self._held.takes(start - begun):
                self._phase = "body"  # nothing was answered
                self._refuse_with(errors.too_many_unread_bytes(self._limits.unread.most))
        elif self._phase == "idle":
            self._stop_waiting()
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        else:
            self._count(start - begun)

    def _next_stop(self, data: bytes, start: int) -> int:
        """Return up to where to parse: no request ends before that, though one need not end there."""
        if (left := self._left()) >= 0:
            return min(len(data), start + left)
        last, self._last = self._last, b""
        stop = min(len(data), start + _STEP_BYTES)
        if last and (found := (last + data[start : start + 3]).find(_HEAD_END)) >= 0:
            return start + found + len(_HEAD_END) - len(last)
        if (found := data.find(_HEAD_END, start, stop)) >= 0:
            return found + len(_HEAD_END)
        self._last = (last + data[max(start, stop - 3) : stop])[-3:]
        return stop

    def _left(self) -> int:
        """Return the bytes of the body that are to come; -1 in the headers, and for a body in chunks."""
        if self._phase != "body":
            return -1
        if self._body_left is None:
            self._body_left = _content_length(self.headers)
        return self._body_left

    def _count(self, size: int) -> None:
        """Wait for the rest of a request that has come in part, unless it holds too much."""
        if self._dry_bytes > self._limits.header_bytes:
            self._refuse(431, f"The headers of a request have at most {self._limits.header_bytes} bytes.")
        elif self._phase == "body" and self.cycle.response_complete:
            self._held.release()  # uvicorn drops what comes
            self._await_rest()
        elif not self._held.takes(size, is_whole=False):
            self._refuse_with(errors.too_many_unread_bytes(self._limits.unread.most))
        else:
            self._await_rest()

    def _put_by(self, data: bytes, start: int) -> None:
        """Keep what came after the request in progress; without room for it, the connection ends with its response."""
        if isinstance(self.flow, _HeldFlow):
            self.flow.waiting = True
            self.flow.update()
        if self._held.takes(len(data) - start):
            if self._rest:  # TLS may have some more
                data, start = self._rest[self._rest_at :] + data[start:], 0
            self._rest, self._rest_at = data, start
        else:
            self.cycle.keep_alive = False

    def _go_on(self) -> None:
        """Parse the bytes that waited for this response to be complete."""
        assert isinstance(self.flow, _HeldFlow)
        self.flow.waiting = False
        rest, self._rest = self._rest, b""
        if rest and not self.transport.is_closing():
            self._parse(rest, self._rest_at)
        if not self.transport.is_closing():
            self.flow.update()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"][CONNECTION] = self._connection
        self._connection.unused_since_s = None
        self.scope["state"][HELD] = self._held = Held(self._limits.unread)
        self._phase, self._body_left, self._dry_bytes = "head", None, 0

    def on_headers_complete(self) -> None:
        if self._as_if is not None:
            self.headers[:], self._as_if = self._as_if, None
        elif self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT" and not self._should_upgrade():
            self._as_if = list(self.headers)
            return
        self._phase, self._grew = "body", True
        self._held.in_use = True
        self._begun_s, self._body_bytes = self.loop.time(), 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._grew = True
        self._body_bytes += len(body)
        if self._body_left is not None:
            self._body_left -= len(body)
        self._body_parts.append(body)

    def _body_has_come(self) -> None:
        """Give the application all that came at once: uvicorn copies what it holds of the body with each chunk."""
        if self._body_parts:
            super().on_body(b"".join(self._body_parts))
            self._body_parts.clear()

    def on_message_complete(self) -> None:
        if self._as_if is not None:
            return
        self._body_has_come()
        self._phase = "idle"
        self._answering = self.cycle is not None and not self.cycle.response_complete
        self.scope["state"][ARRIVED] = self._clock()
        super().on_message_complete()
        self.flow.resume_reading()  # paused for a large body; what comes now tells that the client has left, or is put by

    def on_response_complete(self) -> None:
        self._answering = False
        self._connection.unused_since_s = self._clock()
        super().on_response_complete()
        if isinstance(self.flow, _HeldFlow) and self.flow.waiting:
            self._unset_keepalive_if_required()
            self.loop.call_soon(self._go_on)

    def _parse_without_upgrade(self) -> None:
        """Parse the head of a request to upgrade anew as one without it: to the parser it would have no body."""
        assert self._as_if is not None
        lines = [b"%s %s HTTP/%s\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        for name, value in self._as_if:
            if name == b"connection":
                value = b",".join([token for token in value.split(b",") if token.strip().lower() != b"upgrade"])
            if name != b"upgrade":
                lines.append(b"%s: %s\r\n" % (name, value))
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        super().data_received(b"".join([*lines, b"\r\n"]))

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
        self._stop_waiting()
        self._held.release()
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
                make_websocket(self.app, self._websocket_scope(), self.server_state, self.transport, self._limits)
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

    @property
    def receiving(self) -> bool:
        """A request, or the rest of one, has yet to come from the client."""
        return self._deadline is not None

    def _await_rest(self) -> None:
        """Look whether the request is complete when it must be."""
        if self._deadline is None:
            if self._phase != "body":
                self._begun_s = self.loop.time()
            self._deadline = self.loop.call_at(self._due_s(), self._look)

    def _due_s(self) -> float:
        """Return the deadline of a request that has begun, or of the next part of its body."""
        in_body_s = self._body_bytes / self._limits.body_bytes_per_s if self._phase == "body" else 0.0
        return self._begun_s + self._limits.header_s + in_body_s

    def _look(self) -> None:
        now_s = self.loop.time()
        if self.flow.read_paused:  # the application has not taken what came: it is not the client that is slow
            self._begun_s = now_s
        if (due_s := self._due_s()) > now_s:
            self._deadline = self.loop.call_at(due_s, self._look)
        elif self._phase == "body":
            rate = self._limits.body_bytes_per_s
            self._refuse(
                408, f"The body of a request comes within {self._limits.header_s:g} s, or {rate:g} bytes each second."
            )
        else:
            self._refuse(408, f"The headers of a request come within {self._limits.header_s:g} s.")

    def _stop_waiting(self) -> None:
        self._dry_bytes = 0
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

    def _refuse(self, status: int, message: str, *more: tuple[bytes, bytes]) -> None:
        self._refuse_with(
            errors.ApiError(
                message, status=status, type="server_error" if status == 503 else errors.INVALID_REQUEST, headers=more
            )
        )

    def _refuse_with(self, error: errors.ApiError) -> None:
        """Answer in the API's form, unless something was answered already, and close."""
        self._limits.refused += 1
        self._stop_waiting()
        if self._phase == "body":
            begun = self.cycle.response_started
            self.cycle.disconnected = True
            self.cycle.body = bytearray()
            self.cycle.message_event.set()
            self._held.release()  # before the application learns of it: others that come with it need not be refused, too
            if begun:
                self.transport.close()
                return
        body = json.dumps(error.body()).encode()
        head = (
            f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n"
        )
        others = b"".join([name + b": " + value + b"\r\n" for name, value in error.headers if name != b"connection"])
        self.transport.write(head.encode() + others + b"\r\n" + body)
        self.transport.close()


def _content_length(headers: list[tuple[bytes, bytes]]) -> int:
    """Return the length of a body, -1 for a chunked one. The parser has checked it."""
    return next((int(value) for name, value in headers if name == b"content-length"), -1)


def _is_key(given: bytes) -> bool:
    try:
        return len(base64.b64decode(given, validate=True)) == 16
    except binascii.Error:
        return False
