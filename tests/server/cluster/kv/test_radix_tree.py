"""The radix tree, by hand."""

import gc
import sys

import numpy as np
import pytest

from llmirage_server.cluster.kv.radix_tree import MERGED_BYTES, TOKEN_BYTES, RadixTree
from llmirage_server.cluster.request import token_bytes


def key(*tokens: int) -> bytes:
    return token_bytes(np.array(tokens, dtype=np.int32))


def store(tree: RadixTree, *tokens: int) -> None:
    tree.unlock(tree.extend_to(tree.root, key(*tokens), 0, len(tokens)))


def test_what_two_sequences_share_is_stored_once() -> None:
    tree = RadixTree()
    store(tree, 1, 2, 3, 4, 5)
    store(tree, 1, 2, 3, 7, 8)
    assert tree.total_tokens == 7
    assert runs(tree) == [(5, [3, 5]), (2, [2])]  # 1 2 3 4 5, and after 3 of them 7 8
    assert tree.match(key(1, 2, 3, 4, 5, 6)) == 5
    assert tree.match(key(1, 2, 3, 7, 9)) == 4
    assert tree.match(key(1, 2)) == 2
    assert tree.match(key(2)) == 0


def test_matching_changes_nothing() -> None:
    tree = RadixTree()
    store(tree, 1, 2, 3, 4)
    assert tree.match(key(1, 2, 9)) == 2
    assert runs(tree) == [(4, [4])]
    assert tree.locked_tokens == 0


def test_a_branch_of_a_locked_path_leaves_all_of_it_locked() -> None:
    tree = RadixTree()
    held = tree.extend_to(tree.root, key(1, 2, 3, 4), 0, 4)
    store(tree, 1, 2, 9)
    assert (tree.total_tokens, tree.locked_tokens, tree.evictable_tokens) == (5, 4, 1)
    assert tree.evict(100) == 1
    assert tree.match(key(1, 2, 3, 4)) == 4
    tree.unlock(held)
    assert (tree.locked_tokens, tree.evictable_tokens) == (0, 4)


def test_eviction_spares_a_locked_prefix_and_takes_the_unlocked_tail() -> None:
    tree = RadixTree()
    store(tree, 1, 2, 3, 4, 5, 6)
    node, matched = tree.lock(key(1, 2, 3, 8))
    assert matched == 3
    assert (tree.locked_tokens, tree.evictable_tokens) == (3, 3)
    assert tree.evict(10) == 3
    assert tree.match(key(1, 2, 3, 4, 5, 6)) == 3
    tree.unlock(node)
    assert tree.evict(10) == 3
    assert tree.total_tokens == 0
    assert not tree.root.children


def test_two_locks_on_one_path_need_two_unlocks() -> None:
    tree = RadixTree()
    store(tree, 1, 2, 3)
    first, _ = tree.lock(key(1, 2, 3))
    second, _ = tree.lock(key(1, 2))
    assert tree.locked_tokens == 3
    tree.unlock(first)
    assert tree.locked_tokens == 2
    assert tree.evict(3) == 1
    tree.unlock(second)
    assert tree.locked_tokens == 0


def test_the_leaf_that_was_let_go_longest_ago_is_evicted_first_from_its_tail() -> None:
    tree = RadixTree()
    store(tree, 1, 1, 1)
    store(tree, 2, 2, 2)
    node, _ = tree.lock(key(1, 1, 1))
    tree.unlock(node)  # used again: now the younger one
    assert tree.evict(2) == 2
    assert tree.match(key(2, 2, 2)) == 1
    assert tree.match(key(1, 1, 1)) == 3
    assert tree.evict(2) == 2
    assert tree.match(key(2)) == 0
    assert tree.match(key(1, 1, 1)) == 2


def test_a_parent_becomes_evictable_when_its_last_child_is_gone_but_not_before_its_turn() -> None:
    tree = RadixTree()
    store(tree, 1, 2, 3)
    store(tree, 5, 6)
    node, _ = tree.lock(key(1, 2))
    tree.unlock(node)  # 1 2 is younger than 5 6, 3 is older
    assert tree.evict(1) == 1
    assert tree.match(key(1, 2, 3)) == 2
    assert tree.evict(2) == 2
    assert tree.match(key(5, 6)) == 0
    assert tree.match(key(1, 2)) == 2


