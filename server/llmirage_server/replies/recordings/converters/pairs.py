"""Pairs of a request and a response in OpenAI's (or Anthropic's) form, one in each line.

A line is {"request": BODY, "response": BODY}; its `path` may say which API it is of. A response that is a list has the
chunks of a stream. Lines of the Batch API's input and output files are joined by their custom_id.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llmirage_server.replies.recordings.converters.conversion import Exchanged, ForeignFileError
from llmirage_server.replies.recordings.matching import endpoint_of


def exchanges(lines: Sequence[tuple[str, Any]]) -> Iterator[Exchanged]:
    """The exchanges of lines, each with the place it stands at. Raises ForeignFileError that names the place."""
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
    data = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
    return Exchanged("POST", path, (), body, status, {"content-type": "application/json"}, data.encode())


def _path_of(body: Mapping[str, Any], answer: Any) -> str | None:
    """The path of a request's API, by its fields and by those of the response."""
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
    """A stream of these chunks: those with a type are named events, others end with [DONE]."""
    events = []
    for chunk in chunks:
        data = json.dumps(chunk, ensure_ascii=False, separators=(",", ":"))
        kind = chunk.get("type") if isinstance(chunk, Mapping) else None
        events.append(f"event: {kind}\ndata: {data}\n\n" if kind else f"data: {data}\n\n")
    if not (chunks and isinstance(chunks[-1], Mapping) and "type" in chunks[-1]):
        events.append("data: [DONE]\n\n")
    return "".join(events).encode()
