"""The document, made when somebody asks for it first."""

from __future__ import annotations

import asyncio
import json

from starlette.responses import Response

from llmirage_server.api.exchange import Exchange


class OpenApiEndpoint:
    def __init__(self, model: str) -> None:
        """model: a name that is served."""
        self._model = model
        self._document: bytes | None = None

    async def document(self, exchange: Exchange) -> Response:
        if self._document is None:
            self._document = await asyncio.to_thread(_made, self._model)
        return exchange.content(self._document, b"application/json")


def _made(model: str) -> bytes:
    from llmirage_server.api.openapi.document import openapi_document

    return json.dumps(openapi_document(model)).encode()
