"""The direct door: turns go to a simulated cluster in this process, without HTTP and, where lengths are all, without text.

A call with text goes through the server's endpoints, which say how many tokens its prompt has and what the reply is. The
cluster says when its tokens came: the times at which a client of the full protocol would get them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llmirage_client.measure.record import Exchange, RequestError
from llmirage_client.targets.clock import wake
from llmirage_client.targets.target import Call
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.routers import RouterError
from llmirage_server.drivers.virtual import PLANS, Plans, VirtualDriver

if TYPE_CHECKING:
    from llmirage_client.targets.http import HttpTarget
    from llmirage_server.app import LlmirageApp

OUTPUT_IDS = "output_ids"  # in the body of a call without text: the ids that its reply will have
LOCAL_URL = "http://llmirage"


class DirectTarget:
    """Sends calls to a cluster on a loop of virtual time. Make it on the loop.

    app: the server, for calls that carry text; its driver is a DirectDriver. A call whose body has `output_ids` needs none:
    `prompt` and `output_ids` are int32 arrays then.
    """

    def __init__(self, driver: VirtualDriver, app: LlmirageApp | None = None, timeout_s: float | None = None) -> None:
        self._driver = driver
        self._http = None if app is None else _http_target(app, timeout_s)
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._ids = itertools.count()

    def now(self) -> float:
        return self._loop.time()

    async def send(self, call: Call) -> Exchange:
        if OUTPUT_IDS in call.body:
            return await self._send_tokens(call)
        assert self._http is not None
        plans = Plans()
        token = PLANS.set(plans)
        try:
            exchange = await self._http.send(replace(call, body=_unstreamed(call.body), stream=False))
        finally:
            PLANS.reset(token)
        if call.stream and exchange.error is None:
            exchange.streamed = True
            exchange.token_s = _stamps(plans)
            exchange.first_output_s = exchange.token_s[0] if exchange.token_s else None
        return exchange

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def _send_tokens(self, call: Call) -> Exchange:
        now = self._loop.time
        exchange = Exchange(start_s=now(), status=200, streamed=call.stream)
        prompt, output = call.body["prompt"], call.body[OUTPUT_IDS]
        affinity = call.headers.get("X-Session-Affinity")
        request = Request(next(self._ids), prompt, output, affinity, max_tokens=len(output))
        done: asyncio.Future[None] = self._loop.create_future()
        try:
            flight = self._driver.submit(request, lambda _: wake(done))
        except ValueError as error:
            exchange.error = RequestError(400, "http_error", str(error))
        except RouterError as error:
            exchange.error = RequestError(500, "http_error", str(error))
        if exchange.error is None and request.failed:
            exchange.error = RequestError(503, "http_error", "no instance is there for the request, now or later")
        if exchange.error is not None:
            exchange.end_s, exchange.status = now(), exchange.error.code
            return exchange
        if call.on_sent is not None:
            call.on_sent()
        try:
            async with asyncio.timeout(self._timeout_s):
                await done
        except TimeoutError:
            exchange.error = RequestError(None, "timeout", f"the reply was not complete within {self._timeout_s:g} s")
        finally:
            self._driver.cancel(request)
        exchange.end_s = now()
        stamps = flight.arrivals.tolist()
        exchange.token_s = stamps if call.stream else stamps[-1:]
        exchange.first_output_s = exchange.token_s[0] if stamps else None
        if request.failed:
            exchange.error = RequestError(None, "stream_error", "the instance that served the request was lost")
        exchange.finish_reason = "length"
        exchange.usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": request.produced,
            "total_tokens": len(prompt) + request.produced,
            "prompt_tokens_details": {"cached_tokens": request.cached_tokens},
        }
        return exchange


def _http_target(app: LlmirageApp, timeout_s: float | None) -> HttpTarget:
    from llmirage_client.simulator.memory import MemoryTransport
    from llmirage_client.targets.http import HttpTarget  # with httpx, which lengths alone do not need

    return HttpTarget(LOCAL_URL, timeout_s=timeout_s, transport=MemoryTransport(app))


def _unstreamed(body: Mapping[str, Any]) -> dict[str, Any]:
    """The same request for a reply in one piece."""
    return {name: value for name, value in body.items() if name not in ("stream", "stream_options")}


def _stamps(plans: Plans) -> list[float]:
    """When a stream's events that carry something would come: one for a token that shows text, one for a call's name."""
    stamps: list[float] = []
    for flight, reply in zip(plans.flights, plans.replies, strict=True):
        times = flight.times.tolist()
        if not reply.parts:  # the server writes what one step brought as one event
            stamps += dict.fromkeys([times[place] for place, piece in enumerate(reply.pieces[: len(times)]) if piece])
            continue
        shown: list[tuple[float, float]] = [
            (place, times[place]) for place, piece in enumerate(reply.pieces[: len(times)]) if piece
        ]
        shown += [(part.start - 0.5, times[part.start]) for part in reply.parts if part.kind.endswith("_call")]
        stamps += [time_s for _, time_s in sorted(shown)]
    return sorted(stamps)
