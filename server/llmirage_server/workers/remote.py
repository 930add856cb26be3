"""A worker: an HTTP process whose cluster is in another one, to which it forwards what needs the state of the server."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import re
import signal
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush, heapreplace
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from llmirage_server.app import LlmirageApp
from llmirage_server.cluster.request import Request, StepEnd, TokenPlan
from llmirage_server.config import ClusterConfig
from llmirage_server.drivers.live import Alarm, Driver, make_alarm
from llmirage_server.http.exchange import FAULT_HEADER, Handler, HttpExchange
from llmirage_server.service.text import needed_first
from llmirage_server.telemetry.journal import Journal, JournalEntry, Outcome
from llmirage_server.telemetry.metrics import PrometheusMetrics
from llmirage_server.workers.channel import TICK_S, Channel, asked, forward, write
from llmirage_shared.statistics import LogHistogram, ServedTimes
from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError

# The paths of requests that this process may answer itself.
_RESPONSES = "/v1/responses"
_OWN_PATHS = (
    "/v1/chat/completions", "/v1/chat/completions/render", "/v1/completions", "/v1/completions/render", "/v1/embeddings",
    "/v1/messages", "/v1/messages/count_tokens", "/inference/v1/generate", _RESPONSES,
)  # fmt: skip
# What may stand in the body of one that it may not, or be spelled as an escape. A response without "store" is stored.
_SUSPECT = re.compile(
    rb'store|kv_transfer_params|bootstrap_room|return_cached_tokens_details|"(type|thread|container)"|\\u00'
)
_STATEFUL = (
    "store", "kv_transfer_params", "bootstrap_room", "return_cached_tokens_details", "previous_response_id", "conversation",
    "background", "thread", "container",
)  # fmt: skip
# Types of what a request contains in itself, by the lists in which it does; None: it says none.
_OWN_ITEMS = (
    None, "message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output",
)  # fmt: skip
_OWN_PARTS = (
    "text", "input_text", "output_text", "reasoning_text", "refusal", "tool_use", "tool_result", "thinking",
    "redacted_thinking",
)  # fmt: skip
_OWN_TOOLS = (None, "function", "custom")
_LISTS = {"messages": None, "system": _OWN_PARTS, "input": _OWN_ITEMS, "instructions": _OWN_ITEMS, "tools": _OWN_TOOLS}

Answer = Callable[[Scope, Receive, Send, bytes | None], Awaitable[None]]


class RemoteDriver(Driver):
    """The driver of a cluster in the engine process, which tells of tokens that are due, or once of those that will be."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.link: Channel
        self._reached_s = 0.0
        self._requests: dict[int, Request] = {}
        self._placing: dict[int, asyncio.Future[None]] = {}
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._questions = itertools.count()
        self._start_s, self._speed = 0.0, 1.0  # of the cluster's clock
        self._later: list[tuple[Any, ...]] = []
        self._alarm: Alarm | None = None
        self._planned: list[tuple[float, int, Request, TokenPlan]] = []  # the next token of every plan, and of some given up
        self._order = itertools.count()

    @property
    def speed(self) -> float:
        return self._speed

    @property
    def now_s(self) -> float:
        return (self._clock() - self._start_s) * self._speed

    @property
    def reached_s(self) -> float:
        return self._reached_s

    def submit(self, requests: Iterable[Request], arrived_s: float = float("inf"), *, last: bool = True) -> None:
        self._begin_here()
        submitted = {request.id: request for request in requests}
        self._requests |= submitted
        self._later.append(("submit", [asked(request) for request in submitted.values()], arrived_s, last))
        self.flush()
        self._placing[next(reversed(submitted))] = asyncio.get_running_loop().create_future()

    async def placed(self, request: Request) -> None:
        await self._placing[request.id]

    def cancel(self, requests: Iterable[Request]) -> None:
        numbers = []
        for request in requests:
            request.plan = None
            numbers.append(request.id)
        self.tell("cancel", numbers)

    def counted(self, request: Request, finish_reason: str) -> None:
        """Forget a request that has ended."""
        if (waiting := self._placing.pop(request.id, None)) is not None and not waiting.done():
            waiting.set_result(None)
        request.plan = None
        if self._requests.pop(request.id, None) is not None:
            self.tell("count", request.id, finish_reason)

    async def ask(self, name: str, *given: Any) -> Any:
        """Return what a function of the engine process's state returns, see Service.answers."""
        number = next(self._questions)
        self._asked[number] = asyncio.get_running_loop().create_future()
        self.tell("ask", number, name, given)
        try:
            return await self._asked[number]
        finally:
            del self._asked[number]

    def told(self, number: int, value: Any) -> None:
        """Take the answer to a question. Whoever has asked may have left."""
        if (asked := self._asked.get(number)) is not None and not asked.done():
            asked.set_result(value)

    def tell(self, *message: Any) -> None:
        """Tell the engine process something by the end of this turn of the loop: the name of a method of Link, arguments."""
        if not self._later:
            asyncio.get_running_loop().call_soon(self.flush)
        self._later.append(message)

    def flush(self) -> None:
        """Tell now what has waited."""
        later, self._later = self._later, []
        if later:
            self.link.send(later)

    def due(
        self,
        due_s: float,
        last_s: float,
        numbers: bytes,
        counts: bytes,
        written: Sequence[tuple[int, tuple[Any, ...]]],
        placed: Sequence[tuple[int, ApiError | None]],
    ) -> None:
        """Take tokens that are due, and what else there is to tell of requests.

        due_s: the cluster's time of the earliest; last_s: of the latest. numbers, counts: requests, and how many tokens
        each has produced, unsigned 32-bit. written: what the cluster has written of some requests, by number. placed: the
        last of requests submitted together that have their places; with an error they have none.
        """
        requests, emitted, tokens = self._requests, list[Request](), 0
        for number, produced in zip(memoryview(numbers).cast("I"), memoryview(counts).cast("I"), strict=True):
            if (request := requests.get(number)) is not None:
                emitted.append(request)
                if produced > request.produced:  # else it had more by a plan that was given up
                    tokens += produced - request.produced
                    request.produced = produced
        for number, values in written:
            if (request := requests.get(number)) is not None:
                write(request, values)
                if (plan := request.plan) is not None and request.produced < request.output_tokens:
                    heappush(self._planned, (plan.due_s(request.produced), next(self._order), request, plan))
        for number, error in placed:
            self._place(number, error)
        if emitted:
            self._hand_out(emitted, due_s, last_s, tokens)
        if written:
            self._schedule_next_event()

    def set_clock(self, start_s: float, speed: float) -> None:
        """Take the cluster's clock. start_s: the time on this machine's at which it was 0."""
        self._start_s, self._speed = start_s, speed
        self.pacing.set_speed(speed)
        if self._planned:
            self._schedule_next_event()

    def _hand_out(self, emitted: list[Request], due_s: float, last_s: float, tokens: int) -> None:
        self._reached_s = last_s
        self._deliver([StepEnd(due_s, -1, emitted)])
        sent_s = self._clock()
        self.pacing.sent(sent_s - self._wall(due_s), tokens, sent_s)

    def _wall(self, cluster_s: float) -> float:
        return self._start_s + cluster_s / self._speed

    def _tick(self) -> None:
        """Hand out the tokens that are due by plans."""
        planned = self._planned
        emitted, first_s = list[Request](), planned[0][0]
        to = max(self.now_s, first_s) if self._clock() >= self._wall(first_s) else -math.inf  # as PacedDriver
        while planned and (due_s := planned[0][0]) <= to:
            _, order, request, plan = planned[0]
            if request.plan is not plan:
                heappop(planned)
                continue
            if not request.produced:
                request.first_token_s = due_s
            request.produced += 1
            emitted.append(request)
            self._reached_s = due_s
            if request.produced < request.output_tokens:
                heapreplace(planned, (plan.due_s(request.produced), order, request, plan))
            else:
                request.finished_s = due_s
                heappop(planned)
        if emitted:
            self._hand_out(emitted, first_s, self._reached_s, len(emitted))
        self._schedule_next_event()

    def _place(self, number: int, error: ApiError | None) -> None:
        if error is not None and (request := self._requests.get(number)) is not None and request.tag:
            request.tag.abort(error)
        if (waiting := self._placing.get(number)) is not None and not waiting.done():
            waiting.set_result(None)

    def _sync(self) -> float:
        return self.now_s

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        super()._begin(loop)
        self._alarm = make_alarm(loop, self._tick, TICK_S)

    def _schedule_next_event(self) -> None:
        assert self._alarm is not None
        if self._planned:
            self._alarm.set(self._wall(self._planned[0][0]))
        else:
            self._alarm.clear()


