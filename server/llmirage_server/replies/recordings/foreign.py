"""Recordings from files of other tools.

Pairs of a request and a response in OpenAI's (or Anthropic's) form, one in each line: {"request": BODY, "response": BODY};
its `path` may say which API it is of. A response that is a list has the chunks of a stream. Lines of the Batch API's input
and output files are joined by their custom_id.

Cassettes of VCR.py and pytest-recording: YAML (or JSON) with `interactions`, each a request and a response. Bodies are
texts, bytes (`!!binary`, perhaps compressed), or JSON under `parsed_body`, as pydantic-ai's serializer writes it.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from llmirage_server.replies.recordings.recording import Chunk, Recording, write_json
from llmirage_server.replies.recordings.redaction import Redactor, secrets_of
from llmirage_server.replies.recordings.store import endpoint_of
from llmirage_shared.wire.output import DONE, EventSplitter, event, named_event

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
    """Return the recording; other tools know no times, so everything comes at once."""
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
    """Return the recording without keys."""
    data = [chunk.data for chunk in recording.chunks]
    data = redactor.events(data) if recording.stream else [redactor.body(part) for part in data]
    return replace(
        recording,
        path=redactor.path(recording.path),
        body=redactor.value(recording.body),
        headers={name: redactor.text(value) for name, value in recording.headers.items()},
        chunks=[Chunk(chunk.at_ms, part) for chunk, part in zip(recording.chunks, data, strict=True)],
    )


def json_of(data: bytes) -> Any:
    """Return the JSON value of a request's body; None if it is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def exchanges_of_lines(lines: Sequence[tuple[str, Any]]) -> Iterator[Exchanged]:
    """Yield the exchanges of lines, each with the place it stands at. Raises ForeignFileError that names the place."""
    asked: dict[str, Mapping[str, Any]] = {}
    for place, line in lines:
        if not isinstance(line, Mapping):
            raise ForeignFileError(f"{place}: must be an object with request and response")
        if "custom_id" in line and "body" in line:
            asked[str(line["custom_id"])] = line
    for place, line in lines:
        if "custom_id" in line:
            if isinstance(line.get("response"), Mapping):
                yield _of_batch(place, line, asked.get(str(line["custom_id"])))
            continue
        if not isinstance(line.get("request"), Mapping) or "response" not in line:
            raise ForeignFileError(f"{place}: must be an object with request and response")
        path = line.get("path", line.get("url", line.get("endpoint")))
        yield _exchange(place, dict(line["request"]), line["response"], path, int(line.get("status", 200)))


def _of_batch(place: str, line: Mapping[str, Any], asked: Mapping[str, Any] | None) -> Exchanged:
    if asked is None:
        raise ForeignFileError(f"{place}: no line has the request of custom_id {line['custom_id']!r}: give both files")
    response = line["response"]
    return _exchange(
        place, dict(asked["body"]), response.get("body"), asked.get("url"), int(response.get("status_code", 200))
    )


def _exchange(place: str, body: dict[str, Any], answer: Any, path: Any, status: int) -> Exchanged:
    path = str(path) if path else _path_of(body, answer)
    if path is None or endpoint_of(path) is None:
        raise ForeignFileError(
            f"{place}: no API is known for {path or 'this request'}: say it with `path`, such as /v1/responses"
        )
    if isinstance(answer, list):
        body["stream"] = True
        return Exchanged("POST", path, (), body, status, {"content-type": "text/event-stream"}, _events(answer))
    data = answer.encode() if isinstance(answer, str) else write_json(answer)
    return Exchanged("POST", path, (), body, status, {"content-type": "application/json"}, data)


def _path_of(body: Mapping[str, Any], answer: Any) -> str | None:
    """Return the path of a request's API, by its fields and by those of the response."""
    first = answer[0] if isinstance(answer, list) and answer else answer
    kind = first.get("type", "") if isinstance(first, Mapping) else ""
    shape = first.get("object", "") if isinstance(first, Mapping) else ""
    if "messages" in body:
        return "/v1/messages" if kind in ("message", "message_start") else "/v1/chat/completions"
    if "prompt" in body:
        return "/v1/completions"
    if "input" in body:
        return "/v1/embeddings" if shape == "list" else "/v1/responses"
    return None


def _events(chunks: Sequence[Any]) -> bytes:
    """Return a stream of these chunks: those with a type are named events, others end with [DONE]."""
    events = []
    for chunk in chunks:
        kind = chunk.get("type") if isinstance(chunk, Mapping) else None
        events.append(named_event(str(kind), chunk) if kind else event(chunk))
    if not (chunks and isinstance(chunks[-1], Mapping) and "type" in chunks[-1]):
        events.append(DONE)
    return b"".join(events)


_UNKNOWN_ENCODINGS = ("br", "zstd", "deflate", "compress")


def exchanges_of_cassette(document: Any) -> Iterator[Exchanged]:
    """Yield the exchanges with models in a cassette, in its order. Raises ForeignFileError."""
    for number, interaction in enumerate(document["interactions"], 1):
        if not isinstance(interaction, Mapping):
            raise ForeignFileError(f"interaction {number} must be a mapping")
        request, response = interaction.get("request"), interaction.get("response")
        if not isinstance(request, Mapping) or not isinstance(response, Mapping):
            raise ForeignFileError(f"interaction {number} needs a request and a response")
        parts = urlsplit(str(request.get("uri", request.get("url", ""))))
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        body = json_of(_plain(request))
        if endpoint_of(path) is None or body is None:
            continue
        status = response.get("status", response.get("status_code"))
        status = status.get("code") if isinstance(status, Mapping) else status
        if not isinstance(status, int):
            raise ForeignFileError(f"interaction {number}: the response has no status code")
        headers = dict(_headers(response))
        data = _plain(response)
        if headers.get("content-encoding", "") in _UNKNOWN_ENCODINGS and not _is_text(data):
            raise ForeignFileError(
                f"interaction {number}: the response is compressed ({headers['content-encoding']}): "
                "record the cassette with decode_compressed_response=True"
            )
        yield Exchanged(str(request.get("method", "POST")).upper(), path, _headers(request), body, status, headers, data)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _headers(part: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Names in lower case; a name may have one value or a list."""
    for name, values in (part.get("headers") or {}).items():
        for value in values if isinstance(values, list) else [values]:
            yield str(name).lower(), str(value)


def _plain(part: Mapping[str, Any]) -> bytes:
    """Return the bytes of a body, decompressed."""
    if "parsed_body" in part:
        return write_json(part["parsed_body"])
    body = part.get("body", part.get("content"))
    if isinstance(body, Mapping):
        body = base64.b64decode(str(body["base64_string"])) if "base64_string" in body else body.get("string")
    data = body.encode() if isinstance(body, str) else body if isinstance(body, bytes) else b""
    if data[:2] == b"\x1f\x8b":
        try:
            return zlib.decompress(data, zlib.MAX_WBITS | 32)
        except zlib.error:
            raise ForeignFileError("a compressed body is damaged") from None
    return data
