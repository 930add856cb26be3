"""What holds for every engine's rules whatever is asked: nothing is lost, nobody starves, no limit is passed, and the times
do not depend on how often the caller looks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from llmirage_server.cluster.instances.instance import Instance
from llmirage_server.cluster.kv.offload import TierSpec
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.request import Request
from llmirage_server.perf.steps.step_model import StepBatch


@dataclass
class CheckingModel:
    """Takes what a step would take, and refuses what no engine would run."""

    limits: EngineLimits
    ranks: int
    stages: int
    largest: list[int] = field(default_factory=list)

    def step_s(self, prefill: Sequence[tuple[int, int]], decode_contexts: Sequence[int]) -> float:
        assert prefill or decode_contexts
        return sum(self.stages_s([StepBatch(prefill, decode_contexts)]))

    def stages_s(self, batches: Sequence[StepBatch]) -> list[float]:
        assert len(batches) == self.ranks
        assert any(batch.prefill or batch.decode_contexts for batch in batches)
        slowest = 0.0
        for prefill, decode_contexts in batches:
            assert all(new > 0 and context >= 0 for new, context in prefill)
            assert all(context > 0 for context in decode_contexts)
            tokens = sum(new for new, _ in prefill)
            assert len(prefill) + len(decode_contexts) <= self.limits.max_num_seqs
            if self.limits.scheduler != "sglang":
                assert tokens + len(decode_contexts) <= self.limits.max_num_batched_tokens
            elif self.limits.enable_chunked_prefill:
                assert tokens <= self.limits.max_num_batched_tokens
                assert self.limits.enable_mixed_chunk or not (prefill and decode_contexts)
            slowest = max(slowest, 0.01 + tokens * 1e-4 + len(decode_contexts) * 1e-3 + sum(decode_contexts) * 1e-6)
        return [slowest * (1 + stage % 2) for stage in range(self.stages)]


@st.composite
def limits(draw: st.DrawFn) -> EngineLimits:
    page_size = draw(st.sampled_from([1, 2, 4]))
    max_num_seqs = draw(st.integers(1, 6) | st.just(6))
    scheduler = draw(st.sampled_from(["vllm", "sglang", "trtllm"]))
    drafts = draw(st.sampled_from([0, 0, 1, 3]))
    own: dict[str, Any] = {}
    if scheduler == "vllm":
        own["schedule_policy"] = draw(st.sampled_from(["fcfs", "priority"]))
        own["long_prefill_token_threshold"] = draw(st.sampled_from([0, 0, 3]))
        own["prefill_schedule_interval"] = draw(st.sampled_from([1, 1, 4]))
    elif scheduler == "sglang":
        own["schedule_policy"] = draw(st.sampled_from(["fcfs", "lpm"]))
        own["enable_mixed_chunk"] = not drafts and draw(st.booleans())
        own["schedule_conservativeness"] = draw(st.sampled_from([1.0, 0.01, 0.01]))
        own["max_prefill_tokens"] = draw(st.sampled_from([16384, 10]))
        own["prefill_decode_interval"] = draw(st.sampled_from([0, 0, 3]))
    else:
        own["capacity_scheduler_policy"] = draw(st.sampled_from(["guaranteed_no_evict", "max_utilization"]))
        own |= draw(st.sampled_from([{}, {"batch_wait_timeout_iters": 3, "batch_wait_max_tokens_ratio": 0.5}]))
        own |= draw(st.sampled_from([{}, {"attention_dp_enable_balance": True, "attention_dp_timeout_iters": 3}]))
    return EngineLimits(
        kv_tokens=draw(st.integers(20, 40)) * page_size,
        page_size=page_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max(max_num_seqs, page_size, 1 + drafts) + draw(st.integers(0, 30)),
        enable_prefix_caching=draw(st.booleans()),
        enable_chunked_prefill=draw(st.booleans()),
        scheduler=scheduler,
        num_speculative_tokens=drafts,
        acceptance_rate=draw(st.sampled_from([0.0, 0.6, 1.0])) if drafts else 0.0,
        data_parallel_balance=draw(st.sampled_from([None, "load", "round_robin", "prefix"])),
        **own,
    )


# (seconds since the last one, prompt over a tiny vocabulary, output tokens, tokens allowed beyond them, priority,
#  tokens produced elsewhere: -1 is a new request, others arrive with their KV; cancelled after so many seconds)
ARRIVALS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 0.005, 0.02, 0.1]),
        st.lists(st.integers(0, 1), min_size=1, max_size=12) | st.integers(13, 40).map(lambda n: [n % 3] * n),
        st.integers(1, 25),
        st.sampled_from([0, 0, 5]),
        st.integers(0, 2),
        st.sampled_from([-1, -1, -1, 1]),
        st.none() | st.none() | st.sampled_from([0.0, 0.01, 0.03, 0.08]),
    ),
    min_size=4,
    max_size=14,
)
TIERS = [TierSpec("host", 400.0, 3000.0, 5000.0, 0.001), TierSpec("disk", 4000.0, 1000.0, 2000.0, 0.002)]
Arrivals = list[tuple[float, list[int], int, int, int, int, float | None]]
Tokens = list[tuple[float, int, int]]


class World:
    """An instance under a driver that checks the books after every event."""

    def __init__(self, bounds: EngineLimits, ranks: int, stages: int, offload: bool) -> None:
        tiers = TIERS if offload and bounds.enable_prefix_caching else []
        self.instance = Instance(0, CheckingModel(bounds, ranks, stages), bounds, tiers=tiers, kv_bytes_per_token=1.0)
        self.requests: list[Request] = []
        self.tokens: Tokens = []  # (time, request, tokens produced by then)
        self.crashes = 0

    def run(self, to: float) -> None:
        instance = self.instance
        events = 0
        while (now := instance.next_event_s) <= to and now < math.inf:
            before = {each.id: each.produced for each in self.requests}
            end = instance.advance()
            self.audit()
            events += 1
            assert events < 20_000, "nobody gets on"
            if end is None:
                assert before == {each.id: each.produced for each in self.requests}
                continue
            assert end.time_s == now
            gained = [each.produced - before[each.id] for each in end.emitted]
            most = 1 + instance.limits.num_speculative_tokens
            assert all(1 <= gain <= most for gain in gained)
            assert sum(gained) == (end.tokens or len(gained))
            assert sum(each.produced for each in self.requests) == sum(before.values()) + sum(gained)
            assert len({each.id for each in end.emitted}) == len(end.emitted)
            self.tokens += [(end.time_s, each.id, each.produced) for each in end.emitted]

    def audit(self) -> None:
        """All KV memory that is taken is held by someone, and every sequence is in one place."""
        flights = [step for _, steps in self.instance._in_flight for step in steps]
        flying = [sequence for step in flights for sequence in step.sequences if sequence.computed]
        assert len(set(flying)) == len(flying)
        for scheduler in self.instance.schedulers:
            kv, page = scheduler.kv, scheduler.kv.page_size
            holders = [*scheduler.running, *scheduler._handed_over, *kv.loading]
            assert kv.private_tokens == sum(-(-each.computed // page) * page - each.in_tree for each in holders)
            assert kv.free_tokens >= 0
            assert 0 <= kv.tree.locked_tokens <= kv.tree.total_tokens
            assert len(scheduler.running) <= scheduler.limits.max_num_seqs
            assert not set(scheduler.running) & set(scheduler.waiting)
            assert set(scheduler.prefilling) <= set(scheduler.running)
            assert all(not each.computed for each in scheduler.waiting)

    def crash(self, now: float) -> None:
        self.crashes += 1
        for request in self.instance.evacuate(now):
            self.instance.submit(request, now)


def play(
    bounds: EngineLimits,
    ranks: int,
    stages: int,
    offload: bool,
    arrivals: Arrivals,
    crash_s: float | None,
    stops: Sequence[float] = (),
) -> World:
    world = World(bounds, ranks, stages, offload)
    actions: list[tuple[float, int, str, Request | None]] = []
    now = 0.0
    for gap, prompt, output, more, priority, produced, cancel_after in arrivals:
        now += gap
        fitting = max(1, min(output, bounds.max_request_tokens - len(prompt)))
        if len(prompt) + fitting > bounds.max_request_tokens:
            continue
        request = Request(
            len(world.requests),
            np.array(prompt, dtype=np.int32),
            np.arange(7, 7 + fitting, dtype=np.int32),
            priority=priority,
            max_tokens=fitting + more,
        )
        request.arrival_s = now
        received = produced > 0 and fitting > 1
        if received:
            request.produced, request.admitted_s = 1, 0.0
        world.requests.append(request)
        actions.append((now, len(actions), "receive" if received else "submit", request))
        if cancel_after is not None:
            actions.append((now + cancel_after, len(actions), "cancel", request))
    if crash_s is not None:
        actions.append((crash_s, len(actions), "crash", None))
    actions += [(stop, -1 - i, "look", None) for i, stop in enumerate(stops)]
    for at, _, what, subject in sorted(actions, key=lambda action: action[:2]):
        world.run(at)
        if what == "crash":
            world.crash(at)
        elif what == "submit":
            world.instance.submit(subject, at)
        elif what == "receive":
            world.instance.receive(subject, at)
        elif what == "cancel" and subject.produced < len(subject.output):
            subject.cancelled = True
            world.instance.cancel(subject, at)
        world.audit()
    world.run(math.inf)
    return world


# (ranks, stages, KV offload)
SHAPES = st.sampled_from(
    [(1, 1, False), (1, 1, False), (1, 1, True), (1, 2, False), (1, 3, True), (2, 1, True), (2, 2, False)]
)
CRASHES = st.none() | st.sampled_from([0.01, 0.05, 0.2])


@given(bounds=limits(), shape=SHAPES, arrivals=ARRIVALS, crash_s=CRASHES)
def test_every_request_finishes_with_all_its_tokens_or_was_cancelled(
    bounds: EngineLimits, shape: tuple[int, int, bool], arrivals: Arrivals, crash_s: float | None
) -> None:
    world = play(bounds, *shape, arrivals, crash_s)
    instance = world.instance
    for request in world.requests:
        mine = [(time_s, produced) for time_s, number, produced in world.tokens if number == request.id]
        assert mine == sorted(mine)
        assert len({produced for _, produced in mine}) == len(mine)
        if request.cancelled:
            assert request.produced < len(request.output)
        else:
            assert request.produced == len(request.output)
            assert request.finished_s == mine[-1][0]
        assert 0 <= request.cached_tokens < len(request.prompt)
    assert (instance.running, instance.waiting, instance.kv_used_tokens, instance.next_event_s) == (0, 0, 0, math.inf)
    assert not instance._sequences
    if bounds.scheduler == "trtllm" and bounds.capacity_scheduler_policy == "guaranteed_no_evict" and not shape[2]:
        assert instance.snapshot().preemptions == 0
    for scheduler in instance.schedulers:
        left = set(scheduler.prefilling) | scheduler._in_flight | scheduler._received | scheduler._handed_over
        assert not left
        total = scheduler.kv.tree.total_tokens
        assert scheduler.kv.tree.evict(total) == total


@given(
    bounds=limits(),
    shape=SHAPES,
    arrivals=ARRIVALS,
    crash_s=CRASHES,
    stops=st.lists(st.floats(0, 1), max_size=30) | st.just([0.005 * i for i in range(30)]),
)
def test_the_same_requests_get_the_same_times_however_often_the_caller_advances(
    bounds: EngineLimits, shape: tuple[int, int, bool], arrivals: Arrivals, crash_s: float | None, stops: list[float]
) -> None:
    once = play(bounds, *shape, arrivals, crash_s)
    again = play(bounds, *shape, arrivals, crash_s, stops)
    assert once.tokens == again.tokens
    assert once.instance.snapshot() == again.instance.snapshot()


@given(bounds=limits(), shape=SHAPES, arrivals=ARRIVALS, delay_s=st.sampled_from([0.0, 0.003, 0.05]))
def test_a_prefill_instance_hands_everything_over_and_goes_on_as_memory_is_freed(
    bounds: EngineLimits, shape: tuple[int, int, bool], arrivals: Arrivals, delay_s: float
) -> None:
    instance = Instance(0, CheckingModel(bounds, *shape[:2]), bounds, "prefill")
    requests = []
    for number, (_, prompt, output, _, _, _, _) in enumerate(arrivals):
        if len(prompt) + output <= bounds.max_request_tokens:
            requests.append(Request(number, np.array(prompt, dtype=np.int32), np.arange(output, dtype=np.int32)))
            instance.submit(requests[-1], 0.0)
    leaving: list[tuple[float, Request]] = []
    while True:
        now = instance.next_event_s
        if leaving and leaving[0][0] <= now:
            at, request = leaving.pop(0)
            instance.release_transferred(request, at)
        elif now < math.inf:
            end = instance.advance()
            if end is not None:
                assert all(each.produced == 1 for each in end.emitted)
                assert {each.id for each in end.handed_over} == {each.id for each in end.emitted if len(each.output) > 1}
                leaving += [(end.time_s + delay_s, each) for each in end.handed_over]
        else:
            break
    assert all(request.produced == 1 for request in requests)
    assert (instance.kv_used_tokens, instance.running, instance.waiting) == (0, 0, 0)


def test_a_stream_of_work_beyond_the_memory_starves_nobody() -> None:
    for scheduler, policy in (("vllm", "fcfs"), ("sglang", "lpm"), ("sglang", "fcfs"), ("trtllm", "fcfs")):
        for drafts in (0, 2):
            bounds = EngineLimits(
                kv_tokens=300,
                max_num_seqs=32,
                max_num_batched_tokens=64,
                scheduler=scheduler,
                schedule_policy=policy,
                num_speculative_tokens=drafts,
                acceptance_rate=0.5 if drafts else 0.0,
                **({"capacity_scheduler_policy": "max_utilization"} if scheduler == "trtllm" else {}),
                **({"schedule_conservativeness": 0.05} if scheduler == "sglang" else {}),
            )
            arrivals: Arrivals = [(0.001, [i % 2, i % 3, *range(i, i + 30)], 40, 0, 0, -1, None) for i in range(60)]
            world = play(bounds, 2, 1, False, arrivals, None)
            assert {request.produced for request in world.requests} == {40}
            assert world.instance.snapshot().preemptions > (10 if scheduler != "sglang" else 0)
