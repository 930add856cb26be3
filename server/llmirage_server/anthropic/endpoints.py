"""Anthropic's endpoints; those of files and batches of messages stand here.

Batches are run as those of the OpenAI API are: a request is a line of a hidden file, and its answer one of another.
"""

from __future__ import annotations

import json
import mimetypes
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.responses import Response, StreamingResponse

from llmirage_server.anthropic.messages import MessagesExchange, MessagesHandler
from llmirage_server.anthropic.tools import fitting
from llmirage_server.batches.batch import MESSAGES, Batch, lines_of
from llmirage_server.batches.runner import BatchRunner, LineExchange
from llmirage_server.http.endpoints import HttpEndpoint, HttpFace, Methods, get, methods, post
from llmirage_server.http.exchange import HttpExchange
from llmirage_server.http.forms import FormPart, form_parts
from llmirage_server.service.service import Service, ServiceHandler
from llmirage_server.state.files import SIMULATED_OUTPUT
from llmirage_server.state.state import Breaks, State
from llmirage_shared.wire import errors, schema
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.output import new_id
from llmirage_shared.wire.paging import anthropic_page

PREFIX = "file_"  # of ids; those of the OpenAI API begin otherwise, and each API shows its own files
_PAGE = "page_"
_UPLOADED = "user_data"
_MOST_NAME = 255  # characters
_MOST_IDS = 100
_SHORTEST_S, _LONGEST_S = 3600, 90 * 86_400
_FORBIDDEN = re.compile(r"[<>:\"|?*\x00-\x1f]")
_ANY_TYPE = "application/octet-stream"


