"""Anthropic's endpoints."""

from __future__ import annotations

from collections.abc import Sequence

from llmirage_server.anthropic.messages import MessagesExchange, MessagesHandler
from llmirage_server.anthropic.stored import AnthropicFilesHandler, MessageBatchesHandler, MessagesLineExchange
from llmirage_server.batches.runner import BatchRunner
from llmirage_server.http.endpoints import HttpEndpoint, HttpFace, Methods, get, methods, post
from llmirage_server.service.service import Service
from llmirage_server.state.state import State

_HEADERS = (b"anthropic-version", b"anthropic-beta", b"x-api-key")  # clients of this API send any of them


def endpoints(
    service: Service, state: State, face: HttpFace, runner: BatchRunner, unknown: Methods
) -> Sequence[HttpEndpoint]:
    """Return the endpoints. runner: runs batches of messages. unknown: answers other paths under /v1/messages."""
    messages = MessagesHandler(service, state)
    batches, files = MessageBatchesHandler(service, state, runner), AnthropicFilesHandler(service)

    def endpoint(path: str, handlers: Methods) -> HttpEndpoint:
        line = MessagesLineExchange if path == "/v1/messages" else None
        return HttpEndpoint(path, handlers, exchange=MessagesExchange, line=line, headers=_HEADERS)

    return [
        endpoint("/v1/messages", post(face.before(messages.create))),
        endpoint("/v1/messages/count_tokens", post(messages.count_tokens)),
        endpoint("/v1/messages/batches", methods(POST=batches.create, GET=batches.list)),
        endpoint("/v1/messages/batches/{id}", methods(GET=batches.retrieve, DELETE=batches.delete)),
        endpoint("/v1/messages/batches/{id}/cancel", post(batches.cancel)),
        endpoint("/v1/messages/batches/{id}/results", get(batches.results)),
        endpoint("/v1/messages{rest:path}", unknown),
        endpoint("/v1/files", methods(POST=files.create, GET=files.list)),
        endpoint("/v1/files/{id}", methods(GET=files.retrieve, DELETE=files.delete)),
        endpoint("/v1/files/{id}/content", get(files.content)),
    ]
