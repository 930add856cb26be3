"""The engine process of a server with several workers: the cluster, everything that is stored, and what workers forward."""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from llmirage_server.app import LlmirageApp
from llmirage_server.cluster.request import Request, StepEnd
from llmirage_server.cluster.routers import RouterError
from llmirage_server.drivers.live import PacedDriver
from llmirage_server.service.generation import refusal_of
from llmirage_server.telemetry.journal import Journal
from llmirage_server.workers import messages
from llmirage_server.workers.channel import Channel, ForwardedRequest
from llmirage_shared.tokens import TokenIds
from llmirage_shared.wire import errors

logger = logging.getLogger("llmirage")

_POLL_S = 0.1
_REPORTS = ("/metrics", "/prometheus/metrics", "/llmirage/")  # paths of what workers know a part of


class SharedDriver(PacedDriver):
    """The driver of a cluster whose requests come from several processes, each of which every wake-up costs as much."""

    import os

    gap_s = float(os.environ.get("GAP", "0.001"))

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.links: set[_Link] = set()

    @property
    def time(self) -> messages.Clock:
        """The cluster's time, as workers need it."""
        return messages.Clock(self._start_s, self._speed)

    def _deliver(self, events: list[StepEnd]) -> None:
        super()._deliver(events)
        for link in self.links:
            link.flush(events)

    def _count_lateness(self, events: list[StepEnd]) -> None:
        """Record the lateness of tokens that leave from this process; workers record that of theirs."""
        own = [request for event in events for request in event.emitted if not isinstance(request.tag, _Receiver)]
        if own:
            super()._count_lateness([StepEnd(events[0].time_s, -1, own)])


class _Receiver:
    """Receives the tokens of one request of a worker."""

    __slots__ = ("_begun", "_link", "_number")

    def __init__(self, link: _Link, number: int) -> None:
        self._link, self._number, self._begun = link, number, False

    def tokens_due(self, request: Request) -> None:
        link, number = self._link, self._number
        link.numbers.append(number)
        link.produced.append(request.produced)
        if not self._begun or request.failed or request.produced >= request.output_tokens:
            self._begun = True
            link.written.append((number, messages.written(request)))


class _Link:
    """One worker, seen from the engine process.

    requests: those that the metrics have not counted, by the worker's numbers. numbers, produced, written: see Due.
    """

    def __init__(self, hub: Hub, channel: Channel) -> None:
        self._hub = hub
        self._driver = hub.driver
        self.channel = channel
        self.requests: dict[int, Request] = {}
        self._counted: dict[int, Request] = {}  # of prompts of which a choice goes on
        self.clock: messages.Clock | None = None  # that it was told
        self.numbers, self.produced = array("I"), array("I")
        self.written: list[tuple[int, tuple[Any, ...]]] = []
        self.reports: deque[asyncio.Future[None]] = deque()  # that are awaited
        self.held_bytes = 0
        self._told = dict[type, Callable[[Any], object]]({
            messages.Submitted: self._submit,
            messages.Cancelled: self._cancel,
            messages.Counted: self._count,
            messages.Answered: self._answer,
            messages.Responded: self._respond,
            messages.Ready: lambda _: hub.worker_ready(),
            messages.Draining: lambda told: hub.drain(told.closing),
            messages.Report: self._take,
        })  # fmt: skip

    def told(self, message: Any) -> None:
        for each in message if type(message) is list else (message,):
            self._told[type(each)](each)

    def flush(self, events: Sequence[StepEnd] = ()) -> None:
        """Tell the worker of what has become due, or was written of its requests."""
        if not self.numbers and not self.written:
            return
        reached_s = self._driver.cluster.reached_s
        due_s, reached_s = (events[0].time_s, events[-1].time_s) if events else (reached_s, reached_s)
        self.tell_clock()
        self.channel.send((due_s, reached_s, self.numbers.tobytes(), self.produced.tobytes(), self.written))
        self.numbers, self.produced, self.written = array("I"), array("I"), []

    def tell_clock(self) -> None:
        if self.clock != (time := self._driver.time):
            self.clock = time
            self.channel.send(time)

    def close(self) -> None:
        """End what the worker, which is gone, has left."""
        self._driver.links.discard(self)
        self._driver.cancel(self.requests.values())
        for number in list(self.requests):
            self._count(messages.Counted(number, "stop"))
        while self.reports:
            self.reports.popleft().set_result(None)

    def _submit(self, told: messages.Submitted) -> None:
        hub, requests, error = self._hub, told.requests, None
        hub.remember(told.remembered, self)
        numbers = [request.id for request in requests]
        for request in requests:
            self.requests[request.id] = request
            request.tag = _Receiver(self, request.id)
            request.id = hub.next_id()  # the order of arrival in the cluster, not in the worker
        try:
            self._driver.submit(requests, told.arrived_s, last=told.last)
            error = refusal_of(requests)
        except RouterError as failed:
            logger.error("%s", failed)
            error = errors.internal_error(str(failed))
        if error is not None:
            self._driver.cancel(requests)
        self.written += [(number, messages.written(one)) for number, one in zip(numbers, requests, strict=True)]
        self.flush()
        self.channel.send(messages.Placed(numbers[-1], error))

    def _cancel(self, told: messages.Cancelled) -> None:
        self._driver.cancel([self.requests[number] for number in told.numbers if number in self.requests])

    def _count(self, told: messages.Counted) -> None:
        request = self._counted[told.number] = self.requests.pop(told.number)
        request.tag = None
        self._hub.app.service.responses.metrics.ended(request, told.finish_reason)

    def _answer(self, told: messages.Answered) -> None:
        replies = [request for number in told.numbers if (request := self._counted.pop(number, None)) is not None]
        if len(replies) == len(told.numbers):
            self._hub.app.service.responses.metrics.answered(replies)

    def _respond(self, told: messages.Responded) -> None:
        journal: Journal = self._hub.app.journal
        journal.begin(told.entry)
        journal.end(*told)

    def _take(self, report: messages.Report) -> None:
        app, self.held_bytes = self._hub.app, report.held_bytes
        pacing, watch, responses = app.driver.pacing, app.loop_watch, app.service.responses
        responses.served = responses.served.merged(report.served)
        responses.metrics.errors += report.errors
        pacing.lags = pacing.lags.merged(report.lags)
        pacing.late_tokens += report.late_tokens
        pacing.max_s = max(pacing.max_s, report.max_s)
        watch.blocks += report.blocks
        watch.longest_s = max(watch.longest_s, report.longest_s)
        if self.reports:
            self.reports.popleft().set_result(None)