class AnthropicFilesHandler(ServiceHandler):
    """Answers as the Anthropic API does."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._files = service.files

    async def create(self, exchange: HttpExchange) -> Response:
        content_type = exchange.header(b"content-type") or ""
        body = await exchange.body_of_any_type()
        file, lifetime_s = await exchange.apart(lambda: _read_form(content_type, body))
        name = file.base_name or f"unnamed{mimetypes.guess_extension(file.content_type) or ''}"
        if len(name) > _MOST_NAME or _FORBIDDEN.search(name):
            raise ApiError(
                f"Invalid filename: it must have at most {_MOST_NAME} characters, none of them a control character or one "
                'of < > : " | ? *'
            )
        kind = file.content_type or mimetypes.guess_type(name)[0] or _ANY_TYPE
        stored = await self._files.add(name, _UPLOADED, file.data, lifetime_s, prefix=PREFIX, mime_type=kind)
        return exchange.json(_metadata(stored))

    async def list(self, exchange: HttpExchange) -> Response:
        await self._files.forget_expired()
        listed = [_metadata(file) for file in self._files.all() if file["id"].startswith(PREFIX)]
        query = exchange.request.query_params
        ids = [*query.getlist("ids"), *query.getlist("ids[]")]
        if ids:
            if query.get("limit") or query.get("page"):
                raise ApiError("ids: `ids` cannot be combined with `limit` or `page`")
            if len(set(ids)) > _MOST_IDS:
                raise ApiError(f"ids: List should have at most {_MOST_IDS} items")
            found = [file for file in listed if file["id"] in ids]
            return exchange.json({**anthropic_page(found, lambda name: None, most=_MOST_IDS), "next_page": None})
        page = query.get("page")
        if page is not None and not page.startswith(_PAGE):
            raise ApiError("page: Invalid page cursor")
        cursors = {"after_id": page.removeprefix(_PAGE)} if page is not None else {}
        shown = anthropic_page(listed, lambda name: cursors.get(name) or query.get(name))
        more = shown["has_more"] and not query.get("before_id")
        return exchange.json({**shown, "next_page": f"{_PAGE}{shown['last_id']}" if more else None})

    async def retrieve(self, exchange: HttpExchange) -> Response:
        return exchange.json(_metadata(self._found(exchange)))

    async def content(self, exchange: HttpExchange) -> Response:
        file = self._found(exchange)
        if not _is_downloadable(file):
            raise ApiError(
                f"File {file['id']} is not downloadable: only files that tools have created are.",
                code="file_not_downloadable",
            )
        kind = _metadata(file)["mime_type"].encode("latin-1", "replace")
        return exchange.download(file, self._files.streamed(file["id"]), kind)

    async def delete(self, exchange: HttpExchange) -> Response:
        file_id = self._found(exchange)["id"]
        if file_id != SIMULATED_OUTPUT:
            await self._files.delete(file_id)
        return exchange.json({"id": file_id, "type": "file_deleted"})

    def _found(self, exchange: HttpExchange) -> dict[str, Any]:
        """Return the file that the path names. Raises ApiError (404)."""
        file_id = exchange.path_id()
        if file_id.startswith(PREFIX):
            try:
                return self._files.object(file_id)
            except ApiError:
                pass
        raise ApiError(f"File not found: {errors.shorten(file_id)}", status=404)


def _read_form(content_type: str, body: bytes) -> tuple[FormPart, float | None]:
    """Return the file of an upload, and after how many seconds it expires. Raises ApiError."""
    file, lifetime_s = None, None
    for part in form_parts(content_type, body):
        if part.name == "file":
            file = part
        elif part.name == "expires_in_seconds":
            if not re.fullmatch(r"[0-9]{1,9}", part.text) or not _SHORTEST_S <= int(part.text) <= _LONGEST_S:
                raise ApiError(f"expires_in_seconds: Input should be between {_SHORTEST_S} and {_LONGEST_S}")
            lifetime_s = float(part.text)
        elif part.name != "purpose":  # what other clients send without need
            raise ApiError(f"{errors.shorten(part.name)}: Extra inputs are not permitted")
    if file is None:
        raise ApiError("file: Field required")
    if not file.data:
        raise ApiError("file: File must not be empty")
    return file, lifetime_s


def _is_downloadable(file: dict[str, Any]) -> bool:
    return bool(file["purpose"] != _UPLOADED)


def _metadata(file: dict[str, Any]) -> dict[str, Any]:
    """Return the file as the API shows it."""
    return {
        "type": "file",
        "id": file["id"],
        "filename": file["filename"],
        "mime_type": file.get("mime_type") or mimetypes.guess_type(file["filename"])[0] or _ANY_TYPE,
        "size_bytes": file["bytes"],
        "created_at": _time(file["created_at"]),
        "expires_at": _time(file["expires_at"]),
        "downloadable": _is_downloadable(file),
    }


def _time(seconds: int | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_PASSED_ON = "anthropic-beta"  # the header of a batch that its requests get
_UNSENT = {"batch_cancelled": "canceled", "batch_expired": "expired"}


class MessagesLineExchange(MessagesExchange):
    """A request of a batch of messages: it gives way to others."""

    __slots__ = ()
    priority = LineExchange.priority


class MessageBatchesHandler(ServiceHandler):
    """Answers as the Anthropic API does."""

    def __init__(self, service: Service, state: State, runner: BatchRunner) -> None:
        """Keep what answers. runner: runs the batches."""
        super().__init__(service)
        self._state = state
        self._runner = runner

    async def create(self, exchange: HttpExchange) -> Response:
        body = await exchange.json_object()
        self._service.responses.check_open()
        kind = schema.batches.MessageBatchRequest
        request = await exchange.apart(lambda: fitting(kind, body, ""))
        betas = exchange.header(_PASSED_ON.encode())
        lines = await exchange.apart(lambda: _lines(request, {} if betas is None else {_PASSED_ON: betas}))
        await self._runner.make_room()
        files = self._service.files
        file_id = files.create("requests.jsonl", "batch")
        try:
            breaks = Breaks()
            for line in lines:
                files.append(file_id, line)
                await breaks.maybe()
            batch = Batch.of_messages(file_id, len(request.requests), self._state, files)
        except ApiError:
            await files.drop(file_id)
            raise
        self._runner.start(batch)
        return exchange.json(_shown(batch, exchange))

    async def list(self, exchange: HttpExchange) -> Response:
        shown = [_shown(batch, exchange) for batch in self._runner.all(messages=True)]
        return exchange.json(anthropic_page(shown, exchange.query))

    async def retrieve(self, exchange: HttpExchange) -> Response:
        return exchange.json(_shown(self._found(exchange), exchange))

    async def cancel(self, exchange: HttpExchange) -> Response:
        batch = self._found(exchange)
        if batch.has_ended:
            raise ApiError(f"Message batch {batch.id} cannot be canceled because it has already ended.")
        self._runner.cancel(batch)
        return exchange.json(_shown(batch, exchange))

    async def delete(self, exchange: HttpExchange) -> Response:
        batch = self._found(exchange)
        if not batch.has_ended:
            raise ApiError(f"Message batch {batch.id} cannot be deleted while it is in progress. Cancel it first.")
        await self._runner.forget(batch)
        return exchange.json({"id": batch.id, "type": "message_batch_deleted"})

    async def results(self, exchange: HttpExchange) -> Response:
        batch = self._found(exchange)
        if not batch.has_ended:
            raise ApiError(f"Message batch {batch.id} has no results yet: it has not ended.", status=404)
        response = StreamingResponse(self._results(batch))
        response.raw_headers = exchange.response_headers(b"application/x-jsonl")
        return response

    async def _results(self, batch: Batch) -> AsyncIterator[bytes]:
        files = self._service.files
        for file_id in batch.files.values():
            files.hold(file_id)
            try:
                async for _, line in lines_of(files, file_id):
                    yield json.dumps(_result(json.loads(line)), ensure_ascii=False).encode("utf-8", "replace") + b"\n"
            finally:
                files.release(file_id)

    def _found(self, exchange: HttpExchange) -> Batch:
        return self._runner.found(exchange.path_id(), messages=True)


def _lines(request: schema.batches.MessageBatchRequest, headers: Mapping[str, str]) -> list[bytes]:
    """Return the requests as the lines of a batch. Raises ApiError for an id that occurs twice, and for streams."""
    known: set[str] = set()
    lines = []
    for index, item in enumerate(request.requests):
        if item.custom_id in known:
            raise ApiError(f"requests.{index}.custom_id: '{item.custom_id}' is a duplicate: custom_ids must be unique")
        known.add(item.custom_id)
        if item.params.get("stream"):
            raise ApiError(f"requests.{index}.params.stream: Streaming is not supported in message batches")
        line = {"custom_id": item.custom_id, "method": "POST", "url": MESSAGES, "body": item.params, "headers": headers}
        lines.append(json.dumps(line).encode() + b"\n")
    return lines


def _shown(batch: Batch, exchange: HttpExchange) -> dict[str, Any]:
    """Return the batch as the API shows it: requests are counted as processing until all have ended."""
    kept, counts = batch.object, batch.object["request_counts"]
    ended = batch.has_ended
    unsent = {"canceled": 0, "expired": 0}
    if ended:
        unsent["expired" if batch.status == "expired" else "canceled"] = batch.unsent
    answered = {"succeeded": counts["completed"], "errored": counts["failed"] - batch.unsent} if ended else {}
    status = "ended" if ended else "canceling" if batch.status == "cancelling" else "in_progress"
    results = str(exchange.request.url.replace(path=f"{MESSAGES}/batches/{batch.id}/results", query=""))
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": status,
        "request_counts": {
            "processing": 0 if ended else counts["total"], "succeeded": 0, "errored": 0, **answered, **unsent,
        },
        "created_at": _time(kept["created_at"]),
        "expires_at": _time(kept["expires_at"]),
        "ended_at": _time(kept[f"{batch.status}_at"]) if ended else None,
        "cancel_initiated_at": _time(kept["cancelling_at"]),
        "archived_at": None,
        "results_url": results if ended else None,
    }  # fmt: skip


def _result(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of one request. line: as the batch has stored it."""
    response, error = line["response"], line["error"] or {}
    result: dict[str, Any]
    if response is not None and response["status_code"] < 400:
        result = {"type": "succeeded", "message": response["body"]}
    elif (kind := _UNSENT.get(error.get("code", ""))) is not None:
        result = {"type": kind}
    else:
        body = None if response is None else response["body"]
        if not (isinstance(body, dict) and body.get("type") == "error"):  # a connection that broke, or an injected fault
            told = error.get("message") or errors.internal_error().message
            body = {"type": "error", "error": {"type": "api_error", "message": told}, "request_id": new_id("req_")}
        result = {"type": "errored", "error": body}
    return {"custom_id": line["custom_id"], "result": result}


