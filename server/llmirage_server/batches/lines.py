"""The lines of a batch's input file: one request each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from llmirage_server.http import bodies
from llmirage_server.http.bodies import json_object
from llmirage_server.state.files import FileStore
from llmirage_server.state.state import Breaks
from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError

MOST_LINES = 50_000
MOST_EMBEDDING_INPUTS = 50_000  # of all requests together
MOST_ERRORS = 100  # that are listed

_FIELDS = ("custom_id", "method", "url", "body")
_NEEDED = {  # one of these fields of the body
    "/v1/chat/completions": ("messages",),
    "/v1/completions": ("prompt",),
    "/v1/responses": ("input", "prompt", "previous_response_id"),
    "/v1/embeddings": ("input",),
    "/v1/moderations": ("input",),
}
ENDPOINTS = tuple(_NEEDED)
_NAMES = {"/v1/chat/completions": "Chat Completions", "/v1/completions": "Completions", "/v1/responses": "Responses"}

Problem = dict[str, Any]


async def lines_of(files: FileStore, file_id: str) -> AsyncIterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers from 1 on; others have their turn meanwhile.

    Raises ApiError (413) for a line with so many values that reading it would hold up others.
    """
    breaks, number = Breaks(), 0
    begun: list[bytes] = []  # parts of a line
    for part in files.parts(file_id):
        *ended, rest = part.split(b"\n")
        for end in ended:
            line = b"".join([*begun, end]).strip()
            begun.clear()
            number += 1
            if len(line) > bodies.MOST_VALUES:
                await bodies.check_values(line)
            if line:
                yield number, line
            await breaks.maybe()
        begun.append(rest)
    if line := b"".join(begun).strip():
        await bodies.check_values(line)
        yield number + 1, line


@dataclass(slots=True)
class LineChecker:
    """Checks one line after the other. problems: at most `MOST_ERRORS`; model: that of all lines; total: of lines."""

    endpoint: str
    find_model: Callable[[str], object]  # raises ApiError for one that is not served
    total: int = 0
    model: str | None = None
    problems: list[Problem] = field(default_factory=list)
    _ids: set[str] = field(default_factory=set)
    _inputs: int = 0

    def check(self, number: int, line: bytes) -> bool:
        """Return whether the next line need be looked at."""
        self.total += 1
        if self.total > MOST_LINES:
            self._add(None, "too_many_tasks", f"The file has more than {MOST_LINES} requests.", None)
            return False
        for code, message, param in self._wrong(line):
            self._add(number, code, message, param)
        return len(self.problems) < MOST_ERRORS

    def ended(self) -> None:
        """Check what only the end of the file shows."""
        if not self.total:
            self._add(None, "empty_file", "The file has no requests.", None)

    def _add(self, number: int | None, code: str, message: str, param: str | None) -> None:
        self.problems.append({"code": code, "message": message, "param": param, "line": number})

    def _wrong(self, line: bytes) -> Iterator[tuple[str, str, str | None]]:
        """Return the problem of a line: code, message, param. The codes and most messages are those of the OpenAI API."""
        try:
            request = json_object(line)
        except ApiError:
            yield "invalid_json_line", "This line is not parseable as valid JSON.", None
            return
        missing = [name for name in _FIELDS if request.get(name) is None]
        for name in missing:
            yield "missing_required_parameter", f"Missing required parameter: '{name}'.", name
        if missing:
            return
        custom_id, method, url, body = (request[name] for name in _FIELDS)
        for name in ("custom_id", "method", "url"):
            if not isinstance(request[name], str):
                error = errors.wrong_type(name, "a string", request[name])
                yield "invalid_type", error.message, name
                return
        if not isinstance(body, dict):
            yield "invalid_type", errors.wrong_type("body", "an object", body).message, "body"
            return
        if custom_id in self._ids:
            known = f"The custom_id '{errors.shorten(custom_id)}' is a duplicate of the custom_id of another request."
            yield "duplicate_custom_id", known, "custom_id"
        self._ids.add(custom_id)
        if method != "POST":
            yield "invalid_method", f"Invalid method: '{errors.shorten(method)}'. Supported values are: 'POST'.", "method"
        if url not in (self.endpoint, self.endpoint.removeprefix("/v1")):  # the latter as Azure has it
            yield "invalid_url", "The URL provided for this request does not match the batch endpoint.", "url"
        yield from self._wrong_body(body)

    def _wrong_body(self, body: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
        model, needed = body.get("model"), _NEEDED[self.endpoint]
        if isinstance(model, str) and model:
            yield from self._wrong_model(model)
        elif model is not None or self.endpoint != "/v1/moderations":
            yield "invalid_request", "Model parameter is required.", "body.model"
        if all(body.get(name) is None for name in needed):
            yield "invalid_request", f"{needed[0].capitalize()} parameter is required.", f"body.{needed[0]}"
        name = _NAMES.get(self.endpoint, "")
        if body.get("stream"):
            yield "streaming_unsupported", f"{name}: Streaming is not supported in the Batch API.", "body.stream"
        if self.endpoint == "/v1/responses" and body.get("background"):
            yield "invalid_request", f"{name}: Background mode is not supported in the Batch API.", "body.background"
        if self.endpoint == "/v1/embeddings":
            given = body.get("input")
            self._inputs += len(given) if isinstance(given, list) and not _is_ids(given) else 1
            if self._inputs > MOST_EMBEDDING_INPUTS:
                yield "invalid_request", f"The batch has more than {MOST_EMBEDDING_INPUTS} embedding inputs.", "body.input"

    def _wrong_model(self, model: str) -> Iterator[tuple[str, str, str]]:
        if self.model is None:
            self.model = model
        if model != self.model:
            shown = errors.shorten(model)
            known = f"The provided model '{shown}' does not match the rest of the batch. Each batch has one model."
            yield "mismatched_model", known, "body.model"
            return
        try:
            self.find_model(model)
        except ApiError:
            known = f"The provided model '{errors.shorten(model)}' is not supported by the Batch API."
            yield "model_not_found", known, "body.model"


def _is_ids(given: list[Any]) -> bool:
    return bool(given) and isinstance(given[0], int)
