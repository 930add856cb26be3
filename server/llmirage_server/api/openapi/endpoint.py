"""The document, made when somebody asks for it first."""

from __future__ import annotations

import asyncio
import json

from starlette.responses import Response

from llmirage_server.api.exchange import Exchange


class OpenApiEndpoint:
    def __init__(self) -> None:
        self._document: bytes | None = None

    async def document(self, exchange: Exchange) -> Response:
        if self._document is None:
            self._document = await asyncio.to_thread(_made)
        return exchange.content(self._document, b"application/json")


def _made() -> bytes:
    from llmirage_server.api.openapi.document import openapi_document

    return json.dumps(openapi_document()).encode()
