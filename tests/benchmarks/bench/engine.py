"""Parts of the simulated cluster by themselves: an instance that serves live, the radix tree, a router."""

import gc
import itertools
import tracemalloc
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.measurement import Cost, Work, limits, measures, own_cpu
from bench.product import Cluster, EngineLimits, Instance, RadixTree, Request, make_router, token_bytes

VOCABULARY = 128_000


class FreeStep:
    """A model of steps that costs nothing to ask."""

    def step_s(self, prefill: Sequence[tuple[int, int]], decode_contexts: Sequence[int]) -> float:
        return 0.01


def tokens(count: int, seed: int) -> npt.NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, count, dtype=np.int32)


@measures("token")
def live() -> Iterator[Work]:
    """An instance that follows every sequence, as serving does: prompts of 600 tokens, replies of 300, one every 12 ms."""
    prompts = [tokens(600, i) for i in range(450)]
    reply = np.arange(300, dtype=np.int32)

    def work(share: float) -> Cost:
        bounds = EngineLimits(kv_tokens=10_000_000, max_num_batched_tokens=2048, page_size=16)
        cluster = Cluster([Instance(0, FreeStep(), bounds)], make_router("round_robin"))
        some = prompts[: int(len(prompts) * share)]

        def serve() -> float:
            for i, prompt in enumerate(some):
                cluster.submit(Request(i, prompt, reply), 0.012 * i)
            ends = cluster.advance(float("inf"))
            return sum(len(end.emitted) for end in ends)

        cost = own_cpu(serve)
        assert cost.units == 300 * len(some)
        return cost

    yield work


@measures("request")
def radix_requests() -> Iterator[Work]:
    """The tree's part in requests that share nothing, in a memory that is always full: 2000 tokens, then 500 more."""
    tree = RadixTree(16)
    running: deque[tuple[Any, bytes]] = deque()
    seeds = itertools.count(100_000)

    def make_room(wanted: int) -> None:
        missing = tree.total_tokens + wanted - 400_000
        if 0 < missing <= tree.total_tokens - tree.locked_tokens:
            tree.evict(missing)

    def work(share: float) -> Cost:
        keys = [token_bytes(tokens(2500, next(seeds))) for _ in range(int(8000 * share))]

        def serve() -> float:
            for key in keys:
                node, matched = tree.lock(key, 1999)
                make_room(2000 - matched)
                running.append((tree.extend_to(node, key, matched, 2000), key))
                make_room(250)
                if len(running) > 12:
                    last, whole = running.popleft()
                    make_room(500)
                    tree.finish(last, whole, 2000, 2500)
            return len(keys)

        return own_cpu(serve)

    yield work


@measures("turn")
def radix_turns() -> Iterator[Work]:
    """The tree's part in conversations of 22 turns: the prompt so far and 1500 new tokens, then 300 more; 25 at a time."""
    seeds = itertools.count(500_000)

    def work(share: float) -> Cost:
        tree = RadixTree(16)
        spent_s, turns = 0.0, 0
        for _ in range(max(1, int(10 * share))):
            contexts = [tokens(22 * 1800, next(seeds)) for _ in range(25)]
            for end in range(1800, 22 * 1800 + 1, 1800):
                keys = [token_bytes(each[:end]) for each in contexts]
                cost = own_cpu(lambda keys=keys, end=end: serve_turns(tree, keys, end))  # type: ignore[misc]
                spent_s, turns = spent_s + cost.cpu_s, turns + len(keys)
        return Cost(spent_s, turns)

    yield work


def serve_turns(tree: RadixTree, keys: list[bytes], end: int) -> float:
    prompt = end - 300
    for key in keys:
        node, matched = tree.lock(key, prompt - 1)
        missing = tree.total_tokens + end - matched - 1_500_000
        if missing > 0:
            tree.evict(missing)
        node = tree.extend_to(node, key, matched, prompt)
        tree.finish(node, key, prompt - prompt % tree.page_size, end)
    return len(keys)


@measures("request")
def router_kv_aware() -> Iterator[Work]:
    """A choice among 64 instances for 60,000 tokens of context: all hold the first 4000, one holds every turn."""
    context = tokens(60_000, 0)
    instances = [Instance(i, FreeStep(), EngineLimits(kv_tokens=1_000_000)) for i in range(64)]
    for number, instance in enumerate(instances):
        tree = instance.schedulers[0].kv.tree
        for end in range(600, 60_001 if number == 7 else 4001, 600):
            key = token_bytes(context[:end])
            node, matched = tree.lock(key)
            tree.unlock(tree.extend_to(node, key, matched, end))
    router = make_router("kv_aware")
    request = Request(1, np.append(context, tokens(500, 3)), tokens(1, 5), session_key="s")

    def work(share: float) -> Cost:
        choices = int(2000 * share)

        def choose() -> float:
            for _ in range(choices):
                assert router.choose(request, instances) == 7
                router.forget(7)  # else what it sends there would wait there
            return choices

        return own_cpu(choose)

    yield work


@limits("bytes a token", 5.0)
def cached_token() -> float:
    """Memory of a cached token: 17 agents of 100 turns of 600 tokens. A token id itself has 4 bytes."""
    gc.collect()
    tracemalloc.start()  # the tree may keep the keys themselves: they count
    tree = RadixTree()
    for number in range(17):
        context = tokens(60_000, number)
        for turn in range(1, 101):
            key = token_bytes(context[: turn * 600])
            node, matched = tree.lock(key)
            tree.unlock(tree.extend_to(node, key, matched, turn * 600))
    del context, key, node
    gc.collect()
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / tree.total_tokens