def test_pages_are_matched_stored_and_evicted_whole() -> None:
    tree = RadixTree(page_size=4)
    store(tree, *range(10))
    assert tree.total_tokens == 8
    assert tree.match(key(*range(10))) == 8
    assert tree.match(key(*range(7))) == 4
    assert tree.match(key(0, 1, 2, 3, 4, 5, 9, 9)) == 4
    store(tree, 0, 1, 2, 3, 4, 5, 9, 9)  # parts inside the second page: the whole page is its own
    assert tree.total_tokens == 12
    assert tree.evict(1) == 4
    assert tree.match(key(*range(8))) == 4


def test_the_queue_of_ends_stays_small_when_nothing_is_ever_evicted() -> None:
    tree = RadixTree()
    for _ in range(10_000):
        store(tree, 1, 2, 3)
    assert len(tree._queue) < 2000
    assert tree.evict(3) == 3


def test_only_the_first_tokens_of_a_key_are_looked_at_if_so_asked() -> None:
    tree = RadixTree(page_size=2)
    store(tree, *range(10))
    assert [tree.match(key(*range(10)), tokens) for tokens in (0, 1, 5, 9, 10, 50)] == [0, 0, 4, 8, 10, 10]
    node, matched = tree.lock(key(*range(10)), 7)
    assert (matched, tree.locked_tokens) == (6, 6)
    assert tree.evict(100) == 4
    tree.unlock(node)


def test_what_is_left_of_a_leaf_can_be_extended_again() -> None:
    tree = RadixTree()
    store(tree, *range(10))
    assert tree.evict(3) == 3
    assert tree.match(key(*range(10))) == 7
    store(tree, *range(7), 70, 71)
    assert tree.evict(1) == 1
    store(tree, *range(10))
    assert tree.total_tokens == 11
    assert tree.match(key(*range(10))) == 10
    assert tree.match(key(*range(7), 70, 71)) == 8


def test_a_tail_that_goes_token_by_token_does_not_keep_its_memory() -> None:
    tree = RadixTree()
    store(tree, *range(1000))
    (run,) = tree.root.children.values()
    for left in range(999, 0, -1):
        assert tree.evict(1) == 1
        assert runs(tree) == [(left, [left])]
        assert len(run.tokens) <= 2 * run.size + TOKEN_BYTES


def test_places_where_branches_were_are_forgotten_with_them() -> None:
    tree = RadixTree()
    store(tree, *range(100))
    for i in range(10, 100, 10):
        store(tree, *range(i), 1000)
    assert runs(tree) == [(100, [*range(10, 101, 10)]), *[(1, [1])] * 9]
    node, _ = tree.lock(key(*range(100)))
    assert tree.evict(9) == 9
    assert runs(tree) == [(100, [100])]
    tree.unlock(node)
    assert (tree.total_tokens, tree.locked_tokens, tree.evict(30), runs(tree)) == (100, 0, 30, [(70, [70])])


@pytest.mark.parametrize("held", [False, True])
def test_a_place_is_kept_while_it_is_younger_than_what_is_beyond_it_or_held(held: bool) -> None:
    tree = RadixTree()
    store(tree, 1, 2, 3)
    store(tree, 1, 2, 9)
    node, _ = tree.lock(key(1, 2))
    if not held:
        tree.unlock(node)  # 1 2 is the youngest
    store(tree, 5, 6)
    assert tree.evict(2) == 2  # 3 and 9
    assert runs(tree) == [(2, [2]), (2, [2])]
    assert tree.evict(2) == 2  # 5 6 if 1 2 is held, and if it is not, as it was let go before: 1 2
    assert tree.match(key(1, 2)) == (2 if held else 0)


@pytest.mark.parametrize("held", [False, True])
def test_a_place_outlives_its_branch_while_it_is_younger_than_what_is_beyond_it_or_held(held: bool) -> None:
    tree = RadixTree()
    store(tree, 1, 2, 3)
    store(tree, 1, 2, 9)
    store(tree, 1, 2, 3)
    node, _ = tree.lock(key(1, 2))
    store(tree, 5, 6)
    if not held:
        tree.unlock(node)
    assert tree.evict(1) == 1  # 9
    assert runs(tree) == [(3, [2, 3]), (2, [2])]
    assert tree.locked_tokens == (2 if held else 0)
    assert tree.evict(3) == 3  # 3, 6 and 5, but not 2
    assert runs(tree) == [(2, [2])]
    if held:
        tree.unlock(node)
    assert (tree.locked_tokens, tree.evict(2)) == (0, 2)


