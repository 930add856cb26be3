"""/v1/files in the form of Anthropic's API: upload, list, retrieve, download, delete."""

from __future__ import annotations

import mimetypes
import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from llmirage_server.http.exchange import HttpExchange
from llmirage_server.http.multipart import FormPart, form_parts
from llmirage_server.service.service import Service, ServiceHandler
from llmirage_server.state.files import SIMULATED_OUTPUT
from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError
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
        name = re.split(r"[/\\]", file.filename or "")[-1] or f"unnamed{mimetypes.guess_extension(file.content_type) or ''}"
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
            found = [file for file in reversed(listed) if file["id"] in ids]
            return exchange.json({**anthropic_page(found[::-1], lambda name: None, most=_MOST_IDS), "next_page": None})
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
        response = StreamingResponse(self._files.streamed(file["id"]))
        name = quote(file["filename"], safe="", errors="replace").encode()
        response.raw_headers = [
            *exchange.response_headers(_metadata(file)["mime_type"].encode("latin-1", "replace")),
            (b"content-length", b"%d" % file["bytes"]),
            (b"content-disposition", b"attachment; filename*=UTF-8''" + name),
        ]
        return response

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
        "expires_at": None if file["expires_at"] is None else _time(file["expires_at"]),
        "downloadable": _is_downloadable(file),
    }


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
