"""The live page, the stream of states that it shows, and the speed that can be set there."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator

import anyio
from starlette.responses import Response

from llmirage_server.http.event_stream import STREAM_HEADERS, EventStream
from llmirage_server.http.exchange import HttpExchange
from llmirage_server.service.service import Service
from llmirage_server.telemetry.live_page import LiveCluster, Watch, live_page
from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError

EVERY_S = 0.5
MOST_READERS = 16  # each costs about a millisecond of every half second
_MOST_SPEED = 1e6


class LiveHandler:
    """GET / and /llmirage/live, GET and POST /llmirage/speed."""

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
        headers = [*exchange.response_headers(b"text/event-stream; charset=utf-8"), *STREAM_HEADERS]
        over = anyio.Event()
        return EventStream(self._states(over), headers, self._service.responses.shutdown, shutdown_event=over)

    async def show_speed(self, exchange: HttpExchange) -> Response:
        """Seconds of the cluster's time in one of real time: a number, or "max"."""
        speed = self._service.driver.speed
        return exchange.json({"speed": "max" if speed == math.inf else speed})

    async def speed(self, exchange: HttpExchange) -> Response:
        """Change how fast the cluster's time goes."""
        speed = (await exchange.json_object()).get("speed")
        if isinstance(speed, bool) or not isinstance(speed, int | float) or not 0 < speed <= _MOST_SPEED:
            raise errors.invalid_value("speed", f"expected a number above 0, at most {_MOST_SPEED:g}.")
        if self._service.driver.speed == math.inf:
            raise errors.invalid_value("speed", "this server runs at `--speed max`; start it with a number to change it.")
        self._service.driver.set_speed(float(speed))
        return exchange.json({"speed": speed})

    async def _states(self, over: anyio.Event) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        watch, due_s = Watch(self._cluster), loop.time()
        self._readers += 1
        try:
            while not over.is_set():
                yield b"data: " + json.dumps(watch.next(loop.time()), separators=(",", ":")).encode() + b"\n\n"
                due_s = max(due_s + EVERY_S, loop.time())
                with anyio.move_on_after(due_s - loop.time()):
                    await over.wait()
        finally:
            self._readers -= 1
