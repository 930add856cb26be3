"""One model replica with continuous batching: schedulers, their KV caches, and the clock of their steps."""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Sequence as Seq
from typing import NamedTuple, cast

from llmirage_server.cluster.instances.base import InstanceBase, InstanceSnapshot, Reading, Role, TierSnapshot
from llmirage_server.cluster.kv.cache import Sequence
from llmirage_server.cluster.kv.offload import TierSpec
from llmirage_server.cluster.kv.tiered_cache import make_kv_cache
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.request import Request, StepEnd
from llmirage_server.cluster.schedulers import Scheduler, Step, make_scheduler
from llmirage_server.perf.steps.step_model import GroupStepModel, StepBatch, StepModel


class StepSpan(NamedTuple):
    """One step, or several of the same batch that followed each other: prompt tokens and decoding sequences of each."""

    start_s: float
    end_s: float
    steps: int
    prompt_tokens: int
    decodes: int


class Instance(InstanceBase):
    """Steps follow each other without a gap while there is work; the first one starts when work arrives.

    A step that starts at t is formed when time has moved past t, so that everything that arrives or is cancelled at t
    counts, in whatever order and however often the caller advances. `next_event_time` is then the first instant after t.

    Attention data parallelism: a step model with `ranks` makes as many schedulers, each with `limits` and a KV cache of its
    own. A request is placed on a rank when it arrives. Their steps run in lockstep: the slowest paces all, and who has
    nothing to do runs along.

    Pipeline: with `stages` of the step model, as many steps are in flight. A step is formed when the first stage is free and
    a slot is, from the sequences that are in no other (only chunks of one prompt follow each other closely), and each stage
    works on it when the stage before has finished with it and this one has finished the step before: fill, drain and bubbles
    follow from that. Nothing balances the steps: sequences that were scheduled together stay together, as in vLLM.

    tiers, kv_bytes_per_token: KV offload of the whole instance, see `cluster/offload.py`.
    front_end_s: a submitted request is seen by the scheduler that much later (HTTP, tokenizer, transfer between processes).
    """

    def __init__(
        self,
        index: int,
        step_model: StepModel | GroupStepModel,
        limits: EngineLimits,
        role: Role = "both",
        *,
        tiers: Seq[TierSpec] = (),
        kv_bytes_per_token: float = 0.0,
        front_end_s: float = 0.0,
    ) -> None:
        super().__init__(index, limits, role)
        if not 0 <= front_end_s < math.inf:
            raise ValueError(f"front_end_s must be a number of seconds from 0 up, not {front_end_s}")
        ranks: int = getattr(step_model, "ranks", 1)
        self._stages: int = getattr(step_model, "stages", 1)
        self._step_model = step_model
        self._group = cast(GroupStepModel, step_model) if ranks > 1 or self._stages > 1 else None
        shares = [tier.share(ranks) for tier in tiers]
        self.schedulers = [
            make_scheduler(limits, make_kv_cache(limits, shares, kv_bytes_per_token), role, pipelined=self._stages > 1)
            for _ in range(ranks)
        ]
        self._turn = 0  # which rank is next when they take turns
        self._sequences: dict[Request, tuple[Scheduler, Sequence]] = {}  # in order of arrival
        self._front_end_s = front_end_s
        self._arriving: list[tuple[float, Scheduler, Sequence]] = []  # in the front end until then, the first one first
        self._flights: deque[tuple[float, list[Step]]] = deque()  # steps in the pipeline and their ends; the oldest first
        self._free_s = [-math.inf] * self._stages  # when each stage has finished with the last step
        self._start_s = -math.inf  # when the next step may start
        self._stalled = False  # nobody can be scheduled until something happens
        self._busy_s = 0.0
        self.trace: list[StepSpan] | None = None  # steps are written down here, if somebody wants them

    @property
    def running(self) -> int:
        return sum(len(scheduler.running) for scheduler in self.schedulers)

    @property
    def waiting(self) -> int:
        return sum(scheduler.queue_length for scheduler in self.schedulers) + len(self._arriving)

    def match(self, key: bytes) -> int:
        return max(scheduler.kv.match(key) for scheduler in self.schedulers)

    @property
    def kv_used_tokens(self) -> int:
        return sum(scheduler.kv.used_tokens for scheduler in self.schedulers)

    @property
    def kv_total_tokens(self) -> int:
        return sum(scheduler.kv.capacity_tokens for scheduler in self.schedulers)

    def submit(self, request: Request, now: float) -> None:
        scheduler, sequence = self._place(request)
        arrival_s = now if math.isnan(request.arrival_s) else request.arrival_s
        seen_s = arrival_s + self._front_end_s
        if seen_s > now:
            arriving = self._arriving
            if arriving and arriving[-1][0] > seen_s:
                insort(arriving, (seen_s, scheduler, sequence), key=lambda entry: entry[0])
            else:
                arriving.append((seen_s, scheduler, sequence))
        else:
            self._wake(now)
            scheduler.add(sequence)

    def receive(self, request: Request, now: float) -> None:
        self._wake(now)
        scheduler, sequence = self._place(request)
        scheduler.receive(sequence)

    def release_transferred(self, request: Request, now: float) -> None:
        self.cancel(request, now)

    def cancel(self, request: Request, now: float) -> None:
        self._wake(now)
        scheduler, sequence = self._sequences.pop(request)
        for at, entry in enumerate(self._arriving):
            if entry[2] is sequence:
                del self._arriving[at]
                return
        scheduler.remove(sequence)

    def evacuate(self) -> list[Request]:
        lost = list(self._sequences)
        for scheduler in self.schedulers:
            scheduler.clear()
        self._sequences.clear()
        self._arriving.clear()
        self._flights.clear()
        self._free_s = [-math.inf] * self._stages
        self._start_s = -math.inf
        self._stalled = False
        return lost

    def clear_cache(self) -> None:
        for scheduler in self.schedulers:
            scheduler.kv.forget_idle()

    def next_event_time(self) -> float:
        flights = self._flights
        if len(flights) == self._stages and not self._arriving:
            return flights[0][0]
        end_s = flights[0][0] if flights else math.inf
        arrival_s = self._arriving[0][0] if self._arriving else math.inf
        return min(end_s, arrival_s, math.nextafter(self._next_start_s(), math.inf))

    def advance(self) -> StepEnd | None:
        flights = self._flights
        if len(flights) == self._stages and not self._arriving:
            return self._end(*flights.popleft())
        end_s = flights[0][0] if flights else math.inf
        start_s = self._next_start_s()
        formed_s = math.nextafter(start_s, math.inf)
        if self._arriving and self._arriving[0][0] <= min(end_s, formed_s):
            now, scheduler, sequence = self._arriving.pop(0)
            self._wake(now)
            scheduler.add(sequence)
            return None
        if end_s <= formed_s:
            return self._end(*flights.popleft())
        self._begin(start_s)
        return None

    def batches(self) -> list[StepBatch]:
        """What the step under way computes, by rank; empty if there is none."""
        if not self._flights:
            return []
        return [StepBatch(step.prefill, step.decode_contexts) for step in self._flights[-1][1]]

    def snapshot(self) -> InstanceSnapshot:
        schedulers = self.schedulers
        return InstanceSnapshot(
            index=self.index,
            running=self.running,
            waiting=self.waiting,
            kv_used_tokens=self.kv_used_tokens,
            kv_total_tokens=self.kv_total_tokens,
            cached_tokens=sum(scheduler.kv.tree.total_tokens for scheduler in schedulers),
            prefix_hit_tokens=sum(scheduler.prefix_hit_tokens for scheduler in schedulers),
            prefix_query_tokens=sum(scheduler.prefix_query_tokens for scheduler in schedulers),
            preemptions=sum(scheduler.preemptions for scheduler in schedulers),
            tiers=tuple(map(_together, zip(*(scheduler.kv.tier_snapshots() for scheduler in schedulers), strict=True))),
            busy_s=self._busy_s,
        )

    def reading(self) -> Reading:
        if len(self.schedulers) > 1:
            return super().reading()
        scheduler = self.schedulers[0]
        kv = scheduler.kv
        tree = kv.tree
        return Reading(
            len(scheduler.running),
            scheduler.queue_length + len(self._arriving),
            tree.locked_tokens + kv.own_tokens,
            kv.capacity_tokens,
            tree.total_tokens,
            scheduler.prefix_hit_tokens,
            scheduler.prefix_query_tokens,
            scheduler.preemptions,
            self._busy_s,
        )

    # --- time ---

    def _wake(self, now: float) -> None:
        """Something has changed at `now`: who could not be scheduled may be so now."""
        self._start_s = max(self._start_s, now)
        self._stalled = False

    def _next_start_s(self) -> float:
        """When the next step starts; inf if that takes the end of one in flight, or work."""
        if len(self._flights) == self._stages:
            return math.inf
        if self._stalled:
            return max(self._start_s, min(scheduler.kv.next_load_s for scheduler in self.schedulers))
        for scheduler in self.schedulers:
            if scheduler.has_work:
                return self._start_s
        return math.inf

    def _begin(self, start_s: float) -> None:
        """Form a step and put it on its way, or stall."""
        self._start_s = start_s
        self._stalled = True
        free_s = self._free_s
        if self._group is None:
            step = self.schedulers[0].schedule(start_s)
            steps = [step]
            if not step.decode_contexts and not step.prefill:
                return
            free_s[0] = end_s = start_s + self._step_model.step_s(step.prefill, step.decode_contexts)
        else:
            steps = [scheduler.schedule(start_s) for scheduler in self.schedulers]
            batches = [StepBatch(step.prefill, step.decode_contexts) for step in steps]
            if not any(batch.decode_contexts or batch.prefill for batch in batches):
                return
            end_s = start_s
            for stage, seconds in enumerate(self._group.stages_s(batches)):
                free_s[stage] = end_s = max(end_s, free_s[stage]) + seconds
        begun_s = max(start_s, self._flights[-1][0]) if self._flights else start_s  # steps of a pipeline overlap
        self._busy_s += end_s - begun_s
        self._start_s = free_s[0]
        self._stalled = False
        self._flights.append((end_s, steps))
        if self.trace is not None:
            chunks = [chunk[0] for step in steps for chunk in step.prefill]
            self.trace.append(StepSpan(start_s, end_s, 1, sum(chunks), sum(len(step.decode_contexts) for step in steps)))

    def _end(self, end_s: float, steps: list[Step]) -> StepEnd | None:
        end = StepEnd(end_s, self.index, [], [])
        for scheduler, step in zip(self.schedulers, steps, strict=True):
            for request in scheduler.complete(step, end):
                del self._sequences[request]
        self._start_s = max(end_s, self._free_s[0])
        self._stalled = False
        if end.tokens:  # so far those of accepted drafts
            end.tokens += len(end.emitted)
        return end if end.emitted else None

    # --- ranks ---

    def _place(self, request: Request) -> tuple[Scheduler, Sequence]:
        """Put a request on a rank."""
        sequence = Sequence(request)
        scheduler = self.schedulers[0] if len(self.schedulers) == 1 else self._choose(sequence)
        self._sequences[request] = scheduler, sequence
        return scheduler, sequence

    def _choose(self, sequence: Sequence) -> Scheduler:
        """The rank by `data_parallel_balance`; equals take turns."""
        schedulers = self.schedulers
        order = schedulers[self._turn :] + schedulers[: self._turn]
        self._turn = (self._turn + 1) % len(schedulers)
        balance = self.limits.data_parallel_balance or ("load" if self.limits.scheduler == "vllm" else "round_robin")
        if balance == "round_robin":
            return order[0]
        if balance == "prefix":
            return min(order, key=lambda rank: (-rank.kv.tree.match(sequence.key, sequence.tokens - 1), self._load(rank)))
        return min(order, key=self._load)

    def _load(self, scheduler: Scheduler) -> int:
        """The score of vLLM's data-parallel load balancer."""
        waiting = scheduler.queue_length + sum(1 for entry in self._arriving if entry[1] is scheduler)
        return 4 * waiting + len(scheduler.running)


def _together(shares: tuple[TierSnapshot, ...]) -> TierSnapshot:
    """The ranks' shares of one offload tier, added up."""
    return TierSnapshot(
        shares[0].name,
        sum(share.used_tokens for share in shares),
        sum(share.capacity_tokens for share in shares),
        sum(share.hit_tokens for share in shares),
        sum(share.loaded_tokens for share in shares),
        sum(share.stored_tokens for share in shares),
        sum(share.dropped_tokens for share in shares),
    )
