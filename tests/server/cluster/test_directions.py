"""More of something never makes it worse: what holds between two clusters that differ in one thing."""

import math
import sys
from dataclasses import replace

from drawn_clusters import ARRIVALS, BYTES, LIMITS, LINKS, PLANS, PROMPTS, SOME_TIERS, TIER, Arrivals, Plan, play, request
from hypothesis import assume, given
from hypothesis import strategies as st

from llmirage_server.cluster.cluster import Cluster, EngineLimits
from llmirage_server.cluster.instances.fixed import FixedInstance
from llmirage_server.cluster.kv.handoffs import KVLink, KVTransfers
from llmirage_server.cluster.kv.offload import TierSpec
from llmirage_server.cluster.lifecycle.pools import InstancePool
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.routers import ROUTERS, make_router

# --- direction ---------------------------------------------------------------------------------------------------------

SENDS = st.lists(
    st.tuples(st.integers(0, 3), st.floats(0, 10), st.floats(0, 5), st.integers(0, 1000)), min_size=1, max_size=12
)


@given(
    sends=SENDS,
    link=LINKS.filter(lambda link: link.bytes_per_s < math.inf),
    faster=st.sampled_from([1.5, 10.0, math.inf]),
    layers=st.integers(0, 10),
)
def test_a_better_link_never_delays(
    sends: list[tuple[int, float, float, int]], link: KVLink, faster: float, layers: int
) -> None:
    for better in (
        replace(link, bytes_per_s=link.bytes_per_s * faster),
        replace(link, latency_s=0.0),
        replace(link, layers=link.layers + layers),
        replace(link, scope="sender"),
    ):
        assert all(new <= old for new, old in zip(sent(better, sends), sent(link, sends), strict=True))


def sent(link: KVLink, sends: list[tuple[int, float, float, int]]) -> list[float]:
    """When the KV of prefills (sender, end, duration, tokens) arrives."""
    transfers = KVTransfers(link)
    requests = [request(i, [1], 2) for i in range(len(sends))]
    for each, (source, ended_s, prefill_s, tokens) in sorted(
        zip(requests, sends, strict=True), key=lambda entry: entry[1][1]
    ):
        transfers.send(each, source, 9, tokens, tokens * BYTES, ended_s - prefill_s, ended_s)
    found = {}
    while transfers.next_s < math.inf:
        transfer = transfers.take()
        found[transfer.request.id] = transfer.arrival_s
    return [found[each.id] for each in requests]


@given(arrivals=ARRIVALS, link=LINKS, faster=st.sampled_from([2.0, math.inf]), prefill=st.integers(1, 2))
def test_link_bandwidth_is_never_later_unbatched(arrivals: Arrivals, link: KVLink, faster: float, prefill: int) -> None:
    def finished(bytes_per_s: float) -> list[float]:
        limits = EngineLimits(kv_tokens=10_000)
        front = [FixedInstance(i, 0.05, 0.01, limits, "prefill") for i in range(prefill)]
        back = [FixedInstance(prefill, 0.05, 0.01, limits, "decode")]
        cluster = Cluster(
            pools=[
                InstancePool("front", front, make_router("round_robin"), "prefill", None, BYTES),
                InstancePool("back", back, make_router("round_robin"), "decode"),
            ],
            kv_link=replace(link, bytes_per_s=bytes_per_s, skip_cached=False),
        )
        return [each.finished_s for each in play(cluster, [(*arrival[:3], None) for arrival in arrivals])[0]]

    slow, fast = finished(1e5), finished(1e5 * faster)
    assert all(new <= old for new, old in zip(fast, slow, strict=True))


TURNS = st.lists(st.tuples(PROMPTS, st.integers(1, 12)), min_size=1, max_size=12)
Turns = list[tuple[list[int], int]]
GAP_S = 1000.0  # what was to be written has been written


