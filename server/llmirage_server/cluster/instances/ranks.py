"""The schedulers of an instance: one, or one for each attention data-parallel rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from llmirage_server.cluster.adapters import AdapterReading
from llmirage_server.cluster.instances.prompt_gates import make_gate
from llmirage_server.cluster.kv.cache import KVCache
from llmirage_server.cluster.limits import EngineLimits, Role
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.schedulers import Scheduler, Step, make_scheduler
from llmirage_server.cluster.schedulers.adapter_slots import AdapterSlots, names_of
from llmirage_server.cluster.sequence import Sequence
from llmirage_server.cluster.snapshots import InstanceSnapshot, Reading, TierSnapshot
from llmirage_server.cluster.step_counts import StepCounts


class Ranks:
    """All schedulers of an instance, and the choice of a rank for a sequence."""

    def __init__(
        self,
        limits: EngineLimits,
        caches: Iterable[KVCache],
        role: Role,
        *,
        stages: int,
        summed: bool,
        adapters: Callable[[], AdapterSlots | None] = lambda: None,
    ) -> None:
        """Create one scheduler for each cache. The other arguments are those of `make_scheduler`."""
        self.schedulers = [
            make_scheduler(limits, kv, role, stages=stages, summed=summed, adapters=adapters()) for kv in caches
        ]
        self.gate = None if role == "decode" else make_gate(limits, self.schedulers)
        self._balance = limits.data_parallel_balance or ("round_robin" if limits.scheduler == "sglang" else "load")
        self._waiting_counts = 1 if limits.scheduler == "trtllm" else 4  # for so many running ones
        self._shows_first = role == "decode" and limits.first_token == "admission" and not summed
        self._turn = 0  # which rank is next when they take turns

    @property
    def reads_kv(self) -> bool:
        """True if `choose` reads the caches."""
        return self._balance == "prefix"

    def choose(self, sequence: Sequence, arriving: Iterable[Scheduler]) -> Scheduler:
        """Return the rank chosen by `data_parallel_balance`; equals take turns.

        arriving: the ranks of requests in the front end.
        """
        schedulers = self.schedulers
        order = schedulers[self._turn :] + schedulers[: self._turn]
        self._turn = (self._turn + 1) % len(schedulers)
        if self._balance == "round_robin":
            return order[0]
        coming = Counter(map(id, arriving))

        def load(rank: Scheduler) -> int:
            """Return the score of vLLM's data-parallel load balancer; TensorRT-LLM counts a rank's requests."""
            return self._waiting_counts * (rank.queue_length + coming[id(rank)]) + rank.size

        if self._balance == "prefix":
            return min(order, key=lambda rank: (-rank.kv.tree.match(sequence.key, sequence.tokens - 1), load(rank)))
        return min(order, key=load)

    def schedule(self, now: float) -> list[Step]:
        """Form the step that starts at `now`, of each rank."""
        gate = self.gate
        return [scheduler.schedule(now) for scheduler in self.schedulers] if gate is None else gate.schedule(now)

    def first_tokens(self, steps: Iterable[Step]) -> list[Request]:
        """Return the requests whose first tokens are reported as these steps begin, if single tokens are reported."""
        if not self._shows_first:
            return []
        return [sequence.request for step in steps for sequence in step.joined if sequence.request.produced]

    def match(self, key: bytes) -> int:
        """Return the leading tokens of `key` whose KV is here, on the best rank."""
        return max([scheduler.kv.match(key) for scheduler in self.schedulers])

    @property
    def used_tokens(self) -> int:
        return sum([scheduler.kv.used_tokens for scheduler in self.schedulers])

    @property
    def capacity_tokens(self) -> int:
        return sum([scheduler.kv.capacity_tokens for scheduler in self.schedulers])

    def reading(self, running: int, waiting: int, *seconds: float) -> Reading:
        """Return the sums over the ranks. seconds: the last fields of a Reading."""
        used = capacity = cached = hits = queries = preemptions = 0
        for scheduler in self.schedulers:
            kv = scheduler.kv
            used += kv.used_tokens
            capacity += kv.capacity_tokens
            cached += kv.tree.total_tokens
            hits += scheduler.prefix_hit_tokens
            queries += scheduler.prefix_query_tokens
            preemptions += scheduler.preemptions
        return Reading(running, waiting, used, capacity, cached, hits, queries, preemptions, *seconds)

    def snapshots(self, whole: InstanceSnapshot, arriving: Iterable[tuple[Scheduler, Sequence]]) -> list[InstanceSnapshot]:
        """Return the state of each rank. whole: of the instance. arriving: requests in the front end, with their ranks."""
        found, coming = [], list(arriving)
        for rank, scheduler in enumerate(self.schedulers):
            kv, its = scheduler.kv, [sequence for chosen, sequence in coming if chosen is scheduler]
            found.append(
                replace(
                    whole,
                    rank=rank,
                    running=scheduler.size,
                    waiting=scheduler.queue_length + len(its),
                    kv_used_tokens=kv.used_tokens,
                    kv_total_tokens=kv.capacity_tokens,
                    cached_tokens=kv.tree.total_tokens,
                    prefix_hit_tokens=scheduler.prefix_hit_tokens,
                    prefix_query_tokens=scheduler.prefix_query_tokens,
                    preemptions=scheduler.preemptions,
                    tiers=kv.tier_snapshots(),
                    steps=scheduler.batch.counts,
                    loading=len(kv.loading),
                    adapters=_adapter_reading([scheduler], its),
                )
            )
        return found

    @property
    def counts(self) -> StepCounts:
        """Counters of all ranks' steps, as of now."""
        counts = StepCounts()
        for scheduler in self.schedulers:
            counts += scheduler.batch.counts
        return counts

    def slots(self) -> list[AdapterSlots]:
        """Return the adapters of each rank; empty if there are none."""
        return [scheduler.adapters for scheduler in self.schedulers if scheduler.adapters is not None]

    def adapter_reading(self, arriving: Iterable[Sequence]) -> AdapterReading | None:
        """Return the adapters in use on any rank; None: there cannot be any. arriving: requests in the front end."""
        return _adapter_reading(self.schedulers, arriving)

    def tier_snapshots(self) -> tuple[TierSnapshot, ...]:
        """Return the state of the offload tiers, the nearest first, summed over the ranks."""
        return tuple(map(_sum_tiers, zip(*[scheduler.kv.tier_snapshots() for scheduler in self.schedulers], strict=True)))


def _adapter_reading(schedulers: list[Scheduler], arriving: Iterable[Sequence]) -> AdapterReading | None:
    if (slots := schedulers[0].adapters) is None:
        return None
    running = names_of([sequence for scheduler in schedulers for sequence in scheduler.running])
    waiting = names_of([*arriving, *[sequence for scheduler in schedulers for sequence in scheduler.waiting]])
    return AdapterReading(running, waiting, slots.most)


def _sum_tiers(shares: tuple[TierSnapshot, ...]) -> TierSnapshot:
    """Return the sum of the ranks' parts of one offload tier; a store is the same for all."""
    first = shares[0]
    hits, loaded = sum([share.hit_tokens for share in shares]), sum([share.loaded_tokens for share in shares])
    if first.shared:
        return replace(first, hit_tokens=hits, loaded_tokens=loaded)
    return TierSnapshot(
        first.name,
        sum([share.used_tokens for share in shares]),
        sum([share.capacity_tokens for share in shares]),
        hits,
        loaded,
        sum([share.stored_tokens for share in shares]),
        sum([share.dropped_tokens for share in shares]),
    )
