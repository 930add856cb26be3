"""The application behind `llmirage record`: requests go to the upstream, and exchanges with models are recorded."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from llmirage_server.anthropic.messages import MessagesExchange
from llmirage_server.http.application import LazyRoutes
from llmirage_server.http.byte_budget import ByteBudget
from llmirage_server.http.exchange import EndpointApp, HttpExchange
from llmirage_server.http.relay import ForwardedRequest, Upstream
from llmirage_server.proxy.recorder import ExchangeRecorder
from llmirage_shared.wire import errors

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


class RecordingProxy(LazyRoutes):
    """Passes everything on; `stop` ends what is under way, so that it is recorded as far as it came."""

    def __init__(self, upstream: Upstream, recorder: ExchangeRecorder) -> None:
        self._upstream = upstream
        self._recorder = recorder
        self._open: set[Any] = set()
        app = partial(EndpointApp, dict.fromkeys(_METHODS, self._forward))
        messages = Route("/v1/messages{rest:path}", app(exchange=MessagesExchange))
        self.unread = ByteBudget()
        super().__init__(lambda: [messages], app(), lambda: _life(self), self.unread)

    def stop(self) -> None:
        for response in list(self._open):
            response.abort(errors.shutting_down())

    async def close(self) -> None:
        """Wait until everything is written."""
        self._recorder.close()
        await self._upstream.close()

    async def _forward(self, exchange: HttpExchange) -> Response:
        if exchange.headers.get(b"upgrade", b"").lower() == b"websocket":
            raise errors.no_websocket()  # exchanges are recorded over HTTP
        with_body = exchange.scope["method"] in ("POST", "PUT", "PATCH")
        body = await (exchange.full_body() if with_body else exchange.body_of_any_type())
        request = ForwardedRequest.of(exchange, body)
        return await self._upstream.answer(request, self._recorder.tap(request), self._open)


@contextlib.asynccontextmanager
async def _life(app: RecordingProxy) -> AsyncIterator[None]:
    yield
    await app.close()
