"""Which path is answered by what."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from starlette.responses import Response
from starlette.routing import Route

from llmirage_server.api.chat import ChatEndpoint
from llmirage_server.api.completions import CompletionsEndpoint
from llmirage_server.api.conversations import ConversationsEndpoint
from llmirage_server.api.embeddings import EmbeddingsEndpoint
from llmirage_server.api.engine_info import EngineEndpoint
from llmirage_server.api.exchange import Endpoint, Exchange, Handler
from llmirage_server.api.generation import Service
from llmirage_server.api.messages.endpoint import MessagesEndpoint, error_body
from llmirage_server.api.moderations import ModerationsEndpoint
from llmirage_server.api.openapi.endpoint import OpenApiEndpoint
from llmirage_server.api.rerank import RerankEndpoint
from llmirage_server.api.responses.endpoint import ResponsesEndpoint
from llmirage_server.api.sglang import SglangEndpoint
from llmirage_server.api.stored_chat import StoredChatEndpoint
from llmirage_server.api.tokenization import TokenizationEndpoint

_READ = ("GET", "HEAD")


def routes(service: Service) -> list[Route]:
    """All endpoints, the busiest first."""

    async def health(exchange: Exchange) -> Response:
        """The server is up: an empty object, unless the simulated cluster is saturated."""
        queues = service.driver.saturated()
        return exchange.json({"saturated": [dataclasses.asdict(queue) for queue in queues]} if queues else {})

    messages = MessagesEndpoint(service)
    responses, talks, stored = ResponsesEndpoint(service), ConversationsEndpoint(service), StoredChatEndpoint(service.state)
    return [
        *_by_method("/v1/chat/completions", POST=ChatEndpoint(service).create, GET=stored.list),
        *_by_method("/v1/chat/completions/{id}", GET=stored.retrieve, POST=stored.update, DELETE=stored.delete),
        Route("/v1/chat/completions/{id}/messages", Endpoint(stored.messages, _READ)),
        Route("/v1/completions", Endpoint(CompletionsEndpoint(service).create, ("POST",))),
        Route("/v1/responses", Endpoint(responses.create, ("POST",))),
        Route("/v1/responses/input_tokens", Endpoint(responses.input_tokens, ("POST",))),
        Route("/v1/responses/compact", Endpoint(responses.compact, ("POST",))),
        *_by_method("/v1/responses/{id}", GET=responses.retrieve, DELETE=responses.delete),
        Route("/v1/responses/{id}/cancel", Endpoint(responses.cancel, ("POST",))),
        Route("/v1/responses/{id}/input_items", Endpoint(responses.input_items, _READ)),
        Route("/v1/conversations", Endpoint(talks.create, ("POST",))),
        *_by_method("/v1/conversations/{id}", GET=talks.retrieve, POST=talks.update, DELETE=talks.delete),
        *_by_method("/v1/conversations/{id}/items", GET=talks.list_items, POST=talks.add_items),
        *_by_method("/v1/conversations/{id}/items/{item}", GET=talks.retrieve_item, DELETE=talks.delete_item),
        Route("/v1/messages", Endpoint(messages.create, ("POST",), error_body)),
        Route("/v1/messages/count_tokens", Endpoint(messages.count_tokens, ("POST",), error_body)),
        Route("/v1/embeddings", Endpoint(EmbeddingsEndpoint(service).create, ("POST",))),
        Route("/v1/moderations", Endpoint(ModerationsEndpoint(service).create, ("POST",))),
        Route("/v1/models", Endpoint(service.models.list, _READ)),
        Route("/v1/models/{model:path}", Endpoint(service.models.retrieve, _READ)),
        Route("/health", Endpoint(health, _READ)),
        Route("/openapi.json", Endpoint(OpenApiEndpoint(service).document, _READ)),
        *_engine_routes(service),
    ]


def _engine_routes(service: Service) -> list[Route]:
    """What vLLM and SGLang have beside the API."""
    engine, sglang, tokens, rerank = (
        EngineEndpoint(service),
        SglangEndpoint(service),
        TokenizationEndpoint(service),
        RerankEndpoint(service),
    )
    post, any_ = ("POST",), ("GET", "HEAD", "POST")
    table: list[tuple[str, Handler, Sequence[str]]] = [
        ("/tokenize", tokens.tokenize, post),
        ("/detokenize", tokens.detokenize, post),
        ("/rerank", rerank.rerank, post),
        ("/v1/rerank", rerank.rerank, post),
        ("/v2/rerank", rerank.rerank, post),
        ("/score", rerank.score, post),
        ("/v1/score", rerank.score, post),
        ("/ping", engine.ping, any_),
        ("/metrics", engine.metrics, _READ),
        ("/version", engine.version, _READ),
        ("/load", engine.load, _READ),
        ("/server_info", engine.server_info, _READ),
        ("/reset_prefix_cache", engine.reset_prefix_cache, post),
        ("/sleep", engine.sleep, post),
        ("/wake_up", engine.wake_up, post),
        ("/is_sleeping", engine.is_sleeping, _READ),
        ("/generate", sglang.generate, ("POST", "PUT")),
        ("/abort_request", sglang.abort_request, post),
        ("/health_generate", sglang.health_generate, _READ),
        ("/get_model_info", engine.model_info, _READ),
        ("/model_info", engine.model_info, _READ),
        ("/get_server_info", engine.get_server_info, _READ),
        ("/get_load", engine.get_load, _READ),
        ("/flush_cache", engine.flush_cache, any_),
    ]
    return [Route(path, Endpoint(handler, methods)) for path, handler, methods in table]


def _by_method(path: str, **handlers: Handler) -> list[Route]:
    """One path with a handler for each method."""

    async def dispatch(exchange: Exchange) -> Response:
        method = exchange.scope["method"]
        return await handlers["GET" if method == "HEAD" else method](exchange)

    methods = [*handlers, *(["HEAD"] if "GET" in handlers else [])]
    return [Route(path, Endpoint(dispatch, methods))]
