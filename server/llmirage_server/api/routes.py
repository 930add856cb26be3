"""Which path is answered by what."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from llmirage_server.api.chat import ChatEndpoint
from llmirage_server.api.completions import CompletionsEndpoint
from llmirage_server.api.exchange import Endpoint, Exchange
from llmirage_server.api.generation import Service

_READ = ("GET", "HEAD")


async def health(exchange: Exchange) -> Response:
    """The server is up; an empty object, as cheap as an answer can be."""
    return exchange.json({})


def routes(service: Service) -> list[Route]:
    """All endpoints, the busiest first."""
    return [
        Route("/v1/chat/completions", Endpoint(ChatEndpoint(service).create, ("POST",))),
        Route("/v1/completions", Endpoint(CompletionsEndpoint(service).create, ("POST",))),
        Route("/v1/models", Endpoint(service.models.list, _READ)),
        Route("/v1/models/{model:path}", Endpoint(service.models.retrieve, _READ)),
        Route("/health", Endpoint(health, _READ)),
    ]