def one_by_one(plan: Plan, turns: Turns, most: int | None = None) -> list[Request]:
    """Serve one request after the other, none longer than `most` tokens, each long after the one before."""
    cluster = plan.build()
    requests = []
    for prompt, output in turns:
        output = min(output, min(most or sys.maxsize, cluster.max_request_tokens) - len(prompt))
        if output > 0:
            requests.append(request(len(requests), prompt, output))
            cluster.submit(requests[-1], GAP_S * len(requests))
    cluster.advance(math.inf)
    return requests


@given(plan=PLANS, turns=TURNS, faster=st.sampled_from([2.0, math.inf]), prefill=st.integers(1, 2))
def test_link_bandwidth_is_never_later_for_serial_requests(plan: Plan, turns: Turns, faster: float, prefill: int) -> None:
    plan = replace(plan, prefill=prefill, events=())
    fast = replace(plan, link=replace(plan.link, bytes_per_s=plan.link.bytes_per_s * faster))
    for new, old in zip(one_by_one(fast, turns), one_by_one(plan, turns), strict=True):
        assert new.finished_s <= old.finished_s


@given(limits=LIMITS, turns=TURNS, more=st.integers(1, 40))
def test_a_larger_cache_never_computes_more_of_serial_prompts(limits: EngineLimits, turns: Turns, more: int) -> None:
    larger = replace(limits, kv_tokens=limits.kv_tokens + more)
    small, large = (one_by_one(Plan(each, instances=1), turns, limits.max_request_tokens) for each in (limits, larger))
    for new, old in zip(large, small, strict=True):
        assert new.cached_tokens >= old.cached_tokens


@given(
    alike=st.integers(1, 30),
    prompt=st.integers(1, 20),
    output=st.integers(1, 10),
    instances=st.integers(1, 4),
    limits=LIMITS,
    router=st.sampled_from(sorted(set(ROUTERS) - {"random", "session", "llm-d:predicted-latency"})),  # which draw, or hash
)
def test_one_more_instance_never_serves_less(
    alike: int, prompt: int, output: int, instances: int, limits: EngineLimits, router: str
) -> None:
    """Requests that are all alike, and share nothing, all at once."""
    assume(prompt + output <= limits.max_request_tokens)
    limits = replace(limits, num_speculative_tokens=0)  # whose drafts are accepted differs

    def makespan_s(instances: int) -> float:
        cluster = Plan(limits, instances=instances, router=router).build()
        requests = [request(i, range(100 * i, 100 * i + prompt), output) for i in range(alike)]
        for each in requests:
            cluster.submit(each, 0.0)
        cluster.advance(math.inf)
        return max(each.finished_s for each in requests)

    assert makespan_s(instances + 1) <= makespan_s(instances)


@given(limits=LIMITS, turns=TURNS, tiers=SOME_TIERS, faster=st.sampled_from([2.0, math.inf]), prefill=st.integers(0, 1))
def test_a_tier_that_is_read_faster_is_never_slower(
    limits: EngineLimits, turns: Turns, tiers: tuple[TierSpec, ...], faster: float, prefill: int
) -> None:
    plan = Plan(limits, instances=1, prefill=prefill, tiers=tiers)
    better = tuple(replace(tier, read_bytes_per_s=tier.read_bytes_per_s * faster, latency_s=0.0) for tier in tiers)
    for new, old in zip(one_by_one(replace(plan, tiers=better), turns), one_by_one(plan, turns), strict=True):
        assert new.cached_tokens == old.cached_tokens
        assert new.finished_s <= old.finished_s


@given(limits=LIMITS, turns=TURNS, tier=TIER, times=st.sampled_from([2, 10]))
def test_a_larger_tier_never_computes_more_and_any_tier_no_more_than_none(
    limits: EngineLimits, turns: Turns, tier: TierSpec, times: int
) -> None:
    """Of one tier: below a small one, a second may remember longer, because some writes to it are dropped."""
    larger = replace(tier, capacity_bytes=tier.capacity_bytes * times)
    runs = [one_by_one(Plan(limits, instances=1, tiers=tiers), turns) for tiers in ((), (tier,), (larger,))]
    for none, some, most in zip(*runs, strict=True):
        assert none.cached_tokens <= some.cached_tokens <= most.cached_tokens
