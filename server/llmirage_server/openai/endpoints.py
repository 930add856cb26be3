"""OpenAI's endpoints."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import BaseRoute, Mount, WebSocketRoute

from llmirage_server.batches.runner import LineExchange
from llmirage_server.http.endpoints import HttpEndpoint, HttpFace, get, methods, post
from llmirage_server.openai.chat import ChatHandler, StoredChatHandler
from llmirage_server.openai.completions import CompletionsHandler
from llmirage_server.openai.embeddings import EmbeddingsHandler, ModerationsHandler
from llmirage_server.openai.generate import GenerateHandler
from llmirage_server.openai.responses.endpoint import ResponsesHandler
from llmirage_server.openai.responses.websocket import ResponsesSocket
from llmirage_server.openai.vendors import vendor_paths
from llmirage_server.service.service import Service
from llmirage_server.state.state import State


def endpoints(
    service: Service, state: State, face: HttpFace, *, fingerprint: str, websocket_limit_s: float
) -> Sequence[HttpEndpoint | BaseRoute]:
    """Return the endpoints, the busiest first.

    Args:
        service: Answers their requests.
        state: Keeps responses and completions.
        face: The HTTP side of the server.
        fingerprint: The `system_fingerprint` of completions.
        websocket_limit_s: The longest that a WebSocket connection lasts; 0: none is taken.
    """
    before = face.before
    responses, stored, models = ResponsesHandler(service, state), StoredChatHandler(state), service.models
    service.responses.held["background"] = responses.bytes_kept
    chat, completions = ChatHandler(service, state, fingerprint), CompletionsHandler(service, fingerprint)
    of_vllm = [HttpEndpoint("/inference/v1/generate", post(face.stateless(GenerateHandler(service).generate)))]
    return [
        HttpEndpoint("/v1/chat/completions", methods(POST=before(chat.create), GET=stored.list), line=LineExchange),
        HttpEndpoint("/v1/chat/completions/render", post(face.stateless(chat.render))),
        HttpEndpoint("/v1/chat/completions/{id}", methods(GET=stored.retrieve, POST=stored.update, DELETE=stored.delete)),
        HttpEndpoint("/v1/chat/completions/{id}/messages", get(stored.messages)),
        HttpEndpoint("/v1/completions", post(before(completions.create)), line=LineExchange),
        HttpEndpoint("/v1/completions/render", post(face.stateless(completions.render))),
        HttpEndpoint("/v1/responses", post(before(responses.create)), line=LineExchange),
        HttpEndpoint("/v1/responses/input_tokens", post(responses.input_tokens)),
        HttpEndpoint("/v1/responses/compact", post(responses.compact)),
        HttpEndpoint("/v1/responses/{id}", methods(GET=responses.retrieve, DELETE=responses.delete)),
        HttpEndpoint("/v1/responses/{id}/cancel", post(responses.cancel)),
        HttpEndpoint("/v1/responses/{id}/input_items", get(responses.input_items)),
        HttpEndpoint("/v1/embeddings", post(before(EmbeddingsHandler(service).create)), line=LineExchange),
        HttpEndpoint("/v1/moderations", post(ModerationsHandler(service).create), line=LineExchange),
        HttpEndpoint("/v1/models", get(models.list)),
        HttpEndpoint("/v1/models/{model:path}", get(models.retrieve)),
        *(of_vllm if service.dialect.name == "vllm" else []),
        WebSocketRoute("/v1/responses", ResponsesSocket(service, state, face, websocket_limit_s)),
        *[Mount(prefix, app) for prefix, app in vendor_paths(service.dialect, models).items()],
    ]
