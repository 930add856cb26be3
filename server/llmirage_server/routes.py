"""Which path is answered by what.

The endpoints' modules take 100 ms to import, which the start of a server does not wait for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from llmirage_server.http.absent import absent_at
from llmirage_server.http.access import own_pages_only
from llmirage_server.http.application import OPEN_PATHS
from llmirage_server.http.dialect import ASKED_PATH
from llmirage_server.http.exchange import EndpointApp, Guard, Handler, HttpExchange
from llmirage_server.service.service import Service
from llmirage_shared.wire import errors

if TYPE_CHECKING:
    from llmirage_server.admin.live import LiveHandler
    from llmirage_server.stored.batches import BatchesHandler

WEBSOCKETS = (b"/v1/responses",)  # paths of WebSocket connections
Methods = Mapping[str, Handler]
Wrapper = Callable[[Handler], Handler]

_ANTHROPIC_HEADERS = (b"anthropic-version", b"anthropic-beta", b"x-api-key")


def routes(
    service: Service, guard: Guard | None, live: LiveHandler | None = None, before: Wrapper = lambda handler: handler
) -> list[BaseRoute]:
    """All endpoints, the busiest first.

    guard: of all but those in `OPEN_PATHS`. live: shows the live page. before: wraps the handlers that make replies.
    """
    from llmirage_server.anthropic.batches import MessagesLineExchange
    from llmirage_server.anthropic.messages import MessagesExchange, MessagesHandler
    from llmirage_server.batches.batch import MESSAGES
    from llmirage_server.batches.lines import ENDPOINTS
    from llmirage_server.batches.runner import LineExchange
    from llmirage_server.openai.responses.websocket import ResponsesSocket
    from llmirage_server.openai.vendors import vendor_paths
    from llmirage_server.stored.batches import BatchesHandler

    messages = MessagesHandler(service)
    endpoint = partial(
        EndpointApp,
        on_error=service.metrics.count_error,
        most_bytes=service.most_body_bytes,
        dialect=service.dialect,
        in_thread=service.text.in_thread,
    )
    app = partial(endpoint, guard=guard, journal=service.journal, faults=service.faults)
    of_messages = partial(app, exchange=MessagesExchange)
    own = own_pages_only(guard, service.open_admin)
    openai = _openai(service, before)
    lines = {path: endpoint(openai[path], exchange=LineExchange, faults=service.faults) for path in ENDPOINTS}
    lines[MESSAGES] = endpoint(_post(before(messages.create)), exchange=MessagesLineExchange, faults=service.faults)
    batches = BatchesHandler(service, lines)
    openai |= _batches(batches)
    files = _anthropic_files(service)
    apps: dict[str, ASGIApp] = {path: app(methods) for path, methods in openai.items()}
    apps |= {path: _ByHeader(app(openai[path]), of_messages(methods)) for path, methods in files.items()}
    return [
        *[Route(path, at) for path, at in apps.items()],
        *[Route(path, app(methods)) for path, methods in _engines(service).items()],
        *[
            Route(path, endpoint(methods, None if path in OPEN_PATHS else guard))
            for path, methods in _probes(service).items()
        ],
        *[Route(path, endpoint(methods, own)) for path, methods in _controls(service).items()],
        *([Route("/", endpoint(_get(live.page)))] if live is not None else ()),
        *[Route(f"/llmirage/{name}", endpoint(methods, own)) for name, methods in _admin(service, live).items()],
        WebSocketRoute("/v1/responses", ResponsesSocket(service, guard, before)),
        Route("/v1/messages", of_messages(_post(before(messages.create)))),
        Route("/v1/messages/count_tokens", of_messages(_post(messages.count_tokens))),
        *[Route(path, of_messages(methods)) for path, methods in _message_batches(service, batches).items()],
        Route("/v1/messages{rest:path}", of_messages(UNKNOWN)),
        *[Mount(prefix, at) for prefix, at in vendor_paths(service.dialect, service.models).items()],
    ]


def _openai(service: Service, before: Wrapper) -> dict[str, Methods]:
    """The OpenAI API."""
    from llmirage_server.openai.chat import ChatHandler, StoredChatHandler
    from llmirage_server.openai.completions import CompletionsHandler
    from llmirage_server.openai.embeddings import EmbeddingsHandler
    from llmirage_server.openai.moderations import ModerationsHandler
    from llmirage_server.openai.responses.endpoint import ResponsesHandler
    from llmirage_server.stored.conversations import ConversationsHandler
    from llmirage_server.stored.files import FilesHandler

    responses, conversations, files = ResponsesHandler(service), ConversationsHandler(service), FilesHandler(service)
    stored = StoredChatHandler(service.state)
    return {
        "/v1/chat/completions": _methods(POST=before(ChatHandler(service).create), GET=stored.list),
        "/v1/chat/completions/{id}": _methods(GET=stored.retrieve, POST=stored.update, DELETE=stored.delete),
        "/v1/chat/completions/{id}/messages": _get(stored.messages),
        "/v1/completions": _post(before(CompletionsHandler(service).create)),
        "/v1/responses": _post(before(responses.create)),
        "/v1/responses/input_tokens": _post(responses.input_tokens),
        "/v1/responses/compact": _post(responses.compact),
        "/v1/responses/{id}": _methods(GET=responses.retrieve, DELETE=responses.delete),
        "/v1/responses/{id}/cancel": _post(responses.cancel),
        "/v1/responses/{id}/input_items": _get(responses.input_items),
        "/v1/conversations": _post(conversations.create),
        "/v1/conversations/{id}": _methods(
            GET=conversations.retrieve, POST=conversations.update, DELETE=conversations.delete
        ),
        "/v1/conversations/{id}/items": _methods(GET=conversations.list_items, POST=conversations.add_items),
        "/v1/conversations/{id}/items/{item}": _methods(GET=conversations.retrieve_item, DELETE=conversations.delete_item),
        "/v1/embeddings": _post(before(EmbeddingsHandler(service).create)),
        "/v1/moderations": _post(ModerationsHandler(service).create),
        "/v1/files": _methods(POST=files.create, GET=files.list),
        "/v1/files/{id}": _methods(GET=files.retrieve, DELETE=files.delete),
        "/v1/files/{id}/content": _get(files.content),
        "/v1/models": _get(service.models.list),
        "/v1/models/{model:path}": _get(service.models.retrieve),
    }


def _message_batches(service: Service, batches: BatchesHandler) -> dict[str, Methods]:
    """Anthropic's."""
    from llmirage_server.anthropic.batches import MessageBatchesHandler

    messages = MessageBatchesHandler(service, batches.runner)
    return {
        "/v1/messages/batches": _methods(POST=messages.create, GET=messages.list),
        "/v1/messages/batches/{id}": _methods(GET=messages.retrieve, DELETE=messages.delete),
        "/v1/messages/batches/{id}/cancel": _post(messages.cancel),
        "/v1/messages/batches/{id}/results": _get(messages.results),
    }


