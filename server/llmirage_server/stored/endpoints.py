"""Endpoints of stored objects: files, batches, conversations."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import Response

from llmirage_server.batches.batch import Batch
from llmirage_server.batches.runner import BatchRunner
from llmirage_server.http.bodies import json_object
from llmirage_server.http.endpoints import HttpEndpoint, get, methods, post
from llmirage_server.http.exchange import HttpExchange
from llmirage_server.http.forms import FormPart, form_parts
from llmirage_server.service.service import Service, ServiceHandler
from llmirage_server.state.conversation import MOST_SIZE, PageEnds, StoredConversation, check_size, listed_items, size_of
from llmirage_server.state.files import MOST_FILES
from llmirage_server.state.state import State, not_stored
from llmirage_shared.wire import errors, schema
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.output import new_id
from llmirage_shared.wire.paging import MOST, USUAL, integer, page
from llmirage_shared.wire.refusals import refuse_items


class BatchesHandler(ServiceHandler):
    """Answers as the OpenAI API does."""

    def __init__(self, service: Service, state: State, runner: BatchRunner) -> None:
        """Keep what answers. runner: runs the batches."""
        super().__init__(service)
        self._state = state
        self._runner = runner

    async def create(self, exchange: HttpExchange) -> Response:
        body = await exchange.json_object()
        self._service.responses.check_open()
        request = schema.batches.BatchRequest.check(body, self._service.documented_only)
        await self._runner.make_room()
        batch = Batch.created(request, self._state, self._service.files)
        self._runner.start(batch)
        return exchange.json(batch.object)

    async def list(self, exchange: HttpExchange) -> Response:
        return exchange.json(page([batch.object for batch in self._runner.all()], exchange.query))

    async def retrieve(self, exchange: HttpExchange) -> Response:
        return exchange.json(self._runner.found(exchange.path_id()).object)

    async def cancel(self, exchange: HttpExchange) -> Response:
        batch = self._runner.found(exchange.path_id())
        self._runner.cancel(batch)
        return exchange.json(batch.object)


class ConversationsHandler(ServiceHandler):
    """Creates, changes and deletes conversations, and their items one by one."""

    def __init__(self, service: Service, state: State) -> None:
        super().__init__(service)
        self._state = state
        self._ends = PageEnds()

    async def create(self, exchange: HttpExchange) -> Response:
        body = await exchange.json_object(empty={})
        documented_only = self._service.documented_only
        request = await exchange.apart(lambda: schema.responses.ConversationCreate.check(body, documented_only))
        await exchange.apart(lambda: self._refuse(body))
        items = await exchange.apart(lambda: listed_items([item.plain() for item in request.items or ()]))
        shown: dict[str, Any] = {
            "id": new_id("conv_"),
            "object": "conversation",
            "created_at": int(time.time()),
            "metadata": request.metadata or {},
        }
        await exchange.apart(lambda: StoredConversation.begun(self._state, shown).append(items))
        return exchange.json(shown)

    async def retrieve(self, exchange: HttpExchange) -> Response:
        return exchange.json(self._found(exchange).shown)

    async def update(self, exchange: HttpExchange) -> Response:
        self._found(exchange)
        request = await exchange.checked(schema.responses.ConversationUpdate.check, self._service.documented_only)
        conversation = self._found(exchange)  # as it is by now
        conversation.shown["metadata"] = request.metadata
        conversation.put()
        return exchange.json(conversation.shown)

    async def delete(self, exchange: HttpExchange) -> Response:
        conversation = self._found(exchange)
        conversation.delete()
        return exchange.json({"id": conversation.shown["id"], "object": "conversation.deleted", "deleted": True})

    async def add_items(self, exchange: HttpExchange) -> Response:
        self._found(exchange)
        body = await exchange.json_object()
        request = await exchange.apart(lambda: schema.responses.ItemsCreate.check(body, self._service.documented_only))
        await exchange.apart(lambda: self._refuse(body))
        new = await exchange.apart(lambda: listed_items([item.plain() for item in request.items]))
        conversation = self._found(exchange)  # as it is by now
        check_size(conversation.size + size_of(new), "items", MOST_SIZE)
        await exchange.apart(lambda: conversation.append(new))
        return await exchange.large_json(page(new, lambda name: {"limit": "100"}.get(name), "asc"))

    async def list_items(self, exchange: HttpExchange) -> Response:
        limit = exchange.query("limit")
        count = integer("limit", limit) if limit else USUAL
        newest_first = exchange.query("order") != "asc"
        after = exchange.query("after") or None
        items = await self._found(exchange).window(after, min(max(count, 1), MOST), newest_first, self._ends)
        return await exchange.large_json(page(items, exchange.query))

    async def retrieve_item(self, exchange: HttpExchange) -> Response:
        key = exchange.path_id("item")
        item = await self._found(exchange).item(key, self._ends)
        if item is None:
            raise _no_item(key)
        return await exchange.large_json(item)

    async def delete_item(self, exchange: HttpExchange) -> Response:
        """Answers with the conversation, as the OpenAI API does."""
        key = exchange.path_id("item")
        conversation = self._found(exchange)
        if not await conversation.remove(key, self._ends):
            raise _no_item(key)
        return exchange.json(conversation.shown)

    def _refuse(self, body: Mapping[str, Any]) -> None:
        if self._service.dialect.strict:
            refuse_items(body, "items")

    def _found(self, exchange: HttpExchange) -> StoredConversation:
        found = StoredConversation.find(self._state, exchange.path_id(), exchange.kept)
        if found is None:
            raise not_stored("conversation", exchange.path_id())
        return found


def _no_item(key: str) -> ApiError:
    return ApiError(f"Item with id '{key}' not found.", status=404, param="item_id")


_MOST_NAME = 255  # characters
_BATCH_LIFETIME_S = 30 * 86400  # of uploads for batches; others stay
_MANY = 500  # files: to write the list of more takes some milliseconds
_MOST_FIRST_LINE = 1024 * 1024
_OF_ANTHROPIC = "file_"  # how ids of the other API with files begin
_UPLOADS = ("assistants", "user_data", "vision")  # of which the API gives nothing back
_IN_BRACKETS = re.compile(r"expires_after\[(anchor|seconds)\]")


class FilesHandler(ServiceHandler):
    """Answers as the OpenAI API does."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._files = service.files

    async def create(self, exchange: HttpExchange) -> Response:
        content_type = exchange.header(b"content-type") or ""
        body = await exchange.body_of_any_type()
        fields, file = await exchange.apart(lambda: _read_form(content_type, body))
        request = schema.batches.FileUpload.check(fields, self._service.documented_only)
        if file is None or file.filename is None:
            raise errors.wrong_type("file", "a file", "")
        if request.purpose == "batch":
            _check_json_lines(file.data)
        lifetime_s = _BATCH_LIFETIME_S if request.purpose == "batch" else None
        if request.expires_after is not None:
            lifetime_s = request.expires_after.seconds
        name = file.base_name or "upload"
        if len(name) > _MOST_NAME:
            raise errors.too_long("file.filename", "a string", _MOST_NAME, len(name))
        return exchange.json(await self._files.add(name, request.purpose, file.data, lifetime_s))

    async def list(self, exchange: HttpExchange) -> Response:
        await self._files.forget_expired()
        purpose = exchange.query("purpose")
        files = [file for file in self._files.all() if not file["id"].startswith(_OF_ANTHROPIC)]
        listed = [file for file in files if purpose is None or file["purpose"] == purpose]
        exchange.is_large = len(listed) > _MANY
        return await exchange.large_json(page(listed, exchange.query, usual=MOST_FILES, most=MOST_FILES))

    async def retrieve(self, exchange: HttpExchange) -> Response:
        return exchange.json(self._files.object(exchange.path_id()))

    async def content(self, exchange: HttpExchange) -> Response:
        file = self._files.object(exchange.path_id())
        if file["purpose"] in _UPLOADS:
            raise ApiError(f"Not allowed to download files of purpose: {file['purpose']}")
        return exchange.download(file, self._files.streamed(file["id"]), b"application/octet-stream")

    async def delete(self, exchange: HttpExchange) -> Response:
        file_id = exchange.path_id()
        await self._files.delete(file_id)
        return exchange.json({"id": file_id, "object": "file", "deleted": True})