class _RemoteMetrics(PrometheusMetrics):
    """Leaves the counting to the engine process."""

    def __init__(self, driver: RemoteDriver) -> None:
        super().__init__(list)
        self._driver = driver

    def ended(self, request: Request, finish_reason: str) -> None:
        self._driver.counted(request, finish_reason)

    def answered(self, replies: Sequence[Request]) -> None:
        self._driver.tell("answer", [request.id for request in replies])


class _RemoteJournal(Journal):
    """Hands entries that have ended to the journal of the engine process."""

    def __init__(self, driver: RemoteDriver) -> None:
        super().__init__()
        self._driver = driver

    def begin(self, entry: JournalEntry) -> None:
        entry.number = -1

    def end(self, entry: JournalEntry, status: int | None, outcome: Outcome, elapsed_s: float) -> None:
        entry.connection = None  # it is of this process
        self._driver.tell("respond", entry, status, outcome, elapsed_s)


class HttpWorker:
    """The ASGI application of a worker. Make it before the process is forked.

    app: what answers here. there: the instances of the fleet that there are; None: all.
    """

    def __init__(self, config: ClusterConfig, engine: bytes) -> None:
        """engine: the address at which the engine process listens. Raises ConfigError."""
        self.app = app = LlmirageApp(replace(config, state=None), make_driver=RemoteDriver)
        app.config = config  # fingerprints are of it
        assert isinstance(app.driver, RemoteDriver)
        self._driver = app.driver
        self._engine = engine
        self._alone = True  # until the engine process tells otherwise
        self._forwarded = 0  # responses in progress
        self._errors = app.service.responses.metrics
        app.service.ask = app.driver.ask
        app.service.responses.metrics = _RemoteMetrics(app.driver)
        app.journal = app.face.journal = _RemoteJournal(app.driver)
        app.face.before = app.face.stateless = self._before
        self.there: list[bool] | None = None
        self._methods: Mapping[str, Callable[..., object]] = {
            "due": app.driver.due,
            "told": app.driver.told,
            "clock": app.driver.set_clock,
            "there": self._set_there,
            "sync": self._sync,
        }

    def load(self) -> None:
        """Load what requests need. Raises ConfigError for a tokenizer that cannot be loaded."""
        self.app.make_routes()
        for load in needed_first(self.app.service.text):
            load()

    async def _connect(self) -> None:
        """Begin to work for the engine process."""
        self._driver.link = link = await self._open(self._take)
        link.lost = self._lose
        link.send("worker")

    def ready(self) -> None:
        """Tell the engine process that the server listens."""
        self._driver.tell("ready")

    def busy(self) -> bool:
        """Refuse new responses, and tell whether any is in progress."""
        self._driver.tell("drain", False)
        return self.app.service.responses.busy() or bool(self._forwarded)

    def close(self) -> None:
        """End every response in progress with an error that the client understands."""
        self.app.close()
        self._driver.tell("drain", True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._connect()
        own = scope["type"] == "lifespan" or (
            not self._alone
            and scope["path"] in _OWN_PATHS
            and scope.get("method") == "POST"
            and not any(name == FAULT_HEADER for name, _ in scope["headers"])
        )
        await (self.app if own else self._forward)(scope, receive, send)
        if scope["type"] == "lifespan":
            self._driver.link.lost = lambda: None
            self._report()
            self._driver.link.transport.close()

    async def _forward(self, scope: Scope, receive: Receive, send: Send, body: bytes | None = None) -> None:
        self._forwarded += 1
        try:
            await forward(await self._open(), scope, receive, send, body)
        finally:
            self._forwarded -= 1

    async def _open(self, received: Callable[[Any], None] | None = None) -> Channel:
        connected = socket.socket(socket.AF_UNIX)
        connected.connect(self._engine)  # at once, and loops know no address without a file
        loop = asyncio.get_running_loop()
        return (await loop.create_unix_connection(lambda: Channel(received), sock=connected))[1]

    def _before(self, handler: Handler) -> Handler:
        """Return a handler that answers here what needs no state."""

        async def answer(exchange: HttpExchange) -> Response:
            body, responses = await exchange.kept_body(), exchange.scope["path"] == _RESPONSES
            is_stored = responses and b"store" not in body
            if is_stored or (_SUSPECT.search(body) and needs_state(await exchange.read(body), responses)):
                exchange.entry.number = 0  # the engine process has its entry
                return _ForwardedResponse(self._forward, body)
            return await handler(exchange)

        return answer

    def _take(self, message: Any) -> None:
        self._methods[message[0]](*message[1:])

    def _set_there(self, instances: list[bool]) -> None:
        self.there = instances

    def _sync(self, alone: bool, asleep: bool) -> None:
        """Report. alone: only the engine process can answer requests for replies. asleep: the server sleeps."""
        self._alone = alone
        if asleep:
            for response in list(self.app.service.responses.open):
                response.abort(errors.asleep())
        self._report()

    def _report(self) -> None:
        app, pacing = self.app, self._driver.pacing
        watch, responses = app.loop_watch, app.service.responses
        held = [app.unread.taken, responses.bytes_kept(), responses.planned_bytes()]
        if (tools := app.service.text.tools) is not None:
            held.append(tools.encoder.cache.bytes_kept())
        counts = self._errors.errors, watch.blocks, watch.longest_s
        lateness = pacing.lags, pacing.late_tokens, pacing.max_s
        self._driver.tell("report", responses.served, lateness, counts, sum(held))
        self._driver.flush()
        responses.served, pacing.lags = ServedTimes(), LogHistogram()
        pacing.late_tokens = self._errors.errors = watch.blocks = 0

    def _lose(self) -> None:
        """End: the engine process has."""
        self.app.close()
        os.kill(os.getpid(), signal.SIGTERM)


class _ForwardedResponse(Response):
    """A request whose body was read here, answered by the engine process."""

    def __init__(self, answer: Answer, body: bytes) -> None:
        super().__init__()
        self._answer, self._read = answer, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [header for header in scope["headers"] if header[0] != b"content-encoding"]
        await self._answer({**scope, "headers": headers}, receive, send, self._read)


def needs_state(body: Mapping[str, Any], responses: bool = False) -> bool:
    """Tell whether the answer depends on, or changes, what only the engine process has: what is stored, KV by name.

    responses: it is a request for a response, which is stored unless it says otherwise.
    """
    if any(body.get(name) for name in _STATEFUL) or (responses and body.get("store") is not False):
        return True
    return not all(_are_contained(body.get(name), kinds) for name, kinds in _LISTS.items())


def _are_contained(listed: Any, kinds: Collection[str | None] | None) -> bool:
    """Tell whether messages, items, parts or tools refer to nothing outside. kinds: their types; None: any."""
    lists = [(listed, kinds)]
    while lists:
        listed, kinds = lists.pop()
        for item in listed if isinstance(listed, list) else ():
            if isinstance(item, dict):
                if kinds is not None and item.get("type") not in kinds:
                    return False
                lists += [(item.get(name), _OWN_PARTS) for name in ("content", "output")]
    return True
