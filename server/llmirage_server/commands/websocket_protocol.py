"""A WebSocket connection (RFC 6455) after its upgrade, as ASGI has it. wsproto reads and writes the frames.

What a client may cost others is bounded: a message has at most as many bytes as a body, the frames of one connection are
read a few at a time, nothing is read while the client reads nothing or its last message still waits, and there is no
compression, so that a frame is as large as it says.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import logging
import struct
from collections import deque
from collections.abc import Iterator, MutableMapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.types import ASGIApp
from uvicorn.server import ServerState
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Message, Ping, Pong, TextMessage

from llmirage_server.http.byte_budget import HELD, Held
from llmirage_server.http.exchange import ARRIVED, IS_TEXT
from llmirage_server.http.turns import turn, turn_has_room
from llmirage_server.telemetry.journal import CONNECTION, ClientConnection
from llmirage_shared.virtual_time import precise_clock
from llmirage_shared.wire import errors

if TYPE_CHECKING:
    from llmirage_server.commands.http_protocol import ConnectionLimits

logger = logging.getLogger("llmirage")

FRAMES_AT_ONCE = 32  # of one connection, then others have their turn
_FRAMES_IN_ANY_TURN = 4  # also in a turn of the loop in which others have computed for long
_BREATH_S = 0.001  # before the next ones
_READ_BYTES = 32 << 10  # a larger read takes up to some milliseconds
PING_S = 20.0  # a client that has sent nothing for so long is asked; one that then sends nothing for as long is gone
_CLOSE_S = 5.0  # for the client's close frame
_ACCEPT_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3
_TOO_BIG, _GONE_AWAY, _NO_PONG, _ABNORMAL, _TOO_SLOW, _BUSY = 1009, 1012, 1011, 1006, 1008, 1013


class WebSocketProtocol(asyncio.Protocol):
    """One connection. `send` waits for nothing but a plain future: what steps it by hand may do so."""

    may_be_stepped = True

    def __init__(
        self,
        app: ASGIApp,
        scope: MutableMapping[str, Any],
        state: ServerState,
        transport: asyncio.Transport,
        limits: ConnectionLimits,
    ) -> None:
        """scope: of the upgrade request, checked."""
        self.transport = transport
        self._scope = scope
        self._state = state
        self._limits = limits
        self._most_bytes = limits.message_bytes
        self._held = Held(limits.unread)  # by the message that is coming
        self._begun_s = 0.0  # when its first bytes came
        self._loop = asyncio.get_running_loop()
        self._connection: ClientConnection = scope["state"][CONNECTION]
        self._frames: Connection | None = None  # once the upgrade is accepted
        self._events: Iterator[Event] = iter(())
        self._received = io.BytesIO()  # the message that is coming: its bytes are not copied at the end
        self._is_text = True
        self._inbox: deque[dict[str, Any]] = deque([{"type": "websocket.connect"}])
        self._receiving: asyncio.Future[None] | None = None
        self._blocked: asyncio.Future[None] | None = None  # while the client does not read
        self._refusal: tuple[int, list[tuple[bytes, bytes]]] | None = None
        self._pumping: asyncio.TimerHandle | None = None
        self._reads = True
        self._turn: asyncio.Task[None] | None = None  # in which more is read
        self._heard = False  # anything, since the last look
        self._asked = False  # by a ping, whether it is there
        self._over = False  # a close frame was sent or received, or the connection is lost
        self._timer: asyncio.TimerHandle | None = None
        state.connections.add(self)  # type: ignore[arg-type]  # of which uvicorn only calls `shutdown`
        task = self._loop.create_task(self._run(app))
        state.tasks.add(task)
        task.add_done_callback(state.tasks.discard)

    async def _run(self, app: ASGIApp) -> None:
        try:
            await app(self._scope, self.receive, self.send)
        except Exception:
            logger.exception("A WebSocket connection failed inside the server; please report this")
        finally:
            if not self._over or self._refusal is not None:
                self.transport.close()

    # What the transport calls.

    def data_received(self, data: bytes) -> None:
        if self._frames is None or self._frames.state not in (ConnectionState.OPEN, ConnectionState.LOCAL_CLOSING):
            return  # a client that does not wait for the answer to its upgrade, or goes on after its end
        self._heard = True
        if not self._held.bytes:
            self._begun_s = self._loop.time()
        if not self._over and not self._held.takes(len(data), is_whole=False):
            self._close(_BUSY, errors.too_many_unread_bytes(self._limits.unread.most).message)
            return
        self._frames.receive_data(data)
        self._pump()
        if len(data) > _READ_BYTES and self._turn is None:
            self._read(False)
            self._turn = self._loop.create_task(self._read_on())

    async def _read_on(self) -> None:
        """Read more in a later turn of the loop, as over HTTP."""
        await asyncio.sleep(0)
        await turn()
        self._turn = None
        self._pump()

    def eof_received(self) -> None:
        return None

    def pause_writing(self) -> None:
        self._connection.blocked(precise_clock()())
        self._blocked = self._loop.create_future()

    def resume_writing(self) -> None:
        self._connection.unblocked(precise_clock()())
        self._unblock()
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.closed(precise_clock()())
        self._state.connections.discard(self)
        for timer in (self._timer, self._pumping):
            if timer is not None:
                timer.cancel()
        self._end(_ABNORMAL)
        self._unblock()

    def shutdown(self) -> None:
        """End with the server."""
        self._close(_GONE_AWAY, "The server is shutting down.")
        self.transport.close()

    # What the application calls.

    async def receive(self) -> dict[str, Any]:
        while not self._inbox:
            self._receiving = self._loop.create_future()
            self._pump()
            await self._receiving
        return self._inbox.popleft()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        while self._blocked is not None:
            await self._blocked
        if self._over:
            return
        kind = message["type"]
        if kind == "websocket.send":
            text = message.get("text")
            if text is not None:
                self.transport.write(_text_frame(text.encode()))
            else:
                self._write(BytesMessage(message["bytes"]))
        elif kind == "websocket.accept":
            self._accept(message.get("headers", ()))
        elif kind == "websocket.close" and self._frames is not None:
            self._close(message.get("code", 1000), message.get("reason") or "")
        elif kind == "websocket.close":
            self._answer(403, [], b"")
        elif kind == "websocket.http.response.start":
            self._refusal = message["status"], list(message["headers"])
        elif kind == "websocket.http.response.body" and self._refusal is not None:
            self._answer(*self._refusal, message.get("body", b""))

    def _accept(self, headers: Any) -> None:
        key = dict(self._scope["headers"])[b"sec-websocket-key"]
        digest = base64.b64encode(hashlib.sha1(key + _ACCEPT_GUID, usedforsecurity=False).digest())
        upgrade = [(b"upgrade", b"websocket"), (b"connection", b"Upgrade"), (b"sec-websocket-accept", digest)]
        self.transport.write(_head(101, [*upgrade, *headers]))
        self._frames = Connection(ConnectionType.SERVER)
        self._timer = self._loop.call_later(PING_S, self._look)

    def _answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Finish the refusal of the upgrade, with its complete body."""
        framing = [(b"content-length", b"%d" % len(body)), (b"connection", b"close")]
        others = [header for header in headers if header[0] not in (b"content-length", b"connection")]
        self.transport.write(_head(status, [*others, *framing]) + body)
        self._end(_ABNORMAL)
        self.transport.close()

    # Frames.

    def _pump(self) -> None:
        """Handle frames that have come, until a message waits for the application or there are no more."""
        if self._frames is None or self._pumping is not None:
            return
        for number in range(FRAMES_AT_ONCE):
            if number >= _FRAMES_IN_ANY_TURN and not turn_has_room(self._loop):
                break
            if not self._over and (self._inbox or self._blocked is not None):
                self._read(False)
                return
            event = next(self._events, None)
            if event is None:
                self._events = self._frames.events()
                if (event := next(self._events, None)) is None:
                    self._read(True)
                    return
            self._handle(event)
        self._read(False)
        self._pumping = self._loop.call_later(_BREATH_S, self._pump_on)

    def _pump_on(self) -> None:
        self._pumping = None
        self._pump()

    def _read(self, more: bool) -> None:
        if more is self._reads or (more and self._turn is not None) or self.transport.is_closing():
            return
        self._reads = more
        if more:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def _handle(self, event: Event) -> None:
        if self._over:
            if isinstance(event, CloseConnection):
                self.transport.close()
        elif isinstance(event, Message):
            self._is_text = isinstance(event, TextMessage)
            self._received.write(event.data.encode() if isinstance(event.data, str) else event.data)
            if self._received.tell() > self._most_bytes:
                self._close(_TOO_BIG, f"A message has at most {self._most_bytes} bytes (max_body_mib).")
                self._end(_TOO_BIG)
            elif event.message_finished:
                data, self._received = self._received.getvalue(), io.BytesIO()
                self._arrived(
                    {
                        "type": "websocket.receive",
                        "bytes": data,
                        IS_TEXT: self._is_text,
                        ARRIVED: precise_clock()(),
                        HELD: self._held,
                    }
                )
                self._held = Held(self._limits.unread)
        elif isinstance(event, (Ping, Pong)):
            if isinstance(event, Ping):
                self._write(Pong(event.payload))
            if not self._received.tell():
                self._held.release()
        elif isinstance(event, CloseConnection):  # of the client, or for frames that are none
            self._close(event.code, event.reason or "")
            self._end(event.code)
            self.transport.close()

    def _arrived(self, message: dict[str, Any]) -> None:
        self._inbox.append(message)
        if self._receiving is not None and not self._receiving.done():
            self._receiving.set_result(None)

    def _end(self, code: int) -> None:
        """No more messages come or go."""
        if not self._over or self._refusal is not None:
            self._over = True
            self._refusal = None
            self._received = io.BytesIO()
            self._held.release()
            self._arrived({"type": "websocket.disconnect", "code": code})

    def _close(self, code: int, reason: str) -> None:
        """Send a close frame, or answer the client's, and end the connection when the client has had time to do so."""
        if self._frames is None or self._over or self._frames.state not in _MAY_CLOSE:
            return
        self._write(CloseConnection(code, reason))
        self._end(code)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_CLOSE_S, self.transport.close)

    def _write(self, event: Event) -> None:
        if self._frames is not None and not self.transport.is_closing():
            self.transport.write(self._frames.send(event))

    def _unblock(self) -> None:
        blocked, self._blocked = self._blocked, None
        if blocked is not None and not blocked.done():
            blocked.set_result(None)

    def _look(self) -> None:
        """Whether the client is still there. While nothing is read of it, it cannot be heard."""
        if self._is_too_slow():
            rate = self._limits.body_bytes_per_s
            self._close(_TOO_SLOW, f"A message comes within {self._limits.header_s:g} s, or {rate:g} bytes each second.")
            return
        if self._asked and not self._heard and not self._inbox and self._blocked is None:
            self._close(_NO_PONG, "No answer to a ping.")
            self.transport.close()
            return
        self._asked = not self._heard
        self._heard = False
        if self._asked:
            self._write(Ping(b""))
        self._timer = self._loop.call_later(PING_S, self._look)

    def _is_too_slow(self) -> bool:
        """Return True for a message that is incomplete after its deadline."""
        allowed_s = self._limits.header_s + self._held.bytes / self._limits.body_bytes_per_s
        is_read = self._reads and not self._inbox
        return bool(self._held.bytes) and is_read and self._loop.time() - self._begun_s > allowed_s


def _text_frame(payload: bytes) -> bytes:
    """Return a whole message in one frame. This is the hot path: wsproto takes 7 µs for it."""
    size = len(payload)
    if size < 126:
        return bytes((_TEXT, size)) + payload
    return (_MIDDLE.pack(_TEXT, 126, size) if size < 1 << 16 else _LONG.pack(_TEXT, 127, size)) + payload


_TEXT = 0x81  # the last and only frame of a text
_MIDDLE, _LONG = struct.Struct("!BBH"), struct.Struct("!BBQ")
_MAY_CLOSE = (ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING)


def _head(status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    lines = [b"HTTP/1.1 %d %s" % (status, phrase.encode()), *[name + b": " + value for name, value in headers], b"", b""]
    return b"\r\n".join(lines)


def loaded() -> None:
    """Find the module, which the caller has imported."""
