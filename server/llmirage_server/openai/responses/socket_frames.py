"""Frames of WebSocket clients: events, each of which becomes a request; and the answers to those that cannot."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Receive, Scope

from llmirage_server.http.bodies import MOST_VALUES, check_values, json_object
from llmirage_server.http.byte_budget import Held
from llmirage_server.http.dialect import Dialect
from llmirage_server.http.exchange import LARGE_BYTES, HttpExchange
from llmirage_server.replies.structured.budget import InThread
from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.output import encoded

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
