"""The engine process of a server with several workers: the cluster, everything that is stored, and what workers forward."""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from llmirage_server.app import LlmirageApp
from llmirage_server.cluster.request import Request, StepEnd
from llmirage_server.cluster.routers import RouterError
from llmirage_server.drivers.live import PacedDriver
from llmirage_server.service.generation import refusal_of
from llmirage_server.telemetry.journal import JournalEntry
from llmirage_server.workers.channel import Channel, TunnelledRequest, written
from llmirage_shared.log_histogram import LogHistogram, ServedTimes
from llmirage_shared.wire import errors

logger = logging.getLogger("llmirage")

_POLL_S = 0.1
_REPORTS = ("/metrics", "/prometheus/metrics", "/llmirage/")  # paths of what workers know a part of


class SharedDriver(PacedDriver):
    """The driver of a cluster whose requests come from several processes, each of which every wake-up costs as much."""

    gap_s = 0.001

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.links: set[Link] = set()

    @property
    def clock(self) -> tuple[float, float]:
        """The time on the machine's clock at which that of the cluster was 0, and its speed."""
        return self._start_s, self._speed

    def _deliver(self, events: list[StepEnd]) -> None:
        super()._deliver(events)
        for link in self.links:
            link.flush(events)

    def _count_lateness(self, events: list[StepEnd]) -> None:
        """Record the lateness of tokens that leave from this process; workers record that of theirs."""
        own = [request for event in events for request in event.emitted if not isinstance(request.tag, _RemoteReceiver)]
        if own:
            super()._count_lateness([StepEnd(events[0].time_s, -1, own)])


class _RemoteReceiver:
    """Receives the tokens of one request of a worker."""

    __slots__ = ("_begun", "_link", "_number")

    def __init__(self, link: Link, number: int) -> None:
        self._link, self._number, self._begun = link, number, False

    def tokens_due(self, request: Request) -> None:
        link, number = self._link, self._number
        link.numbers.append(number)
        link.produced.append(request.produced)
        if not self._begun or request.failed or request.produced >= request.output_tokens:
            self._begun = True
            link.written.append((number, written(request)))


