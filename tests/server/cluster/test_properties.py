"""What must hold for every cluster, whatever is asked of it: nothing is lost, nothing comes twice, more is never worse.

The directions hold where they can. More bandwidth or one more instance may well delay a request among others: what arrives
earlier joins a batch earlier and makes its steps longer, or a router deals the requests differently. So they are stated for
one request after the other, for instances without batching, or for requests that are all alike.
"""

import itertools
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from drawn_clusters import ARRIVALS, BYTES, MANY_TURNS, PLANS, SOME_TIERS, Arrivals, Plan, play
from hypothesis import given
from hypothesis import strategies as st

from llmirage_server.cluster.cluster import EngineLimits
from llmirage_server.cluster.instances.instance import Instance
from llmirage_server.cluster.kv.cache import TieredKVCache
from llmirage_server.cluster.kv.handoffs import KVLink
from llmirage_server.cluster.kv.offload import TierSpec
from llmirage_server.cluster.lifecycle.lifecycle import LifecycleEvent
from llmirage_server.cluster.routers import ROUTERS

# --- conservation ------------------------------------------------------------------------------------------------------


@given(plan=PLANS, arrivals=ARRIVALS)
def test_nothing_is_lost_and_nothing_comes_twice(plan: Plan, arrivals: Arrivals) -> None:
    check(plan, arrivals)


@given(plan=PLANS, arrivals=MANY_TURNS, tiers=SOME_TIERS, kv_tokens=st.integers(28, 40))
def test_nothing_is_lost_between_tiers(plan: Plan, arrivals: Arrivals, tiers: tuple[TierSpec, ...], kv_tokens: int) -> None:
    plan = replace(
        plan,
        limits=replace(plan.limits, kv_tokens=kv_tokens),
        instances=1,
        prefill=0,
        tiers=tuple(replace(tier, write_bytes_per_s=1e7) for tier in tiers),
        events=tuple(event for event in plan.events if event.instance == 0),
    )
    check(plan, arrivals)


def check(plan: Plan, arrivals: Arrivals) -> None:
    cluster = plan.build()
    requests, happened = play(cluster, arrivals)
    times = [time_s for time_s, _, _, _ in happened]
    assert times == sorted(times)
    for each in requests:
        finished = each.produced == len(each.output)
        assert finished + each.cancelled + each.failed == 1
        assert finished != math.isnan(each.finished_s)
        mine = [time_s for time_s, _, ids, _ in happened if each.id in ids]
        assert len(mine) <= each.produced + each.failed
        if not each.failed:
            assert all(earlier < later for earlier, later in itertools.pairwise(mine))
        if each.produced:
            assert each.arrival_s <= each.admitted_s < each.first_token_s == mine[0]
        if finished:
            assert each.finished_s == mine[-1]
        assert 0 <= each.cached_tokens < len(each.prompt)
    produced = sum(each.produced for each in requests)
    assert sum(tokens for _, _, _, tokens in happened) == produced + sum(each.failed for each in requests)
    assert not any(each.failed and not each.dropped for each in requests) or plan.events
    # All memory and all links are free again.
    assert (cluster.next_event_time(), cluster.waiting, cluster.transfers.in_flight) == (math.inf, 0, 0)
    assert cluster.transfers.bytes == cluster.transfers.tokens * BYTES
    for state in cluster.snapshot():
        assert (state.running, state.waiting, state.kv_used_tokens) == (0, 0, 0)
        assert (state.sending, state.receiving) == (0, 0)
    for instance in cluster._instances:
        assert isinstance(instance, Instance)
        for kv in [scheduler.kv for scheduler in instance.schedulers]:
            assert (kv.private_tokens, kv.tree.locked_tokens, kv.loading) == (0, 0, {})
            assert isinstance(kv, TieredKVCache) == bool(plan.tiers or plan.store)
            if isinstance(kv, TieredKVCache):
                assert not any(tier.tree.locked_tokens for tier in kv._tiers)


@given(plan=PLANS, arrivals=ARRIVALS, stops=st.lists(st.floats(0, 1), max_size=30) | st.just([0.005 * i for i in range(30)]))
def test_the_same_happens_however_often_the_caller_advances(plan: Plan, arrivals: Arrivals, stops: list[float]) -> None:
    _, once = play(plan.build(), arrivals)
    _, again = play(plan.build(), arrivals, stops)
    assert once == again


@given(plan=PLANS, arrivals=ARRIVALS, prefill=st.integers(1, 2))
def test_every_prompt_travels_once_between_prefill_and_decode(plan: Plan, arrivals: Arrivals, prefill: int) -> None:
    plan = replace(plan, prefill=prefill, link=replace(plan.link, skip_cached=False), events=())
    cluster = plan.build()
    requests, _ = play(cluster, [(gap, prompt, output, None) for gap, prompt, output, _ in arrivals])
    travelling = [each for each in requests if len(each.output) > 1 and not each.dropped]
    assert cluster.transfers.done == len(travelling)
    assert cluster.transfers.tokens == sum(len(each.prompt) for each in travelling)
    for each in requests:
        assert (each.instance >= prefill) == (each in travelling)


# --- the same in every process -----------------------------------------------------------------------------------------


def digest() -> str:
    """What a busy cluster with everything in it does, to the last bit."""
    rng = np.random.default_rng(11)
    arrivals: Arrivals = []
    for i in range(120):
        shared = [int(each) for each in rng.integers(0, 3, 4)] * 3
        cancel = float(rng.random()) if i % 9 == 0 else None
        arrivals.append((float(rng.exponential(0.004)), [*shared, i], int(rng.integers(1, 12)), cancel))
    limits = EngineLimits(
        kv_tokens=120, max_num_seqs=8, max_num_batched_tokens=32, num_speculative_tokens=2, acceptance_rate=0.7
    )
    events = (
        LifecycleEvent(0.1, 1, "crash", 0.1),
        LifecycleEvent(0.15, 3, "start"),
        LifecycleEvent(0.2, 2, "stop"),
        LifecycleEvent(0.3, 0, "crash", 0.01),
    )
    tiers = (TierSpec("host", 200 * BYTES, 1e6, 1e6), TierSpec("disk", 900 * BYTES, 3e5, 1e5, 1e-3))
    lines = []
    for router, model in zip(sorted(ROUTERS), itertools.cycle(("roofline", "ranks", "stages")), strict=False):
        plan = Plan(limits, 2, model, router, 2, KVLink(5e6, 1e-3, layers=4), tiers, None, events)
        requests, happened = play(plan.build(), arrivals)
        lines += [f"{time_s.hex()} {index} {ids} {tokens}" for time_s, index, ids, tokens in happened]
        lines += [f"{each.id} {each.instance} {each.cached_tokens} {each.finished_s.hex()}" for each in requests]
    return "\n".join(lines)


def test_two_processes_agree_to_the_last_bit() -> None:
    command = [sys.executable, str(Path(__file__))]
    environment = {"PYTHONHASHSEED": "1", "PYTHONPATH": str(Path(__file__).parents[2] / "support")}  # here another seed
    other = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    assert len(other) > 50_000
    assert other == digest()


if __name__ == "__main__":
    print(digest(), end="")
