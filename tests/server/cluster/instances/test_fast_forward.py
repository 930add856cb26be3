"""Steady decoding in one go against every sequence step by step: the same times to the last bit, whatever happens."""

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmirage_server.cluster.cluster import Cluster, EngineLimits
from llmirage_server.cluster.instances.arrivals import FrontEnd
from llmirage_server.cluster.instances.instance import Instance
from llmirage_server.cluster.kv.handoffs import KVLink
from llmirage_server.cluster.kv.offload import Tier, TierSpec
from llmirage_server.cluster.lifecycle.lifecycle import LifecycleEvent
from llmirage_server.cluster.lifecycle.pools import InstancePool
from llmirage_server.cluster.limits import FirstToken
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.routers import make_router
from llmirage_server.cluster.routers.gateway_queue import FlowControl
from llmirage_server.perf.deployment import Deployment

FRONT_ENDS = [
    0.0,
    0.0,
    0.003,
    FrontEnd(request_s=0.002),
    FrontEnd(0.003, 0.0, 1e-6, 0.004),  # tokens go out more slowly than a few sequences decode
]
KV_BYTES = 1000.0  # of one token
TIERS = (TierSpec("host", 300 * KV_BYTES, 1e7, 1e6, 0.001), TierSpec("disk", 900 * KV_BYTES, 1e6, 1e6, 0.003))
STORE = TierSpec("store", 1500 * KV_BYTES, 2e6, 2e6, 0.002)


@cache
def step_model(model: str, ranks: int) -> Any:
    return Deployment.create(model, "h100_sxm", dp=ranks).step_model()


@dataclass(frozen=True)
class Ask:
    """A request to come."""

    at_s: float
    prefix: int  # which shared beginning its prompt has
    shared: int
    own: int
    output: int
    allowed: int = 0  # `max_tokens`
    priority: int = 0
    cancel_after_s: float | None = None


@dataclass(frozen=True)
class Plan:
    limits: EngineLimits
    asks: tuple[Ask, ...]
    model: str = "Qwen/Qwen3-8B"
    instances: int = 2
    ranks: int = 1
    prefill: int = 0  # instances that only prefill, before `instances` that only decode
    tiers: tuple[TierSpec, ...] = ()
    store: TierSpec | None = None  # that all instances share
    router: str = "round_robin"
    front_end: FrontEnd | float = 0.0
    events: tuple[LifecycleEvent, ...] = ()
    flow_control: FlowControl | None = None
    looks_s: tuple[float, ...] = ()  # when somebody reads the state of the cluster


def outcome(plan: Plan, fast_forward: bool) -> list[Any]:
    """For every request: its token times, and what else is known of it; then what was read in between."""
    store = () if plan.store is None else (Tier(plan.store, KV_BYTES, plan.limits.page_size, shared=True),)
    made = [
        Instance(
            number,
            step_model(plan.model, plan.ranks),
            plan.limits,
            ("prefill" if number < plan.prefill else "decode") if plan.prefill else "both",
            tiers=(*plan.tiers, *store),
            kv_bytes_per_token=KV_BYTES,
            front_end=plan.front_end,
            fast_forward=fast_forward,
        )
        for number in range(plan.prefill + plan.instances)
    ]
    assert all(instance.fast_forward == fast_forward for instance in made)
    halves = [("front", made[: plan.prefill]), ("back", made[plan.prefill :])]
    pools = [
        InstancePool(name, instances, make_router(plan.router, 3), instances[0].role, None, KV_BYTES)
        for name, instances in halves
        if instances
    ]
    cluster = Cluster(pools=pools, kv_link=KVLink(1e6, 0.001), events=plan.events, flow_control=plan.flow_control)
    rng = np.random.default_rng(7)
    beginnings = [rng.integers(0, 9, 4000, dtype=np.int32) for _ in range(3)]
    requests: list[Request] = []
    told: dict[Request, list[float]] = {}  # when it was in a step's end: with its tokens, and last with its failure
    looks: list[Any] = []
    over: list[int] = []  # who has finished, in the order in which it is told
    moments: list[tuple[float, int, str, int]] = []
    for number, ask in enumerate(plan.asks):
        prompt = np.concatenate(
            [beginnings[ask.prefix][: ask.shared], np.full(ask.own, 1000 + number, dtype=np.int32)]
        ).astype(np.int32)
        output = np.full(ask.output, 5000 + number, dtype=np.int32)
        request = Request(number, prompt, output, priority=ask.priority, max_tokens=ask.allowed)
        requests.append(request)
        told[request] = []
        moments.append((ask.at_s, number, "submit", number))
        if ask.cancel_after_s is not None:
            moments.append((ask.at_s + ask.cancel_after_s, number, "cancel", number))
    moments += [(look_s, -1, "look", -1) for look_s in plan.looks_s]

    def note(ends: list[Any]) -> None:
        for end in ends:
            for request in end.emitted:
                told[request].append(end.time_s)
                if request.finished_s == end.time_s:
                    over.append(request.id)

    for at_s, _, what, number in sorted(moments):
        note(cluster.advance(at_s))
        if what == "submit":
            cluster.submit(requests[number], at_s)
        elif what == "cancel":
            cluster.cancel(requests[number], at_s)
        else:
            looks.append([(s.running, s.waiting, s.kv_used_tokens, s.cached_tokens) for s in cluster.snapshot()])
            looks.append([(instance.unfinished, instance.load) for instance in made])
    note(cluster.advance(math.inf))
    known = []
    for request in requests:
        times = told[request]
        failed_s = times.pop() if request.failed else math.nan
        if fast_forward:
            times = [end_s for ends_s, first, last in request.spans for end_s in ends_s[first : last + 1]]
        assert len(times) == request.produced
        known.append(
            (
                times,
                request.instance,
                request.cached_tokens,
                request.preemptions,
                request.produced,
                request.cancelled,
                request.failed,
                repr((request.admitted_s, request.first_token_s, request.finished_s, failed_s)),
            )
        )
    ends = cluster.snapshot()
    brought = [(s.steps.by_tokens, s.steps.tokens) for s in ends if s.steps is not None]
    return [known, looks, over, [(s.prefix_hit_tokens, s.preemptions, s.cached_tokens) for s in ends], brought]


