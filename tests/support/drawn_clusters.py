"""Clusters and arrivals drawn at random, and what happens when they meet."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from llmirage_server.cluster.cluster import Cluster, EngineLimits, OnCrash
from llmirage_server.cluster.instances.base import InstanceBase
from llmirage_server.cluster.instances.fixed import FixedInstance
from llmirage_server.cluster.instances.instance import Instance
from llmirage_server.cluster.kv.cache import KVCache
from llmirage_server.cluster.kv.handoffs import KVLink
from llmirage_server.cluster.kv.offload import Tier, TierSpec
from llmirage_server.cluster.lifecycle.lifecycle import LifecycleEvent
from llmirage_server.cluster.lifecycle.pools import InstancePool
from llmirage_server.cluster.limits import Role
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.routers import ROUTERS, make_router
from llmirage_server.cluster.routers.gateway_queue import FlowControl
from llmirage_server.perf.deployment import Deployment
from llmirage_server.perf.steps.step_model import StepBatch, StepModel

BYTES = 1000.0  # of KV a token
LINK = KVLink(1e6)


class LinearModel:
    def step_s(self, prefill: Sequence[tuple[int, int]], decode_contexts: Sequence[int]) -> float:
        assert prefill or decode_contexts
        assert all(new > 0 and context >= 0 for new, context in prefill)
        tokens = sum(new for new, _ in prefill)
        return 0.01 + tokens * 1e-4 + len(decode_contexts) * 1e-3 + sum(decode_contexts) * 1e-6


class GroupModel(LinearModel):
    """Attention data-parallel ranks and pipeline stages."""

    def __init__(self, ranks: int, stages: int) -> None:
        self.ranks = ranks
        self.stages = stages

    def stages_s(self, batches: Sequence[StepBatch]) -> list[float]:
        slowest = max(self.step_s(batch.prefill, batch.decode_contexts) for batch in batches if any(batch))
        return [slowest / self.stages] * self.stages


@cache
def roofline() -> StepModel:
    return Deployment.create("Qwen/Qwen3-8B", "h100_sxm").step_model()


@dataclass(frozen=True)
class Plan:
    """A cluster to build again and again."""

    limits: EngineLimits
    instances: int = 2
    model: str = "linear"  # linear, ranks, stages or roofline
    router: str = "round_robin"
    prefill: int = 0  # instances that only prefill, before `instances` that only decode
    link: KVLink = LINK
    tiers: tuple[TierSpec, ...] = ()
    store: TierSpec | None = None  # that all instances share
    events: tuple[LifecycleEvent, ...] = ()
    fail: bool = False
    flow_control: FlowControl | None = None

    def build(self) -> Cluster:
        front: Role = "prefill" if self.prefill else "both"
        store = () if self.store is None else (Tier(self.store, BYTES, self.limits.page_size, shared=True),)
        made = self._made(0, self.prefill or self.instances, front, store)
        pools = [InstancePool("front", made, self._router(), front, None, BYTES)]
        if self.prefill:
            made = self._made(self.prefill, self.instances, "decode", store)
            pools.append(InstancePool("back", made, self._router(), "decode"))
        on_crash: OnCrash = "fail" if self.fail else "reroute"
        rule = self.flow_control
        return Cluster(pools=pools, kv_link=self.link, events=self.events, on_crash=on_crash, flow_control=rule)

    def _router(self) -> Any:
        return make_router(self.router, 3)

    def _made(self, first: int, n: int, role: Role, store: tuple[Tier, ...]) -> list[InstanceBase]:
        models = {"linear": LinearModel, "ranks": lambda: GroupModel(2, 1), "stages": lambda: GroupModel(1, 3)}
        model = roofline() if self.model == "roofline" else models[self.model]()
        tiers = (*self.tiers, *store)
        return [Instance(first + i, model, self.limits, role, tiers=tiers, kv_bytes_per_token=BYTES) for i in range(n)]


# --- what is asked -----------------------------------------------------------------------------------------------------

SCHEDULERS: list[dict[str, Any]] = [
    {"scheduler": "vllm"},
    {"scheduler": "vllm", "num_speculative_tokens": 2, "acceptance_rate": 0.6},
    {"scheduler": "sglang"},
    {"scheduler": "sglang", "schedule_policy": "lpm"},
    {"scheduler": "trtllm"},
    {"scheduler": "trtllm", "capacity_scheduler_policy": "max_utilization"},
]
LIMITS = st.builds(
    lambda pages, page_size, seqs, extra, chunked, scheduler: EngineLimits(
        kv_tokens=pages * page_size,
        page_size=page_size,
        max_num_seqs=seqs,
        max_num_batched_tokens=3 * seqs + 4 + extra,
        enable_chunked_prefill=chunked,
        **scheduler,
    ),
    st.integers(12, 40),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 6),
    st.integers(0, 30),
    st.booleans(),
    st.sampled_from(SCHEDULERS),
)
LINKS = st.builds(
    KVLink,
    bytes_per_s=st.sampled_from([1e5, 1e6, math.inf]),
    latency_s=st.sampled_from([0.0, 0.01]),
    scope=st.sampled_from(["sender", "cluster"]),
    layers=st.sampled_from([1, 4]),
    skip_cached=st.booleans(),
)
TIER = st.builds(
    TierSpec,
    name=st.sampled_from(["host", "disk"]),
    capacity_bytes=st.sampled_from([20 * BYTES, 200 * BYTES]),
    read_bytes_per_s=st.sampled_from([1e5, 1e6, math.inf]),
    write_bytes_per_s=st.sampled_from([1e5, math.inf]),
    latency_s=st.sampled_from([0.0, 0.003]),
)
SOME_TIERS = st.lists(TIER, min_size=1, max_size=2).map(tuple)
TIERS = st.just(()) | SOME_TIERS
EVENTS = st.lists(
    st.builds(
        lambda time_s, instance, action, restart: LifecycleEvent(
            time_s, instance, action, restart if action == "crash" else None
        ),
        st.sampled_from([0.0, 0.01, 0.02, 0.05, 0.1, 0.3]),
        st.integers(0, 1),
        st.sampled_from(["start", "stop", "crash", "crash"]),
        st.sampled_from([None, 0.0, 0.05]),
    ),
    max_size=4,
).map(tuple)
PLANS = st.builds(
    Plan,
    limits=LIMITS,
    instances=st.integers(2, 3),
    model=st.sampled_from(["linear", "linear", "ranks", "stages", "roofline"]),
    router=st.sampled_from(sorted(ROUTERS)),
    prefill=st.integers(0, 2),
    link=LINKS,
    tiers=TIERS,
    store=st.none() | TIER,
    events=st.just(()) | EVENTS,
    fail=st.booleans(),
    flow_control=st.none()
    | st.builds(
        FlowControl, st.just({"1": 1}), st.integers(1, 2), st.sampled_from([0.3, 0.8]), st.sampled_from([0.02, 60.0])
    ),
)
# Prompts of a tiny vocabulary, and the turns of a few conversations: long, shared, and more than memory holds.
TURN = st.builds(
    lambda conversation, length, tail: [conversation] * length + tail,
    st.integers(2, 5),
    st.integers(10, 24),
    st.lists(st.integers(0, 1), max_size=3),
)
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=24) | TURN
# (seconds since the last one, prompt, output tokens, cancel after so many seconds)
ARRIVALS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 0.005, 0.02, 0.1]),
        PROMPTS,
        st.integers(1, 12),
        st.none() | st.none() | st.sampled_from([0.0, 0.01, 0.03, 0.08]),
    ),
    min_size=1,
    max_size=12,
)
MANY_TURNS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.01, 0.1]), TURN, st.integers(1, 6), st.sampled_from([None, None, None, 0.01, 0.05])),
    min_size=8,
    max_size=20,
)
Arrivals = list[tuple[float, list[int], int, float | None]]
Ends = list[tuple[float, int, list[int], int]]


def request(number: int, prompt: Sequence[int], output: int) -> Request:
    return Request(number, np.array(prompt, dtype=np.int32), np.arange(7, 7 + output, dtype=np.int32))


def caches(instance: InstanceBase) -> list[KVCache]:
    if isinstance(instance, Instance):
        return [scheduler.kv for scheduler in instance.schedulers]
    assert isinstance(instance, FixedInstance)
    return [instance.kv]


def play(cluster: Cluster, arrivals: Arrivals, stops: Sequence[float] = ()) -> tuple[list[Request], Ends]:
    """Submit, cancel and, at the times in `stops`, advance; then run dry. Returns the requests and all that happened."""
    actions: list[tuple[float, int, Request | None, bool]] = []
    requests: list[Request] = []
    now = 0.0
    for gap, prompt, output, cancel_after in arrivals:
        now += gap
        fitting = int(min(output, cluster.max_request_tokens - len(prompt)))
        if fitting < 1:
            continue
        requests.append(request(len(requests), prompt, fitting))
        requests[-1].objective, requests[-1].fairness_id = str(len(requests) % 2), str(len(requests) % 3)
        actions.append((now, len(actions), requests[-1], False))
        if cancel_after is not None:
            actions.append((now + cancel_after, len(actions), requests[-1], True))
    actions += [(stop, -1 - i, None, False) for i, stop in enumerate(stops)]
    happened: Ends = []

    def note(to: float) -> None:
        for end in cluster.advance(to):
            happened.append((end.time_s, end.instance, [each.id for each in end.emitted], end.tokens or len(end.emitted)))
        for state in cluster.snapshot():
            assert 0 <= state.kv_used_tokens <= state.kv_total_tokens
            assert 0 <= state.cached_tokens <= state.kv_total_tokens
            for tier in state.tiers:
                assert 0 <= tier.used_tokens <= tier.capacity_tokens
                assert 0 <= tier.loaded_tokens <= tier.hit_tokens
                assert tier.used_tokens <= tier.stored_tokens

    for at, _, what, cancelled in sorted(actions, key=lambda action: action[:2]):
        if what is None:
            note(at)
        elif cancelled:
            cluster.cancel(what, at)
        else:
            cluster.submit(what, at)
        for instance in cluster._instances:
            for kv in caches(instance):
                assert kv.free_tokens >= 0
    note(math.inf)
    return requests, happened
