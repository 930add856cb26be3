"""/v1/files: upload, list, retrieve, download, delete."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from llmirage_server.http.bodies import json_object
from llmirage_server.http.exchange import HttpExchange
from llmirage_server.http.multipart import FormPart, form_parts
from llmirage_server.service.service import Service, ServiceHandler
from llmirage_server.state.files import MOST_FILES
from llmirage_shared.wire import errors, schema
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.paging import page

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
        return exchange.json(await self._files.add(_base_name(file.filename), request.purpose, file.data, lifetime_s))

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
        response = StreamingResponse(self._files.streamed(file["id"]))
        response.raw_headers = exchange.response_headers(b"application/octet-stream")
        name = quote(file["filename"], safe="", errors="replace").encode()
        response.raw_headers += [
            (b"content-length", b"%d" % file["bytes"]),
            (b"content-disposition", b"attachment; filename*=UTF-8''" + name),
        ]
        return response

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


def _base_name(filename: str) -> str:
    """Return the name without the folders of the sender. Raises ApiError (400) for one that is too long."""
    name = re.split(r"[/\\]", filename)[-1] or "upload"
    if len(name) > _MOST_NAME:
        raise errors.too_long("file.filename", "a string", _MOST_NAME, len(name))
    return name
