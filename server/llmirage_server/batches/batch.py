"""One batch: what the API shows of it, the lines of its input and output files, and what it has come to.

A batch of messages (Anthropic's) is one whose endpoint is `MESSAGES`: its files are never shown, and its lines may name any
models.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from llmirage_server.http import bodies
from llmirage_server.http.bodies import json_object
from llmirage_server.http.exchange import LARGE_BYTES
from llmirage_server.state.files import FileStore
from llmirage_server.state.state import Breaks, State
from llmirage_shared.wire import errors, schema
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.output import new_id

WINDOW_S = 86_400
ENDED = ("failed", "completed", "expired", "cancelled")
Kind = Literal["output", "error"]
MESSAGES = "/v1/messages"
_MOMENTS = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
UNSENT_CODES = ("batch_cancelled", "batch_expired")
_USAGE_NAMES = (("input", "prompt", "cached"), ("output", "completion", "reasoning"))

Shown = dict[str, Any]


class Batch:
    """object: what the API shows. files: the hidden files that are being written, by kind. why: it is to stop.

    unsent: how many lines were never run.
    """

    def __init__(self, kept: dict[str, Any], state: State, files: FileStore) -> None:
        """kept: as in the state."""
        self.object: Shown = kept["object"]
        self.files: dict[Kind, str] = kept["files"]
        self.unsent: int = kept.get("unsent", 0)
        self.lifetime_s: int | None = kept["lifetime_s"]
        self.why: Literal["cancelled", "expired", "failed"] | None = None
        self.task: asyncio.Task[None] | None = None
        self._state = state
        self._store = files

    @classmethod
    def created(cls, request: schema.batches.BatchRequest, state: State, files: FileStore) -> Batch:
        """Create a batch. Raises ApiError if it cannot be stored."""
        now = int(files.now_s())
        expires = request.output_expires_after
        shown: Shown = {
            "id": new_id("batch_"),
            "object": "batch",
            "endpoint": request.endpoint,
            "model": None,
            "errors": None,
            "input_file_id": request.input_file_id,
            "completion_window": request.completion_window,
            "status": "validating",
            "output_file_id": None,
            "error_file_id": None,
            "created_at": now,
            "expires_at": now + WINDOW_S,
            **{f"{moment}_at": None for moment in _MOMENTS},
            "request_counts": {"total": 0, "completed": 0, "failed": 0},
            "usage": None,
            "metadata": request.metadata,
        }
        batch = cls({"object": shown, "files": {}, "lifetime_s": expires and expires.seconds}, state, files)
        batch.keep()
        return batch

    @classmethod
    def of_messages(cls, input_file_id: str, total: int, state: State, files: FileStore) -> Batch:
        """Create a batch of messages, whose lines were checked. Raises ApiError if it cannot be stored."""
        now = int(files.now_s())
        shown: Shown = {
            "id": new_id("msgbatch_"),
            "endpoint": MESSAGES,
            "model": None,
            "errors": None,
            "input_file_id": input_file_id,
            "status": "in_progress",
            "created_at": now,
            "expires_at": now + WINDOW_S,
            **{f"{moment}_at": None for moment in _MOMENTS},
            "in_progress_at": now,
            "request_counts": {"total": total, "completed": 0, "failed": 0},
            "usage": None,
        }
        batch = cls({"object": shown, "files": {}, "lifetime_s": None}, state, files)
        batch.keep()
        return batch

    @property
    def has_messages(self) -> bool:
        return bool(self.object["endpoint"] == MESSAGES)

    @property
    def hidden_files(self) -> list[str]:
        """Files that nobody sees and that must stay."""
        needed = [] if self.has_ended else [self.object["input_file_id"]]
        return [*needed, *self.files.values()]

    @property
    def id(self) -> str:
        return str(self.object["id"])

    @property
    def status(self) -> str:
        return str(self.object["status"])

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    def keep(self) -> None:
        """Store it as it is now. Raises ApiError."""
        kept = {"object": self.object, "files": self.files, "lifetime_s": self.lifetime_s, "unsent": self.unsent}
        self._state.put("batch", self.id, kept)

    def becomes(self, status: str) -> None:
        """Change the status, and store the batch. Raises ApiError; the status has changed then, too."""
        self.object |= {"status": status, f"{status}_at": int(self._store.now_s())}
        self.keep()

    def fails(self, problems: list[Problem]) -> None:
        self.object["errors"] = {"object": "list", "data": problems}
        self.becomes("failed")

    def write(self, kind: Kind, line: bytes, usage: Any) -> None:
        """Add the result of one line. usage: what its response counts. Raises ApiError."""
        if kind not in self.files:
            self.files[kind] = self._store.create(f"{self.id}_{kind}.jsonl", "batch_output")
            self.keep()
        self._store.append(self.files[kind], line)
        self._count(kind, usage)

    def publish(self) -> None:
        """Let the API show the files. Raises ApiError."""
        if self.has_messages:
            return
        for kind, file_id in self.files.items():
            self._store.publish(file_id, self.lifetime_s)
            self.object[f"{kind}_file_id"] = file_id
        self.files = {}

    async def drop_files(self) -> None:
        """Delete what was written."""
        while self.files:
            await self._store.drop(self.files.popitem()[1])

    async def already_written(self) -> set[str]:
        """Return the custom_ids of lines whose results were written by a server before this one; they are counted now."""
        breaks, done = Breaks(), set()
        counts = self.object["request_counts"]
        counts["completed"], counts["failed"], self.object["usage"], self.unsent = 0, 0, None, 0
        for kind, file_id in self.files.items():
            size = 0
            for part in self._store.parts(file_id):
                size += len(part)
                result = json.loads(part)
                self._count(kind, usage_in((result["response"] or {}).get("body")))
                self.unsent += (result["error"] or {}).get("code") in UNSENT_CODES
                done.add(result["custom_id"])
                await breaks.maybe()
            self._store.found_size(file_id, size)
        return done

    def _count(self, kind: Kind, usage: Any) -> None:
        self.object["request_counts"]["completed" if kind == "output" else "failed"] += 1
        if not isinstance(usage, dict):
            return
        total = self.object["usage"] = self.object["usage"] or {
            "input_tokens": 0, "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 0, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 0,
        }  # fmt: skip
        for name, chat_name, detail in _USAGE_NAMES:
            tokens = usage.get(f"{name}_tokens", usage.get(f"{chat_name}_tokens", 0))
            details = usage.get(f"{name}_tokens_details", usage.get(f"{chat_name}_tokens_details")) or {}
            total[f"{name}_tokens"] += tokens
            total["total_tokens"] += tokens
            total[f"{name}_tokens_details"][f"{detail}_tokens"] += details.get(f"{detail}_tokens", 0)


def usage_in(body: Any) -> Any:
    """Return the usage of a response, None for one without."""
    return body.get("usage") if isinstance(body, dict) else None


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


async def _no_wait(size: int) -> None:
    pass


async def lines_of(
    files: FileStore,
    file_id: str,
    room: Callable[[int], Awaitable[None]] = _no_wait,
    one_at_once: asyncio.Lock | None = None,
) -> AsyncIterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers from 1 on; others have their turn meanwhile.

    room: is awaited with the bytes of each large line. one_at_once: is held by who reads one of several parts, until then.
    Raises ApiError (413) for a line with so many values that reading it would hold up others.
    """
    breaks, number = Breaks(), 0
    begun, reading = io.BytesIO(), one_at_once or asyncio.Lock()
    is_held = False

    async def ended() -> bytes:
        nonlocal is_held
        if begun.tell() > LARGE_BYTES:
            await room(begun.tell())
        if is_held:
            reading.release()
            is_held = False
        if len(line := begun.getvalue().strip()) > bodies.MOST_VALUES:
            await bodies.check_values(line)
        return line

    try:
        for part in files.parts(file_id):
            *ends, rest = part.split(b"\n")
            for end in ends:
                begun.write(end)
                number += 1
                if line := await ended():
                    yield number, line
                begun, line = io.BytesIO(), b""  # which nothing keeps while the next one is read
                await breaks.maybe()
            begun.write(rest)
            if begun.tell() > LARGE_BYTES and not is_held:
                is_held = await reading.acquire()
            await breaks.maybe()
        if line := await ended():
            yield number + 1, line
    finally:
        if is_held:
            reading.release()


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
            self._inputs += len(given) if isinstance(given, list) and not (given and isinstance(given[0], int)) else 1
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
