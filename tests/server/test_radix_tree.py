"""The radix tree: by hand, and against a model that knows nothing of edges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmirage_server.cluster.radix_tree import Node, RadixTree, token_bytes


def key(*tokens: int) -> bytes:
    return token_bytes(np.array(tokens, dtype=np.int32))


def store(tree: RadixTree, *tokens: int) -> None:
    tree.unlock(tree.extend(tree.root, key(*tokens)))


def test_an_edge_is_split_where_two_sequences_part() -> None:
    tree = RadixTree()
    store(tree, 1, 2, 3, 4, 5)
    store(tree, 1, 2, 3, 7, 8)
    assert tree.total_tokens == 7  # 1 2 3 | 4 5 | 7 8
    (shared,) = tree.root.children.values()
    assert shared.edge == key(1, 2, 3)
    assert sorted(child.edge for child in shared.children.values()) == sorted([key(4, 5), key(7, 8)])
    assert tree.match(key(1, 2, 3, 4, 5, 6)) == 5
    assert tree.match(key(1, 2, 3, 7, 9)) == 4
    assert tree.match(key(1, 2)) == 2
    assert tree.match(key(2)) == 0


def test_matching_changes_nothing() -> None:
    tree = RadixTree()
    store(tree, 1, 2, 3, 4)
    assert tree.match(key(1, 2, 9)) == 2
    (only,) = tree.root.children.values()
    assert only.edge == key(1, 2, 3, 4)
    assert tree.locked_tokens == 0


def test_a_split_below_a_lock_keeps_the_whole_locked_path() -> None:
    tree = RadixTree()
    held = tree.extend(tree.root, key(1, 2, 3, 4))
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


def test_the_queue_of_leaves_stays_small_when_nothing_is_ever_evicted() -> None:
    tree = RadixTree()
    for _ in range(10_000):
        store(tree, 1, 2, 3)
    assert len(tree._leaves) < 2000
    assert tree.evict(3) == 3


class Model:
    """Every stored prefix, in pages, with its locks and when it was last let go: what a radix tree must mean."""

    def __init__(self, page_size: int) -> None:
        self.page = page_size
        self.last_used: dict[tuple[int, ...], int] = {}
        self.locks: dict[tuple[int, ...], int] = {}
        self.clock = 0

    def prefixes(self, tokens: tuple[int, ...]) -> list[tuple[int, ...]]:
        return [tokens[:n] for n in range(self.page, len(tokens) + 1, self.page)]

    def match(self, tokens: tuple[int, ...]) -> int:
        return max((len(prefix) for prefix in self.prefixes(tokens) if prefix in self.last_used), default=0)

    def store(self, tokens: tuple[int, ...]) -> None:
        for prefix in self.prefixes(tokens):
            self.last_used.setdefault(prefix, 0)

    def lock(self, tokens: tuple[int, ...]) -> None:
        for prefix in self.prefixes(tokens):
            self.locks[prefix] = self.locks.get(prefix, 0) + 1

    def unlock(self, tokens: tuple[int, ...]) -> None:
        self.clock += 1
        for prefix in self.prefixes(tokens):
            self.locks[prefix] -= 1
            self.last_used[prefix] = self.clock

    def locked_tokens(self) -> int:
        return sum(self.page for count in self.locks.values() if count)

    def evict(self, tokens: int) -> int:
        evicted = 0
        while evicted < tokens:
            parents = {prefix[: -self.page] for prefix in self.last_used}
            leaves = [prefix for prefix in self.last_used if prefix not in parents and not self.locks.get(prefix)]
            if not leaves:
                break
            del self.last_used[min(leaves, key=self.last_used.__getitem__)]
            evicted += self.page
        return evicted


TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("lock"), TOKENS),
        st.tuples(st.just("extend"), st.integers(0, 5), TOKENS),
        st.tuples(st.just("unlock"), st.integers(0, 5)),
        st.tuples(st.just("evict"), st.integers(1, 15)),
    ),
    max_size=40,
)


@settings(max_examples=400, deadline=None)
@given(page_size=st.sampled_from([1, 2, 3]), operations=OPERATIONS, probes=st.lists(TOKENS, max_size=4))
def test_it_agrees_with_the_set_of_all_stored_prefixes(
    page_size: int, operations: list[tuple[object, ...]], probes: list[tuple[int, ...]]
) -> None:
    tree, model = RadixTree(page_size), Model(page_size)
    held: list[tuple[Node, tuple[int, ...]]] = []
    for operation in operations:
        match operation:
            case ("lock", tuple(tokens)):
                node, matched = tree.lock(key(*tokens))
                assert matched == model.match(tokens)
                held.append((node, tokens[:matched]))
                model.lock(tokens[:matched])
            case ("extend", int(which), tuple(more)) if held:
                node, tokens = held.pop(which % len(held))
                more = more[: len(more) - len(more) % page_size]
                longer = tokens + more
                held.append((tree.extend(node, key(*more)), longer))
                model.store(longer)
                model.lock(longer)
                for prefix in model.prefixes(tokens):
                    model.locks[prefix] -= 1
            case ("unlock", int(which)) if held:
                node, tokens = held.pop(which % len(held))
                tree.unlock(node)
                model.unlock(tokens)
            case ("evict", int(tokens)):
                assert tree.evict(tokens) == model.evict(tokens)
        assert tree.total_tokens == len(model.last_used) * page_size
        assert tree.locked_tokens == model.locked_tokens()
        for _, tokens in held:
            assert tree.match(key(*tokens)) == len(tokens)
        for probe in probes:
            assert tree.match(key(*probe)) == model.match(probe)
    for node, _ in held:
        tree.unlock(node)
    assert tree.locked_tokens == 0
    assert tree.evict(tree.total_tokens) == len(model.last_used) * page_size
    assert not tree.root.children


@pytest.mark.parametrize("at", [0, 1, 4999, 9999])
def test_a_long_edge_is_cut_at_the_first_difference(at: int) -> None:
    tree = RadixTree()
    tokens = np.arange(10_000, dtype=np.int32)
    tree.unlock(tree.extend(tree.root, token_bytes(tokens)))
    other = tokens.copy()
    other[at] = -1
    assert tree.match(token_bytes(other)) == at
    tree.unlock(tree.extend(tree.root, token_bytes(other)))
    assert tree.total_tokens == 20_000 - at
    assert tree.match(token_bytes(other)) == 10_000
