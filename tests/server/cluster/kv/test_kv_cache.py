"""Who holds how much of the KV memory, in whole pages."""

from kv_tiers import sequence

from llmirage_server.cluster.kv.cache import KVCache
from llmirage_server.cluster.limits import EngineLimits


def cache(kv_tokens: int, page_size: int = 1, *, prefix_caching: bool = True) -> KVCache:
    return KVCache(EngineLimits(kv_tokens=kv_tokens, page_size=page_size, enable_prefix_caching=prefix_caching))


def test_capacity_and_allocations_are_whole_pages() -> None:
    kv = cache(100, page_size=16)
    assert kv.capacity_tokens == 96
    one = sequence(0, 40)
    kv.acquire(one)
    assert kv.allocate(one, 17)
    assert (kv.used_tokens, kv.free_tokens) == (32, 64)
    assert kv.allocate(one, 15)  # the second page still has room for them
    assert kv.used_tokens == 32
    assert kv.allocate(one, 1)
    assert kv.used_tokens == 48
    kv.release(one)
    assert (kv.used_tokens, kv.free_tokens) == (0, 96)


def test_a_committed_prompt_moves_into_the_tree_but_for_its_last_incomplete_page() -> None:
    kv = cache(96, page_size=16)
    one = sequence(0, 40)
    kv.acquire(one)
    kv.allocate(one, 40)
    kv.insert(one)
    assert (kv.tree.total_tokens, kv.tree.locked_tokens, kv.private_tokens) == (32, 32, 16)
    kv.release(one)
    assert (kv.tree.total_tokens, kv.tree.locked_tokens, kv.private_tokens) == (32, 0, 0)


def test_an_allocation_evicts_what_nobody_uses_and_nothing_more() -> None:
    kv = cache(30)
    old, new = sequence(0, 20), sequence(1000, 25)
    kv.acquire(old)
    kv.allocate(old, 20)
    kv.insert(old)
    kv.release(old)
    kv.acquire(new)
    assert kv.fits(new, 30)
    assert kv.allocate(new, 25)
    assert (kv.tree.total_tokens, kv.private_tokens, kv.free_tokens) == (5, 25, 0)
    assert kv.match(old.key) == 5


def test_an_allocation_that_cannot_be_met_says_so_and_changes_nothing() -> None:
    kv = cache(30)
    old, new = sequence(0, 20), sequence(1000, 25)
    kv.acquire(old)
    kv.allocate(old, 20)
    kv.insert(old)
    kv.acquire(new)
    assert not kv.fits(new, 11)
    assert not kv.allocate(new, 11)
    assert (new.computed, kv.tree.total_tokens, kv.private_tokens) == (0, 20, 0)
    assert kv.allocate(new, 10)


def test_one_token_each_is_for_all_or_for_none() -> None:
    kv = cache(12)
    group = [sequence(1000 * i, 3) for i in range(3)]
    for each in group:
        kv.acquire(each)
        kv.allocate(each, 3)
    assert kv.allocate_one_each(group)
    assert not kv.allocate_one_each(group)
    assert [each.computed for each in group] == [4, 4, 4]
    assert kv.free_tokens == 0


def test_one_token_each_takes_a_page_only_from_those_at_the_end_of_theirs() -> None:
    kv = cache(64, page_size=16)
    full, half = sequence(0, 16), sequence(1000, 8)
    for each, tokens in ((full, 16), (half, 8)):
        kv.acquire(each)
        kv.allocate(each, tokens)
    assert kv.allocate_one_each([full, half])
    assert kv.private_tokens == 48


def test_a_shared_prefix_is_locked_until_the_last_sequence_lets_go() -> None:
    kv = cache(40)
    one, two = sequence(0, 20), sequence(0, 20)
    kv.acquire(one)
    kv.allocate(one, 20)
    kv.insert(one)
    kv.acquire(two)
    assert two.computed == 19
    assert kv.allocate(two, 1)
    assert kv.used_tokens == 21
    kv.insert(two)
    assert kv.used_tokens == 20  # the last token as well was there already
    kv.release(one)
    assert kv.used_tokens == 20
    kv.release(two)
    assert (kv.used_tokens, kv.tree.total_tokens) == (0, 20)


def test_without_prefix_caching_nothing_is_remembered() -> None:
    kv = cache(40, prefix_caching=False)
    one = sequence(0, 20)
    kv.acquire(one)
    kv.allocate(one, 20)
    kv.insert(one)
    assert kv.used_tokens == 20
    kv.release(one)
    assert (kv.used_tokens, kv.tree.total_tokens, kv.match(one.key)) == (0, 0, 0)


def test_rejected_draft_tokens_give_their_pages_back() -> None:
    kv = cache(96, page_size=16)
    one = sequence(0, 30, output=20)
    kv.acquire(one)
    kv.allocate(one, 33)
    assert kv.private_tokens == 48
    changes = kv.changes
    kv.retreat(one, 1)
    assert (one.computed, kv.private_tokens) == (32, 32)
    assert kv.changes > changes
    kv.retreat(one, 2)
    assert (one.computed, kv.private_tokens) == (30, 32)


def test_clearing_forgets_everything() -> None:
    kv = cache(96, page_size=16)
    one, two = sequence(0, 40), sequence(1000, 20)
    for each in (one, two):
        kv.acquire(each)
        kv.allocate(each, len(each.key) // 4 - 1)
    kv.insert(one)
    kv.clear()
    assert (kv.used_tokens, kv.free_tokens, kv.match(one.key)) == (0, 96, 0)


def test_forgetting_what_is_idle_keeps_what_is_in_use() -> None:
    kv = cache(1000)
    first, second = sequence(0, 40), sequence(1000, 40)
    for one in (first, second):
        kv.acquire(one)
        assert kv.allocate(one, 40)
        kv.insert(one)
    kv.release(first)
    assert (kv.match(first.key), kv.match(second.key)) == (40, 40)
    kv.forget_idle()
    assert (kv.match(first.key), kv.match(second.key)) == (0, 40)
    assert (kv.used_tokens, kv.free_tokens) == (40, 960)
    kv.release(second)
    kv.forget_idle()
    assert kv.free_tokens == 1000
