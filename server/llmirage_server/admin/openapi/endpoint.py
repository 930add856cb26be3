"""GET /openapi.json and /docs. Both are made at the first request of either."""

from __future__ import annotations

import asyncio
import json

from starlette.responses import Response

from llmirage_server.admin.openapi.reference import reference_page
from llmirage_server.http.exchange import HttpExchange
from llmirage_server.service.service import Service, ServiceHandler


class OpenApiHandler(ServiceHandler):
    """GET /openapi.json and GET /docs."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._made: tuple[bytes, bytes] | None = None

    async def document(self, exchange: HttpExchange) -> Response:
        return exchange.content((await self._both())[0], b"application/json")

    async def page(self, exchange: HttpExchange) -> Response:
        """Answer with the page of the document."""
        return exchange.content((await self._both())[1], b"text/html; charset=utf-8")

    async def _both(self) -> tuple[bytes, bytes]:
        if self._made is None:
            service = self._service
            self._made = await asyncio.to_thread(_made, service.models.served[0], service.documented_only)
        return self._made


def _made(model: str, documented_only: bool) -> tuple[bytes, bytes]:
    # Here, in a thread: it needs pydantic's models of all requests and responses, which take 120 ms to import.
    from llmirage_server.admin.openapi.document import openapi_document

    document = openapi_document(model, documented_only)
    return json.dumps(document).encode(), reference_page(document)