class Hub:
    """What the workers of a server share.

    app: the ordinary application, which answers what they forward. driver: that of its cluster.
    """

    def __init__(self, app: LlmirageApp, workers: int, ready: Callable[[], None]) -> None:
        """ready: is called once all workers listen."""
        assert isinstance(app.driver, SharedDriver)
        self.app = app
        self.driver = app.driver
        self._left = workers  # that have not begun to listen
        self._ready = ready
        self._tasks: set[asyncio.Task[None]] = set()
        self._at_start = self._served()
        self._alone = False
        self._there: list[bool] | None = None
        app.held["workers"] = lambda: sum([link.held_bytes for link in self.driver.links])
        app.service.responses.elsewhere = lambda: [
            request for link in self.driver.links for request in link.requests.values()
        ]
        app.service.text.in_thread(app.service.text.load).add_done_callback(self._observe_replies)

    def connection(self) -> Channel:
        """Return what takes one connection: of a worker, or for a request."""
        channel = Channel()
        channel.received = partial(self._first, channel)
        return channel

    async def follow(self, there: Callable[[], list[bool]]) -> None:
        """Tell workers, for ever, which instances there are."""
        while True:
            if (now := there()) != self._there:
                self._there = now
                for link in self.driver.links:
                    link.channel.send(messages.There(now))
            await asyncio.sleep(_POLL_S)

    async def sync(self) -> None:
        """Return when all workers know what the state of the server forbids them, and have reported."""
        self._alone = self._is_alone()
        reports = []
        for link in self.driver.links:
            link.tell_clock()
            link.channel.send(messages.Sync(self._alone, self.app.service.responses.refusal is errors.asleep))
            reports.append(asyncio.get_running_loop().create_future())
            link.reports.append(reports[-1])
        for report in reports:
            await report

    def next_id(self) -> int:
        """Return the next number of a request to the cluster."""
        return self.app.service.next_id()

    def worker_ready(self) -> None:
        self._left -= 1
        if not self._left:
            self._ready()

    def drain(self, closing: bool) -> None:
        responses = self.app.service.responses
        if closing:
            responses.pause(errors.shutting_down)
        else:
            responses.busy()

    def remember(self, replies: list[tuple[str, TokenIds]], source: _Link | None = None) -> None:
        """Let all processes know replies, which the next prompts of their conversations repeat."""
        if replies:
            for link in self.driver.links - {source}:
                link.channel.send(messages.Remembered(replies))
            if source is not None and (tools := self.app.service.text.tools) is not None:
                for text, ids in replies:
                    tools.encoder.put(text, ids)

    def _observe_replies(self, _: object) -> None:
        loop, tools = asyncio.get_running_loop(), self.app.service.text.tools

        def observe(text: str, ids: TokenIds) -> None:  # in any thread
            loop.call_soon_threadsafe(self.remember, [(text, ids)])

        if tools is not None:
            tools.encoder.on_remember = observe

    def _first(self, channel: Channel, message: Any) -> None:
        """Take the first message of a connection."""
        if not isinstance(message, messages.Hello):
            channel.received = channel.keep
            task = asyncio.get_running_loop().create_task(self._forwarded(channel, message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        link = _Link(self, channel)
        channel.received, channel.lost = link.told, link.close
        self.driver.links.add(link)
        if self._alone:
            channel.send(messages.Sync(True, False))
        if self._there is not None:
            channel.send(messages.There(self._there))

    async def _forwarded(self, channel: Channel, scope: Any) -> None:
        if scope["path"].startswith(_REPORTS):
            await self.sync()
        await ForwardedRequest(channel, scope, self._settle).answer(self.app)

    async def _settle(self) -> None:
        """Return when workers know what a request has changed."""
        if self._is_alone() != self._alone or any(link.clock != self.driver.time for link in self.driver.links):
            await self.sync()

    def _is_alone(self) -> bool:
        """Tell whether replies depend on what only this process has."""
        service, faults = self.app.service, self.app.faults
        return bool(
            service.scripts is not None
            or faults.rules
            or faults.cuts
            or service.responses.refusal is not None
            or self._served() != self._at_start
        )

    def _served(self) -> tuple[list[str], list[list[str]]]:
        models = self.app.service.models
        return list(models.served), [list(names) for names in models.of_instance]
