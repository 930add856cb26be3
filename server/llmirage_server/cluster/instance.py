"""One model replica with continuous batching: a scheduler, a KV cache and the clock of its steps."""

from __future__ import annotations

import math

from llmirage_server.cluster.instance_base import InstanceBase, InstanceSnapshot
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

    def __init__(self, index: int, step_model: StepModel, limits: EngineLimits) -> None:
        super().__init__(index, limits)
        self.kv = KVCache(limits)
        self._step_model = step_model
        self._scheduler = Scheduler(limits, self.kv)
        self._sequences: dict[Request, Sequence] = {}
        self._step: Step | None = None  # in flight
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

    def receive(self, request: Request, now: float) -> None:
        raise NotImplementedError

    def release_transferred(self, request: Request) -> None:
        raise NotImplementedError

    def evacuate(self) -> list[Request]:
        raise NotImplementedError

    def submit(self, request: Request, now: float) -> None:
        if self._step is None:
            self._clock_s = now
        sequence = Sequence.of(request)
        self._sequences[request] = sequence
        self._scheduler.add(sequence)

    def cancel(self, request: Request) -> None:
        self._scheduler.remove(self._sequences.pop(request))

    def next_event_time(self) -> float:
        if self._step is not None:
            return self._clock_s
        if self._sequences:
            return math.nextafter(self._clock_s, math.inf)
        return math.inf

    def advance(self) -> StepEnd | None:
        step = self._step
        if step is None:
            step = self._scheduler.schedule(self._clock_s)
            self._clock_s += self._step_model.step_s(step.prefill, step.decode_contexts)
            self._step = step
            return None
        self._step = None
        emitted = self._scheduler.complete(step, self._clock_s)
        for request in emitted:
            if request.produced == len(request.output):
                del self._sequences[request]
        return StepEnd(self._clock_s, self.index, emitted) if emitted else None

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
