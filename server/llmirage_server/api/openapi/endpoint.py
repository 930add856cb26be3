"""GET /openapi.json. The document is made at the first request."""

from __future__ import annotations

import asyncio
import json

from starlette.responses import Response

from llmirage_server.api.exchange import HttpExchange
from llmirage_server.api.service import Service, ServiceHandler


class OpenApiHandler(ServiceHandler):
    """Serves the document."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._document: bytes | None = None

    async def document(self, exchange: HttpExchange) -> Response:
        if self._document is None:
            service = self._service
            self._document = await asyncio.to_thread(_made, service.models.served[0], service.documented_only)
        return exchange.content(self._document, b"application/json")


def _made(model: str, documented_only: bool) -> bytes:
    # Here, in a thread: it needs pydantic's models of all requests and responses, which take 120 ms to import.
    from llmirage_server.api.openapi.document import openapi_document

    return json.dumps(openapi_document(model, documented_only)).encode()
