"""Draws the plans of other groups anew, on clusters of another shape: ranks, separate pools, offload tiers."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from draw_engines import mirrored, queued_heads, reserving, routed, starved, steady, tight
from draw_requests import LLAMA, MIXTURE, RULES, conversations, dressed, limits, longest, moments, plan
from stored import Row


def base(rng: Random) -> Row:
    """A plan of one of the groups in which memory, order or time are short."""
    draw = rng.choice(
        [steady, steady, tight, queued_heads, reserving, mirrored, routed, starved(RULES[rng.choice(sorted(RULES))])]
    )
    return draw(rng)


def in_ranks(rng: Random) -> Row:
    row = base(rng)
    count = rng.choice([2, 2, 4])
    row["cluster"] |= {**MIXTURE, "data_parallel_size": count, "expert_parallel_size": count}
    row["limits"]["data_parallel_balance"] = rng.choice([None, "load", "round_robin", "prefix"])
    return row


def in_stages(rng: Random) -> Row:
    row = base(rng)
    row["cluster"] |= {**LLAMA, "pipeline_parallel_size": rng.choice([2, 4])}
    return row


def in_halves(rng: Random) -> Row:
    """Prefill and decode on instances of their own."""
    row = base(rng)
    cluster = row["cluster"]
    count, engine = cluster.pop("instances"), cluster.pop("engine")
    shared = {"engine": engine, "model": cluster.pop("model"), "gpu": cluster.pop("gpu")}
    cluster["pools"] = [{"name": role, "role": role, "instances": count, **shared} for role in ("prefill", "decode")]
    cluster["kv_transfer"] = {"bandwidth_gb_per_s": rng.choice([0.3, 2.0, 50.0]), "latency_us": rng.choice([0.0, 300.0])}
    row["link"] = {"skip_cached": rng.random() < 0.6, "scope": rng.choice(["sender", "cluster"])}
    return row


def with_tiers(rng: Random) -> Row:
    """KV is evicted all the time, and asked for again by several at once; links are slow."""
    gib = 131_072 / 2**30  # of KV a token
    if rng.random() < 0.4:
        row = base(rng)
        row["cluster"] |= LLAMA
        row["limits"]["enable_prefix_caching"] = True
    else:
        rules = RULES[rng.choice(sorted(RULES))]
        bounds = limits(rng, rules) | {"enable_prefix_caching": True, "enable_chunked_prefill": True}
        bounds |= {"kv_tokens": rng.choice([160, 240]), "max_num_batched_tokens": 64}
        heads = [rng.randint(20, 90) for _ in range(rng.randint(3, 8))]
        asks: list[Row] = []
        for number, at_s in enumerate(moments(rng, rng.randint(16, 36), 0.012)):
            head = rng.randrange(len(heads))
            prompt = [[head, heads[head]], [100 + number, rng.randint(1, 20)]]
            asks.append({"at": at_s, "in": prompt, "out": rng.randint(1, 25)})
        if rng.random() < 0.3:
            asks = conversations(rng, longest(bounds), 0.1)
        row = plan(rng, {**LLAMA, "engine": rules["scheduler"]}, bounds, dressed(rng, asks, rules))
    row["cluster"] |= {
        "host_kv_gib": round(rng.choice([60, 200, 600]) * gib, 5),
        "host_kv_gb_per_s": rng.choice([0.1, 0.5, 5.0]),
    }
    if rng.random() < 0.5:
        row["cluster"] |= {
            "disk_kv_gib": round(rng.choice([300, 3000]) * gib, 5),
            "disk_kv_gb_per_s": rng.choice([0.05, 0.5]),
        }
    return row


GROUPS: dict[str, tuple[Callable[[Random], Row], int]] = {
    "in_ranks": (in_ranks, 24),
    "in_stages": (in_stages, 16),
    "in_halves": (in_halves, 28),
    "with_tiers": (with_tiers, 36),
}