ASKS = st.lists(
    st.builds(
        Ask,
        at_s=st.sampled_from([0.0, 0.0, 0.01, 0.05, 0.1, 0.25, 0.4]) | st.floats(0, 1.5),
        prefix=st.integers(0, 2),
        shared=st.sampled_from([0, 0, 15, 16, 64, 200]),
        own=st.integers(1, 300),
        output=st.sampled_from([1, 1, 2, 30]) | st.integers(1, 120),
        allowed=st.sampled_from([0, 0, 0, 150, 6000]),
        priority=st.integers(0, 2),
        cancel_after_s=st.none() | st.none() | st.floats(0, 1.0),
    ),
    min_size=1,
    max_size=24,
).map(tuple)
CROWD = st.lists(  # short prompts with long answers: memory runs out while they decode
    st.builds(
        Ask,
        at_s=st.floats(0, 0.1),
        prefix=st.integers(0, 2),
        shared=st.sampled_from([0, 16]),
        own=st.integers(1, 60),
        output=st.integers(50, 200),
        priority=st.integers(0, 2),
    ),
    min_size=10,
    max_size=24,
).map(tuple)
MOE = "Qwen/Qwen3-30B-A3B"
RULES: dict[str, dict[str, Any]] = {
    "vllm": {},
    "gateway queue": {"flow_control": FlowControl(queue_depth=2, kv_utilization=0.5)},
    "vllm by priority": {"schedule_policy": "priority"},
    "sglang": {"scheduler": "sglang"},
    "sglang lpm": {"scheduler": "sglang", "schedule_policy": "lpm"},
    "sglang mixed": {"scheduler": "sglang", "enable_mixed_chunk": True},
    "sglang, few new tokens": {"scheduler": "sglang", "max_prefill_tokens": 200, "schedule_conservativeness": 0.2},
    "trtllm": {"scheduler": "trtllm"},
    "trtllm max_utilization": {"scheduler": "trtllm", "capacity_scheduler_policy": "max_utilization"},
    "windows": {"model": "openai/gpt-oss-20b"},  # of 128 tokens, in every other layer
    "windows, sglang": {"model": "openai/gpt-oss-20b", "scheduler": "sglang"},
    "ranks": {"ranks": 2, "model": MOE},
    "ranks, sglang mixed": {"ranks": 2, "scheduler": "sglang", "enable_mixed_chunk": True, "model": "openai/gpt-oss-20b"},
    "ranks, trtllm, by prefix": {"ranks": 4, "scheduler": "trtllm", "data_parallel_balance": "prefix", "model": MOE},
    "vllm, every fourth step": {"ranks": 2, "model": MOE, "prefill_schedule_interval": 4},
    "sglang, decodes between": {"scheduler": "sglang", "prefill_decode_interval": 3},
    "sglang, decodes between, ranks": {"scheduler": "sglang", "prefill_decode_interval": 3, "ranks": 2, "model": MOE},
    "trtllm, fuller steps": {"scheduler": "trtllm", "batch_wait_timeout_iters": 5, "batch_wait_max_tokens_ratio": 0.5},
    "trtllm, balance": {
        "scheduler": "trtllm",
        "attention_dp_enable_balance": True,
        "attention_dp_timeout_iters": 5,
        "attention_dp_batching_wait_iters": 2,
        "ranks": 2,
        "model": MOE,
    },
    "separate pools": {"prefill": 2},
    "separate pools, sglang": {"prefill": 1, "scheduler": "sglang"},
    "separate pools, trtllm, ranks": {"prefill": 1, "scheduler": "trtllm", "ranks": 2, "model": MOE},
    "tiers": {"tiers": TIERS},
    "tiers, sglang lpm": {"tiers": TIERS[:1], "scheduler": "sglang", "schedule_policy": "lpm"},
    "tiers, trtllm, ranks": {"tiers": TIERS, "scheduler": "trtllm", "ranks": 2, "model": MOE},
    "tiers in separate pools": {"tiers": TIERS, "prefill": 1},
    "a store": {"store": STORE},
    "a store below tiers, sglang, separate pools": {"store": STORE, "tiers": TIERS[:1], "prefill": 1, "scheduler": "sglang"},
    "a store, trtllm, ranks": {"store": STORE, "scheduler": "trtllm", "ranks": 2, "model": MOE},
}


