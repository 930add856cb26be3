"""The engine process of a server with several workers: the cluster, everything that is stored, and what workers forward."""

from __future__ import annotations

import asyncio
import logging
import math
from array import array
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from llmirage_server.app import LlmirageApp
from llmirage_server.cluster.request import Request, StepEnd, TokenPlan
from llmirage_server.cluster.routers import RouterError
from llmirage_server.drivers.live import PacedDriver
from llmirage_server.service.generation import refusal_of
from llmirage_server.telemetry.journal import JournalEntry
from llmirage_server.workers.channel import TICK_S, Channel, TunnelledRequest, request_of, written
from llmirage_shared.statistics import LogHistogram, ServedTimes
from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError

logger = logging.getLogger("llmirage")

_POLL_S = 0.1
_NOT_BEGUN = TokenPlan(0.0, 0.0, 0)
_LATER_S = 0.01
_REPORTS = ("/metrics", "/prometheus/metrics", "/llmirage/")  # paths of what workers know a part of


class SharedDriver(PacedDriver):
    """The driver of a cluster whose requests come from several processes, each of which every wake-up costs as much.

    Workers are told of tokens and places at ticks, so that the gap between these limits the wake-ups of all. Of a request
    with a plan they are told that once.
    """

    gap_s = TICK_S
    here: Collection[object] = ()  # what is in progress in this process

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.links: set[Link] = set()
        self._due_s = self._last_s = math.nan  # the cluster's time of the first and the last of what workers are not told

    @property
    def clock(self) -> tuple[float, float]:
        """The time on the machine's clock at which that of the cluster was 0, and its speed."""
        return self._start_s, self._speed

    def catch_up(self) -> None:
        """Advance the cluster to the present, however long that takes."""
        now_s = self._now()
        while self.cluster.next_event_time() <= now_s:
            self._advance(now_s)
        self._schedule_next_event()

    def flush(self) -> None:
        """Tell the workers of what has become due, and of places."""
        for link in self.links:
            link.flush(self._due_s, self._last_s)
        self._due_s = math.nan

    def _advance(self, to: float) -> None:
        """Advance; keep what is due for workers, which record its lateness."""
        events, here = self._run_cluster(to), []
        for event in events:
            for request in event.emitted:
                tag = request.tag
                if not isinstance(tag, _Remote):
                    here.append(request)
                elif request.plan is None or request.plan is not tag.link.told.get(tag.number):
                    tag.link.due[tag.number] = request
        if events:
            self._last_s = events[-1].time_s
            if math.isnan(self._due_s):
                self._due_s = events[0].time_s
        if here:
            self._deliver([StepEnd(self._last_s, -1, list(dict.fromkeys(here)))])
            self._count_lateness([StepEnd(events[0].time_s, -1, here)])

    def _next_event_s(self) -> float:
        event_s = super()._next_event_s()
        if self.here or event_s <= self.cluster.reached_s or not all(link.planned for link in self.links):
            return event_s
        return event_s + _LATER_S * self._speed  # nobody waits for it, and a message of a worker mostly comes before

    def _schedule_next_event(self) -> None:
        if math.isnan(self._event_s):  # at a tick
            self.flush()
        if not any(link.due or link.submitted for link in self.links):
            super()._schedule_next_event()
        elif self._event_s > -math.inf:
            assert self._alarm is not None
            self._event_s = -math.inf
            self._alarm.set(self._event_s)


class _Remote(NamedTuple):
    """The tag of a worker's request, by the worker's number."""

    link: Link
    number: int


