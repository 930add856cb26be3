"""What the radix tree and the routers cost: microseconds an operation, and bytes a cached token.

Run it:  python tests/benchmarks/bench_radix.py            (about a minute)
         python tests/benchmarks/bench_radix.py warm       (one of: standard, turns, warm, scale, evict, memory, router)
"""

from __future__ import annotations

import gc
import itertools
import sys
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from llmirage_server.cluster.instances.instance import Instance
from llmirage_server.cluster.kv.radix_tree import TOKEN_BYTES, Node, RadixTree, token_bytes
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.routers import ROUTERS, make_router

CONTEXT_TOKENS = 60_000
VOCABULARY = 128_000
REPEATS = 40

Tokens = npt.NDArray[np.int32]


def tokens(n: int, seed: int) -> Tokens:
    return np.random.default_rng(seed).integers(0, VOCABULARY, n, dtype=np.int32)


def store(tree: RadixTree, key: bytes) -> None:
    node, matched = tree.lock(key)
    tree.unlock(tree.extend(node, key[matched * TOKEN_BYTES :]))


def us(operation: Callable[[], object], repeats: int = REPEATS) -> tuple[float, float]:
    """Best and median microseconds."""
    gc.collect()
    gc.disable()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        operation()
        times.append(time.perf_counter() - start)
    gc.enable()
    return min(times) * 1e6, sorted(times)[repeats // 2] * 1e6


def grown(page_size: int, turns: int) -> RadixTree:
    """A conversation that reached the whole context in so many turns."""
    tree, context = RadixTree(page_size), tokens(CONTEXT_TOKENS, 0)
    for turn in range(1, turns + 1):
        store(tree, token_bytes(context[: CONTEXT_TOKENS * turn // turns]))
    return tree


def branched(page_size: int, branches: int) -> RadixTree:
    """The whole context, with others that left it at so many places."""
    tree, context = RadixTree(page_size), tokens(CONTEXT_TOKENS, 0)
    store(tree, token_bytes(context))
    for i, at in enumerate(np.random.default_rng(1).integers(1, CONTEXT_TOKENS, branches)):
        store(tree, token_bytes(np.append(context[:at], tokens(16, 10 + i))))
    return tree


def trunk_of_dead_branches(page_size: int, branches: int) -> RadixTree:
    """The same after all the branches were evicted, the context being in use."""
    tree = branched(page_size, branches)
    held, _ = tree.lock(token_bytes(tokens(CONTEXT_TOKENS, 0)))
    tree.evict(tree.evictable_tokens)
    tree.unlock(held)
    return tree


def crowded(tree: RadixTree, sessions: int = 2000, tokens_each: int = 500) -> RadixTree:
    """With a million tokens of others beside it, which share its first tokens."""
    start = tokens(CONTEXT_TOKENS, 0)[:3000]
    for i in range(sessions):
        store(tree, token_bytes(np.append(start[: int(tokens(1, 9000 + i)[0]) % 3000 + 1], tokens(tokens_each, 20_000 + i))))
    return tree


def warm() -> None:
    print(f"\nmatch, and lock + extend by 500 tokens + unlock, of a {CONTEXT_TOKENS:,}-token context, us (best, median)")
    print(f"{'shape':<44}{'page':>5}{'runs':>8}{'match':>9}{'':>8}{'lock..unlock':>14}{'':>8}")
    shapes: list[tuple[str, Callable[[int], RadixTree]]] = [
        ("one turn", lambda page: grown(page, 1)),
        ("60 turns", lambda page: grown(page, 60)),
        ("100 turns", lambda page: grown(page, 100)),
        ("100 turns, 1,000,000 tokens of others", lambda page: crowded(grown(page, 100))),
        ("1,000 live branches along it", lambda page: branched(page, 1000)),
        ("3,000 live branches along it", lambda page: branched(page, 3000)),
        ("3,000 dead branches along it", lambda page: trunk_of_dead_branches(page, 3000)),
    ]
    for name, make in shapes:
        for page in (1, 16):
            tree = make(page)
            context = token_bytes(tokens(CONTEXT_TOKENS, 0))
            runs = path_runs(tree, context)
            match_best, match_median = us(lambda tree=tree, context=context: tree.match(context))  # type: ignore[misc]
            replies = iter([context + token_bytes(tokens(500, 70_000 + i)) for i in range(REPEATS)])

            def serve(tree: RadixTree = tree, replies: Iterator[bytes] = replies) -> None:
                key = next(replies)
                node, matched = tree.lock(key)
                tree.unlock(tree.extend(node, key[matched * TOKEN_BYTES :]))

            best, median = us(serve)
            print(f"{name:<44}{page:>5}{runs:>8}{match_best:>9.1f}{match_median:>8.1f}{best:>14.1f}{median:>8.1f}")


def path_runs(tree: RadixTree, key: bytes) -> int:
    node, _ = tree.lock(key)
    last, runs = node, 0
    while node.run.parent is not None:
        node, runs = node.run.parent, runs + 1
    tree.unlock(last)
    return runs


def nodes(tree: RadixTree) -> int:
    found, todo = 0, [tree.root.run]
    while todo:
        run = todo.pop()
        found += len(run.nodes) + 1
        todo.extend(child for node in (*run.nodes, run.tail) for child in node.children.values())
    return found


def scale() -> None:
    print("\nserving agent sessions (20 running, a turn of 600 tokens each, new session after 100 turns), us a turn")
    print(f"{'cached tokens':<20}{'page':>5}{'nodes':>10}{'us a turn':>12}   (lock + extend + unlock + evict; mean)")
    for page in (1, 16):
        for capacity in (100_000, 1_000_000, 4_000_000):
            tree, rng = RadixTree(page), np.random.default_rng(0)
            sessions = [(i, int(rng.integers(1, 100))) for i in range(20)]
            contexts = [tokens(60_600, i) for i in range(20)]
            spent, turns = 0.0, 0
            while turns < 400 or tree.total_tokens < capacity * 0.95:
                slot = int(rng.integers(20))
                seed, turn = sessions[slot]
                sessions[slot] = (seed, turn + 1) if turn < 100 else (seed + 20, 1)
                if turn >= 100:
                    contexts[slot] = tokens(60_600, seed + 20)
                key = token_bytes(contexts[slot][: sessions[slot][1] * 600])
                start = time.perf_counter()
                node, matched = tree.lock(key)
                if (over := tree.total_tokens + len(key) // TOKEN_BYTES - matched - capacity) > 0:
                    tree.evict(over)
                tree.unlock(tree.extend(node, key[matched * TOKEN_BYTES :]))
                spent, turns = spent + time.perf_counter() - start, turns + 1
                if tree.total_tokens > capacity * 0.9 and turns % 400 == 0 and turns > 800:
                    break
            print(f"{tree.total_tokens:<20,}{page:>5}{nodes(tree):>10,}{spent / turns * 1e6:>12.1f}")


def evict() -> None:
    print("\neviction, us")
    for leaves in (1_000, 10_000, 100_000):
        tree, rng = RadixTree(), np.random.default_rng(0)
        for _ in range(leaves):
            store(tree, token_bytes(rng.integers(0, VOCABULARY, 20, dtype=np.int32)))
        start = time.perf_counter()
        tree.evict(20 * leaves)
        print(f"  {leaves:>7,} leaves, oldest first: {(time.perf_counter() - start) / leaves * 1e6:.2f} a leaf")
    for page in (1, 16):
        tree = RadixTree(page)
        store(tree, token_bytes(tokens(CONTEXT_TOKENS, 0)))
        start = time.perf_counter()
        for _ in range(CONTEXT_TOKENS // page):
            tree.evict(1)
        each = (time.perf_counter() - start) / (CONTEXT_TOKENS // page)
        print(f"  a tail of {CONTEXT_TOKENS:,} tokens, page by page ({page}): {each * 1e6:.2f} a page")


def cpu_us(operation: Callable[[], int], repeats: int = 5) -> float:
    """CPU microseconds of one of the things that `operation` does and counts, at best."""
    gc.collect()
    costs = []
    for _ in range(repeats):
        start = time.process_time()
        count = operation()
        costs.append((time.process_time() - start) / count)
    return min(costs) * 1e6


def standard() -> None:
    """Requests that share nothing, 2,000 tokens in and 500 out, in a memory that is always full."""
    print("\nsimulated requests, CPU us each: lock, 3 evictions, a prompt of 2,000 tokens, 500 more at the end, unlock")
    for page in (1, 16):
        tree, running, seed = RadixTree(page), deque[tuple[Node, bytes, int]](), itertools.count()

        def make_room(tokens: int, tree: RadixTree = tree) -> None:
            missing = tree.total_tokens + tokens - 400_000
            if 0 < missing <= tree.total_tokens - tree.locked_tokens:
                tree.evict(missing)

        def serve(keys: list[bytes], tree: RadixTree = tree, running: deque[tuple[Node, bytes, int]] = running) -> int:
            for key in keys:
                node, matched = tree.lock(key, 1999)
                make_room(2000 - matched)
                running.append((tree.extend_to(node, key, matched, 2000), key, 2000))
                make_room(250)
                if len(running) > 12:
                    node, key, stored = running.popleft()
                    make_room(500)
                    tree.finish(node, key, stored, 2500)
            return len(keys)

        def round_of(serve: Callable[[list[bytes]], int] = serve, seed: Iterator[int] = seed) -> Callable[[], int]:
            keys = [token_bytes(tokens(2500, 100_000 + next(seed))) for _ in range(1000)]
            return lambda: serve(keys)

        round_of()()
        best = min(cpu_us(round_of(), 1) for _ in range(8))
        print(f"  page {page:<4}{best:>8.1f}   ({tree.total_tokens:,} tokens, {nodes(tree)} nodes)")


def turns() -> None:
    """Conversations: the prompt of a turn is all there was before, and 1,500 tokens more."""
    print("\nturns of conversations, CPU us each: lock, an eviction, a prompt of 1,500 more tokens, 300 at the end, unlock")
    print(f"  {'page':<6}{'tokens in a turn':<20}{'us':>8}")
    for page in (1, 16):
        for turn in (3, 6, 11, 22, 44):
            tree, seed = RadixTree(page), itertools.count()

            def serve(keys: list[bytes], end: int, tree: RadixTree = tree) -> int:
                for key in keys:
                    node, matched = tree.lock(key, end - 301)
                    missing = tree.total_tokens + end - matched - 1_500_000
                    if missing > 0:
                        tree.evict(missing)
                    node = tree.extend_to(node, key, matched, end - 300)
                    start = end - 300
                    tree.finish(node, key, start - start % tree.page_size, end)
                return len(keys)

            best = float("inf")
            for _ in range(5):
                whole = [tokens(turn * 1800, 500_000 + next(seed)) for _ in range(20)]
                for end in range(1800, turn * 1800 + 1, 1800):
                    keys = [token_bytes(each[:end]) for each in whole]
                    start = time.process_time()
                    serve(keys, end)
                    cost = (time.process_time() - start) / len(keys)
                best = min(best, cost * 1e6)
            print(f"  {page:<6}{turn * 1800:<20,}{best:>8.1f}")


@contextmanager
def allocated(name: str, tree: RadixTree) -> Iterator[None]:
    gc.collect()
    tracemalloc.start()
    yield
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    count = nodes(tree)
    of_token, of_node = used / tree.total_tokens, used / count
    print(f"  {name:<52}{tree.total_tokens:>12,}{count:>10,}{of_token:>9.1f}{of_node:>9.0f}")


def memory() -> None:
    print(f"\n{'memory':<54}{'tokens':>12}{'nodes':>10}{'B/token':>9}{'B/node':>9}")
    tree = RadixTree()
    with allocated("17 agent sessions of 100 turns x 600 tokens", tree):
        for i in range(17):
            context = token_bytes(tokens(60_000, i))
            for turn in range(1, 101):
                store(tree, context[: turn * 600 * TOKEN_BYTES])
    tree = RadixTree(16)
    with allocated("10,000 prompts: 2,000 shared and 100 of their own", tree):
        system = tokens(2000, 0)
        for i in range(10_000):
            store(tree, token_bytes(np.append(system, tokens(112, i + 1))))
    tree = RadixTree(16)
    with allocated("62,500 leaves of one page of 16", tree):
        for i in range(62_500):
            store(tree, token_bytes(tokens(16, i)))
    tree = RadixTree()
    with allocated("worst case: 100,000 leaves of one token", tree):
        for i in range(100_000):
            store(tree, token_bytes(np.array([i], dtype=np.int32)))


class FreeStep:
    def step_s(self, prefill: object, decode_contexts: object) -> float:
        return 0.001


def router() -> None:
    print(f"\nchoose() among 64 instances, 100 turns of {CONTEXT_TOKENS:,} tokens and 500 new ones, us (best, median)")
    print(f"{'router':<16}{'one has it, all its first 4,000':>34}{'all have all the turns':>30}")
    context = tokens(CONTEXT_TOKENS, 0)
    lengths = [CONTEXT_TOKENS * turn // 100 for turn in range(1, 101)]
    reply = tokens(1, 5)
    clusters = {}
    for name, everyone_has in (("one", 4000), ("all", CONTEXT_TOKENS)):
        instances = [Instance(i, FreeStep(), EngineLimits(kv_tokens=1_000_000)) for i in range(64)]
        for i, instance in enumerate(instances):
            for length in lengths:
                if length <= everyone_has or i == 7:
                    store(instance.schedulers[0].kv.tree, token_bytes(context[:length]))
        clusters[name] = instances
    for policy in ROUTERS:
        row = f"{policy:<16}"
        for name, everyone_has in (("one", 4000), ("all", CONTEXT_TOKENS)):
            chooser, instances = make_router(policy), clusters[name]
            if policy == "prefix":
                for i, instance in enumerate(instances):
                    for length in lengths:
                        if length <= everyone_has or i == 7:
                            chooser.choose(Request(0, context[:length], reply), [instance])
            request = Request(1, np.append(context, tokens(500, 3)), reply, session_key="s")
            best, median = us(lambda c=chooser, r=request, i=instances: c.choose(r, i))  # type: ignore[misc]
            row += f"{best:>24.0f}{median:>8.0f}"
        print(row)


PARTS = {
    "standard": standard,
    "turns": turns,
    "warm": warm,
    "scale": scale,
    "evict": evict,
    "memory": memory,
    "router": router,
}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