def limits(rules: dict[str, Any], caching: st.SearchStrategy[bool]) -> st.SearchStrategy[EngineLimits]:
    return st.builds(
        lambda pages, page, seqs, extra, caching, chunked, first_token, ahead, every: EngineLimits(
            kv_tokens=max(pages * page, 512),
            page_size=page,
            max_num_seqs=seqs,
            max_num_batched_tokens=max(seqs, page) + extra,
            enable_prefix_caching=caching,
            enable_chunked_prefill=chunked,
            first_token=first_token,
            async_scheduling=ahead,
            scheduler_recv_interval=every,
            **rules,
        ),
        st.sampled_from([40, 60, 100, 400]),
        st.sampled_from([1, 3, 16]),
        st.sampled_from([1, 2, 4, 16]),
        st.sampled_from([1, 100, 512, 2048]),
        caching,
        st.just(True) | st.booleans(),
        st.sampled_from(get_args(FirstToken)),
        st.booleans(),
        st.sampled_from([1, 1, 3]) if rules.get("scheduler") == "sglang" else st.just(1),
    )


EVENTS = st.lists(
    st.builds(
        lambda time_s, instance, action: LifecycleEvent(time_s, instance, action, 0.2 if action == "crash" else None),
        st.floats(0, 1.0),
        st.integers(0, 1),
        st.sampled_from(["crash", "stop", "start"]),
    ),
    max_size=2,
).map(tuple)


def plans(rules: dict[str, Any]) -> st.SearchStrategy[Plan]:
    names = ("model", "ranks", "prefill", "tiers", "store", "flow_control")
    of_plan = {name: value for name, value in rules.items() if name in names}
    return st.builds(
        lambda **drawn: Plan(**drawn, **of_plan),
        limits=limits(
            {name: value for name, value in rules.items() if name not in of_plan},
            st.just(True) if {"tiers", "store"} & set(rules) else st.booleans(),  # tiers need prefix caching
        ),
        asks=ASKS | CROWD,
        router=st.sampled_from(["round_robin", "least_loaded", "kv_aware", "prefix", "power_of_two"]),
        front_end=st.sampled_from(FRONT_ENDS),
        events=st.just(()) | EVENTS,
        looks_s=st.lists(st.floats(0, 2.0), max_size=3).map(tuple),
    )


@pytest.mark.parametrize("rules", RULES)
@settings(max_examples=settings.default.max_examples // 2)
@given(st.data())
def test_every_token_time_is_that_of_step_by_step_execution(rules: str, data: st.DataObject) -> None:
    plan = data.draw(plans(RULES[rules]))
    fits = tuple(ask for ask in plan.asks if ask.shared + ask.own + ask.output <= plan.limits.max_request_tokens)
    plan = replace(plan, asks=fits)
    assert outcome(plan, fast_forward=True) == outcome(plan, fast_forward=False)


def test_requests_that_fail_keep_the_tokens_that_they_had() -> None:
    """The only prefill instance drains, then a decode instance crashes: who was there, or on the way, has nowhere to go."""
    limits = EngineLimits(kv_tokens=512, page_size=1, max_num_seqs=1, max_num_batched_tokens=2)
    events = (LifecycleEvent(0.5, 0, "stop"), LifecycleEvent(1.0, 1, "crash", 0.2))
    plan = Plan(limits, (Ask(0.0, 0, 0, 1, 50),) * 10, prefill=1, tiers=TIERS, events=events)
    summed = outcome(plan, fast_forward=True)
    assert summed == outcome(plan, fast_forward=False)
    assert [len(times) for times, *_, failed, _ in summed[0] if failed] == [43, 1, 1]


@pytest.mark.parametrize(
    ("of_deployment", "of_limits"), [({"pp": 2}, {}), ({}, {"num_speculative_tokens": 2, "acceptance_rate": 0.5})]
)
def test_what_sums_do_not_tell_is_followed_step_by_step(of_deployment: Any, of_limits: Any) -> None:
    model = Deployment.create("Qwen/Qwen3-8B", "h100_sxm", **of_deployment).step_model()
    assert not Instance(0, model, EngineLimits(kv_tokens=4000, **of_limits), fast_forward=True).fast_forward
