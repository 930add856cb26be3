"""The document, made when somebody asks for it first."""

from __future__ import annotations

import asyncio
import json

from starlette.responses import Response

from llmirage_server.api.exchange import Exchange
from llmirage_server.api.generation import Service


class OpenApiEndpoint:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._document: bytes | None = None

    async def document(self, exchange: Exchange) -> Response:
        if self._document is None:
            service = self._service
            self._document = await asyncio.to_thread(_made, service.models.served[0], service.refuses_unknown_fields)
        return exchange.content(self._document, b"application/json")


def _made(model: str, refuses_unknown: bool) -> bytes:
    from llmirage_server.api.openapi.document import openapi_document

    return json.dumps(openapi_document(model, refuses_unknown)).encode()
