"""What the cluster itself costs, without a performance model: CPU microseconds per step, per token and per prefix match.

Run it:  python tests/benchmarks/bench_cluster.py
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from llmirage_server.cluster.cluster import Cluster, EngineLimits
from llmirage_server.cluster.fixed import FixedInstance
from llmirage_server.cluster.instance import Instance
from llmirage_server.cluster.instance_base import InstanceBase
from llmirage_server.cluster.radix_tree import RadixTree, token_bytes
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.router import make_router

PROMPT_TOKENS = 1000
OUTPUT_TOKENS = 400
REPEATS = 3


class FreeStep:
    """A step model that costs nothing to ask."""

    def step_s(self, prefill: Sequence[tuple[int, int]], decode_contexts: Sequence[int]) -> float:
        return 0.01


def decode_cost(instance: InstanceBase, sequences: int) -> tuple[int, int, float]:
    """Steps, tokens and CPU seconds of `sequences` requests at once, from their first token to their last."""
    rng = np.random.default_rng(0)
    cluster = Cluster([instance], make_router("round_robin"))
    for i in range(sequences):
        prompt = rng.integers(0, 32000, PROMPT_TOKENS, dtype=np.int32)
        cluster.submit(Request(i, prompt, np.arange(OUTPUT_TOKENS, dtype=np.int32)), 0.0)
    while not cluster.advance(cluster.next_event_time()) or cluster.snapshot()[0].waiting:
        pass
    start = time.process_time()
    ends = cluster.advance(float("inf"))
    return len(ends), sum(len(end.emitted) for end in ends), time.process_time() - start


def match_cost(turns: int, tokens_per_turn: int) -> float:
    """CPU seconds to match a conversation that grew turn by turn, among 500 others with the same first 4000 tokens."""
    rng = np.random.default_rng(0)
    tree = RadixTree()
    tokens = rng.integers(0, 32000, turns * tokens_per_turn, dtype=np.int32)
    for turn in range(1, turns + 1):
        tree.unlock(tree.extend(tree.root, token_bytes(tokens[: turn * tokens_per_turn])))
    for _ in range(500):
        other = np.concatenate([tokens[:4000], rng.integers(0, 32000, 2000, dtype=np.int32)])
        tree.unlock(tree.extend(tree.root, token_bytes(other)))
    start = time.process_time()
    for _ in range(50):
        assert tree.match(token_bytes(tokens)) == len(tokens)
    return (time.process_time() - start) / 50


def main() -> None:
    limits = EngineLimits(kv_tokens=10_000_000)
    paged = EngineLimits(kv_tokens=10_000_000, page_size=16)
    print(f"{'instance':<24}{'sequences':>10}{'us/step':>10}{'us/token':>10}")
    for sequences in (64, 256):
        for name, make in (
            ("batching, page 1", lambda: Instance(0, FreeStep(), limits)),
            ("batching, page 16", lambda: Instance(0, FreeStep(), paged)),
            ("fixed times", lambda: FixedInstance(0, 0.2, 0.01, limits)),
        ):
            steps, tokens, cpu_s = min((decode_cost(make(), sequences) for _ in range(REPEATS)), key=lambda cost: cost[2])
            print(f"{name:<24}{sequences:>10}{cpu_s / steps * 1e6:>10.1f}{cpu_s / tokens * 1e6:>10.3f}")
    for turns in (1, 60, 120):
        cpu_s = min(match_cost(turns, 60_000 // turns) for _ in range(REPEATS))
        print(f"match of 60,000 tokens over {turns} edges: {cpu_s * 1e6:.0f} us")


if __name__ == "__main__":
    main()
