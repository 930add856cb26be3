"""Which path is answered by what."""

from __future__ import annotations

import dataclasses

from starlette.responses import Response
from starlette.routing import Route

from llmirage_server.api.chat import ChatEndpoint
from llmirage_server.api.completions import CompletionsEndpoint
from llmirage_server.api.exchange import Endpoint, Exchange
from llmirage_server.api.generation import Service

_READ = ("GET", "HEAD")


def routes(service: Service) -> list[Route]:
    """All endpoints, the busiest first."""

    async def health(exchange: Exchange) -> Response:
        """The server is up: an empty object, unless the simulated cluster is saturated."""
        queues = service.driver.saturated()
        return exchange.json({"saturated": [dataclasses.asdict(queue) for queue in queues]} if queues else {})

    return [
        Route("/v1/chat/completions", Endpoint(ChatEndpoint(service).create, ("POST",))),
        Route("/v1/completions", Endpoint(CompletionsEndpoint(service).create, ("POST",))),
        Route("/v1/models", Endpoint(service.models.list, _READ)),
        Route("/v1/models/{model:path}", Endpoint(service.models.retrieve, _READ)),
        Route("/health", Endpoint(health, _READ)),
    ]
