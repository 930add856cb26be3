"""KV tiers of an instance: prompts that wait for what they load. Times computed by hand."""

import math

import pytest
from kv_tiers import BYTES, HOST, turn
from step_models import PromptStep

from llmirage_server.cluster.cluster import Cluster
from llmirage_server.cluster.instances.base import InstanceBase
from llmirage_server.cluster.instances.instance import Instance
from llmirage_server.cluster.kv.offload import TierSpec
from llmirage_server.cluster.lifecycle.lifecycle import LifecycleEvent
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.routers import make_router

# --- in an instance ----------------------------------------------------------------------------------------------------


def instance(*tiers: TierSpec) -> Instance:
    limits = EngineLimits(kv_tokens=100, max_num_seqs=4)
    return Instance(0, PromptStep(), limits, tiers=tiers, kv_bytes_per_token=BYTES)


@pytest.mark.parametrize("scheduler", ["vllm", "sglang", "trtllm"])
def test_a_prompt_waits_for_its_kv_while_others_go_on(scheduler: str) -> None:
    limits = EngineLimits(kv_tokens=100, max_num_seqs=4, scheduler=scheduler)
    one = Instance(0, PromptStep(), limits, tiers=[HOST], kv_bytes_per_token=BYTES)
    cluster = Cluster([one], make_router("round_robin"))
    first, second, again, other = turn(0, 0, 50), turn(1, 1000, 90), turn(2, 0, 50), turn(3, 2000, 5)
    cluster.submit(first, 0.0)
    cluster.submit(second, 10.0)  # takes the room of the first
    cluster.submit(again, 20.0)
    cluster.submit(other, 20.0)
    cluster.advance(20.5)
    state = cluster.snapshot()[0]
    assert (state.running, state.waiting) == (1, 1)  # `again` is loading
    cluster.advance(math.inf)
    # 10 tokens of the first are still on the GPU: 39 of 2 bytes come at 20 bytes/s, while a step runs from 20 to 21.05
    assert cluster.snapshot()[0].tiers[0].loaded_tokens == 39
    assert (other.admitted_s, other.finished_s) == (20.0, 21.05)
    assert (again.cached_tokens, again.admitted_s) == (49, pytest.approx(23.9))
    assert again.finished_s == pytest.approx(24.91)
    assert cluster.snapshot()[0].prefix_hit_tokens == 49


def test_without_the_tier_the_same_prompt_is_computed() -> None:
    cluster = Cluster([instance()], make_router("round_robin"))
    again = turn(2, 0, 50)
    cluster.submit(turn(0, 0, 50), 0.0)
    cluster.submit(turn(1, 1000, 90), 10.0)
    cluster.submit(again, 20.0)
    cluster.advance(math.inf)
    assert (again.cached_tokens, again.finished_s) == (10, 21.4)


def test_a_crash_takes_what_is_loading_and_the_tier_with_it() -> None:
    made: list[InstanceBase] = [instance(HOST)]
    cluster = Cluster(made, make_router("round_robin"), events=[LifecycleEvent(21.0, 0, "crash", restart_after_s=1.0)])
    again = turn(2, 0, 50)
    cluster.submit(turn(0, 0, 50), 0.0)
    cluster.submit(turn(1, 1000, 90), 10.0)
    cluster.submit(again, 20.0)
    cluster.advance(21.5)
    state = cluster.snapshot()[0]
    assert (state.kv_used_tokens, state.tiers[0].used_tokens, state.tiers[0].loaded_tokens) == (0, 0, 0)
    cluster.advance(math.inf)
    assert (again.cached_tokens, again.admitted_s, again.finished_s) == (0, 22.0, 23.5)


def test_cancelling_a_prompt_that_loads_frees_its_memory() -> None:
    cluster = Cluster([instance(HOST)], make_router("round_robin"))
    again = turn(2, 0, 50)
    cluster.submit(turn(0, 0, 50), 0.0)
    cluster.submit(turn(1, 1000, 90), 10.0)
    cluster.submit(again, 20.0)
    cluster.advance(21.0)
    assert cluster.snapshot()[0].kv_used_tokens == 49
    cluster.cancel(again, 21.0)
    assert cluster.snapshot()[0].kv_used_tokens == 0
    assert cluster.next_event_time() == math.inf
