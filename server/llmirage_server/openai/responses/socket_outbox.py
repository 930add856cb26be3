"""The way out of a WebSocket connection: messages in order, and the events of a response as frames."""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import Awaitable, Coroutine
from typing import Any

from starlette.types import Message, Send

from llmirage_server.faults.events import ENDS
from llmirage_server.http.event_stream import SuspendedSend, is_steppable, transport_of
from llmirage_server.openai.responses.socket_frames import error_event
from llmirage_shared.wire.output import encoded

_LAST = frozenset((b"response.completed", b"response.failed", b"response.incomplete", b"error"))
_TYPE = re.compile(rb'\s*\{\s*"type"\s*:\s*"([^"]*)"')
_TOLD = (b"retry-after", b"x-ratelimit", b"x-should-retry")  # how the headers of errors begin that clients look for


class SocketOutbox:
    """Messages on their way to a connection: at once as far as it takes them, the others by `run`, in order."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._steppable = is_steppable(send)
        self._waiting: deque[bytes | Message] = deque()  # texts as bytes, which may be many
        self._suspended: SuspendedSend | None = None
        self._idle = asyncio.Event()  # everything was sent
        self._idle.set()
        self._more = asyncio.Event()

    @property
    def transport(self) -> Any:
        """The connection under it, None in process."""
        return transport_of(self._send)

    def close(self, code: int, reason: str) -> None:
        self.put({"type": "websocket.close", "code": code, "reason": reason})

    def put(self, message: bytes | Message) -> None:
        """bytes: a text in UTF-8."""
        if not (self._steppable and self._idle.is_set()):
            self._waiting.append(message)
            self._idle.clear()
            self._more.set()
            return
        sending: Awaitable[None] = self._send(_message(message))
        coroutine: Coroutine[Any, Any, None] = sending  # type: ignore[assignment]  # in every ASGI server
        try:
            waits_for = coroutine.send(None)
        except (StopIteration, OSError):  # OSError: the client has gone, which `receive` tells, too
            return
        self._suspended = SuspendedSend(coroutine, waits_for)
        self._idle.clear()
        self._more.set()

    async def drained(self) -> None:
        """Wait until the connection has taken everything."""
        await self._idle.wait()

    async def run(self) -> None:
        """Send what had to wait, until it is cancelled."""
        while True:
            await self._more.wait()
            self._more.clear()
            suspended, self._suspended = self._suspended, None
            try:
                if suspended is not None:
                    await suspended
                while self._waiting:
                    await self._send(_message(self._waiting.popleft()))
            except OSError:
                self._waiting.clear()
            self._idle.set()


def _message(given: bytes | Message) -> Message:
    return {"type": "websocket.send", "text": given.decode("utf-8", "replace")} if isinstance(given, bytes) else given


class EventFrames:
    """`send` for the HTTP response to a frame: its events leave as frames, an error as the event that says so.

    status: of the response, None before it has one. ended: whether its last event was sent.
    """

    may_be_stepped = True

    def __init__(self, outbox: SocketOutbox, stream_id: str | None) -> None:
        self.status: int | None = None
        self.ended = False
        self.failed = False
        self._outbox = outbox
        self._stream_id = stream_id
        self._place = b"" if stream_id is None else b',"stream_id":' + encoded(stream_id) + b"}"
        self._headers: dict[str, str] = {}
        self._unread = b""

    @property
    def transport(self) -> Any:
        return self._outbox.transport

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            told = [(name.lower(), value) for name, value in message["headers"] if name.lower().startswith(_TOLD)]
            self._headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in told}
            return
        body = self._unread + message.get("body", b"")
        if self.status == 200:
            self._events(body)
            return
        self._unread = body
        if not message.get("more_body"):
            self._refused(body)

    def _events(self, data: bytes) -> None:
        """Send the events that are complete; the rest of one waits."""
        if b"\r" in data:
            data = ENDS.sub(b"\n\n", data)
        *events, self._unread = data.split(b"\n\n")
        for event in events:
            head, _, payload = event.partition(b"data:")
            payload = payload.strip()
            if payload and payload != b"[DONE]":
                self._event(head, payload)

    def _event(self, head: bytes, payload: bytes) -> None:
        kind = head[6:].strip() if head.startswith(b"event:") else None
        if kind is None:
            found = _TYPE.match(payload)
            kind = b"" if found is None else found[1]
        if kind in _LAST:
            self.ended = True
            self.failed = kind in (b"response.failed", b"error")
            if kind == b"error":
                payload = _wrapped(payload)
        if self._place and payload.endswith(b"}"):
            payload = payload[:-1] + self._place
        self._outbox.put(payload)

    def _refused(self, body: bytes) -> None:
        assert self.status is not None
        self.ended = self.failed = True
        try:
            value = json.loads(body)
        except ValueError:
            value = {}
        body_of = value if isinstance(value, dict) else {}
        self._outbox.put(error_event(self.status, body_of, self._stream_id, self._headers))


def _wrapped(payload: bytes) -> bytes:
    """Return an error event of a stream, as WebSocket connections have it."""
    try:
        event = json.loads(payload)
        if "error" not in event:
            error = {"type": "server_error", **{name: event.pop(name, None) for name in ("code", "message", "param")}}
            event["error"] = error
    except (ValueError, TypeError, AttributeError):
        return payload
    return encoded(event)