_HEADERS = (b"anthropic-version", b"anthropic-beta", b"x-api-key")  # clients of this API send any of them


def endpoints(
    service: Service, state: State, face: HttpFace, runner: BatchRunner, unknown: Methods
) -> Sequence[HttpEndpoint]:
    """Return the endpoints. runner: runs batches of messages. unknown: answers other paths under /v1/messages."""
    messages = MessagesHandler(service, state)
    batches, files = MessageBatchesHandler(service, state, runner), AnthropicFilesHandler(service)

    def endpoint(path: str, handlers: Methods) -> HttpEndpoint:
        line = MessagesLineExchange if path == "/v1/messages" else None
        return HttpEndpoint(path, handlers, exchange=MessagesExchange, line=line, headers=_HEADERS)

    return [
        endpoint("/v1/messages", post(face.before(messages.create))),
        endpoint("/v1/messages/count_tokens", post(face.stateless(messages.count_tokens))),
        endpoint("/v1/messages/batches", methods(POST=batches.create, GET=batches.list)),
        endpoint("/v1/messages/batches/{id}", methods(GET=batches.retrieve, DELETE=batches.delete)),
        endpoint("/v1/messages/batches/{id}/cancel", post(batches.cancel)),
        endpoint("/v1/messages/batches/{id}/results", get(batches.results)),
        endpoint("/v1/messages{rest:path}", unknown),
        endpoint("/v1/files", methods(POST=files.create, GET=files.list)),
        endpoint("/v1/files/{id}", methods(GET=files.retrieve, DELETE=files.delete)),
        endpoint("/v1/files/{id}/content", get(files.content)),
    ]
