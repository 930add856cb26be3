"""What the converters share: the parts of an exchange, found in a file of another tool, become a recording without keys."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from llmirage_server.replies.recordings.recording import Chunk, Recording
from llmirage_server.replies.recordings.redaction import Redactor, secrets_of
from llmirage_server.replies.recordings.sse import EventSplitter

# Headers of responses that clients act on. Others differ each time, or tell of accounts.
KEPT_HEADERS = ("content-type", "retry-after", "retry-after-ms", "x-should-retry", "location")


class ForeignFileError(ValueError):
    """A file that cannot be converted; the message says what is wrong, and where."""


@dataclass(slots=True, frozen=True)
class Exchanged:
    """A request and its response as another tool has them. headers: of the request; body: the JSON value."""

    method: str
    path: str
    headers: Iterable[tuple[str, str]]
    body: Any
    status: int
    response_headers: Mapping[str, str]
    data: bytes


def recording_of(exchange: Exchanged) -> Recording:
    """The recording; other tools know no times, so everything comes at once."""
    kept = {name: exchange.response_headers[name] for name in KEPT_HEADERS if name in exchange.response_headers}
    stream = kept.get("content-type", "").startswith("text/event-stream")
    parts = [exchange.data]
    if stream:
        splitter = EventSplitter()
        parts = splitter.feed(exchange.data)
        parts += [splitter.rest] if splitter.rest else []
    raw = Recording(
        exchange.method, exchange.path, exchange.body, exchange.status, kept, [Chunk(0.0, part) for part in parts], stream
    )
    return redacted(raw, Redactor(secrets_of(exchange.headers, exchange.path)))


def redacted(recording: Recording, redactor: Redactor) -> Recording:
    """The recording without keys."""
    data = [chunk.data for chunk in recording.chunks]
    data = redactor.events(data) if recording.stream else [redactor.body(part) for part in data]
    return Recording(
        recording.method,
        redactor.path(recording.path),
        redactor.value(recording.body),
        recording.status,
        {name: redactor.text(value) for name, value in recording.headers.items()},
        [Chunk(chunk.at_ms, part) for chunk, part in zip(recording.chunks, data, strict=True)],
        recording.stream,
        recording.ended,
    )


def json_of(data: bytes) -> Any:
    """The JSON value of a request's body; None if it is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