def _read_form(content_type: str, body: bytes) -> tuple[dict[str, Any], FormPart | None]:
    """Return the fields of an upload as the JSON body that they would be, and the file. Raises ApiError."""
    fields: dict[str, Any] = {}
    expires_after: dict[str, Any] = {}
    file = None
    for part in form_parts(content_type, body):
        if part.name == "file":
            file = part
            fields["file"] = ""
        elif part.filename is not None:
            raise errors.unknown_parameter(errors.shorten(part.name))
        elif (inner := _IN_BRACKETS.fullmatch(part.name)) is not None:
            is_number = re.fullmatch(r"-?[0-9]{1,18}", part.text)
            expires_after[inner[1]] = int(part.text) if is_number else part.text
        else:
            fields[part.name] = part.text
    return fields | ({"expires_after": expires_after} if expires_after else {}), file


def _check_json_lines(data: memoryview) -> None:
    """Raise ApiError (400) for a file whose first line is no JSON object; the rest is looked at when a batch reads it."""
    line, end, _ = bytes(data[:_MOST_FIRST_LINE]).lstrip().partition(b"\n")
    if not end and len(data) > _MOST_FIRST_LINE:
        return
    try:
        json_object(line)
    except ApiError:
        raise ApiError("Invalid file format for Batch API. Must be .jsonl") from None


def endpoints(service: Service, state: State, runner: BatchRunner) -> Sequence[HttpEndpoint]:
    """Return the endpoints. runner: runs the batches."""
    files, conversations = FilesHandler(service), ConversationsHandler(service, state)
    batches = BatchesHandler(service, state, runner)
    return [
        HttpEndpoint("/v1/conversations", post(conversations.create)),
        HttpEndpoint(
            "/v1/conversations/{id}",
            methods(GET=conversations.retrieve, POST=conversations.update, DELETE=conversations.delete),
        ),
        HttpEndpoint("/v1/conversations/{id}/items", methods(GET=conversations.list_items, POST=conversations.add_items)),
        HttpEndpoint(
            "/v1/conversations/{id}/items/{item}", methods(GET=conversations.retrieve_item, DELETE=conversations.delete_item)
        ),
        HttpEndpoint("/v1/files", methods(POST=files.create, GET=files.list)),
        HttpEndpoint("/v1/files/{id}", methods(GET=files.retrieve, DELETE=files.delete)),
        HttpEndpoint("/v1/files/{id}/content", get(files.content)),
        HttpEndpoint("/v1/batches", methods(POST=batches.create, GET=batches.list)),
        HttpEndpoint("/v1/batches/{id}", get(batches.retrieve)),
        HttpEndpoint("/v1/batches/{id}/cancel", post(batches.cancel)),
    ]
