"""A KV store that all instances share: what one has written any may load, one after the other. Times computed by hand."""

import math
from collections.abc import Sequence as Seq
from typing import Any

import pytest
from kv_tiers import BYTES, turn
from step_models import PromptStep

from llmirage_server.cluster.cluster import Cluster
from llmirage_server.cluster.instances.base import InstanceBase
from llmirage_server.cluster.instances.instance import Instance
from llmirage_server.cluster.kv.handoffs import KVLink
from llmirage_server.cluster.kv.offload import Tier, TierSpec
from llmirage_server.cluster.lifecycle.lifecycle import LifecycleEvent
from llmirage_server.cluster.lifecycle.pools import InstancePool
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.routers import make_router
from llmirage_server.perf.steps.step_model import StepBatch

STORE = TierSpec("store", capacity_bytes=1000.0, read_bytes_per_s=20.0, write_bytes_per_s=40.0)  # 500 tokens


class TwoRanks(PromptStep):
    ranks, stages = 2, 1

    def stages_s(self, batches: Seq[StepBatch]) -> list[float]:
        return [max(self.step_s(batch.prefill, batch.decode_contexts) for batch in batches if any(batch))]


def instances(
    n: int, model: Any = None, role: Any = "both", first: int = 0, store: Tier | None = None
) -> list[InstanceBase]:
    store = store or Tier(STORE, BYTES, 1, shared=True)
    limits = EngineLimits(kv_tokens=100, max_num_seqs=4, data_parallel_balance="round_robin")
    model = model or PromptStep()
    return [Instance(first + i, model, limits, role, tiers=[store], kv_bytes_per_token=BYTES) for i in range(n)]


def test_an_instance_loads_what_another_has_computed() -> None:
    cluster = Cluster(instances(2), make_router("round_robin"))
    again = turn(1, 0, 50)
    cluster.submit(turn(0, 0, 50), 0.0)  # on the first, which has written it at 1.5 + 100 bytes / 40 bytes/s = 4 s
    cluster.submit(again, 10.0)
    cluster.advance(math.inf)
    # 49 tokens of 2 bytes come at 20 bytes/s
    assert (again.instance, again.cached_tokens, again.admitted_s) == (1, 49, pytest.approx(14.9))
    assert again.finished_s == pytest.approx(15.91)
    first, second = (state.tiers[0] for state in cluster.snapshot())
    assert (first.hit_tokens, first.loaded_tokens, second.hit_tokens, second.loaded_tokens) == (0, 0, 49, 49)
    # what it holds is the same for all: 51 tokens of each reply's end, of which 50 are one prompt
    assert first.used_tokens == second.used_tokens == first.stored_tokens == 51
    assert (first.capacity_tokens, first.shared) == (500, True)


def test_what_has_not_been_written_yet_cannot_be_loaded() -> None:
    cluster = Cluster(instances(2), make_router("round_robin"))
    early = turn(1, 0, 50)
    cluster.submit(turn(0, 0, 50), 0.0)
    cluster.submit(early, 3.9)
    cluster.advance(math.inf)
    assert (early.cached_tokens, early.finished_s) == (0, pytest.approx(5.4))


def test_loads_of_all_instances_wait_for_each_other() -> None:
    cluster = Cluster(instances(3), make_router("round_robin"))
    two = [turn(1, 0, 50), turn(2, 0, 50)]
    cluster.submit(turn(0, 0, 50), 0.0)
    for each in two:
        cluster.submit(each, 10.0)
    cluster.advance(math.inf)
    assert [each.admitted_s for each in two] == [pytest.approx(14.9), pytest.approx(19.8)]


def test_ranks_of_an_instance_share_it_too() -> None:
    cluster = Cluster(instances(1, TwoRanks()), make_router("round_robin"))
    again = turn(1, 0, 50)
    cluster.submit(turn(0, 0, 50), 0.0)
    cluster.submit(again, 10.0)
    cluster.advance(math.inf)
    assert (again.cached_tokens, again.admitted_s) == (49, pytest.approx(14.9))
    [tier] = cluster.snapshot()[0].tiers
    assert (tier.used_tokens, tier.capacity_tokens, tier.hit_tokens) == (51, 500, 49)


def test_it_outlives_an_instance_that_crashes_and_one_that_was_loading() -> None:
    crashes = [LifecycleEvent(6.0, 0, "crash"), LifecycleEvent(12.0, 1, "crash", restart_after_s=1.0)]
    cluster = Cluster(instances(2), make_router("round_robin"), events=crashes)
    again = turn(1, 0, 50)
    cluster.submit(turn(0, 0, 50), 0.0)
    cluster.submit(again, 10.0)
    cluster.advance(math.inf)
    # it began to load at 10 s; the link does not know of the crash, and has brought that at 14.9 s
    assert (again.cached_tokens, again.admitted_s) == (49, pytest.approx(14.9 + 4.9))
    assert [state.tiers[0].hit_tokens for state in cluster.snapshot()] == [0, 98]
    assert cluster._instances[1].schedulers[0].kv._tiers[0].tree.locked_tokens == 0  # type: ignore[attr-defined]


def test_prefill_and_decode_instances_share_it() -> None:
    store = Tier(STORE, BYTES, 1, shared=True)
    prefill, decode = instances(2, role="prefill", store=store), instances(1, role="decode", first=2, store=store)
    pools = [
        InstancePool("p", prefill, make_router("round_robin"), "prefill", None, BYTES),
        InstancePool("d", decode, make_router("round_robin"), "decode"),
    ]
    cluster = Cluster(pools=pools, kv_link=KVLink(math.inf))
    first, again = turn(0, 0, 50), turn(1, 0, 50)
    cluster.submit(first, 0.0)
    cluster.submit(again, 20.0)
    cluster.advance(math.inf)
    assert again.cached_tokens == 49
    assert [state.tiers[0].hit_tokens for state in cluster.snapshot()] == [0, 49, 0]


def test_kv_of_another_form_is_refused() -> None:
    store = Tier(STORE, BYTES, 1, shared=True)
    instances(1, store=store)
    with pytest.raises(ValueError, match="KV store: pages of 16 tokens at 2 bytes a token beside those of 1 at 2"):
        Instance(0, PromptStep(), EngineLimits(kv_tokens=160, page_size=16), tiers=[store], kv_bytes_per_token=BYTES)