def _anthropic_files(service: Service) -> dict[str, Methods]:
    from llmirage_server.anthropic.files import AnthropicFilesHandler

    files = AnthropicFilesHandler(service)
    return {
        "/v1/files": _methods(POST=files.create, GET=files.list),
        "/v1/files/{id}": _methods(GET=files.retrieve, DELETE=files.delete),
        "/v1/files/{id}/content": _get(files.content),
    }


def _batches(batches: BatchesHandler) -> dict[str, Methods]:
    return {
        "/v1/batches": _methods(POST=batches.create, GET=batches.list),
        "/v1/batches/{id}": _get(batches.retrieve),
        "/v1/batches/{id}/cancel": _post(batches.cancel),
    }


def _engines(service: Service) -> dict[str, Methods]:
    """What vLLM and SGLang have beside it."""
    from llmirage_server.engines.pooling import PoolingHandler
    from llmirage_server.engines.rerank import RerankHandler
    from llmirage_server.engines.sglang import SglangHandler
    from llmirage_server.engines.tokenization import TokenizationHandler

    sglang = SglangHandler(service)
    tokens, rerank, pooling = TokenizationHandler(service), RerankHandler(service), PoolingHandler(service)
    return {
        "/tokenize": _post(tokens.tokenize),
        "/detokenize": _post(tokens.detokenize),
        "/rerank": _post(rerank.rerank),
        "/v1/rerank": _post(rerank.rerank),
        "/v2/rerank": _post(rerank.rerank),
        "/v1/ranking": _post(rerank.ranking),
        "/pooling": _post(pooling.pooling),
        "/classify": _post(pooling.classify),
        "/score": _post(rerank.score),
        "/v1/score": _post(rerank.score),
        "/generate": {"POST": sglang.generate, "PUT": sglang.generate},
        "/abort_request": _post(sglang.abort_request),
    }


def _probes(service: Service) -> dict[str, Methods]:
    """What asks for the state of the server: the journal has none of these requests."""
    from llmirage_server.admin.openapi.endpoint import OpenApiHandler
    from llmirage_server.engines.engine_info import EngineHandler
    from llmirage_server.engines.sglang import SglangHandler
    from llmirage_server.engines.tokenization import TokenizationHandler

    engine, sglang, openapi = EngineHandler(service), SglangHandler(service), OpenApiHandler(service)
    return {
        "/health": _get(partial(_health, service)),
        "/livez": _get(_livez),
        "/openapi.json": _get(openapi.document),
        "/docs": _get(openapi.page),
        "/ping": {**_get(engine.ping), **_post(engine.ping)},
        "/metrics": _get(engine.metrics),
        "/prometheus/metrics": _get(engine.metrics),
        "/version": _get(engine.version),
        "/load": _get(engine.load),
        "/tokenizer_info": _get(TokenizationHandler(service).info),
        "/server_info": _get(engine.server_info),
        "/health_generate": _get(sglang.health_generate),
        "/get_model_info": _get(engine.model_info),
        "/model_info": _get(engine.model_info),
        "/get_server_info": _get(engine.get_server_info),
        "/get_load": _get(engine.get_load),
    }


