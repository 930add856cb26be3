"""What can be read of a cluster at any time, besides its events."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from llmirage_server.cluster.agenda import Agenda
from llmirage_server.cluster.instances.base import InstanceBase
from llmirage_server.cluster.instances.instance import Instance
from llmirage_server.cluster.kv.admission import KVAdmission
from llmirage_server.cluster.kv.transfer import KVTransfers, TransferSnapshot
from llmirage_server.cluster.lifecycle.lifecycle import Lifecycle, State
from llmirage_server.cluster.lifecycle.pools import Pools
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.snapshots import InstanceSnapshot, Reading, StepSpan
from llmirage_server.perf.steps.step_model import StepBatch


class ClusterReadings:
    """The part of a cluster that others look at; `Cluster` fills it with life."""

    _instances: Sequence[InstanceBase]
    _pools: Pools
    _lifecycle: Lifecycle
    _transfers: KVTransfers
    _admission: KVAdmission
    _agenda: Agenda
    _waiting: dict[Request, None]
    _undelivered: dict[Request, None]
    _now: float

    @property
    def models(self) -> tuple[str | None, ...]:
        """What the pools serve, in their order."""
        return tuple(self._pools.by_model)

    @property
    def reached_s(self) -> float:
        """How far its time has gone; -inf before anything was asked of it."""
        return self._now

    @property
    def waiting(self) -> int:
        """Requests that wait for an instance that accepts them."""
        return len(self._waiting) + len(self._undelivered)

    @property
    def transfers(self) -> TransferSnapshot:
        return self._transfers.snapshot()

    def snapshot(self) -> list[InstanceSnapshot]:
        """The state of every instance, as of the time reached."""
        self._sync()
        return [
            replace(
                instance.snapshot(),
                pool=pool.name,
                role=pool.role,
                model=pool.model,
                state=self._lifecycle.state(instance.index, self._busy(instance.index)),
                sending=len(self._transfers.sent_by(instance.index)),
                receiving=len(self._transfers.sent_to(instance.index)),
            )
            for instance, pool in zip(self._instances, self._pools.pool_of, strict=True)
        ]

    def readings(self) -> list[Reading]:
        """Of every instance. KV memory and busy time may be behind by the steps of one run of decoding."""
        return [instance.reading() for instance in self._instances]

    def phases(self) -> list[State]:
        """By instance: up, draining, starting (and paid for), or down."""
        return [self._lifecycle.phase(instance.index) for instance in self._instances]

    def paid_s(self, now: float) -> list[float]:
        """By instance, the seconds from 0 to `now`, before the next event, in which it was there, started up or drained."""
        return [self._lifecycle.paid_s(instance.index, now) for instance in self._instances]

    def trace_steps(self) -> list[list[StepSpan]]:
        """Have all steps written down from now on; return the lists that they come into, by instance."""
        steps: list[list[StepSpan]] = [[] for _ in self._instances]
        for instance, its in zip(self._instances, steps, strict=True):
            if isinstance(instance, Instance):
                instance.trace = its
        return steps

    def batches(self, index: int) -> list[StepBatch]:
        """What the step under way on an instance computes, by rank; empty if there is none, or no physics."""
        instance = self._instances[index]
        return instance.batches() if isinstance(instance, Instance) else []

    def _sync(self) -> None:
        """Have all instances ready to be read."""
        for instance in self._instances:
            instance.sync_to(self._now)

    def _look_again(self, index: int) -> None:
        """Something may have changed on an instance: when is its next event?"""
        self._agenda.note(index, self._instances[index].next_event_s)

    def _busy(self, index: int) -> bool:
        """Has an instance any request, or KV to send or to receive?"""
        instance, transfers = self._instances[index], self._transfers
        return bool(
            instance.running
            or instance.waiting
            or transfers.sent_by(index)
            or transfers.sent_to(index)
            or self._admission.waits(index)
            or any(request.instance == index for request in self._undelivered)
        )

    def _idle(self) -> bool:
        """Is there no request left that time could bring further?"""
        return min(self._agenda.times[:-1]) == math.inf and not self._waiting and not self._undelivered