class Link:
    """One worker, seen from the engine process.

    The worker names the methods that it calls. requests: those that the metrics have not counted, by the worker's numbers.
    clock: that it was told. numbers, produced, written: see RemoteDriver.due. reports: that are awaited.
    """

    def __init__(self, hub: Hub, channel: Channel) -> None:
        self._hub = hub
        self._driver = hub.driver
        self._service = hub.app.service
        self.channel = channel
        self.requests: dict[int, Request] = {}
        self._counted: dict[int, Request] = {}  # of prompts of which a choice goes on
        self.clock = 0.0, 0.0
        self.numbers, self.produced = array("I"), array("I")
        self.written: list[tuple[int, tuple[Any, ...]]] = []
        self.reports: deque[asyncio.Future[None]] = deque()
        self.held_bytes = 0
        self.closing = False  # what is in progress ends with an error
        self._methods: Mapping[str, Callable[..., object]] = {
            "submit": self._submit,
            "cancel": self._cancel,
            "count": self._count,
            "answer": self._answer,
            "respond": self._respond,
            "report": self._report,
            "ready": hub.worker_ready,
            "drain": self._drain,
        }

    def take(self, messages: Sequence[tuple[Any, ...]]) -> None:
        for name, *given in messages:
            self._methods[name](*given)

    def flush(self, events: Sequence[StepEnd] = ()) -> None:
        """Tell the worker of what has become due, or was written of its requests."""
        if not self.numbers and not self.written:
            return
        reached_s = self._driver.cluster.reached_s
        due_s, reached_s = (events[0].time_s, events[-1].time_s) if events else (reached_s, reached_s)
        self.tell_clock()
        self.channel.send(("due", due_s, reached_s, self.numbers.tobytes(), self.produced.tobytes(), self.written))
        self.numbers, self.produced, self.written = array("I"), array("I"), []

    def tell_clock(self) -> None:
        if self.clock != self._driver.clock:
            self.clock = self._driver.clock
            self.channel.send(("clock", *self.clock))

    def close(self) -> None:
        """End what the worker, which is gone, has left."""
        self._driver.links.discard(self)
        if self.requests:
            self._driver.cancel(self.requests.values())
        for number in list(self.requests):
            self._count(number, "stop")
        while self.reports:
            self.reports.popleft().set_result(None)

    def _submit(self, requests: Sequence[Request], arrived_s: float, last: bool) -> None:
        numbers = [request.id for request in requests]
        for request in requests:
            self.requests[request.id] = request
            request.tag = _RemoteReceiver(self, request.id)
            request.id = self._service.next_id()  # in the order of arrival in the cluster, not in the worker
        try:
            self._driver.submit(requests, arrived_s, last=last)
            error = refusal_of(requests)
        except RouterError as failed:
            logger.error("%s", failed)
            error = errors.internal_error(str(failed))
        if error is not None:
            for request in requests:
                request.tag = None
            self._driver.cancel(requests)
        self.tell_clock()
        told = [(number, written(one)) for number, one in zip(numbers, requests, strict=True)]
        self.channel.send(("placed", numbers[-1], told, error))

    def _cancel(self, numbers: Sequence[int]) -> None:
        self._driver.cancel([self.requests[number] for number in numbers if number in self.requests])

    def _count(self, number: int, finish_reason: str) -> None:
        request = self._counted[number] = self.requests.pop(number)
        request.tag = None
        self._service.responses.metrics.ended(request, finish_reason)

    def _answer(self, numbers: Sequence[int]) -> None:
        replies = [request for number in numbers if (request := self._counted.pop(number, None)) is not None]
        if len(replies) == len(numbers):
            self._service.responses.metrics.answered(replies)

    def _drain(self, closing: bool) -> None:
        self.closing |= closing
        self._hub.drain()

    def _respond(self, entry: JournalEntry, *end: Any) -> None:
        self._hub.app.journal.begin(entry)
        self._hub.app.journal.end(entry, *end)

    def _report(
        self,
        served: ServedTimes,
        lateness: tuple[LogHistogram, int, float],
        counts: tuple[int, int, float],
        held_bytes: int,
    ) -> None:
        """Add what the worker has measured since its last report. counts: of errors and of blocks, the longest of these."""
        pacing, watch, responses = self._driver.pacing, self._hub.app.loop_watch, self._service.responses
        responses.served = responses.served.merged(served)
        responses.metrics.errors += counts[0]
        pacing.lags = pacing.lags.merged(lateness[0])
        pacing.late_tokens += lateness[1]
        pacing.max_s = max(pacing.max_s, lateness[2])
        watch.blocks += counts[1]
        watch.longest_s = max(watch.longest_s, counts[2])
        self.held_bytes = held_bytes
        if self.reports:
            self.reports.popleft().set_result(None)


class Hub:
    """The state that the workers of a server share.

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
                    link.channel.send(("there", now))
            await asyncio.sleep(_POLL_S)

    async def sync(self) -> None:
        """Return when all workers know what the state of the server forbids them, and have reported."""
        self._alone = self._is_alone()
        for report in [self._sync(link) for link in self.driver.links]:
            await report

    def _sync(self, link: Link) -> asyncio.Future[None]:
        link.tell_clock()
        link.channel.send(("sync", self._alone, self.app.service.responses.refusal is errors.asleep))
        link.reports.append(report := asyncio.get_running_loop().create_future())
        return report

    def worker_ready(self) -> None:
        self._left -= 1
        if not self._left:
            self._ready()

    def drain(self) -> None:
        """Refuse new responses; end those in progress once no worker waits for its own."""
        responses = self.app.service.responses
        if all(link.closing for link in self.driver.links):
            responses.pause(errors.shutting_down)
        else:
            responses.busy()

    def _first(self, channel: Channel, message: Any) -> None:
        """Take the first message of a connection."""
        if message != "worker":
            channel.received = channel.keep
            task = asyncio.get_running_loop().create_task(self._forwarded(channel, message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        link = Link(self, channel)
        channel.received, channel.lost = link.take, link.close
        self.driver.links.add(link)
        self._sync(link)
        if self._there is not None:
            channel.send(("there", self._there))

    async def _forwarded(self, channel: Channel, scope: Any) -> None:
        if scope["path"].startswith(_REPORTS):
            await self.sync()
        await TunnelledRequest(channel, scope, self._settle).answer(self.app)

    async def _settle(self) -> None:
        """Return when workers know what a request has changed."""
        if self._is_alone() != self._alone or any(link.clock != self.driver.clock for link in self.driver.links):
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
