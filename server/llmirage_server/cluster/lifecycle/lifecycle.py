"""The lifecycle of instances: late starts, graceful stops, crashes and restarts, and the actions of autoscaling."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Literal, NamedTuple, get_args

from llmirage_server.cluster.instances.base import InstanceBase
from llmirage_server.cluster.lifecycle.autoscaler import Autoscaler, PoolLoad
from llmirage_server.cluster.lifecycle.pools import InstancePool
from llmirage_server.cluster.request import Request

Action = Literal["start", "stop", "crash"]
State = Literal["starting", "up", "draining", "down"]


@dataclass(frozen=True, slots=True)
class LifecycleEvent:
    """A change to one instance at one moment of cluster time.

    start: it accepts requests from now on. An instance whose first event is a start is not there before it.
    stop: it accepts no new request, finishes those it has, and then is gone with its KV.
    crash: its KV and the step in flight are lost at once; with `restart_after_s` it comes back, empty, that much later.
    """

    time_s: float
    instance: int  # numbered over the whole cluster
    action: Action
    restart_after_s: float | None = None

    def problems(self, instances: int) -> list[str]:
        """Return what is wrong with it in a cluster of so many instances."""
        problems = []
        if not 0 <= self.time_s < math.inf:
            problems.append(f"time_s must be a number of seconds from 0 up, not {self.time_s}")
        if not 0 <= self.instance < instances:
            problems.append(f"there is no instance {self.instance}: they are numbered 0 to {instances - 1}")
        if self.action not in get_args(Action):
            problems.append(f"unknown action {self.action!r}: choose one of {', '.join(get_args(Action))}")
        if self.restart_after_s is not None:
            if self.action != "crash":
                problems.append("restart_after_s belongs to a crash: give a start of its own to an instance that stops")
            if not 0 <= self.restart_after_s < math.inf:
                problems.append(f"restart_after_s must be a number of seconds from 0 up, not {self.restart_after_s}")
        return problems


class Lifecycle:
    """The states of all instances and the events still to come; at one instant they happen in the order given.

    An instance is paid for from when it begins to start until it is gone: while it starts up, serves, drains, and comes
    back from a crash; but not before a first `start` of the events, nor after a crash or a stop without one.
    """

    def __init__(self, instances: int, events: Sequence[LifecycleEvent] = (), absent: Collection[int] = ()) -> None:
        """Take the events. absent: instances that are down at first. Raises ValueError naming every invalid event."""
        if problems := [f"event {i + 1}: {text}" for i, event in enumerate(events) for text in event.problems(instances)]:
            raise ValueError("; ".join(problems))
        self._serial = count()
        self._coming = [(event.time_s, next(self._serial), event) for event in events]
        heapify(self._coming)
        first = {event.instance: event.action for _, _, event in sorted(self._coming, reverse=True)}
        self._states: list[State] = [
            "down" if first.get(index) == "start" or index in absent else "up" for index in range(instances)
        ]
        self._booting: set[int] = set()
        self._paid_since_s = [0.0 if state == "up" else math.nan for state in self._states]
        self._paid_s = [0.0] * instances
        self.draining: set[int] = set()  # and not yet gone
        self.changes = [0] * instances  # starts, stops and crashes

    @property
    def next_s(self) -> float:
        """Time of the next event; inf if there is none."""
        return self._coming[0][0] if self._coming else math.inf

    @property
    def next_instance(self) -> int:
        """Instance of the next event."""
        return self._coming[0][2].instance

    def accepts(self, index: int) -> bool:
        """Return whether the instance may get new requests now."""
        return self._states[index] == "up"

    def will_start(self, index: int) -> bool:
        """Return whether an event is due that will make it accept requests."""
        return any(event.instance == index and event.action == "start" for _, _, event in self._coming)

    def state(self, index: int, busy: bool) -> State:
        """Return the state; `starting` and `down` say whether it will come (back). busy: it still has requests."""
        state = self._states[index]
        if state == "up" or (state == "draining" and busy):
            return state
        return "starting" if self.will_start(index) else "down"

    def take(self) -> LifecycleEvent:
        """Process the next event and return it."""
        time_s, _, event = heappop(self._coming)
        index = event.instance
        self.changes[index] += 1
        if event.action == "start":
            self._states[index] = "up"
            self._booting.discard(index)
            self.draining.discard(index)
            self._pay(index, time_s)
        elif event.action == "stop":
            if self._states[index] in ("up", "draining"):
                self.drain(index)
            else:
                self.call_off(index, time_s)
        else:
            self._states[index] = "down"
            self._booting.discard(index)
            self.draining.discard(index)
            if event.restart_after_s is not None:
                self._pay(index, time_s)
                self.add(LifecycleEvent(time_s + event.restart_after_s, index, "start"))
            else:
                self._pay_no_more(index, time_s)
        return event

    def add(self, event: LifecycleEvent) -> None:
        """Add an event, not earlier than those processed."""
        heappush(self._coming, (event.time_s, next(self._serial), event))

    # --- for autoscaling ---

    def counts(self, index: int) -> bool:
        """Return whether the instance serves, or will soon."""
        return self._states[index] != "draining" and not math.isnan(self._paid_since_s[index])

    def is_free(self, index: int) -> bool:
        """Return whether it is gone, so that it may begin to start."""
        return math.isnan(self._paid_since_s[index])

    def is_booting(self, index: int) -> bool:
        return index in self._booting

    def begin(self, index: int, now: float, start_up_s: float) -> None:
        """Start up an instance that is gone."""
        self._booting.add(index)
        self._pay(index, now)
        self.add(LifecycleEvent(now + start_up_s, index, "start"))

    def call_off(self, index: int, now: float) -> None:
        """Cancel the start of an instance."""
        if index in self._booting:
            self._booting.discard(index)
            self._coming = [
                entry for entry in self._coming if not (entry[2].instance == index and entry[2].action == "start")
            ]
            heapify(self._coming)
        self._states[index] = "down"
        self._pay_no_more(index, now)

    def drain(self, index: int) -> None:
        """Stop accepting requests on an instance; see `gone`."""
        self._states[index] = "draining"
        self.draining.add(index)

    def gone(self, index: int, now: float) -> None:
        """Remove a draining instance that has finished its last request."""
        self._states[index] = "down"
        self.draining.discard(index)
        self._pay_no_more(index, now)

    def paid_s(self, index: int, now: float) -> float:
        """Return the seconds up to `now` that are paid for."""
        since = self._paid_since_s[index]
        return self._paid_s[index] + (0.0 if math.isnan(since) else max(0.0, now - since))

    def phase(self, index: int) -> State:
        """Return the `state` of an instance that is paid for; one that is to start at some later time is `down`."""
        if self._states[index] == "down" and not math.isnan(self._paid_since_s[index]):
            return "starting"
        return self._states[index]

    def _pay(self, index: int, now: float) -> None:
        if math.isnan(self._paid_since_s[index]):
            self._paid_since_s[index] = now

    def _pay_no_more(self, index: int, now: float) -> None:
        self._paid_s[index] = self.paid_s(index, now)
        self._paid_since_s[index] = math.nan


_MOST_DECISIONS = 10_000  # kept


class ScalingDecision(NamedTuple):
    """One decision of an autoscaler. observed, targets: by name; None: nothing was observed. advisory: not carried out."""

    time_s: float
    pool: str
    observed: dict[str, float | None]
    targets: dict[str, float]
    current: int
    desired: int
    reason: str
    advisory: bool


@dataclass(slots=True)
class _Scaled:
    """One pool that is scaled.

    next_s: time of its next decision.
    share: its part of its model's arrivals, beside other pools of its kind.
    """

    pool: InstancePool
    scaler: Autoscaler
    share: float
    next_s: float = 0.0
    last_decision_s: float = 0.0
    arrived: int = 0  # of its model, in all
    counted: int = 0  # of those, at the last decision
    watched: list[Request] = field(default_factory=list)  # of its model, with a target of latency, until they are over


@dataclass(slots=True)
class Scaling:
    """All autoscalers of a cluster.

    max_gpu_budget: GPUs of all instances that are there or start, beyond which none is started.
    next_s: time of the next decision; inf without any rule. log: the last decisions; latest: of
        each pool, by name.
    """

    lifecycle: Lifecycle
    pools: Sequence[InstancePool]
    max_gpu_budget: float = math.inf
    next_s: float = math.inf
    scaled: list[_Scaled] = field(default_factory=list)
    latest: dict[str, ScalingDecision] = field(default_factory=dict)
    log: deque[ScalingDecision] = field(default_factory=lambda: deque(maxlen=_MOST_DECISIONS))

    def __post_init__(self) -> None:
        kinds = [(pool.model, pool.role) for pool in self.pools]
        for pool in self.pools:
            if pool.scaling is not None:
                share = 1.0 / kinds.count((pool.model, pool.role))
                self.scaled.append(_Scaled(pool, Autoscaler(pool.scaling), share, pool.scaling.interval_s))
        self._find_next()

    def arrived(self, request: Request) -> None:
        """Count a submitted request."""
        for one in self.scaled:
            if one.pool.model is None or request.model in (one.pool.model, None):
                one.arrived += 1
                if one.scaler.rule.ttft_ms is not None or one.scaler.rule.itl_ms is not None:
                    one.watched.append(request)

    def may_start(self, instances: Sequence[InstanceBase]) -> bool:
        """Return whether a rule could start one of these."""
        there = {instance.index for instance in instances}
        carried_out = [one for one in self.scaled if not one.scaler.rule.advisory]
        return any(instance.index in there for one in carried_out for instance in one.pool.instances)

    def decide(self, now: float, waiting: Iterable[Request], undelivered: Iterable[Request]) -> None:
        """Decide for the pools whose time has come.

        waiting, undelivered: requests outside of instances; the second ones wait to decode.
        """
        for one in self.scaled:
            if one.next_s <= now:
                outside = undelivered if one.pool.role == "decode" else waiting
                model = one.pool.model
                self._decide_for(one, now, sum(model is None or request.model in (model, None) for request in outside))
                one.next_s += one.scaler.rule.interval_s
        self._find_next()

    def _find_next(self) -> None:
        self.next_s = min((one.next_s for one in self.scaled), default=math.inf)

    def _decide_for(self, one: _Scaled, now: float, outside: int) -> None:
        life, rule = self.lifecycle, one.scaler.rule
        snapshots = [instance.snapshot() for instance in one.pool.instances if life.accepts(instance.index)]
        ttft_ms, itl_ms = _latencies(one, now)
        load = PoolLoad(
            waiting=sum(snapshot.waiting for snapshot in snapshots) + math.ceil(outside * one.share),
            running=sum(snapshot.running for snapshot in snapshots),
            kv=sum(snapshot.kv_used_tokens / max(snapshot.kv_total_tokens, 1) for snapshot in snapshots),
            rate=(one.arrived - one.counted) * one.share / (now - one.last_decision_s),
            ready=len(snapshots),
            ttft_ms=ttft_ms,
            itl_ms=itl_ms,
        )
        one.last_decision_s, one.counted = now, one.arrived
        indices = [instance.index for instance in one.pool.instances]
        current = sum(life.counts(index) for index in indices)
        observed, wanted, reason = one.scaler.decide(now, load, current)
        held = [pool.gpus for pool in self.pools for each in pool.instances if not life.is_free(each.index)]
        if wanted > (most := current + max(0.0, (self.max_gpu_budget - sum(held)) / one.pool.gpus)):
            wanted, reason = int(most), f"{reason}, {self.max_gpu_budget:g} GPUs are the budget"
        decided = ScalingDecision(now, one.pool.name, observed, rule.targets, current, wanted, reason, rule.advisory)
        self.log.append(decided)
        self.latest[one.pool.name] = decided
        if rule.advisory:
            return
        for index in indices:  # the first ones start
            if current < wanted and life.is_free(index):
                life.begin(index, now, rule.start_up_s)
                current += 1
        for starting in (True, False):  # first those that are not there yet, then the last ones
            for index in reversed(indices):
                if current > wanted and life.counts(index) and life.is_booting(index) is starting:
                    if starting:
                        life.call_off(index, now)
                    elif life.accepts(index):
                        life.drain(index)
                    else:
                        continue  # it comes back from a crash
                    current -= 1


def _latencies(one: _Scaled, now: float) -> tuple[float | None, float | None]:
    """Return the percentiles of TTFT and ITL since the last decision, of requests on the pool or on none yet."""
    rule, own = one.scaler.rule, {instance.index for instance in one.pool.instances}
    ttft_ms, itl_ms, watched = list[float](), list[float](), []
    for request in one.watched:
        first_s, ends_s = request.first_token_s, request.finished_s
        over = request.failed or request.cancelled or not math.isnan(ends_s)
        if not over:
            watched.append(request)
        if one.pool.role == "both" and request.instance not in own and request.instance >= 0:
            continue
        waited_ms = (now - request.arrival_s) * 1e3
        if first_s > (one.last_decision_s or -math.inf):
            ttft_ms.append((first_s - request.arrival_s) * 1e3)
        elif math.isnan(first_s) and not request.cancelled and waited_ms > (rule.ttft_ms or 0.0):
            ttft_ms.append(waited_ms)
        if ends_s > first_s and request.output_tokens > 1:
            itl_ms.append((ends_s - first_s) * 1e3 / (request.output_tokens - 1))
    one.watched = watched
    return _percentile(ttft_ms, rule.percentile), _percentile(itl_ms, rule.percentile)


def _percentile(values: list[float], percent: float) -> float | None:
    """Return the least value that `percent` of them do not exceed; None of no values."""
    return sorted(values)[max(math.ceil(percent * len(values) / 100 - 1e-9), 1) - 1] if values else None
