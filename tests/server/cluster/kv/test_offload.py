"""KV that leaves the GPU for host memory and disk, and comes back. Times computed by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_tiers import BYTES, HOST, sequence

from llmirage_server.cluster.kv.cache import TieredKVCache
from llmirage_server.cluster.kv.offload import Tier, TierSpec
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.request import Sequence, token_bytes

DISK = TierSpec("disk", capacity_bytes=4000.0, read_bytes_per_s=4.0, write_bytes_per_s=4.0, latency_s=0.5)


def cache(*tiers: TierSpec, kv_tokens: int = 100, page_size: int = 1) -> TieredKVCache:
    return TieredKVCache(EngineLimits(kv_tokens=kv_tokens, page_size=page_size), tiers, BYTES)


def serve(kv: TieredKVCache, one: Sequence) -> None:
    """Compute a whole prompt and let it go, at `kv.now_s`."""
    kv.acquire(one)
    assert kv.allocate(one, one.tokens - one.computed)
    kv.insert(one)
    kv.release(one)


def tier(kv: TieredKVCache, index: int = 0) -> tuple[int, int, int, int, int]:
    """Used, hit, loaded, stored and dropped tokens."""
    state = kv.tier_snapshots()[index]
    return state.used_tokens, state.hit_tokens, state.loaded_tokens, state.stored_tokens, state.dropped_tokens


def test_what_the_gpu_has_evicted_comes_back_from_the_host() -> None:
    kv = cache(HOST)
    serve(kv, sequence(0, 60))  # written by 120 bytes / 40 bytes/s = 3 s
    kv.now_s = 10.0
    serve(kv, sequence(1000, 90))
    again = sequence(0, 61)
    assert kv.match(again.key) == 10
    assert kv.start_load(again)
    # 50 tokens of 2 bytes at 20 bytes/s
    assert kv.next_load_s == 15.0
    assert (again.computed, kv.private_tokens, kv.used_tokens) == (60, 50, 60)
    assert kv.take_loaded() == []
    kv.now_s = 15.0
    assert kv.take_loaded() == [again]
    assert (kv.match(again.key), kv.used_tokens, kv.private_tokens, kv.next_load_s) == (60, 0, 0, math.inf)
    assert tier(kv) == (150, 50, 50, 150, 0)
    kv.acquire(again)
    assert again.computed == 60


def test_kv_can_be_found_when_it_has_been_written() -> None:
    kv = cache(HOST)
    serve(kv, sequence(0, 60))
    kv.now_s = 2.9
    kv.tree.evict(60)
    assert not kv.start_load(sequence(0, 60))
    kv.now_s = 3.0
    assert kv.start_load(sequence(0, 60))


def test_loads_share_a_link_in_order() -> None:
    kv = cache(HOST, kv_tokens=200)
    for first in (0, 1000):
        serve(kv, sequence(first, 40))
    kv.tree.evict(80)
    kv.now_s = 10.0
    one, two = sequence(0, 41), sequence(1000, 21)
    assert kv.start_load(one)
    assert kv.start_load(two)
    kv.now_s = kv.next_load_s
    assert (kv.now_s, kv.take_loaded()) == (14.0, [one])
    kv.now_s = kv.next_load_s
    assert (kv.now_s, kv.take_loaded()) == (16.0, [two])


def test_each_tier_gives_what_those_above_do_not_have_at_the_same_time() -> None:
    small = TierSpec("host", 60.0, 20.0, 1e9)  # 30 tokens
    kv = cache(small, DISK)
    kv.now_s = 0.0
    serve(kv, sequence(0, 30))
    kv.now_s = 100.0
    serve(kv, sequence(1000, 20))  # the host keeps the first 10 tokens of the other
    kv.now_s = 200.0
    kv.tree.evict(50)
    one = sequence(0, 31)
    assert kv.start_load(one)
    # host: 10 tokens in 1 s; disk: 20 tokens of 2 bytes at 4 bytes/s, and half a second
    assert kv.next_load_s == 200.0 + 10.5
    kv.now_s = 210.5
    assert kv.take_loaded() == [one]
    assert tier(kv, 0) == (30, 10, 10, 70, 0)  # what came from the disk is in the host again, without another write
    assert tier(kv, 1) == (50, 20, 20, 50, 0)
    assert kv.start_load(sequence(1000, 20))


def test_a_full_tier_forgets_what_was_used_longest_ago() -> None:
    kv = cache(TierSpec("host", 100.0, 1.0, 1e9), kv_tokens=1000)  # 50 tokens
    for at, first in enumerate((0, 1000, 0, 2000)):  # the second use of 0 only dates it
        kv.now_s = at
        serve(kv, sequence(first, 20))
    kv.tree.evict(60)
    kv.now_s = 10.0
    assert [bool(kv.start_load(sequence(first, 21))) for first in (0, 2000)] == [True, True]
    assert kv._tiers[0].tree.match(sequence(1000, 20).key) == 10
    assert tier(kv)[0] == 50


def test_others_go_on_while_a_sequence_loads_but_not_with_its_memory() -> None:
    kv = cache(HOST)
    serve(kv, sequence(0, 60))
    kv.tree.evict(60)
    kv.now_s = 10.0
    one, two = sequence(0, 70), sequence(1000, 41)
    assert kv.start_load(one)
    kv.acquire(two)
    assert not kv.fits(two, 41)
    assert kv.fits(two, 40)
    changes = kv.changes
    kv.now_s = kv.next_load_s
    kv.take_loaded()
    assert kv.changes > changes
    assert kv.fits(two, 41)


def test_nothing_is_loaded_for_a_prompt_that_has_no_room() -> None:
    kv = cache(HOST)
    serve(kv, sequence(0, 60))
    other = sequence(1000, 50)
    kv.acquire(other)
    assert kv.allocate(other, 50)
    kv.now_s = 10.0
    one = sequence(0, 61)
    assert kv.match(one.key) == 50
    assert not kv.start_load(one)
    assert (kv.used_tokens, kv.loading, one.computed) == (50, {}, 0)
    kv.release(other)
    assert kv.start_load(one)


def test_a_gain_of_a_few_tokens_is_not_loaded() -> None:
    kv = cache(HOST)
    for tokens, loads in ((9, False), (10, True)):
        serve(kv, sequence(0, 60))
        kv.now_s += 10.0
        kv.tree.evict(60)
        serve(kv, sequence(0, 60 - tokens))
        assert kv.start_load(sequence(0, 61)) is loads


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    kv = cache(HOST)
    serve(kv, sequence(0, 60))
    kv.now_s = 10.0
    kv.tree.evict(60)
    assert kv.start_load(sequence(0, 60))
    kv.now_s = kv.next_load_s
    kv.take_loaded()
    assert kv.match(sequence(0, 60).key) == 59


def test_a_sequence_waits_for_the_load_of_another_that_brings_its_prefix() -> None:
    kv = cache(HOST, kv_tokens=200)
    serve(kv, sequence(0, 60))
    kv.now_s = 10.0
    kv.tree.evict(60)
    one, two = sequence(0, 61), sequence(0, 41, output=30)
    assert kv.start_load(one)
    assert kv.start_load(two)
    assert (kv.used_tokens, two.computed) == (60, 0)
    kv.now_s = 16.0
    assert kv.take_loaded() == [one, two]
    assert not kv.start_load(two)
    assert tier(kv)[1:3] == (60, 60)


def test_a_load_can_be_stopped() -> None:
    kv = cache(HOST)
    serve(kv, sequence(0, 60))
    kv.now_s = 10.0
    kv.tree.evict(60)
    one, two = sequence(0, 61), sequence(0, 62)
    assert kv.start_load(one)
    assert kv.start_load(two)
    assert kv.stop_load(one)
    assert kv.stop_load(two)
    assert not kv.stop_load(one)
    assert (kv.used_tokens, kv.private_tokens, kv.loading, kv.next_load_s) == (0, 0, {}, math.inf)
    assert tier(kv)[1:3] == (60, 0)
    assert kv._tiers[0].tree.locked_tokens == 0
    assert kv.start_load(one)
    assert kv.next_load_s == 10.0 + 2 * 6.0  # the link keeps the time of what was stopped


def test_what_waits_to_be_written_has_its_limit() -> None:
    slow = TierSpec("host", 4000.0, 1.0, 1.0)
    kv = cache(slow, kv_tokens=100)
    serve(kv, sequence(0, 60))  # 120 s
    serve(kv, sequence(1000, 40))
    serve(kv, sequence(2000, 40))  # more than the GPU could keep for it
    assert tier(kv) == (0, 0, 0, 0, 40)
    kv.now_s = 200.0
    serve(kv, sequence(2000, 41))
    assert tier(kv) == (100, 0, 0, 100, 40)
    kv.now_s = 300.0
    assert not kv.start_load(sequence(5000, 50))
    kv.tree.evict(100)
    assert kv.start_load(sequence(2000, 42))


def test_a_reply_is_stored_with_its_prompt_when_it_ends() -> None:
    kv = cache(HOST)
    one = sequence(0, 30, output=5)
    kv.acquire(one)
    kv.allocate(one, 30)
    kv.insert(one)
    one.tokens = 35
    kv.allocate(one, 4)
    kv.finish(one)
    kv.now_s = 10.0
    kv.tree.evict(35)
    assert kv.start_load(sequence(0, 30, output=5)) is True
    assert kv._tiers[0].tree.match(one.key) == 35
    assert tier(kv)[3] == 35


def test_tiers_hold_whole_pages() -> None:
    kv = cache(TierSpec("host", 140.0, 20.0, 1e9), kv_tokens=96, page_size=16)  # 70 tokens: 4 pages
    assert kv.tier_snapshots()[0].capacity_tokens == 64
    serve(kv, sequence(0, 90))
    kv.now_s = 10.0
    kv.tree.evict(80)
    assert tier(kv)[0] == 0
    one = sequence(0, 91)
    assert kv.start_load(one)
    assert one.computed == 64
    assert tier(kv) == (64, 64, 0, 64, 16)


def test_clearing_forgets_the_tiers_too() -> None:
    kv = cache(HOST)
    serve(kv, sequence(0, 60))
    kv.now_s = 10.0
    kv.tree.evict(60)
    assert kv.start_load(sequence(0, 61))
    kv.clear()
    assert tier(kv) == (0, 60, 0, 60, 0)
    assert (kv.loading, kv.used_tokens, kv.start_load(sequence(0, 61))) == ({}, 0, False)


def test_forgetting_what_is_idle_forgets_it_in_the_tiers_and_on_the_way_there() -> None:
    kv = cache(TierSpec("host", 1000, 10.0, 10.0))
    serve(kv, sequence(0, 50))
    kv.now_s = 100.0
    serve(kv, sequence(1000, 50))  # on its way
    kv.forget_idle()
    kv.now_s = 200.0
    assert kv.free_tokens == 100
    assert not kv.start_load(sequence(0, 60))
    assert not kv.start_load(sequence(1000, 60))
    assert tier(kv)[0] == 0


def test_ranks_share_a_tier_in_equal_parts() -> None:
    assert HOST.share(4) == TierSpec("host", 100.0, 5.0, 10.0)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="KV offload tier 'disk'") as caught:
        TierSpec("disk", 0.0, -1.0, math.nan, -1.0)
    assert str(caught.value) == (
        "KV offload tier 'disk': capacity_bytes must be above 0, not 0.0; read_bytes_per_s must be above 0, not -1.0; "
        "write_bytes_per_s must be above 0, not nan; latency_s must be a number of seconds from 0 up, not -1.0"
    )
    with pytest.raises(ValueError, match="hold no page of 16 tokens at 2 bytes a token"):
        cache(TierSpec("host", 31.0, 1.0, 1.0), page_size=16)
    with pytest.raises(ValueError, match="needs prefix caching"):
        TieredKVCache(EngineLimits(kv_tokens=10, enable_prefix_caching=False), [HOST], BYTES)
    with pytest.raises(ValueError, match="kv_bytes_per_token"):
        TieredKVCache(EngineLimits(kv_tokens=10), [HOST], 0.0)


# --- whatever is asked -------------------------------------------------------------------------------------------------

# (seconds since the last, key over a tiny vocabulary)
WRITES = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0, 5.0]), st.lists(st.integers(0, 1), min_size=1, max_size=12)), max_size=30
)


@given(writes=WRITES, capacity=st.integers(1, 30), bytes_per_s=st.sampled_from([1.0, 10.0, math.inf]))
def test_a_tier_holds_what_was_written_and_no_more_than_it_can(
    writes: list[tuple[float, list[int]]], capacity: int, bytes_per_s: float
) -> None:
    tier = Tier(TierSpec("host", capacity, 1.0, bytes_per_s), 1.0, 1, staging_tokens=20)
    now = 0.0
    written: set[bytes] = set()
    for gap, ids in writes:
        now += gap
        key = token_bytes(np.array(ids, np.int32))
        assert tier.write(key, 0, len(ids), now) <= len(ids)
        written |= {key[: 4 * n] for n in range(1, len(ids) + 1)}
        node, found = tier.lock(key, len(ids), now)
        assert 4 * found == 0 or key[: 4 * found] in written
        tier.unlock(node)
        state = tier.snapshot(0, 0)
        assert state.used_tokens <= capacity
        assert state.used_tokens <= state.stored_tokens
    assert tier.tree.locked_tokens == 0
    tier.lock(b"", 0, math.inf)
    assert tier._writing_tokens == 0
