"""The live page, the stream of states that it shows, and the speed that can be set there."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator

from llmirage_server.api.connected import StreamingResponse
from llmirage_server.api.exchange import HttpExchange
from llmirage_server.api.response import Response
from llmirage_server.api.service import Service
from llmirage_server.telemetry.page.document import live_page
from llmirage_server.telemetry.page.state import LiveCluster, Watch
from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError

EVERY_S = 0.5
MOST_READERS = 16  # each costs about a millisecond of every half second
_MOST_SPEED = 1e6


class LiveHandler:
    """GET / and /llmirage/live, POST /llmirage/speed."""

    def __init__(self, service: Service, cluster: LiveCluster) -> None:
        self._service = service
        self._cluster = cluster
        self._readers = 0

    async def page(self, exchange: HttpExchange) -> Response:
        return exchange.content(live_page(), b"text/html; charset=utf-8")

    async def live(self, exchange: HttpExchange) -> Response:
        """Server-sent events, twice a second without end: a state as JSON."""
        if self._readers >= MOST_READERS:
            raise ApiError(f"{MOST_READERS} readers watch this server already.", status=429, code="too_many_readers")
        response = StreamingResponse(self._states())
        response.raw_headers = [
            *exchange.response_headers(b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
        ]
        return response

    async def speed(self, exchange: HttpExchange) -> Response:
        """Change how fast the cluster's time goes."""
        speed = (await exchange.json_object()).get("speed")
        if isinstance(speed, bool) or not isinstance(speed, int | float) or not 0 < speed <= _MOST_SPEED:
            raise errors.invalid_value("speed", f"expected a number above 0, at most {_MOST_SPEED:g}.")
        if self._service.driver.speed == math.inf:
            raise errors.invalid_value("speed", "this server runs at `--speed max`; start it with a number to change it.")
        self._service.driver.set_speed(float(speed))
        return exchange.json({"speed": speed})

    async def _states(self) -> AsyncIterator[bytes]:
        end = _End()
        loop = asyncio.get_running_loop()
        watch, due_s = Watch(self._cluster), loop.time()
        self._readers += 1
        self._service.open_responses.add(end)
        try:
            while not end.over:
                yield b"data: " + json.dumps(watch.next(loop.time()), separators=(",", ":")).encode() + b"\n\n"
                due_s = max(due_s + EVERY_S, loop.time())
                await asyncio.sleep(due_s - loop.time())
        finally:
            self._readers -= 1
            self._service.open_responses.discard(end)


class _End:
    """An open response that the server can end."""

    over = False

    def abort(self, error: ApiError) -> None:
        self.over = True
