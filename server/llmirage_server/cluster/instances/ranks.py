"""The schedulers of an instance, one for each attention data-parallel rank, and the gates that hold their prompts back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import replace

from llmirage_server.cluster.kv.cache import KVCache
from llmirage_server.cluster.limits import EngineLimits, Role
from llmirage_server.cluster.request import AdapterReading, Request, Sequence
from llmirage_server.cluster.schedulers import Scheduler, Step, make_scheduler
from llmirage_server.cluster.schedulers.base import AdapterSlots, names_of
from llmirage_server.cluster.snapshots import InstanceSnapshot, Reading, StepCounts, TierSnapshot


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


# --- prompt gates -------------------------------------------------------------------------------------------------------
# Settings that hold prompts back so that other sequences decode or prompts of several ranks meet. Off by default. A gate
# reads all ranks before a step is formed and decides which hold their prompts (`Scheduler.holds_prompts`). None does if
# nothing else is left to compute.


def make_gate(limits: EngineLimits, schedulers: Seq[Scheduler]) -> PromptGate | None:
    """Return the gate that the limits ask for; None: prompts are computed as soon as possible."""
    ranks = len(schedulers) > 1
    if limits.prefill_decode_interval:
        return DecodesBetween(limits, schedulers)
    if limits.prefill_schedule_interval > 1 and ranks:
        return EveryNthStep(limits, schedulers)
    if limits.attention_dp_enable_balance and ranks:
        return PromptsOnAllRanks(limits, schedulers)
    if limits.batch_wait_timeout_iters and limits.batch_wait_max_tokens_ratio and not ranks:
        return FullerSteps(limits, schedulers)
    return None


class PromptGate(ABC):
    """A gate over the schedulers of one instance. forms_all: it must see every step, also those that only decode."""

    forms_all = False

    def __init__(self, limits: EngineLimits, schedulers: Seq[Scheduler]) -> None:
        self._limits = limits
        self._schedulers = schedulers

    def schedule(self, now: float) -> list[Step]:
        """Form the step that starts at `now`, of every rank."""
        schedulers = self._schedulers
        self._hold()
        steps = [scheduler.schedule(now) for scheduler in schedulers]
        if not any(step.prefill or step.decodes for step in steps):
            for scheduler in schedulers:
                scheduler.holds_prompts = False
            steps = [scheduler.schedule(now) for scheduler in schedulers]
        self._formed(steps)
        return steps

    @abstractmethod
    def _hold(self) -> None:
        """Decide which ranks hold their prompts in the next step."""

    def _formed(self, steps: Seq[Step]) -> None:  # noqa: B027 (optional hook)
        """Note the step that was formed."""

    def pass_steps(self, steps: int) -> None:  # noqa: B027 (optional hook)
        """Account for `steps` fast-forwarded steps: all sequences decoded, and no prompt could be computed."""

    def _all_hold(self, hold: bool) -> None:
        for scheduler in self._schedulers:
            scheduler.holds_prompts = hold

    def _decoding(self) -> list[int]:
        """Return how many sequences could decode, by rank."""
        return [scheduler.batch.ready() for scheduler in self._schedulers]


class DecodesBetween(PromptGate):
    """SGLang's prefill_decode_interval: steps without prompts after each step with prompts on any rank.

    srt/managers/scheduler.py: _should_defer_prefill, _arm_prefill_decode_interval.
    """

    _left = 0

    def _hold(self) -> None:
        if not any(self._decoding()):
            self._left = 0  # empty steps take no time
        self._all_hold(self._left > 0)
        self.pass_steps(1)

    def _formed(self, steps: Seq[Step]) -> None:
        if any(step.prefill for step in steps):
            self._left = self._limits.prefill_decode_interval

    def pass_steps(self, steps: int) -> None:
        self._left = max(0, self._left - steps)


class EveryNthStep(PromptGate):
    """vLLM's prefill_schedule_interval with data parallelism: prompts in every n-th step since the ranks were idle.

    A rank that decodes nothing does not wait, nor one whose queue was not emptied by the last step that did not hold its
    prompts.
    vllm/v1/engine/core.py: _should_throttle_prefills; core/sched/scheduler.py: defer_prefills, prefill_capacity_bound.
    """

    forms_all = True
    _steps = 0

    def __init__(self, limits: EngineLimits, schedulers: Seq[Scheduler]) -> None:
        super().__init__(limits, schedulers)
        self._backlog = [False] * len(schedulers)

    def _hold(self) -> None:
        if not any(scheduler.size for scheduler in self._schedulers):
            self._steps = 0
        throttled = self._steps % self._limits.prefill_schedule_interval != 0
        for scheduler, backlog, decoding in zip(self._schedulers, self._backlog, self._decoding(), strict=True):
            scheduler.holds_prompts = throttled and not backlog and decoding > 0
        self._steps += 1

    def _formed(self, steps: Seq[Step]) -> None:
        for rank, scheduler in enumerate(self._schedulers):
            if not scheduler.holds_prompts:
                self._backlog[rank] = bool(scheduler.waiting)


class PromptsOnAllRanks(PromptGate):
    """TensorRT-LLM's attention_dp_config with enable_balance: prompts are computed when every rank has some.

    If all ranks have prompts and all decode, they wait for `batching_wait_iters` further steps, in which others may arrive.
    If some ranks have none, the others wait for theirs up to `timeout_iters`. No rank waits while one has nothing to decode.
    _torch/pyexecutor/py_executor.py: _balance_adp_requests.
    """

    _waited = 0  # steps without prompts on all ranks
    _batched = 0  # steps since all had some

    def _hold(self) -> None:
        decoding = self._decoding()
        if max(decoding) < self._limits.max_num_seqs and all(each.prompt_tokens() for each in self._schedulers):
            self._waited = 0
            if not all(decoding):
                self._all_hold(False)
                return
            hold = self._batched < self._limits.attention_dp_batching_wait_iters
            self._batched = self._batched + 1 if hold else 0
            self._all_hold(hold)
        else:
            self.pass_steps(1)
            self._all_hold(self._waited > 0)

    def pass_steps(self, steps: int) -> None:
        timeout = self._limits.attention_dp_timeout_iters
        self._waited = (self._waited + steps) % timeout if timeout and all(self._decoding()) else 0


class FullerSteps(PromptGate):
    """TensorRT-LLM's batch_wait_timeout_iters and batch_wait_max_tokens_ratio, without attention data parallelism.

    While others decode, prompts wait for this many steps unless a step with them has that share of max_num_batched_tokens.
    _torch/pyexecutor/py_executor.py: _waiting_requests.
    """

    _waited = 0

    def _hold(self) -> None:
        [scheduler], [decoding], limits = self._schedulers, self._decoding(), self._limits
        prompts = scheduler.prompt_tokens() if decoding else 0
        hold = False
        if prompts:
            tokens = prompts + decoding * (1 + limits.num_speculative_tokens)
            full = tokens >= limits.batch_wait_max_tokens_ratio * limits.max_num_batched_tokens
            hold = not full and self._waited < limits.batch_wait_timeout_iters
            self._waited = self._waited + 1 if hold else 0
        self._all_hold(hold)