def _controls(service: Service) -> dict[str, Methods]:
    """What changes the state of the engine; refused to pages of other servers that a browser shows."""
    from llmirage_server.engines.engine_info import EngineHandler

    engine = EngineHandler(service)
    return {
        "/reset_prefix_cache": _post(engine.reset_prefix_cache),
        "/sleep": _post(engine.sleep),
        "/wake_up": _post(engine.wake_up),
        "/is_sleeping": _get(engine.is_sleeping),
        "/flush_cache": {**_get(engine.flush_cache), **_post(engine.flush_cache)},
        "/start_profile": {**_get(engine.start_profile), **_post(engine.start_profile)},
        "/stop_profile": {**_get(engine.stop_profile), **_post(engine.stop_profile)},
    }


def _admin(service: Service, live: LiveHandler | None) -> dict[str, Methods]:
    """What llmirage alone has, under /llmirage/; refused like `_controls`."""
    from llmirage_server.admin.faults import FaultsHandler
    from llmirage_server.admin.journal import JournalHandler
    from llmirage_server.admin.pacing import PacingHandler
    from llmirage_server.admin.script import ScriptHandler
    from llmirage_server.admin.verdict import VerdictHandler

    journal, faults, script = JournalHandler(service), FaultsHandler(service), ScriptHandler(service)
    admin: dict[str, Methods] = {
        "journal": _methods(GET=journal.list, DELETE=journal.clear),
        "faults": _methods(GET=faults.list, POST=faults.add, DELETE=faults.clear),
        "pacing": _get(PacingHandler(service).show),
        "faults/{id}": {"DELETE": faults.remove},
        "verdict": _get(VerdictHandler(service).judge),
        "script": _methods(GET=script.show, POST=script.add, PUT=script.replace, DELETE=script.clear),
    }
    if live is not None:
        admin |= {"live": _get(live.live), "speed": _post(live.speed)}
    return admin


async def _health(service: Service, exchange: HttpExchange) -> Response:
    """Ready: an empty object, or the queues of a saturated cluster. 503 if every instance is down and none will start."""
    if all(state.state == "down" for state in service.driver.snapshot()):
        return exchange.error(errors.no_instance())
    if service.dialect.bare_health:
        return exchange.content(b"", b"text/plain; charset=utf-8")
    queues = service.driver.saturated()
    return exchange.json({"saturated": [dataclasses.asdict(queue) for queue in queues]} if queues else {})


async def _livez(exchange: HttpExchange) -> Response:
    """The process answers, whatever its cluster does."""
    return exchange.json({})


def _get(handler: Handler) -> Methods:
    return {"GET": handler, "HEAD": handler}


def _post(handler: Handler) -> Methods:
    return {"POST": handler}


def _methods(**handlers: Handler) -> Methods:
    """By method; HEAD as GET."""
    return {**handlers, "HEAD": handlers["GET"]}


async def _unknown_url(exchange: HttpExchange) -> Response:
    """Answers on every path that is not an endpoint."""
    method, asked = exchange.scope["method"], exchange.scope.get(ASKED_PATH, exchange.scope["path"])
    absent = absent_at(exchange.scope["path"])
    error = errors.unknown_url(method, asked) if absent is None else absent.error(method, asked)
    body = exchange.error_body(error)
    if absent is not None and absent.api in ("Anthropic", "OpenAI") and exchange.header(b"anthropic-version") is not None:
        from llmirage_server.anthropic.messages import messages_error

        body = {**messages_error(error), "request_id": exchange.request_id.decode()}
    return exchange.refusal(error, body)


class _ByHeader:
    """One path of two APIs: what Anthropic's clients send of themselves decides."""

    def __init__(self, openai: EndpointApp, anthropic: EndpointApp) -> None:
        """Both have the same methods."""
        self._openai = openai
        self._anthropic = anthropic
        self.handlers = openai.handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        of_anthropic = any(name in _ANTHROPIC_HEADERS for name, _ in scope["headers"])
        await (self._anthropic if of_anthropic else self._openai)(scope, receive, send)


UNKNOWN: Methods = dict.fromkeys(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"), _unknown_url)
