"""One model replica with continuous batching: a scheduler, a KV cache and the clock of its steps."""

from __future__ import annotations

import math

from llmirage_server.cluster.instance_base import InstanceBase, InstanceSnapshot, Role
from llmirage_server.cluster.kv_cache import KVCache, Sequence
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.request import Request, StepEnd
from llmirage_server.cluster.scheduler import Scheduler, Step
from llmirage_server.perf.step_model import StepModel


class Instance(InstanceBase):
    """Steps follow each other without a gap while there is work; the first one starts when work arrives.

    A step that starts at t is formed when time has moved past t, so that everything that arrives or is cancelled at t
    counts, in whatever order and however often the caller advances. `next_event_time` is then the first instant after t.
    """

    def __init__(self, index: int, step_model: StepModel, limits: EngineLimits, role: Role = "both") -> None:
        super().__init__(index, limits, role)
        self.kv = KVCache(limits)
        self._step_model = step_model
        self._scheduler = Scheduler(limits, self.kv, role)
        self._sequences: dict[Request, Sequence] = {}  # in order of arrival
        self._step: Step | None = None  # in flight
        self._stalled = False  # those who wait find no room, and no step is in flight whose end would make it
        self._clock_s = 0.0  # end of the step in flight; without one, when the next may start

    @property
    def running(self) -> int:
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        return len(self._scheduler.waiting)

    def match(self, key: bytes) -> int:
        return self.kv.match(key)

    @property
    def kv_used_tokens(self) -> int:
        return self.kv.used_tokens

    @property
    def kv_total_tokens(self) -> int:
        return self.kv.capacity_tokens

    def submit(self, request: Request, now: float) -> None:
        self._wake(now)
        sequence = self._sequences[request] = Sequence.of(request)
        self._scheduler.add(sequence)

    def receive(self, request: Request, now: float) -> None:
        self._wake(now)
        sequence = self._sequences[request] = Sequence.of(request)
        self._scheduler.receive(sequence)

    def release_transferred(self, request: Request, now: float) -> None:
        self.cancel(request, now)

    def cancel(self, request: Request, now: float) -> None:
        self._wake(now)
        self._scheduler.remove(self._sequences.pop(request))

    def evacuate(self) -> list[Request]:
        lost = list(self._sequences)
        old = self._scheduler
        self.kv = KVCache(self.limits)
        self._scheduler = Scheduler(self.limits, self.kv, self.role)
        self._scheduler.preemptions = old.preemptions
        self._scheduler.prefix_hit_tokens = old.prefix_hit_tokens
        self._scheduler.prefix_query_tokens = old.prefix_query_tokens
        self._sequences = {}
        self._step = None
        return lost

    def _wake(self, now: float) -> None:
        """An instance that stands still looks again, at `now`."""
        if self._step is None:
            self._clock_s = now
            self._stalled = False

    def next_event_time(self) -> float:
        if self._step is not None:
            return self._clock_s
        if self._scheduler.has_work and not self._stalled:
            return math.nextafter(self._clock_s, math.inf)
        return math.inf

    def advance(self) -> StepEnd | None:
        step = self._step
        if step is None:
            step = self._scheduler.schedule(self._clock_s)
            if not step.prefill and not step.decode_contexts:
                self._stalled = True
                return None
            self._clock_s += self._step_model.step_s(step.prefill, step.decode_contexts)
            self._step = step
            return None
        self._step = None
        emitted = self._scheduler.complete(step, self._clock_s)
        for request in emitted:
            if request.produced == len(request.output):
                del self._sequences[request]
        return StepEnd(self._clock_s, self.index, emitted, self._scheduler.handed_over) if emitted else None

    def snapshot(self) -> InstanceSnapshot:
        return InstanceSnapshot(
            index=self.index,
            running=self.running,
            waiting=self.waiting,
            kv_used_tokens=self.kv.used_tokens,
            kv_total_tokens=self.kv.capacity_tokens,
            cached_tokens=self.kv.tree.total_tokens,
            prefix_hit_tokens=self._scheduler.prefix_hit_tokens,
            prefix_query_tokens=self._scheduler.prefix_query_tokens,
            preemptions=self._scheduler.preemptions,
        )
