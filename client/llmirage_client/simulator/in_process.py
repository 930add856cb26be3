"""A simulated cluster behind the server's API in this process: the whole protocol, or whole replies. On virtual time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmirage_client.measure.record import Exchange
from llmirage_client.simulator.engine import ClusterConfig, Observer, QueueWait, new_cluster
from llmirage_client.simulator.memory import MemoryTransport
from llmirage_client.targets.http import HttpTarget
from llmirage_client.targets.target import Call, Target
from llmirage_server.app import create_app, load_text_tools
from llmirage_server.drivers.in_process import PLANS, ObservedDriver, Plans, RecordedReplies, WholeReplyDriver
from llmirage_server.drivers.live import Driver
from llmirage_server.service.text import TextLoader, TextTools

_URL = "http://llmirage"
_TEXT: dict[tuple[Any, ...], TextTools] = {}  # tokenizers and sources of replies, by the settings that choose them


class InProcessServer:
    """A server of this process. streamed: streams of events as over a network; else replies in one piece.

    The cluster then says when the events of a stream would have come. It tells of requests that are over, not of single
    tokens, where its rules allow it. `open` it on the loop.
    """

    def __init__(self, config: ClusterConfig, *, streamed: bool) -> None:
        """Make the cluster. Raises ConfigError."""
        self._config = config
        self._streamed = streamed
        self.cluster = new_cluster(config, fast_forward=not streamed)
        self.waits: list[QueueWait] = []  # of requests that are over, in that order

    def open(self, observer: Observer) -> Target:
        driver = (ObservedDriver if self._streamed else WholeReplyDriver)(self.cluster, observer)
        self.waits = driver.waits
        target = _target(self._config, driver)
        return target if self._streamed else _WholeReplyTarget(target)


class _WholeReplyTarget:
    def __init__(self, http: HttpTarget) -> None:
        self._http = http

    def now(self) -> float:
        return self._http.now()

    async def send(self, call: Call) -> Exchange:
        plans = Plans()
        token = PLANS.set(plans)
        try:
            whole = {name: value for name, value in call.body.items() if name not in ("stream", "stream_options")}
            exchange = await self._http.send(replace(call, body=whole, stream=False))
        finally:
            PLANS.reset(token)
        if plans.flights:
            exchange.instance = plans.flights[0].request.instance
        if call.stream and exchange.error is None:
            exchange.streamed = True
            exchange.token_s = _stamps(plans)
            exchange.first_output_s = exchange.token_s[0] if exchange.token_s else None
        return exchange

    async def close(self) -> None:
        await self._http.close()


def _target(config: ClusterConfig, driver: Driver) -> HttpTarget:
    """Return a target that is the server's app, whose requests go to the driver. Raises ConfigError."""
    key = config.tokenizer, config.replies, config.seed, config.exact_length, config.reply_tokens
    if key not in _TEXT:
        tools = load_text_tools(config)
        _TEXT[key] = TextTools(tools.encoder, RecordedReplies(tools.replies))
    # lenient: the load is the caller's own, for whatever server
    app = create_app(replace(config, lenient=True), driver=driver, text=TextLoader(lambda: _TEXT[key]))
    transport: Any = MemoryTransport(app)  # serves httpx and httpx2, and so has the base of neither
    return HttpTarget(_URL, transport=transport)


def _stamps(plans: Plans) -> list[float]:
    """Return the times of a stream's events with content: one for a token that shows text, one for a call's name."""
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
        when = [time_s for _, time_s in sorted(shown)]
        stamps += when if flight.request.stream is None else dict.fromkeys(when)
    return sorted(stamps)