def test_a_conversation_grows_in_one_run_until_that_is_too_long_to_be_copied() -> None:
    tree = RadixTree()
    most = MERGED_BYTES // TOKEN_BYTES
    store(tree, -1, -2)
    for end in (most // 2, most, most + 1, most + 3):
        store(tree, -1, *range(end))  # branches off: what it has is copied together
    assert runs(tree) == [(2, [1, 2]), (most, [most]), (3, [3])]


def test_a_sequence_that_grows_leaves_no_places_behind() -> None:
    tree = RadixTree()
    store(tree, *range(5))
    node, _ = tree.lock(key(*range(5)))
    for i in range(5, 50):
        node = tree.extend_to(node, key(*range(i + 1)), i, i + 1)
    assert runs(tree) == [(50, [50])]
    assert tree.locked_tokens == 50
    tree.unlock(node)


def runs(tree: RadixTree) -> list[tuple[int, list[int]]]:
    """Of every run its tokens and the places of its nodes, each run after the one it branches off."""
    found, todo = [], list(tree.root.children.values())
    while todo:
        run = todo.pop(0)
        found.append((run.size // TOKEN_BYTES, [node.end // TOKEN_BYTES for node in (*run.nodes, run.tail)]))
        todo.extend(child for node in (*run.nodes, run.tail) for child in node.children.values())
    return found


@pytest.mark.parametrize("at", [0, 1, 4999, 9999])
def test_the_first_difference_in_a_long_run_is_found(at: int) -> None:
    tree = RadixTree()
    tokens = np.arange(10_000, dtype=np.int32)
    tree.unlock(tree.extend_to(tree.root, token_bytes(tokens), 0, 10_000))
    other = tokens.copy()
    other[at] = -1
    assert tree.match(token_bytes(other)) == at
    tree.unlock(tree.extend_to(tree.root, token_bytes(other), 0, 10_000))
    assert tree.total_tokens == 20_000 - at
    assert tree.match(token_bytes(other)) == 10_000


@pytest.mark.parametrize("at", [0, 5, 10, 11, 15, 20, 25, 29, 30])
@pytest.mark.parametrize("places", [(), (10,), (10, 20)])
def test_the_first_difference_is_found_before_at_and_after_branches(at: int, places: tuple[int, ...]) -> None:
    tree = RadixTree()
    store(tree, *range(30))
    for place in places:
        store(tree, *range(place), 1000)
    assert tree.match(key(*range(at), 2000, *range(40))) == at
    assert [tree.match(key(*range(30)), tokens) for tokens in (at, at + 1)] == [at, min(at + 1, 30)]


def test_a_whole_key_is_kept_as_it_is_and_grows_into_its_own_later_tokens() -> None:
    tree = RadixTree(page_size=2)
    whole = key(*range(11))
    node = tree.extend_to(tree.root, whole, 0, 5)
    (run,) = tree.root.children.values()
    assert (tree.total_tokens, tree.locked_tokens, tree.match(whole)) == (4, 4, 4)
    assert tree.extend_to(node, whole, 4, 4) is node
    node = tree.extend_to(node, whole, 4, 9)
    assert (tree.total_tokens, tree.locked_tokens, tree.match(whole)) == (8, 8, 8)
    tree.finish(node, whole, 8, 11)
    assert (tree.total_tokens, tree.locked_tokens, tree.match(whole)) == (10, 0, 10)
    assert run.tokens is whole
    assert runs(tree) == [(10, [10])]


def test_a_conversation_grows_in_one_run_of_any_length_by_whole_keys() -> None:
    tree = RadixTree()
    for end in (10, 20_000, 50_000):
        whole = key(*range(end))
        node, matched = tree.lock(whole, end - 1)
        tree.finish(tree.extend_to(node, whole, matched, end - 5), whole, end - 5, end)
    assert runs(tree) == [(50_000, [50_000])]
    assert tree.evict(1) == 1


def test_who_shares_the_place_of_one_that_grows_keeps_it() -> None:
    tree = RadixTree()
    store(tree, 1, 2, 3)
    first, second = key(1, 2, 3, 4, 5), key(1, 2, 3, 7)
    a, _ = tree.lock(first)
    b, _ = tree.lock(second)
    tree.finish(a, first, 3, 5)
    assert (tree.total_tokens, tree.locked_tokens) == (5, 3)
    b = tree.extend_to(b, second, 3, 4)
    assert (tree.total_tokens, tree.locked_tokens) == (6, 4)
    assert tree.evict(10) == 2
    assert (tree.match(first), tree.match(second)) == (3, 4)
    tree.finish(b, second, 4, 4)
    assert tree.evict(10) == 4


def test_what_a_sequence_did_not_come_to_store_is_not_kept_of_its_key() -> None:
    tree = RadixTree()
    whole = key(*range(1000))
    tree.unlock(tree.extend_to(tree.root, whole, 0, 300))
    (run,) = tree.root.children.values()
    assert len(run.tokens) == run.size == 300 * TOKEN_BYTES
    assert tree.match(whole) == 300


def test_what_is_evicted_is_free_at_once() -> None:
    tree = RadixTree()
    whole = key(*range(1000))
    gc.disable()
    try:
        used = sys.getrefcount(whole)
        tree.finish(tree.extend_to(tree.root, whole, 0, 900), whole, 900, 1000)
        assert sys.getrefcount(whole) > used
        assert tree.evict(1000) == 1000
        assert sys.getrefcount(whole) == used
    finally:
        gc.enable()


def test_what_is_uncovered_after_its_turn_goes_next() -> None:
    tree = RadixTree()
    store(tree, 1, 2)
    held, _ = tree.lock(key(1, 2))
    store(tree, 1, 2, 3)
    store(tree, 5, 6)
    store(tree, 1, 2, 4)
    store(tree, 7, 8)
    tree.unlock(tree.extend_to(held, key(1, 2, 9), 2, 3))  # 1 2 is as young as 9, its own date is as old as ever
    assert tree.evict(3) == 3  # 3, 6 and 5
    assert (tree.match(key(1, 2, 3)), tree.match(key(5)), tree.match(key(1, 2, 4))) == (2, 0, 3)
    assert tree.evict(3) == 3  # 4, 8 and 7
    assert tree.match(key(7)) == 0
    store(tree, 10)
    assert tree.evict(3) == 3  # 9, 2 and 1
    assert (tree.match(key(1)), tree.match(key(10))) == (0, 1)


def test_a_key_that_goes_on_is_let_go_where_its_sequence_leaves_it_for_a_branch() -> None:
    tree = RadixTree()
    whole = key(*range(100))
    mine = tree.extend_to(tree.root, whole, 0, 10)
    other, _ = tree.lock(whole, 10)
    tree.unlock(tree.extend_to(other, key(*range(13)), 10, 13))
    (run,) = tree.root.children.values()
    mine = tree.extend_to(mine, whole, 10, 20)  # passes what the other stored
    assert run.tokens is whole
    third, matched = tree.lock(whole)
    tree.unlock(tree.extend_to(third, key(*range(matched), 1000), matched, matched + 1))
    tree.unlock(mine)
    assert len(run.tokens) == run.size == 21 * TOKEN_BYTES


@pytest.mark.parametrize("locked", [5, MERGED_BYTES // TOKEN_BYTES])
def test_a_run_with_a_branch_at_its_end_grows_by_a_whole_key_beside_the_branch(locked: int) -> None:
    tree = RadixTree()
    most = MERGED_BYTES // TOKEN_BYTES
    store(tree, *range(most))
    store(tree, *range(most + 2))  # too long to be joined: a run of its own
    first, second = key(*range(most + 2)), key(*range(most), -1, -2)
    for whole in (first, second):
        node, matched = tree.lock(whole, locked)
        tree.finish(tree.extend_to(node, whole, matched, most + 1), whole, most + 1, most + 2)
    assert (tree.total_tokens, tree.locked_tokens) == (most + 4, 0)
    assert tree.match(first) == tree.match(second) == most + 2
    assert tree.evict(4) == 4
    assert (tree.match(first), tree.match(second)) == (most, most)


def test_the_queue_is_cleared_of_what_was_let_go_again_and_keeps_what_is_covered() -> None:
    tree = RadixTree()
    store(tree, 1, 2)
    store(tree, 1, 2, 3)
    node, _ = tree.lock(key(1, 2))
    store(tree, 8, 9)
    tree.unlock(node)  # 1 2 is younger than 8 9, and covered by 3
    for _ in range(5000):
        store(tree, 5)
    assert len(tree._queue) < 2100
    assert tree.evict(1) == 1  # 3
    assert tree.evict(2) == 2
    assert (tree.match(key(8)), tree.match(key(1, 2))) == (0, 2)
