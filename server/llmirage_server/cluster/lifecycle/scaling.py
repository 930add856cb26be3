"""The autoscalers of a cluster: they read the pools at regular intervals and start or drain instances."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from llmirage_server.cluster.instances.base import InstanceBase
from llmirage_server.cluster.lifecycle.autoscaler import Autoscaler, PoolLoad
from llmirage_server.cluster.lifecycle.lifecycle import Lifecycle
from llmirage_server.cluster.lifecycle.pools import InstancePool
from llmirage_server.cluster.request import Request

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