class Link:
    """One worker, seen from the engine process.

    The worker names the methods that it calls. requests: those that the metrics have not counted, by the worker's numbers.
    clock: that it was told. due: requests with tokens that it was not told of; submitted: with places that it was not told
    of. told: the plans of those of whose first token or plan it was told. reports: that are awaited.
    """

    def __init__(self, hub: Hub, channel: Channel) -> None:
        self._hub = hub
        self._driver = hub.driver
        self._service = hub.app.service
        self.channel = channel
        self.requests: dict[int, Request] = {}
        self._counted: dict[int, Request] = {}  # of prompts of which a choice goes on
        self.clock = 0.0, 0.0
        self.due: dict[int, Request] = {}
        self.submitted: dict[int, Request] = {}
        self._placed: list[tuple[int, ApiError | None]] = []  # see RemoteDriver.due
        self.told: dict[int, TokenPlan | None] = {}
        self.reports: deque[asyncio.Future[None]] = deque()
        self.held_bytes = 0
        self.closing = False  # what is in progress ends with an error
        self._methods: Mapping[str, Callable[..., object]] = {
            "submit": self._submit,
            "cancel": self._cancel,
            "count": self._count,
            "answer": self._answer,
            "ask": self._ask,
            "respond": self._respond,
            "report": self._report,
            "ready": hub.worker_ready,
            "drain": self._drain,
        }

    def take(self, messages: Sequence[tuple[Any, ...]]) -> None:
        for name, *given in messages:
            self._methods[name](*given)

    def flush(self, due_s: float, last_s: float) -> None:
        """Tell the worker, if there is anything to tell. due_s, last_s: the cluster's time of the first and the last."""
        due, submitted, told = self.due, self.submitted, self.told
        if not due and not submitted:
            return
        self.tell_clock()
        produced = [request.produced for request in due.values()]
        begun = {
            number: one
            for number, one in due.items()
            if one.produced >= one.output_tokens or told.get(number, _NOT_BEGUN) is not one.plan or one.failed
        }
        planned = {number: one for number, one in submitted.items() if one.plan is not None and number in self.requests}
        for number, one in {**planned, **begun}.items():
            told[number] = one.plan
        values = [(number, written(one)) for number, one in {**submitted, **begun}.items()]
        tokens = array("I", due).tobytes(), array("I", produced).tobytes()
        self.channel.send(("due", due_s, last_s, *tokens, values, self._placed))
        self.due, self.submitted, self._placed = {}, {}, []

    @property
    def planned(self) -> bool:
        """True if the worker knows the plans of all requests."""
        return len(self.told) == len(self.requests) and None not in self.told.values()

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

    def _submit(self, asked: Sequence[Sequence[Any]], arrived_s: float, last: bool) -> None:
        requests = [request_of(values) for values in asked]
        numbers = [request.id for request in requests]
        submitted = dict(zip(numbers, requests, strict=True))
        self.requests |= submitted
        self.submitted |= submitted
        for number, request in submitted.items():
            request.tag, request.by_plan = _Remote(self, number), True
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
        self._placed.append((numbers[-1], error))

    def _cancel(self, numbers: Sequence[int]) -> None:
        self._driver.cancel([self.requests[number] for number in numbers if number in self.requests])

    def _count(self, number: int, finish_reason: str) -> None:
        request = self._counted[number] = self.requests.pop(number)
        if request.plan is not None:  # the worker may be the first to have sent the last token
            self._driver.catch_up()
        request.tag = None
        self.told.pop(number, None)
        self.due.pop(number, None)
        self._service.responses.metrics.ended(request, finish_reason)

    def _answer(self, numbers: Sequence[int]) -> None:
        replies = [request for number in numbers if (request := self._counted.pop(number, None)) is not None]
        if len(replies) == len(numbers):
            self._service.responses.metrics.answered(replies)

    def _ask(self, number: int, name: str, given: Sequence[Any]) -> None:
        self.channel.send(("told", number, self._service.answers[name](*given)))

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
        self.driver.here = app.service.responses.under_way
        self._left = workers  # that have not begun to listen
        self._ready = ready
        self._tasks: set[asyncio.Task[None]] = set()
        self._at_start = self._served()
        self._alone = False
        self._there: list[bool] | None = None
        app.held["workers"] = lambda: sum([link.held_bytes for link in self.driver.links])
        app.service.responses.elsewhere = self._requests

    def connection(self) -> Channel:
        """Return what takes one connection: of a worker, or for a request."""
        channel = Channel()
        channel.received = partial(self._first, channel)
        return channel

    def _requests(self) -> list[Request]:
        """Return the workers' requests that the metrics have not counted yet."""
        requests = [request for link in self.driver.links for request in link.requests.values()]
        for request in requests:
            request.follow_plan(self.driver.now_s)
        return requests

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
        self.driver.flush()
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
