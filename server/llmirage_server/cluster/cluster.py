"""The cluster: pools of instances behind routers, with one clock. A pure state machine; its driver supplies the time."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush, heapreplace
from typing import Literal

from llmirage_server.cluster.gateway import Gateway
from llmirage_server.cluster.instances.base import InstanceBase
from llmirage_server.cluster.instances.instance import Instance
from llmirage_server.cluster.kv.cache import KVCache
from llmirage_server.cluster.kv.handoffs import Handoffs, KVLink, TransferSnapshot
from llmirage_server.cluster.lifecycle.lifecycle import Action, Lifecycle, LifecycleEvent, Scaling, State
from llmirage_server.cluster.lifecycle.pools import InstancePool, Pools
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.request import Adapter, Request, RequestTooLongError, StepEnd
from llmirage_server.cluster.routers import Router
from llmirage_server.cluster.routers.gateway_queue import FlowControl
from llmirage_server.cluster.snapshots import InstanceSnapshot, Reading, StepSpan
from llmirage_server.perf.steps.step_model import StepBatch

__all__ = ["Cluster", "EngineLimits", "InstanceBase", "InstanceSnapshot"]

OnCrash = Literal["reroute", "fail"]

_NEVER = math.inf
_ALL = sys.maxsize


class Agenda:
    """Next event times of numbered sources, with the earliest in constant time.

    times: of the next event of each source; inf where there is none.
    heap: the same by time, then by number; an entry that differs from `times` is stale, and is skipped when it comes up. The
        event loop changes both directly: a call for each would cost more than the work itself.
    """

    def __init__(self, things: int) -> None:
        self.times = [math.inf] * things
        self.heap: list[tuple[float, int]] = []

    def note(self, number: int, time_s: float) -> None:
        """Set the time of the next event of one source; inf if it has none."""
        if time_s != self.times[number]:
            self.times[number] = time_s
            if time_s < math.inf:
                heappush(self.heap, (time_s, number))


class Cluster:
    """Serving of requests in the caller's time.

    What happens depends on the submitted and cancelled requests and their times alone, not on how often or how far
    `advance` is called in between. A time earlier than one already reached counts as that one. What falls on one instant
    happens in this order: steps end, by instance number; KV arrives; instances come and go; the caller submits and cancels.

    A request begins in a pool of its model. From a prefill pool its KV travels to a decode pool of the same model: to an
    instance that is chosen when the prefill ends, as soon as there is room for it; until it arrives, the prefill instance
    keeps it. Requests that no instance accepts wait in the gateway. Outside routers send a request to each of the two
    instances (`Request.keeps_kv`, `Request.kv_from`).
    """

    def __init__(
        self,
        instances: Sequence[InstanceBase] = (),
        router: Router | None = None,
        *,
        pools: Sequence[InstancePool] = (),
        kv_link: KVLink | None = None,
        events: Sequence[LifecycleEvent] = (),
        on_crash: OnCrash = "reroute",
        flow_control: FlowControl | None = None,
        max_gpu_budget: float = math.inf,
    ) -> None:
        """Take either instances and their router, or pools.

        on_crash: what becomes of the unfinished requests of an instance that crashes: they go to another one, which computes
            the KV of their prompt and of what they have produced again, or they fail.

        Raises ValueError naming what does not fit together.
        """
        if router is not None and not pools:
            pools = [InstancePool("default", instances, router)]
        self._pools = Pools(pools)
        self._instances = self._pools.instances
        if kv_link is None and any(pool.role == "prefill" for pool in pools):
            raise ValueError("prefill and decode pools need a KV link between them")
        self.max_request_tokens = min(serving.max_request_tokens for serving in self._pools.by_model.values())
        self._lifecycle = Lifecycle(len(self._instances), events, {index for pool in pools for index in pool.absent})
        self.scaling = Scaling(self._lifecycle, pools, max_gpu_budget)
        self._pools.refresh(self._lifecycle.accepts)
        self._on_crash = on_crash
        self._now = -math.inf
        # Behind the instances: the next arrival of KV, the queues' turn, the next eviction, the next lifecycle event.
        self._agenda = Agenda(len(self._instances) + 4)
        self._handoffs = Handoffs(self._instances, self._pools.pool_of, kv_link or KVLink(math.inf), self._agenda.note)
        self.gateway = Gateway(self._pools, self._lifecycle, self.scaling, self._handoffs, self._agenda.note, flow_control)
        for index in range(len(self._instances)):
            self._schedule_instance(index)
        self._schedule_lifecycle()
        of_cluster = self._lifecycle.draining, self._handoffs.receives, self.gateway.queued  # never other objects
        self._at_hand = self._agenda.heap, self._agenda.times, self._instances, len(self._instances), *of_cluster
        self.router_errors = self.gateway.router_errors
        self._held: deque[StepEnd] = deque()  # happened before a submit or cancel, not yet returned by advance

    def submit(self, request: Request, now: float) -> None:
        """Route a request and queue it. It arrived `request.age_s` ago and has spent that time in the front end.

        Raises ValueError for an empty one, one that could never finish (RequestTooLongError), and one for a model that no
        pool serves. Raises RouterError if a router of the user's own does not work. Nothing of the request is kept then.
        """
        prompt_tokens, output_tokens = request.prompt_tokens, request.output_tokens
        if not prompt_tokens or not output_tokens:
            raise ValueError("a request needs at least one prompt token and one output token")
        serving = self._pools.serving(request.model)
        if prompt_tokens + output_tokens > serving.max_request_tokens:
            raise RequestTooLongError(request, serving.max_request_tokens)
        self._go_to(now)
        request.arrival_s = self._now - request.age_s
        if self.scaling.scaled:
            self.scaling.arrived(request)
        if not self.gateway.place(request, serving, self._now, sheds=True):
            self._held += self._end_of([request])

    def cancel(self, request: Request, now: float) -> None:
        """Stop a request and free its KV and batch slot at once, on all instances; the step in flight keeps its end time.

        Nothing happens if the request has finished, failed or been cancelled by `now`, or was never submitted.
        """
        self._go_to(now)
        if request.cancelled or request.failed or request.produced == request.output_tokens:
            return
        if self.gateway.withdraw(request, self._now):
            request.cancelled = True
        elif request.instance >= 0:
            request.cancelled = True
            if not self._handoffs.stop(request, self._now):
                self._handoffs.drop(request)
                self.gateway.undelivered.pop(request, None)
                self._instances[request.instance].cancel(request, self._now)
                self._schedule_instance(request.instance)
            self._handoffs.send_all(self._now)
            self._retire()
            self.gateway.schedule_queues(self._now)
        if request.keeps_kv and (lost := self._failed([request])[1:]):
            self._held.append(StepEnd(self._now, -1, lost))

    def release(self, request: Request, now: float) -> None:
        """Free the KV that a request keeps (`keeps_kv`) and nobody takes; who waits for one that never came fails."""
        self._go_to(now)
        if self._handoffs.keeps(request):
            self._handoffs.release(request, self._now)
            self._handoffs.send_all(self._now)
            self._retire()
            self.gateway.schedule_queues(self._now)
        elif math.isnan(request.arrival_s) and (lost := self._failed([request])[1:]):
            self._held.append(StepEnd(self._now, -1, lost))

    def routers_bytes(self) -> int:
        """Return what the routers remember of requests, in bytes."""
        return sum([router.bytes_kept() for router in {pool.router for pool in self._pools.pool_of}])

    def clear_cache(self, now: float, only: int = -1) -> None:
        """Evict the KV that no request uses, on all instances or on one. Routers are not informed, as in reality."""
        self._go_to(now)
        for instance in self._instances if only < 0 else (self._instances[only],):
            instance.clear_cache(self._now)
            self._schedule_instance(instance.index)

    def load_adapter(self, adapter: Adapter, instances: Sequence[int], now: float) -> float:
        """Load a LoRA adapter on these instances; return the seconds that this takes."""
        self._go_to(now)
        return max([self._instances[index].load_adapter(adapter, self._now) for index in instances], default=0.0)

    def unload_adapter(self, adapter: Adapter, instances: Sequence[int], now: float) -> None:
        """Free the memory of a LoRA adapter on these instances."""
        self._go_to(now)
        for index in instances:
            self._instances[index].unload_adapter(adapter)

    def act(self, action: Action, instance: int, now: float, restart_after_s: float | None = None) -> None:
        """Let an instance start, stop or crash now.

        The requests of one that crashes are rerouted or fail, according to `on_crash`; the next `advance` tells of them.
        Raises ValueError naming what is wrong.
        """
        self._go_to(now)
        event = LifecycleEvent(max(0.0, self._now), instance, action, restart_after_s)
        if problems := event.problems(len(self._instances)):
            raise ValueError("; ".join(problems))
        self._lifecycle.add(event)
        self._schedule_lifecycle()
        self._held += self._run(event.time_s)

    def catch_up(self, now: float) -> None:
        """Run lifecycle events until `now` in a cluster without requests, whose time does not advance otherwise."""
        if not self._held and self._idle():
            self._run(now)

    def next_event_time(self) -> float:
        """Return the time at which `advance` should be called next; inf when idle.

        A driver that converts between clocks should advance to at least this time, not to what rounding made of it.
        """
        if self._held:
            return self._held[0].time_s
        now = min(self._agenda.times)
        return math.inf if now == self._agenda.times[-1] and self._idle() else now

    def advance(self, to: float, max_steps: int | None = None) -> list[StepEnd]:
        """Process all events up to and including `to`; return those that brought tokens or failures, in time order.

        Ties between instances go by index. With `max_steps` the work stops after so many step ends; `next_event_time` tells
        that there is more. `to` may be inf: until nothing is left to do.
        """
        max_steps = _ALL if max_steps is None else max_steps
        held = self._held
        if not held:
            ends = self._run(to, max_steps)
            if len(ends) <= max_steps:
                return ends
            held += ends
        elif len(held) < max_steps:  # otherwise report the held events before time advances
            held += self._run(to, max_steps - len(held))
        return [held.popleft() for _ in range(min(max_steps, len(held)))]

    def advance_to_next(self, to: float) -> list[StepEnd]:
        """Advance to the end of the first instant that brings tokens or failures, or to `to` if there is none before."""
        if self._held:
            return self.advance(self._held[-1].time_s)
        return self._run(to, _ALL, True)

    def _go_to(self, now: float) -> None:
        """Process all events up to and including `now`, before the caller changes something."""
        heap = self._agenda.heap
        if heap and heap[0][0] <= now:
            self._held.extend(self._run(now))
        elif self._now < now < _NEVER:
            self._now = now

    def _run(self, to: float, max_steps: int = _ALL, one_instant: bool = False) -> list[StepEnd]:
        """Advance without the held events. one_instant: stop after the first instant that brings an event."""
        ends: list[StepEnd] = []
        heap, times, instances, after_instances, draining, receives, queued = self._at_hand
        reached = self._now
        while heap:
            now, index = heap[0]
            if now > to:
                break
            if now != times[index]:
                heappop(heap)
                continue
            if index < after_instances:  # the common case, which mostly affects this instance alone
                reached = now
                instance = instances[index]
                end = instance.advance()
                next_s = times[index] = instance.next_event_s
                if next_s < _NEVER:
                    heapreplace(heap, (next_s, index))
                else:
                    heappop(heap)
                if end is None and not draining and not queued:
                    continue
                if now > self._now:
                    self._now = now
                if end is not None:
                    if end.emitted:
                        ends.append(end)
                    if end.handed_over or receives[index]:
                        ends += self._handle_disaggregated(end)
            else:
                if index > after_instances + 2 and to == _NEVER and self._idle():
                    break
                heappop(heap)
                times[index] = _NEVER  # until the next one is known
                if now > self._now:
                    self._now = now
                if index == after_instances:
                    self._handoffs.receive(self._now)
                elif index == after_instances + 1:
                    ends += self._end_of(self.gateway.send_queued(self._now))
                elif index == after_instances + 2:
                    ends += self._end_of(self.gateway.evict(self._now))
                else:
                    ends += self._process_lifecycle_event()
            if draining:
                self._retire()
            if queued and index != after_instances + 1:
                self.gateway.schedule_queues(self._now)
            if ends:
                if len(ends) >= max_steps:  # report these before time advances
                    return ends
                if one_instant:
                    to = now
        if to < _NEVER:
            reached = to
        if reached > self._now:
            self._now = reached
        return ends

    def _handle_disaggregated(self, end: StepEnd) -> list[StepEnd]:
        """Handle the end of a step of an instance that hands over or receives KV; return what fails."""
        if self._handoffs.receives[end.instance]:
            self._handoffs.send(end.instance, self._now)
        failed = []
        for request in end.handed_over:
            if request.keeps_kv:
                self._handoffs.keep(request, self._now)
            elif not self.gateway.deliver(request, self._now):
                failed.append(request)
        return [StepEnd(self._now, end.instance, failed)] if failed else []

    def _schedule_lifecycle(self) -> None:
        self._agenda.note(len(self._instances) + 3, min(self._lifecycle.next_s, self.scaling.next_s))

    def _process_lifecycle_event(self) -> list[StepEnd]:
        """Process the next lifecycle event or autoscaling decision; return what it made fail."""
        if self.scaling.next_s < self._lifecycle.next_s:
            self._scale()
            return []
        index = self._lifecycle.next_instance
        stands_still = not self._lifecycle.accepts(index) and not self._busy(index)
        event = self._lifecycle.take()
        self._schedule_lifecycle()
        self._pools.refresh(self._lifecycle.accepts)
        if event.action == "crash":
            return self._crash(index)
        if event.action == "start":
            if stands_still:
                self._lose(index)  # a process that starts has no KV of the one before
            return self._end_of(self.gateway.retry(self._now))
        return []

    def _scale(self) -> None:
        self.gateway.sync_to(self._now)
        self.scaling.decide(self._now, [*self.gateway.waiting, *self.gateway.queued], self.gateway.undelivered)
        self._pools.refresh(self._lifecycle.accepts)
        self._schedule_lifecycle()

    def _retire(self) -> None:
        """Remove draining instances that have no work left."""
        for index in sorted(self._lifecycle.draining):
            if not self._busy(index):
                self._lifecycle.gone(index, self._now)

    def _crash(self, index: int) -> list[StepEnd]:
        lost = self._lose(index)
        for request in lost:
            self._handoffs.drop(request)
            self.gateway.undelivered.pop(request, None)
            request.instance = -1
        again = self._handoffs.lose_target(index)  # the prefill side still has the KV
        failed = [
            request
            for request in again
            if not (
                self.gateway.deliver(request, self._now)
                if request.kv_from is None
                else self.gateway.place_again(request, self._now)
            )
        ]
        self._handoffs.send_all(self._now)
        replanned: list[Request] = []
        for request in lost:
            if self._handoffs.keeps(request):
                failed += self._failed([request])[1:]
                continue
            request.failed = self._on_crash == "fail"
            if request.failed or not self.gateway.place_again(request, self._now):
                failed += self._failed([request])
            elif request.by_plan:
                replanned.append(request)
        told = failed + replanned
        return [StepEnd(self._now, index, told)] if told else []

    def _end_of(self, lost: Sequence[Request]) -> list[StepEnd]:
        return [StepEnd(self._now, -1, self._failed(lost))] if lost else []

    def _failed(self, requests: Sequence[Request]) -> list[Request]:
        """Return requests that are lost, and behind each the one that was to take its KV, which fails, too."""
        failed = []
        for request in requests:
            failed.append(request)
            if request.keeps_kv and (taker := self._handoffs.lose(request)) is not None:
                taker.failed = True
                failed.append(taker)
        return failed

    def _lose(self, index: int) -> list[Request]:
        self._instances[index].sync_to(self._now)
        lost = self._instances[index].evacuate(self._now)
        self._pools.pool_of[index].router.forget(index)
        self._handoffs.lose_source(index)
        self._schedule_instance(index)
        return lost

    # --- reading the state, besides events ---

    @property
    def models(self) -> tuple[str | None, ...]:
        """Models of the pools, in their order."""
        return tuple(self._pools.by_model)

    @property
    def reached_s(self) -> float:
        """Cluster time reached, in seconds; -inf before the first call."""
        return self._now

    @property
    def waiting(self) -> int:
        """Number of requests that wait for an instance that accepts them, or at the router."""
        return len(self.gateway)

    @property
    def transfers(self) -> TransferSnapshot:
        return self._handoffs.snapshot

    def snapshot(self) -> list[InstanceSnapshot]:
        """Return the state of every instance, as of the time reached."""
        return [self.snapshot_of(index) for index in range(len(self._instances))]

    def snapshot_of(self, index: int) -> InstanceSnapshot:
        """Return the state of one instance, as of the time reached."""
        self._instances[index].sync_to(self._now)
        return self._completed(self._instances[index].snapshot())

    def rank_snapshots(self, only: int = -1) -> list[InstanceSnapshot]:
        """Return the state of each data-parallel rank of all instances or of one, as of the time reached."""
        instances = self._instances if only < 0 else self._instances[only : only + 1]
        for instance in instances:
            instance.sync_to(self._now)
        return [self._completed(rank) for instance in instances for rank in instance.rank_snapshots()]

    def _completed(self, snapshot: InstanceSnapshot) -> InstanceSnapshot:
        """Return a snapshot with what the cluster knows of the instance."""
        index, pool = snapshot.index, self._pools.pool_of[snapshot.index]
        return replace(
            snapshot,
            pool=pool.name,
            role=pool.role,
            model=pool.model,
            state=self._lifecycle.state(index, self._busy(index)),
            changes=self._lifecycle.changes[index],
            sending=self._handoffs.sending(index),
            receiving=self._handoffs.receiving(index),
        )

    def readings(self) -> list[Reading]:
        """Return the readings of every instance. KV memory and busy time may lag by the steps of one fast-forward."""
        return [instance.reading() for instance in self._instances]

    def phases(self) -> list[State]:
        """Return the lifecycle phase of each instance: up, draining, starting (and paid for), or down."""
        return [self._lifecycle.phase(instance.index) for instance in self._instances]

    def paid_s(self, now: float) -> list[float]:
        """Return the seconds from 0 to `now` that are paid for, by instance: while it started up, served or drained."""
        return [self._lifecycle.paid_s(instance.index, now) for instance in self._instances]

    def trace_steps(self) -> list[list[StepSpan]]:
        """Record all steps from now on; return the lists to which they are appended, by instance."""
        steps: list[list[StepSpan]] = [[] for _ in self._instances]
        for instance, its in zip(self._instances, steps, strict=True):
            if isinstance(instance, Instance):
                instance.trace = its
        return steps

    def kv_caches(self) -> list[list[KVCache]]:
        """Return the KV caches of each instance, by rank."""
        return [instance.kv_caches for instance in self._instances]

    def batches(self, index: int) -> list[StepBatch]:
        """Return the batch of the step in flight on an instance, by rank; empty if there is none or times are fixed."""
        instance = self._instances[index]
        return instance.batches() if isinstance(instance, Instance) else []

    def _schedule_instance(self, index: int) -> None:
        """Update the next event of an instance after a change."""
        self._agenda.note(index, self._instances[index].next_event_s)

    def _busy(self, index: int) -> bool:
        """Return whether an instance has any request, or KV to send, to receive or to keep."""
        instance = self._instances[index]
        return bool(
            instance.running
            or instance.waiting
            or self._handoffs.busy(index)
            or any(request.instance == index for request in self.gateway.undelivered)
        )

    def _idle(self) -> bool:
        """Return whether no request is left that the passing of time could advance."""
        return min(self._agenda.times[:-1]) == math.inf and not len(self.gateway)
