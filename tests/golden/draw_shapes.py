"""Draws the plans of other groups anew, on clusters of another shape: ranks, separate pools, offload tiers."""

from collections.abc import Callable
from random import Random

from draw_engines import mirrored, queued_heads, reserving, routed, scaled, starved, steady, tight
from draw_requests import (
    LLAMA,
    MIXTURE,
    ROUTERS,
    RULES,
    conversations,
    crowd,
    dressed,
    events,
    limits,
    longest,
    moments,
    plan,
)
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


def blended(rng: Random) -> Row:
    """One model on instances that do all and on such that do half of the work; another model beside it."""
    rules = RULES[rng.choice(sorted(RULES))]
    bounds = limits(rng, rules)
    pool = {"engine": rules["scheduler"], **LLAMA}
    pools = [
        {"name": "whole", "instances": rng.randint(1, 2), **pool},
        {"name": "prefill", "role": "prefill", "instances": rng.randint(1, 2), **pool},
        {"name": "decode", "role": "decode", "instances": rng.randint(1, 2), **pool},
        {"name": "other", "instances": 1, **pool, "model": "Qwen/Qwen3-8B"},
    ]
    rng.shuffle(pools)
    settings = {
        "pools": pools,
        "router": rng.choice(ROUTERS),
        "kv_transfer": {"bandwidth_gb_per_s": rng.choice([0.5, 20.0])},
    }
    if rng.random() < 0.4:
        settings["events"] = events(rng, 4)
    asks = dressed(rng, crowd(rng, longest(bounds), 0.004), rules)
    for ask in asks:
        if rng.random() < 0.6:
            ask["model"] = rng.choice(["meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-8B"])
    row = plan(rng, settings, bounds, asks)
    del row["cluster"]["instances"]
    return row


def long_queue(rng: Random) -> Row:
    """More than the 128 waiting requests that SGLang still sorts."""
    bounds = limits(rng, RULES["sglang_lpm"], roomy=True) | {"enable_prefix_caching": True, "max_num_seqs": 4}
    bounds["max_num_batched_tokens"] = 256
    asks = [
        {"at": 0.0, "in": [[rng.randrange(5), 40], [100 + number, 3]], "out": rng.randint(1, 3)}
        for number in range(rng.randint(130, 160))
    ]
    return plan(rng, {**LLAMA, "engine": "sglang"}, bounds, asks)


def scaled_slowly(rng: Random) -> Row:
    """Autoscaling that looks back before it starts or stops an instance; load that comes and goes; stops and crashes."""
    row = scaled(rng)
    cluster = row["cluster"]
    cluster |= {"scale_up_after_s": rng.choice([0.0, 0.06, 0.12]), "scale_down_after_s": rng.choice([0.06, 0.3])}
    cluster |= {"scale_interval_s": 0.03, "start_up_s": rng.choice([0.02, 0.1]), "on_crash": rng.choice(["reroute", "fail"])}
    cluster["events"] = [{**event, "at_s": round(event["at_s"] * 3, 4)} for event in events(rng, 2)]
    asks = [ask for wave in range(3) for ask in shifted(crowd(rng, longest(row["limits"]), 0.01, 6, 14), 0.4 * wave)]
    row["requests"] = dressed(rng, asks, {})
    return row


def shifted(asks: list[Row], by_s: float) -> list[Row]:
    return [{**ask, "at": round(ask["at"] + by_s, 4)} for ask in asks]


GROUPS: dict[str, tuple[Callable[[Random], Row], int]] = {
    "in_ranks": (in_ranks, 24),
    "in_stages": (in_stages, 16),
    "in_halves": (in_halves, 28),
    "with_tiers": (with_tiers, 36),
    "blended": (blended, 14),
    "long_queue": (long_queue, 2),
    "scaled_slowly": (scaled_slowly, 24),
}
