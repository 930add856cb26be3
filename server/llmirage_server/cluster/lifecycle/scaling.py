"""The autoscalers of a cluster: they read the pools at regular intervals and start or drain instances."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from llmirage_server.cluster.instances.base import InstanceBase
from llmirage_server.cluster.lifecycle.autoscaler import Autoscaler, PoolLoad
from llmirage_server.cluster.lifecycle.lifecycle import Lifecycle
from llmirage_server.cluster.lifecycle.pools import InstancePool
from llmirage_server.cluster.request import Request


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


@dataclass(slots=True)
class Scaling:
    """All autoscalers of a cluster. next_s: time of the next decision; inf without any rule."""

    lifecycle: Lifecycle
    pools: Sequence[InstancePool]
    next_s: float = math.inf
    scaled: list[_Scaled] = field(default_factory=list)

    def __post_init__(self) -> None:
        kinds = [(pool.model, pool.role) for pool in self.pools]
        for pool in self.pools:
            if pool.scaling is not None:
                share = 1.0 / kinds.count((pool.model, pool.role))
                self.scaled.append(_Scaled(pool, Autoscaler(pool.scaling), share, pool.scaling.interval_s))
        self._find_next()

    def arrived(self, model: str | None) -> None:
        """Count a submitted request for a model."""
        for one in self.scaled:
            one.arrived += one.pool.model is None or model in (one.pool.model, None)

    def may_start(self, instances: Sequence[InstanceBase]) -> bool:
        """Return whether a rule could start one of these."""
        there = {instance.index for instance in instances}
        return any(instance.index in there for one in self.scaled for instance in one.pool.instances)

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
        load = PoolLoad(
            waiting=sum(snapshot.waiting for snapshot in snapshots) + math.ceil(outside * one.share),
            running=sum(snapshot.running for snapshot in snapshots),
            kv=sum(snapshot.kv_used_tokens / max(snapshot.kv_total_tokens, 1) for snapshot in snapshots),
            rate=(one.arrived - one.counted) * one.share / (now - one.last_decision_s),
        )
        one.last_decision_s, one.counted = now, one.arrived
        indices = [instance.index for instance in one.pool.instances]
        current = sum(life.counts(index) for index in indices)
        wanted = one.scaler.decide(now, load, current)
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
