"""Endpoints of stored objects: files, batches, conversations."""

from __future__ import annotations

from collections.abc import Sequence

from llmirage_server.batches.runner import BatchRunner
from llmirage_server.http.endpoints import HttpEndpoint, get, methods, post
from llmirage_server.service.service import Service
from llmirage_server.state.state import State
from llmirage_server.stored.batches import BatchesHandler
from llmirage_server.stored.conversations import ConversationsHandler
from llmirage_server.stored.files import FilesHandler


def endpoints(service: Service, state: State, runner: BatchRunner) -> Sequence[HttpEndpoint]:
    """Return the endpoints. runner: runs the batches."""
    files, conversations = FilesHandler(service), ConversationsHandler(service, state)
    batches = BatchesHandler(service, state, runner)
    return [
        HttpEndpoint("/v1/conversations", post(conversations.create)),
        HttpEndpoint(
            "/v1/conversations/{id}",
            methods(GET=conversations.retrieve, POST=conversations.update, DELETE=conversations.delete),
        ),
        HttpEndpoint("/v1/conversations/{id}/items", methods(GET=conversations.list_items, POST=conversations.add_items)),
        HttpEndpoint(
            "/v1/conversations/{id}/items/{item}",
            methods(GET=conversations.retrieve_item, DELETE=conversations.delete_item),
        ),
        HttpEndpoint("/v1/files", methods(POST=files.create, GET=files.list)),
        HttpEndpoint("/v1/files/{id}", methods(GET=files.retrieve, DELETE=files.delete)),
        HttpEndpoint("/v1/files/{id}/content", get(files.content)),
        HttpEndpoint("/v1/batches", methods(POST=batches.create, GET=batches.list)),
        HttpEndpoint("/v1/batches/{id}", get(batches.retrieve)),
        HttpEndpoint("/v1/batches/{id}/cancel", post(batches.cancel)),
    ]
