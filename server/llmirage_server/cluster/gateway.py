"""The gateway: the instance that each request goes to, and the requests that wait outside of instances."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from llmirage_server.cluster.kv.handoffs import Handoffs
from llmirage_server.cluster.lifecycle.lifecycle import Lifecycle, Scaling
from llmirage_server.cluster.lifecycle.pools import Front, ModelPools, Pools, accepting_front
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.routers import RouterError
from llmirage_server.cluster.routers.gateway_queue import Flow, FlowControl, GatewayQueue, Outcome, Waiting
from llmirage_shared.statistics import LogHistogram

_MOST_SERIES = 2000  # of queue durations; the flows of further ones are counted together


class QueueReading(NamedTuple):
    """The queue of one model. waiting: by flow."""

    model: str | None
    saturation: float
    waiting: Mapping[Flow, Waiting]


class Gateway:
    """The routers of all pools, and what waits before them.

    Requests that no instance accepts wait in order; one that no instance ever will accept fails. With `flow_control`
    requests wait in the queue of their model while the instances where they begin are saturated, or until they are evicted.
    It sends at the end of an instant.

    waiting, undelivered: requests for any instance that accepts them; the second ones were handed over, to decode.
    queued: requests in the queues of flow control.
    durations: of the stay in flow control by model, fairness id, priority and outcome.
    router_errors: of users' own routers, for requests that failed when they were routed again.
    """

    def __init__(
        self,
        pools: Pools,
        lifecycle: Lifecycle,
        scaling: Scaling,
        handoffs: Handoffs,
        note: Callable[[int, float], None],
        flow_control: FlowControl | None,
    ) -> None:
        """note: takes the time of an instance's next event; behind them of the queues' turn (1) and an eviction (2)."""
        self._pools = pools
        self._instances = pools.instances
        self._lifecycle = lifecycle
        self._scaling = scaling
        self._handoffs = handoffs
        self._note = note
        self.flow_control = flow_control
        self._queues = {
            serving: GatewayQueue(flow_control.ordering if flow_control else "fcfs") for serving in pools.by_model.values()
        }
        self.queued: dict[Request, GatewayQueue] = {}  # in any of them; never another object
        self.waiting: dict[Request, None] = {}
        self.undelivered: dict[Request, None] = {}
        self.durations: dict[tuple[str | None, str, int, Outcome], LogHistogram] = {}
        self.router_errors: list[str] = []

    def __len__(self) -> int:
        return len(self.waiting) + len(self.undelivered) + len(self.queued)

    def place(self, request: Request, serving: ModelPools, now: float, sheds: bool = False) -> bool:
        """Send a request to an instance, or queue it; return False if it fails. sheds: a full queue rejects it."""
        if (rule := self.flow_control) is None or request.only_instance >= 0 or request.kv_from is not None:
            return self._send(request, serving, now)
        queue, priority = self._queues[serving], rule.priority(request)
        saturated = self._saturation(rule, serving, now) >= 1
        if not saturated and not queue:
            sent = self._send(request, serving, now)
            self._end_stay(request, priority, now, "Dispatched", now)
            return sent
        if sheds and not rule.has_room(priority, queue.waiting(priority), request):
            self._drop(request, priority, now, "RejectedCapacity", "RejectedNoEndpoints", now)
            return False
        queue.add(request, priority, now)
        self.queued[request] = queue
        if not saturated:
            self.schedule_queues(now)
        self._schedule_eviction()
        return True

    def place_again(self, request: Request, now: float) -> bool:
        """Place a request that was submitted earlier; return False if it fails, also by an error of its router."""
        return self._again(request, now, self.place)

    def deliver(self, request: Request, now: float) -> bool:
        """Choose a decode instance for a request that was handed over, or queue it; return False if it fails."""
        request.handed_s, request.joined_s = now, math.nan
        fronts = self._pools.serving(request.model).decode
        front = accepting_front(fronts)
        if front is None:
            return self._wait(request, fronts, self.undelivered) or self._abandon(request, now)
        if front.router.reads_kv:
            self.sync_to(now)
        try:
            target = front.choose(request)
        except RouterError as error:
            self.router_errors.append(str(error))
            return self._abandon(request, now)
        self._handoffs.wait(request, target.index, now)
        return True

    def retry(self, now: float) -> list[Request]:
        """Place and deliver the requests that wait for an instance to start; return those that fail."""
        undelivered, self.undelivered, waiting, self.waiting = self.undelivered, {}, self.waiting, {}
        failed = [request for request in undelivered if not self.deliver(request, now)]
        return failed + [request for request in waiting if not self.place_again(request, now)]

    def withdraw(self, request: Request, now: float) -> bool:
        """Remove a request that waits here for its first instance; return whether it did."""
        if request in self.waiting:
            del self.waiting[request]
        elif request in self.queued:
            priority, added_s = self.queued.pop(request).remove(request)
            self._end_stay(request, priority, added_s, "EvictedContextCancelled", now)
            self._schedule_eviction()
        else:
            return False
        return True

    def schedule_queues(self, now: float) -> None:
        """Let the queues send at the end of this instant, if anything waits in them."""
        if self.queued:
            self._note(len(self._instances) + 1, now)

    def send_queued(self, now: float) -> list[Request]:
        """Send requests of the queues until the instances are saturated; return those that fail."""
        failed = []
        for serving, queue in self._queues.items():
            while queue and self.flow_control is not None and self._saturation(self.flow_control, serving, now) < 1:
                request, priority, added_s = queue.pop()
                del self.queued[request]
                self._end_stay(request, priority, added_s, "Dispatched", now)
                if not self._again(request, now, self._send):
                    failed.append(request)
        self._schedule_eviction()
        return failed

    def evict(self, now: float) -> list[Request]:
        """Remove the requests that have waited in the queues for too long; return them."""
        evicted = []
        while self._next_eviction_s() <= now:
            request = next(iter(self.queued))
            self._drop(request, *self.queued.pop(request).remove(request), "EvictedTTL", "EvictedNoEndpoints", now)
            evicted.append(request)
        self._schedule_eviction()
        return evicted

    def readings(self, now: float) -> list[QueueReading]:
        """Return the reading of each model's queue with flow control."""
        if (rule := self.flow_control) is None:
            return []
        return [
            QueueReading(model, self._saturation(rule, serving, now), self._queues[serving].sizes())
            for model, serving in self._pools.by_model.items()
        ]

    def sync_to(self, now: float) -> None:
        """Bring the readable state of all instances up to date."""
        for instance in self._instances:
            instance.sync_to(now)

    def _saturation(self, rule: FlowControl, serving: ModelPools, now: float) -> float:
        self.sync_to(now)
        accepting = [instance for front in serving.entry for instance in front.accepting]
        return rule.saturation(accepting) if accepting else float(self._may_come(serving.entry))

    def _schedule_eviction(self) -> None:
        self._note(len(self._instances) + 2, self._next_eviction_s())

    def _next_eviction_s(self) -> float:
        """Return when the request that waits the longest is evicted; inf if none does."""
        for request, queue in self.queued.items():
            assert self.flow_control is not None
            return queue.added_s(request) + self.flow_control.request_ttl_s
        return math.inf

    def _drop(
        self, request: Request, priority: int, added_s: float, outcome: Outcome, without_endpoints: Outcome, now: float
    ) -> None:
        """Fail a request. without_endpoints: the outcome while no instance accepts requests."""
        serving = self._pools.serving(request.model)
        request.failed = True
        request.dropped = outcome if any(front.accepting for front in serving.entry) else without_endpoints
        self._end_stay(request, priority, added_s, request.dropped, now)

    def _end_stay(self, request: Request, priority: int, added_s: float, outcome: Outcome, now: float) -> None:
        key = request.model, request.fairness_id, priority, outcome
        if key not in self.durations and len(self.durations) >= _MOST_SERIES:
            key = request.model, "others", priority, outcome
        self.durations.setdefault(key, LogHistogram()).add(now - added_s)

    def _again(self, request: Request, now: float, place: Callable[[Request, ModelPools, float], bool]) -> bool:
        try:
            return place(request, self._pools.serving(request.model), now)
        except RouterError as error:
            self.router_errors.append(str(error))
            request.failed = True
            return False

    def _send(self, request: Request, serving: ModelPools, now: float) -> bool:
        """Send a request to an instance, or queue it; return False if it fails because no instance will ever accept it."""
        if (index := request.only_instance) >= 0:
            if not self._lifecycle.accepts(index):
                request.failed = True
                return False
            instance = self._instances[index]
        else:
            fronts = serving.entry if request.kv_from is None or not serving.decode else serving.decode
            front = fronts[0] if len(fronts) == 1 else accepting_front(fronts)
            if front is None or not front.accepting:
                return self._wait(request, fronts, self.waiting)
            if front.router.reads_kv:
                self.sync_to(now)
            sheddable = self.flow_control is not None and self.flow_control.priority(request) < 0
            if sheddable and not front.router.admits(request, front.accepting):
                request.failed, request.dropped = True, "NoValidEndpoint"
                return False
            instance = front.choose(request, self.flow_control)
            index = instance.index
        if request.kv_from is not None:
            request.failed = not self._handoffs.take(request, index, now)
            return not request.failed
        request.instance = index
        request.placed_s = now
        instance.submit(request, now)
        self._note(index, instance.next_event_s)
        return True

    def _wait(self, request: Request, fronts: Sequence[Front], queue: dict[Request, None]) -> bool:
        if self._may_come(fronts):
            queue[request] = None
            return True
        request.failed = True
        return False

    def _may_come(self, fronts: Sequence[Front]) -> bool:
        """Return whether an instance will start, or could."""
        instances = [instance for front in fronts for instance in front.instances]
        will_start = any(self._lifecycle.will_start(instance.index) for instance in instances)
        return will_start or self._scaling.may_start(instances)

    def _abandon(self, request: Request, now: float) -> bool:
        """Fail a request that was handed over, and free its KV."""
        request.failed, source = True, self._instances[request.instance]
        source.cancel(request, now)
        self._note(source.index, source.next_event_s)
        return False
