"""Endpoints of stored objects: files, batches, conversations."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.responses import Response

from llmirage_server.batches.batch import Batch
from llmirage_server.batches.runner import BatchRunner
from llmirage_server.http.endpoints import HttpEndpoint, get, methods, post
from llmirage_server.http.exchange import HttpExchange
from llmirage_server.service.service import Service, ServiceHandler
from llmirage_server.state.state import State
from llmirage_server.stored.conversations import ConversationsHandler
from llmirage_server.stored.files import FilesHandler
from llmirage_shared.wire import schema
from llmirage_shared.wire.paging import page


class BatchesHandler(ServiceHandler):
    """Answers as the OpenAI API does."""

    def __init__(self, service: Service, state: State, runner: BatchRunner) -> None:
        """Keep what answers. runner: runs the batches."""
        super().__init__(service)
        self._state = state
        self._runner = runner

    async def create(self, exchange: HttpExchange) -> Response:
        body = await exchange.json_object()
        self._service.responses.check_open()
        request = schema.batches.BatchRequest.check(body, self._service.documented_only)
        self._runner.resume()  # without the server's start, as under httpx's transport
        await self._runner.make_room()
        batch = Batch.created(request, self._state, self._service.files)
        self._runner.start(batch)
        return exchange.json(batch.object)

    async def list(self, exchange: HttpExchange) -> Response:
        self._runner.resume()
        return exchange.json(page([batch.object for batch in self._runner.all()], exchange.query))

    async def retrieve(self, exchange: HttpExchange) -> Response:
        self._runner.resume()
        return exchange.json(self._runner.found(exchange.path_id()).object)

    async def cancel(self, exchange: HttpExchange) -> Response:
        self._runner.resume()
        batch = self._runner.found(exchange.path_id())
        self._runner.cancel(batch)
        return exchange.json(batch.object)


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
            "/v1/conversations/{id}/items/{item}", methods(GET=conversations.retrieve_item, DELETE=conversations.delete_item)
        ),
        HttpEndpoint("/v1/files", methods(POST=files.create, GET=files.list)),
        HttpEndpoint("/v1/files/{id}", methods(GET=files.retrieve, DELETE=files.delete)),
        HttpEndpoint("/v1/files/{id}/content", get(files.content)),
        HttpEndpoint("/v1/batches", methods(POST=batches.create, GET=batches.list)),
        HttpEndpoint("/v1/batches/{id}", get(batches.retrieve)),
        HttpEndpoint("/v1/batches/{id}/cancel", post(batches.cancel)),
    ]
