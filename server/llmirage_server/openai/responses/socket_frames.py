"""Both ways of a WebSocket connection: events of the client, each of which becomes a request, and messages out in order."""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import Awaitable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from llmirage_server.http.bodies import MOST_VALUES, check_values, json_object
from llmirage_server.http.byte_budget import Held
from llmirage_server.http.dialect import Dialect
from llmirage_server.http.event_stream import SuspendedSend, is_steppable, transport_of
from llmirage_server.http.exchange import LARGE_BYTES, HttpExchange
from llmirage_server.replies.structured.budget import InThread
from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.output import EVENT_END, encoded

FRAME = "llmirage.frame"  # key in the scope of a frame's exchange
_STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_CREATE, _STEER = "response.create", "response.steer"


@dataclass(slots=True)
class SocketFrame:
    """One `response.create` of a client, or what came in its place.

    body: as POST /v1/responses has it. stream_id: its lane, None for the default one. generate: False for a request that
    only prepares the next. error: why it cannot be served. size: bytes. arrived_s: on `precise_clock`.
    held: of the bytes that unread requests may hold.
    """

    size: int
    digest: int
    arrived_s: float
    body: dict[str, Any] = field(default_factory=dict)
    kind: str = _CREATE
    stream_id: str | None = None
    generate: bool = True
    error: ApiError | None = None
    held: Held | None = None


async def read_frame(frame: SocketFrame, raw: bytes, is_text: bool, in_thread: InThread) -> None:
    """Fill in what a client's message asks for; `error` where nothing can be made of it. A large one is read in a thread."""
    try:
        if not is_text:
            raise errors.bad_json("events are sent as text frames, and this frame is binary")
        if len(raw) > MOST_VALUES:
            await check_values(raw)
        frame.body = body = await in_thread(lambda: json_object(raw)) if len(raw) > LARGE_BYTES else json_object(raw)
        _read_envelope(frame, body)
    except ApiError as error:
        frame.error = error


def _read_envelope(frame: SocketFrame, body: dict[str, Any]) -> None:
    """Take what only WebSocket events have out of the body. Raises ApiError."""
    kind = body.pop("type", None)
    if kind is None:
        raise errors.missing("type")
    if not isinstance(kind, str):
        raise errors.wrong_type("type", "a string", kind)
    frame.kind = kind
    if kind != _CREATE:
        return
    stream_id = body.pop("stream_id", None)
    if stream_id is not None and not (isinstance(stream_id, str) and _STREAM_ID.fullmatch(stream_id)):
        raise errors.invalid_stream_id()
    frame.stream_id = stream_id
    generate = body.pop("generate", None)
    if generate is not None and not isinstance(generate, bool):
        raise errors.wrong_type("generate", "a boolean", generate)
    frame.generate = generate is not False
    if body.pop("background", None):
        raise errors.unsupported("background", "Background responses are not supported over WebSocket.")
    body["stream"] = True


def refused_kind(kind: str) -> ApiError:
    """Return the error of an event whose type is not served."""
    return errors.not_a_choice("type", kind, (_CREATE, _STEER))


def steering_failed(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to `response.steer`, which hands the input back, as for models that cannot be steered."""
    steer = {"previous_response_id": body.get("previous_response_id") or "", "input": body.get("input") or ""}
    message = "No model of this server supports steering. Send the input with the next response.create."
    error = {"type": errors.INVALID_REQUEST, "code": "steering_not_supported", "message": message}
    return {"type": "response.steer.failed", "sequence_number": 0, "steer": steer, "error": error}


def error_event(status: int, body: dict[str, Any], stream_id: str | None, headers: dict[str, str]) -> bytes:
    """Return an error as WebSocket connections have it. body: of the HTTP response. headers: those that clients look for."""
    error = body.get("error")
    if not isinstance(error, dict):
        error = {"type": "server_error", "message": f"Status {status}.", "param": None, "code": None}
    error = {**error, "code": error.get("code") or error.get("type")}  # Open Responses has no errors without a code
    event = {"type": "error", "status": status, "error": error}
    if headers:  # where openai-python looks for them, and Codex
        event |= {"error": {**error, "headers": headers}, "headers": headers}
    return encoded(event if stream_id is None else {**event, "stream_id": stream_id})


class FrameExchange(HttpExchange):
    """The exchange of a frame: its body has been read, and the journal calls its method WS."""

    __slots__ = ("frame",)

    def __init__(
        self, scope: Scope, receive: Receive, most_bytes: int, dialect: Dialect, in_thread: InThread | None = None
    ) -> None:
        super().__init__(scope, receive, most_bytes, dialect, in_thread)
        self.frame: SocketFrame = scope[FRAME]
        self.entry.method = "WS"
        self.entry.digest = self.frame.digest

    async def json_object(self, empty: dict[str, Any] | None = None) -> dict[str, Any]:
        return await self.has_read(self.frame.body, self.frame.size)

    async def body_of_any_type(self) -> bytes:
        return encoded(self.frame.body)

    def error_body(self, error: ApiError) -> dict[str, Any]:
        """Return the error in OpenAI's form, as in every dialect: no other API has these connections."""
        return error.body()


_LAST = frozenset((b"response.completed", b"response.failed", b"response.incomplete", b"error"))
_TYPE = re.compile(rb'\s*\{\s*"type"\s*:\s*"([^"]*)"')
_TOLD = (b"retry-after", b"x-ratelimit", b"x-should-retry")  # how the headers of errors begin that clients look for


_MOST_WAITING = 64 << 10  # bytes of events; a response whose events are more waits until the client has read


class SocketOutbox:
    """Messages on their way to a connection: at once as far as it takes them, the others by `run`, in order.

    unsent_bytes: of the texts that wait.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._steppable = is_steppable(send)
        self._waiting: deque[bytes | Message] = deque()  # texts as bytes, which may be many
        self.unsent_bytes = 0
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
            self.unsent_bytes += len(message) if isinstance(message, bytes) else 0
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
                    message = self._waiting.popleft()
                    self.unsent_bytes -= len(message) if isinstance(message, bytes) else 0
                    await self._send(_message(message))
            except OSError:
                self._waiting.clear()
                self.unsent_bytes = 0
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

    @property
    def unsent_bytes(self) -> int:
        """Bytes that wait for the connection, those of other responses too."""
        return self._outbox.unsent_bytes + len(self._unread)

    async def send(self, message: Message) -> None:
        """Send what a message of the response says. Waits while the connection takes nothing of what was sent before."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            told = [(name.lower(), value) for name, value in message["headers"] if name.lower().startswith(_TOLD)]
            self._headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in told}
            return
        body = self._unread + message.get("body", b"")
        if self.status == 200:
            self._events(body)
            if self._outbox.unsent_bytes > _MOST_WAITING:
                await self._outbox.drained()
            return
        self._unread = body
        if not message.get("more_body"):
            self._refused(body)

    def _events(self, data: bytes) -> None:
        """Send the events that are complete; the rest of one waits."""
        if b"\r" in data:
            data = EVENT_END.sub(b"\n\n", data)
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
