"""What the cluster itself costs, without a performance model: CPU microseconds per step, per token and per prefix match.

Run it:  python tests/benchmarks/bench_cluster.py
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from llmirage_server.cluster.cluster import Cluster, EngineLimits
from llmirage_server.cluster.instances.base import InstanceBase
from llmirage_server.cluster.instances.fixed import FixedInstance
from llmirage_server.cluster.instances.instance import Instance
from llmirage_server.cluster.kv.radix_tree import RadixTree, token_bytes
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.routers import make_router
from llmirage_server.perf.steps.step_model import StepBatch

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


def serving_cost(limits: EngineLimits, ranks: int = 1, stages: int = 1) -> tuple[float, float]:
    """CPU microseconds a token and requests a CPU second, of 900 prompts of 600 tokens that arrive all the time."""

    class FreeGroup(FreeStep):
        def stages_s(self, batches: Sequence[StepBatch]) -> Sequence[float]:
            return [0.01 / stages] * stages

    model = FreeGroup()
    model.ranks, model.stages = ranks, stages  # type: ignore[attr-defined]
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 32000, 600, dtype=np.int32) for _ in range(900)]
    cluster = Cluster([Instance(0, model, limits)], make_router("round_robin"))
    start = time.process_time()
    for i, prompt in enumerate(prompts):
        cluster.submit(Request(i, prompt, np.arange(300, dtype=np.int32)), 0.012 * i)
    cluster.advance(float("inf"))
    cpu_s = time.process_time() - start
    return cpu_s / (900 * 300) * 1e6, 900 / cpu_s


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
    print(f"{'arriving all the time':<34}{'us/token':>10}{'requests/CPU s':>16}")
    for name, options, shape in (
        ("vllm, page 1", {}, (1, 1)),
        ("vllm, page 16", {"page_size": 16}, (1, 1)),
        ("vllm, 3 draft tokens", {"num_speculative_tokens": 3, "acceptance_rate": 0.7}, (1, 1)),
        ("vllm, 4 ranks", {}, (4, 1)),
        ("vllm, 4 stages", {}, (1, 4)),
        ("sglang", {"scheduler": "sglang"}, (1, 1)),
        ("trtllm, page 32", {"scheduler": "trtllm", "page_size": 32}, (1, 1)),
    ):
        bounds = EngineLimits(kv_tokens=10_000_000, max_num_batched_tokens=2048, **options)
        us, requests = min(serving_cost(bounds, *shape) for _ in range(REPEATS))
        print(f"{name:<34}{us:>10.3f}{requests:>16,.0f}")
    for turns in (1, 60, 120):
        cpu_s = min(match_cost(turns, 60_000 // turns) for _ in range(REPEATS))
        print(f"match of 60,000 tokens over {turns} edges: {cpu_s * 1e6:.0f} us")


if __name__ == "__main__":
    main()
