"""The radix tree against a model that knows every cached page by itself and nothing of edges."""

import hashlib
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from llmirage_server.cluster.kv import radix_tree
from llmirage_server.cluster.kv.radix_tree import TOKEN_BYTES, RadixTree, TreeNode
from llmirage_server.cluster.kv.recorded_tree import BlockHasher, BlocksStored, KVChange, RecordedTree
from llmirage_server.cluster.request import token_bytes

Tokens = tuple[int, ...]


class Pages:
    """Every cached page, by the tokens from the start to its end: how many hold it, and when it was last let go."""

    def __init__(self, page_size: int) -> None:
        self.page = page_size
        self.last_used: dict[Tokens, int] = {}
        self.locks: dict[Tokens, int] = {}
        self.clock = 0

    def prefixes(self, tokens: Tokens) -> list[Tokens]:
        return [tokens[:n] for n in range(self.page, len(tokens) + 1, self.page)]

    def match(self, tokens: Tokens) -> int:
        return sum(self.page for prefix in self.prefixes(tokens) if prefix in self.last_used)

    def hold(self, tokens: Tokens, by: int) -> None:
        for prefix in self.prefixes(tokens):
            self.last_used.setdefault(prefix, 0)
            self.locks[prefix] = self.locks.get(prefix, 0) + by

    def let_go(self, tokens: Tokens) -> None:
        self.clock += 1
        self.hold(tokens, -1)
        for prefix in self.prefixes(tokens):
            self.last_used[prefix] = self.clock

    @property
    def locked_tokens(self) -> int:
        return sum(self.page for count in self.locks.values() if count)

    def leaves(self) -> list[Tokens]:
        parents = {prefix[: -self.page] for prefix in self.last_used}
        return [prefix for prefix in self.last_used if prefix not in parents]

    def evict(self, tokens: int) -> int:
        evicted = 0
        while evicted < tokens:
            free = [leaf for leaf in self.leaves() if not self.locks.get(leaf)]
            if not free:
                break
            oldest = min(free, key=self.last_used.__getitem__)
            del self.last_used[oldest]
            evicted += self.page
        return evicted


class Workload(RuleBasedStateMachine):
    """Sequences that start from what is cached, grow, are let go, and are evicted."""

    tree: RadixTree

    @initialize(page_size=st.sampled_from([1, 2, 4, 16]))
    def start(self, page_size: int) -> None:
        self.tree = RadixTree(page_size)
        self.pages = Pages(page_size)
        self.held: list[tuple[TreeNode, Tokens]] = []

    def tokens(self, symbols: list[int], rest: int) -> Tokens:
        """One page a symbol, so that pages may differ in their last token alone, and an incomplete page."""
        page = self.tree.page_size
        whole = [token for symbol in symbols for token in (symbol // 2,) * (page - 1) + (symbol % 2,)]
        return (*whole, *([0] * (rest % page)))

    def mostly_known(self, which: int, symbols: list[int], rest: int) -> Tokens:
        """Tokens that begin with something cached, or with nothing."""
        cached = [(), *self.pages.last_used]
        return (*cached[which % len(cached)], *self.tokens(symbols, rest))

    SYMBOLS = st.lists(st.integers(0, 3), max_size=8)
    ANY = st.integers(0, 1000)
    LIMIT = st.none() | st.integers(0, 130)

    @rule(which=ANY, symbols=SYMBOLS, rest=ANY, limit=LIMIT)
    def begin(self, which: int, symbols: list[int], rest: int, limit: int | None) -> None:
        tokens = self.mostly_known(which, symbols, rest)
        node, matched = self.tree.lock(key(tokens), limit)
        assert matched == self.pages.match(tokens[:limit])
        self.pages.hold(tokens[:matched], 1)
        self.held.append((node, tokens[:matched]))

    @rule(which=ANY)
    def touch(self, which: int) -> None:
        self.begin(which, [], 0, None)
        self.let_go(-1)

    @rule(which=ANY, symbols=SYMBOLS)
    def serve(self, which: int, symbols: list[int]) -> None:
        self.begin(which, symbols, 0, None)
        self.grow(-1, symbols[::-1], 0)
        self.let_go(-1)

    @precondition(lambda self: self.held)
    @rule(which=ANY, symbols=SYMBOLS, rest=ANY)
    def grow(self, which: int, symbols: list[int], rest: int) -> None:
        node, tokens = self.held.pop(which % len(self.held))
        whole = tokens + self.tokens(symbols, rest)
        longer = whole[: len(whole) - len(whole) % self.tree.page_size]
        self.held.append((self.tree.extend_to(node, key(whole), len(tokens), len(whole)), longer))
        self.pages.hold(longer, 1)
        self.pages.hold(tokens, -1)

    @precondition(lambda self: self.held)
    @rule(which=ANY, symbols=SYMBOLS, rest=ANY, ahead=SYMBOLS)
    def grow_by_key(self, which: int, symbols: list[int], rest: int, ahead: list[int]) -> None:
        """As `grow`, with the whole key, which has tokens that are to come later."""
        node, tokens = self.held.pop(which % len(self.held))
        longer, whole, stop = self.whole_key(tokens, symbols, rest, ahead)
        self.held.append((self.tree.extend_to(node, whole, len(tokens), stop), longer))
        self.pages.hold(longer, 1)
        self.pages.hold(tokens, -1)

    @precondition(lambda self: self.held)
    @rule(which=ANY, symbols=SYMBOLS, rest=ANY)
    def finish(self, which: int, symbols: list[int], rest: int) -> None:
        node, tokens = self.held.pop(which % len(self.held))
        longer, whole, stop = self.whole_key(tokens, symbols, rest, [])
        self.tree.finish(node, whole, len(tokens), stop)
        self.pages.hold(longer, 1)
        self.pages.hold(tokens, -1)
        self.pages.let_go(longer)

    def whole_key(self, tokens: Tokens, symbols: list[int], rest: int, ahead: list[int]) -> tuple[Tokens, bytes, int]:
        """What is stored when these pages follow, a key that goes further, and how many of its tokens are asked for."""
        page = self.tree.page_size
        stop = len(tokens) + len(symbols) * page + rest % page
        whole = (*tokens, *self.tokens([*symbols, *ahead, 0], rest))
        return whole[: stop - rest % page], key(whole), stop

    @rule(which=ANY, symbols=SYMBOLS, rest=ANY, ahead=SYMBOLS)
    def serve_by_key(self, which: int, symbols: list[int], rest: int, ahead: list[int]) -> None:
        self.begin(which, symbols, 0, None)
        self.grow_by_key(-1, symbols[::-1], rest, ahead)
        self.finish(-1, ahead, 0)

    @precondition(lambda self: self.held)
    @rule(which=ANY)
    def let_go(self, which: int) -> None:
        node, tokens = self.held.pop(which % len(self.held))
        self.tree.unlock(node)
        self.pages.let_go(tokens)

    @rule(pages=st.integers(0, 3), tokens=st.integers(1, 3))
    def evict(self, pages: int, tokens: int) -> None:
        wanted = pages * self.tree.page_size + tokens
        assert self.tree.evict(wanted) == self.pages.evict(wanted)

    @rule(which=ANY, symbols=SYMBOLS, rest=ANY, limit=LIMIT)
    def look(self, which: int, symbols: list[int], rest: int, limit: int | None) -> None:
        tokens = self.mostly_known(which, symbols, rest)
        assert self.tree.match(key(tokens), limit) == self.pages.match(tokens[:limit])

    @invariant()
    def sizes_are_the_same(self) -> None:
        assert self.tree.total_tokens == len(self.pages.last_used) * self.pages.page
        assert self.tree.locked_tokens == self.pages.locked_tokens
        assert self.tree.evictable_tokens == self.tree.total_tokens - self.pages.locked_tokens

    @invariant()
    def the_same_pages_are_cached(self) -> None:
        # All that the model has is there; that nothing else is follows from the equal totals.
        for leaf in self.pages.leaves():
            assert self.tree.match(key(leaf)) == len(leaf)

    @invariant()
    def the_runs_hold_together(self) -> None:
        page_bytes = self.tree.page_size * TOKEN_BYTES
        runs, stored = [self.tree.root.run], 0
        while runs:
            run = runs.pop()
            stored += run.size
            assert [*run.ends, run.size] == sorted({node.end for node in (*run.nodes, run.tail)})
            assert run.locked == [node.end for node in run.nodes if node.locks]
            for end, node in zip([*run.ends, run.size], [*run.nodes, run.tail], strict=True):
                assert (node.run, node.end) == (run, end)
                for first, child in node.children.items():
                    assert (child.parent, child.tokens[:page_bytes]) == (node, first)
                    assert 0 < child.size <= len(child.tokens)
                    # More is kept of a key only as long as its sequence is at the end of the run.
                    assert child.tail.locks or len(child.tokens) <= 2 * child.size + page_bytes
                    runs.append(child)
            assert not run.plain or (run.parent is self.tree.root and not run.nodes and not run.tail.children)
        assert stored == self.tree.total_tokens * TOKEN_BYTES
        assert len(self.tree._queue) <= 2 * (self.tree._queue_size + radix_tree._QUEUE_SLACK) + 2

    def teardown(self) -> None:
        for node, tokens in self.held:
            self.tree.unlock(node)
            self.pages.let_go(tokens)
        assert self.tree.locked_tokens == 0
        for _ in range(len(self.pages.last_used)):  # the order of all that is left
            assert self.tree.evict(1) == self.pages.evict(1)
            self.the_same_pages_are_cached()
        assert self.tree.total_tokens == 0
        assert not self.tree.root.children


class RecordedWorkload(Workload):
    """The same, on a tree that tells of its changes: each page that is cached has been told of, by vLLM's hash."""

    @initialize(page_size=st.sampled_from([1, 2, 4, 16]))
    def start(self, page_size: int) -> None:
        super().start(page_size)
        self.told: list[bytes] = []
        self.hasher = BlockHasher("sha256_cbor")
        self.tree = RecordedTree(page_size, self.hasher, self.changed)

    def changed(self, change: KVChange) -> None:
        assert change.hashes
        if isinstance(change, BlocksStored):
            assert change.parent is None or change.parent in self.told
            assert self.hasher.hashes(change.parent, change.tokens, self.tree.page_size) == change.hashes
            self.told += change.hashes
        else:
            for gone in change.hashes:
                self.told.remove(gone)

    @invariant()
    def the_same_pages_were_told_of(self) -> None:
        cached = {self.hasher.hashes(None, key(tokens), self.tree.page_size)[-1] for tokens in self.pages.last_used}
        assert len(self.told) == len(cached)
        assert set(self.told) == cached


def key(tokens: Tokens) -> bytes:
    return token_bytes(np.array(tokens, dtype=np.int32))


def test_hits_evictions_locks_and_sizes_never_differ_from_those_of_single_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(radix_tree, "_QUEUE_SLACK", 4)  # so that the queue of ends is cleared often
    monkeypatch.setattr(radix_tree, "MERGED_BYTES", 96)  # so that runs of all lengths occur
    run_state_machine_as_test(Workload, settings=settings(stateful_step_count=40))


def test_changes_are_told_of_as_they_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(radix_tree, "_QUEUE_SLACK", 4)
    monkeypatch.setattr(radix_tree, "MERGED_BYTES", 96)
    run_state_machine_as_test(RecordedWorkload, settings=settings(stateful_step_count=40))


def test_hashes_are_those_of_vllm() -> None:
    """Vectors of vLLM 0.17 with PYTHONHASHSEED=0: loxilb-io/loxilb-inference-gateway, cicd/common/kv_hash/fixtures."""
    first, second = BlockHasher("sha256_cbor", "0").hashes(None, key(tuple(range(101, 3300, 101))), 16)
    assert first.hex() == "d450abdaf2c9ebdd0e0cbfbc4e24a5c07ff71dcab37be7426d4fa0e5fdb93342"
    assert second.hex() == "0d95d2dc02f528b32afbd33ebffedd911ed1978087b0a01679b4ddd62261c5db"
    ids = (785, 3974, 13876, 38835, 34208, 916, 279, 15678, 5562, 13, 44801, 2266, 25, 8287, 1411, 27217)
    [of_text] = BlockHasher("sha256_cbor", "0").hashes(None, key(ids), 16)
    assert of_text.hex() == "caba889d3604b3df8dcdd10e42088879dbda2a1da4d19650da393e3b3c4a3207"


@pytest.mark.parametrize("seed", ["0", "vllm-none-hash", "a" * 30])
def test_hashes_are_those_of_the_libraries_that_vllm_calls(seed: str) -> None:
    tokens = [5, 23, 24, 255, 256, 65_535, 65_536, 2**31 - 1]

    def chained(write: Callable[[Any], bytes]) -> list[bytes]:
        before, found = hashlib.sha256(write(seed)).digest(), []
        for start in (0, 4):
            before = hashlib.sha256(write((before, tuple(tokens[start : start + 4]), None))).digest()
            found.append(before)
        return found

    assert BlockHasher("sha256", seed).hashes(None, key(tuple(tokens)), 4) == chained(partial(pickle.dumps, protocol=5))
    cbor2 = pytest.importorskip("cbor2")
    assert BlockHasher("sha256_cbor", seed).hashes(None, key(tuple(tokens)), 4) == chained(
        partial(cbor2.dumps, canonical=True)
    )
