"""Draws engine plans, group by group. What is drawn is kept as a file."""

from collections.abc import Callable
from random import Random
from typing import Any

from draw_requests import (
    DRAFT,
    ENGINES,
    HYBRID,
    LLAMA,
    MIXTURE,
    ROUTERS,
    RULES,
    WINDOWS,
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

# --- groups ------------------------------------------------------------------------------------------------------------


def of_rules(rules: dict[str, Any], model: dict[str, Any] = LLAMA) -> Callable[[Random], Row]:
    """One or two instances under the rules of an engine."""

    def draw(rng: Random) -> Row:
        bounds = limits(rng, rules)
        several = rng.random() < 0.3
        asks = conversations(rng, longest(bounds)) if rng.random() < 0.25 else crowd(rng, longest(bounds))
        if model is WINDOWS:
            for ask in asks:
                ask["out"] = min(ask["out"] * 3, max(longest(bounds) - sum(n for _, n in ask["in"]), 1))
        settings = {**model, "engine": rules["scheduler"]}
        if several:
            settings |= {"instances": 2, "router": rng.choice(ROUTERS)}
        return plan(rng, settings, bounds, dressed(rng, asks, rules))

    return draw


def starved(rules: dict[str, Any]) -> Callable[[Random], Row]:
    """Short prompts whose answers outgrow the memory while they run."""

    def draw(rng: Random) -> Row:
        bounds = limits(rng, rules) | {"kv_tokens": rng.choice([200, 300, 400]), "max_num_seqs": rng.choice([6, 16, 16])}
        bounds["max_num_batched_tokens"] = max(bounds["max_num_batched_tokens"], 20)
        if rules["scheduler"] == "sglang":
            bounds["schedule_conservativeness"] = rng.choice([0.02, 0.1, 0.3])
        asks = []
        for number, at_s in enumerate(moments(rng, rng.randint(12, 28), rng.choice([0.004, 0.012]))):
            prompt = [[rng.randrange(3), 16]] * (rng.random() < 0.3) + [[100 + number, rng.randint(1, 20)]]
            room = longest(bounds) - sum(tokens for _, tokens in prompt)
            asks.append({"at": at_s, "in": prompt, "out": max(min(rng.randint(20, 120), room), 1)})
        settings: dict[str, Any] = {**LLAMA, "engine": rules["scheduler"]}
        if rng.random() < 0.3:
            settings |= {"instances": 2, "router": rng.choice(ROUTERS)}
        return plan(rng, settings, bounds, dressed(rng, asks, rules))

    return draw


def tight(rng: Random) -> Row:
    """Priorities, prompts in many chunks, hardly a token to spare in a step: who gives way leaves tokens to others."""
    rules = RULES[rng.choice(["vllm_priority", "vllm_priority", "vllm_priority", "trtllm_most"])]
    page = rng.choice([1, 4])
    seqs = rng.choice([6, 10, 16])
    bounds = limits(rng, rules) | {"max_num_seqs": seqs, "page_size": page, "enable_chunked_prefill": True}
    bounds |= {"kv_tokens": rng.choice([200, 280]), "max_num_batched_tokens": max(seqs + rng.randint(0, 3), page)}
    asks = []
    for number, at_s in enumerate(moments(rng, rng.randint(16, 30), rng.choice([0.005, 0.015]))):
        if rng.random() < 0.5:
            own, out, priority = rng.randint(40, 100), rng.randint(1, 10), rng.randint(0, 1)
        else:
            own, out, priority = rng.randint(2, 10), rng.randint(20, 80), rng.randint(0, 5)
        asks.append({"at": at_s, "in": [[100 + number, own]], "out": out, "priority": priority})
    return plan(rng, {**LLAMA, "engine": rules["scheduler"]}, bounds, dressed(rng, asks, {}))


def queued_heads(rng: Random) -> Row:
    """Many wait whose prompts begin alike, cached or not yet."""
    rules = RULES[rng.choice(["sglang_lpm", "sglang_lpm", "sglang_lpm", "trtllm", "trtllm_most", "vllm"])]
    bounds = limits(rng, rules, roomy=True) | {"enable_prefix_caching": True, "max_num_seqs": rng.choice([1, 2, 3, 5])}
    bounds |= {"enable_chunked_prefill": True, "max_num_batched_tokens": rng.choice([40, 200, 400])}
    heads = [rng.choice([31, 32, 40, 64]) for _ in range(rng.randint(3, 12))]
    asks = []
    for number, at_s in enumerate(moments(rng, rng.randint(14, 30), 0.004)):
        head = rng.randrange(len(heads))
        asks.append({"at": at_s, "in": [[head, heads[head]], [100 + number, rng.randint(1, 20)]], "out": rng.randint(1, 20)})
    settings: dict[str, Any] = {**LLAMA, "engine": rules["scheduler"]}
    if rng.random() < 0.3:
        settings |= {"instances": 2, "router": rng.choice(ROUTERS)}
    return plan(rng, settings, bounds, dressed(rng, asks, rules))


def reserving(rng: Random) -> Row:
    """SGLang and TensorRT-LLM reserve memory for long answers, of which many end early or are allowed far more."""
    rules = RULES[rng.choice(["sglang", "sglang", "sglang_mixed", "sglang_lpm", "trtllm"])]
    bounds = limits(rng, rules) | {"kv_tokens": rng.choice([600, 1200, 2400]), "max_num_seqs": 16}
    bounds["max_num_batched_tokens"] = max(bounds["max_num_batched_tokens"], 64)
    if rules["scheduler"] == "sglang":
        bounds["schedule_conservativeness"] = rng.choice([0.3, 1.0, 1.4])
        bounds["max_prefill_tokens"] = rng.choice([16384, 64, 100])
    asks = []
    for number, at_s in enumerate(moments(rng, rng.randint(12, 30), rng.choice([0.01, 0.1]))):
        own = rng.choice([5, 32, 64, 100])
        out = rng.choice([5, 60, 200, 400])
        ask = {"at": at_s, "in": [[100 + number, own]], "out": min(out, longest(bounds) - own)}
        if rng.random() < 0.4:
            ask["max"] = ask["out"] + rng.choice([100, 300, 5000])
        asks.append(ask)
    return plan(rng, {**LLAMA, "engine": rules["scheduler"]}, bounds, dressed(rng, asks, {}))


def steady(rng: Random) -> Row:
    """Long answers, few changes: batches that run for hundreds of steps."""
    rules = RULES[rng.choice(sorted(RULES))]
    bounds = limits(rng, rules) | {"kv_tokens": rng.choice([600, 1500, 6000]), "max_num_seqs": rng.choice([4, 16])}
    bounds["max_num_batched_tokens"] = max(bounds["max_num_batched_tokens"], 20)
    asks = []
    for number, at_s in enumerate(moments(rng, rng.randint(3, 12), rng.choice([0.05, 0.4]))):
        own = rng.randint(1, 90)
        room = max(longest(bounds) - own, 1)
        asks.append({"at": at_s, "in": [[100 + number, own]], "out": min(rng.choice([20, 100, 250, 400]), room)})
    settings: dict[str, Any] = {**rng.choice([LLAMA, LLAMA, WINDOWS]), "engine": rules["scheduler"]}
    if rng.random() < 0.4:
        settings |= {"instances": 2, "router": rng.choice(ROUTERS), "on_crash": rng.choice(["reroute", "fail"])}
        if rng.random() < 0.6:
            settings["events"] = [{**event, "at_s": round(event["at_s"] * 6, 4)} for event in events(rng, 2)]
    row = plan(rng, settings, bounds, dressed(rng, asks, rules, 0.2))
    row["looks"] = sorted(round(rng.random() * 2, 4) for _ in range(rng.randint(0, 6)))
    return row


def mirrored(rng: Random) -> Row:
    """Equal instances with equal work, whose steps end together; users who go on, or give up, when another is served."""
    rules = RULES[rng.choice(sorted(RULES))]
    bounds = limits(rng, rules, roomy=rng.random() < 0.6)
    bounds["max_num_batched_tokens"] = max(bounds["max_num_batched_tokens"], 24)
    count = rng.choice([1, 2, 2, 3])
    asks: list[Row] = []
    for wave in range(rng.randint(2, 5)):  # the same for every instance, but that the very first is over before all others
        own = rng.choice([1, 12, 20])
        out = rng.choice([30, 40, 80]) if wave else rng.choice([3, 10, 20])
        asks += [
            {"at": 0.0, "in": [[100 + len(asks) + i, own]], "out": out + 10 * (not wave and i > 0)} for i in range(count)
        ]
    if count > 1:
        for number in rng.sample([i for i in range(len(asks)) if i % count], rng.randint(0, 2)):
            asks[number]["cancel_with"] = 0  # at the very end of a step that is not theirs
    first = len(asks)
    for number in range(first, first + rng.randint(3, 16)):
        gap_s = rng.choice([0.0, 0.0, 0.0, 0.005])
        out = rng.choice([1, 7, 20, 60])
        asks.append({"after": [rng.randrange(number), gap_s], "in": [[100 + number, rng.choice([1, 12])]], "out": out})
    for number, ask in enumerate(asks):
        if rng.random() < 0.15:
            ask.setdefault("cancel_with", rng.randrange(len(asks)))
        if rules.get("schedule_policy") == "priority":
            ask["priority"] = rng.randint(0, 2)
        if ask.get("cancel_with") == number:
            del ask["cancel_with"]
    settings = {**LLAMA, "engine": rules["scheduler"], "instances": count, "router": "round_robin"}
    row = plan(rng, settings, bounds, asks, looks_with=rng.sample(range(len(asks)), 2))
    if rng.random() < 0.8:
        row["front_end_s"] = 0.0
    return row


def routed(rng: Random) -> Row:
    """Conversations over several instances, by every router."""
    rules = RULES[rng.choice(sorted(RULES))]
    bounds = limits(rng, rules, roomy=rng.random() < 0.5)
    router = ROUTERS[rng.randrange(len(ROUTERS))]
    settings = {**LLAMA, "engine": rules["scheduler"], "instances": rng.randint(2, 4), "router": router}
    asks = conversations(rng, longest(bounds)) if rng.random() < 0.7 else crowd(rng, longest(bounds))
    return plan(rng, settings, bounds, dressed(rng, asks, rules))


def living(rng: Random) -> Row:
    """Crashes, restarts, late starts, stops."""
    rules = RULES[rng.choice(sorted(RULES))]
    bounds = limits(rng, rules)
    count = rng.randint(1, 3)
    settings = {
        **LLAMA,
        "engine": rules["scheduler"],
        "instances": count,
        "router": rng.choice(ROUTERS),
        "on_crash": rng.choice(["reroute", "reroute", "fail"]),
        "events": events(rng, count),
    }
    asks = crowd(rng, longest(bounds)) if rng.random() < 0.7 else conversations(rng, longest(bounds))
    return plan(rng, settings, bounds, dressed(rng, asks, rules))


def scaled(rng: Random) -> Row:
    rules = RULES[rng.choice(["vllm", "sglang", "trtllm"])]
    bounds = limits(rng, rules)
    target = rng.choice(["scale_on_queue", "scale_on_concurrency", "scale_on_kv", "scale_on_rate"])
    settings = {
        **LLAMA,
        "engine": rules["scheduler"],
        "instances": rng.randint(2, 4),
        "router": rng.choice(ROUTERS),
        target: {"scale_on_kv": 0.4, "scale_on_rate": 20.0}.get(target, rng.choice([1.0, 3.0])),
        "min_instances": rng.randint(0, 1),
        "start_up_s": rng.choice([0.0, 0.05, 0.2]),
        "scale_interval_s": rng.choice([0.03, 0.1]),
        "scale_down_after_s": rng.choice([0.0, 0.2]),
        "scale_up_after_s": rng.choice([0.0, 0.0, 0.1]),
    }
    if rng.random() < 0.3:
        settings["events"] = [event for event in events(rng, 2) if event["action"] == "crash"]
    return plan(rng, settings, bounds, dressed(rng, crowd(rng, longest(bounds), 0.02), rules))


def split(rng: Random) -> Row:
    """Prefill and decode on instances of their own, with KV that travels."""
    rules = RULES[rng.choice(sorted(RULES))]
    bounds = limits(rng, rules)
    model = rng.choice([LLAMA, LLAMA, HYBRID])
    counts = rng.randint(1, 2), rng.randint(1, 2)
    pools = [
        {"name": role, "role": role, "instances": count, "engine": rules["scheduler"], **model}
        for role, count in zip(("prefill", "decode"), counts, strict=True)
    ]
    if rng.random() < 0.15:
        pools.append({**pools[-1], "name": "more", "instances": 1})
    settings: dict[str, Any] = {
        "pools": pools,
        "router": rng.choice(ROUTERS),
        "kv_transfer": {
            "bandwidth_gb_per_s": rng.choice([0.5, 5.0, 50.0]),
            "latency_us": rng.choice([0.0, 500.0]),
            "overlap": rng.random() < 0.5,
        },
    }
    if rng.random() < 0.35:
        settings["events"] = events(rng, sum(pool["instances"] for pool in pools))
        settings["on_crash"] = rng.choice(["reroute", "fail"])
    link = {"skip_cached": rng.random() < 0.6, "scope": rng.choice(["sender", "cluster"])}
    asks = crowd(rng, longest(bounds)) if rng.random() < 0.6 else conversations(rng, longest(bounds))
    row = plan(rng, settings, bounds, dressed(rng, asks, rules), link=link)
    del row["cluster"]["instances"]
    return row


def offloaded(rng: Random) -> Row:
    """KV that leaves the GPUs goes to host memory and disk, and comes back."""
    rules = RULES[rng.choice(sorted(RULES))]
    bounds = limits(rng, rules) | {"enable_prefix_caching": True}
    tokens = 131_072 / 2**30  # GiB of KV a token
    settings = {
        **LLAMA,
        "engine": rules["scheduler"],
        "instances": rng.randint(1, 2),
        "router": rng.choice(ROUTERS),
        "host_kv_gib": round(rng.choice([100, 400, 2000]) * tokens, 5),
        "host_kv_gb_per_s": rng.choice([0.2, 2.0, 50.0]),
    }
    if rng.random() < 0.5:
        settings |= {"disk_kv_gib": round(3000 * tokens, 5), "disk_kv_gb_per_s": rng.choice([0.1, 5.0])}
    if rng.random() < 0.2:
        settings["events"] = events(rng, settings["instances"])
    asks = conversations(rng, longest(bounds), 0.15) if rng.random() < 0.8 else crowd(rng, longest(bounds))
    return plan(rng, settings, bounds, dressed(rng, asks, rules))


def speculative(rng: Random) -> Row:
    drafts = rng.choice([1, 3, 5])
    rules = RULES[rng.choice([name for name in sorted(RULES) if name != "sglang_mixed"])]
    rules = {
        **rules,
        "num_speculative_tokens": drafts,
        "acceptance_rate": rng.choice([0.0, 0.6, 0.9, 1.0]),
        "speculation_seed": rng.randrange(4),
    }
    bounds = limits(rng, rules, drafts=drafts)
    settings = {**LLAMA, **DRAFT, "engine": rules["scheduler"], "num_speculative_tokens": drafts}
    if rng.random() < 0.3:
        settings |= {"instances": 2, "router": rng.choice(ROUTERS)}
    asks = crowd(rng, longest(bounds)) if rng.random() < 0.75 else conversations(rng, longest(bounds))
    return plan(rng, settings, bounds, dressed(rng, asks, rules))


def ranks(rng: Random) -> Row:
    """Attention data parallelism, each rank with a batch and a cache of its own."""
    rules = {
        **RULES[rng.choice(sorted(RULES))],
        "data_parallel_balance": rng.choice([None, "load", "round_robin", "prefix"]),
    }
    bounds = limits(rng, rules)
    count = rng.choice([2, 2, 4])
    settings = {**MIXTURE, "engine": rules["scheduler"], "data_parallel_size": count, "expert_parallel_size": count}
    if rng.random() < 0.3:
        settings |= {"instances": 2, "router": rng.choice(ROUTERS)}
    asks = crowd(rng, longest(bounds), 0.004) if rng.random() < 0.6 else conversations(rng, longest(bounds))
    return plan(rng, settings, bounds, dressed(rng, asks, rules))


def stages(rng: Random) -> Row:
    """Pipelines, some with ranks, drafts or offload."""
    drafts = rng.choice([0, 0, 0, 2])
    rules = RULES[rng.choice([name for name in sorted(RULES) if name != "sglang_mixed" or not drafts])]
    settings: dict[str, Any] = {**LLAMA, "engine": rules["scheduler"], "pipeline_parallel_size": rng.choice([2, 2, 4])}
    if drafts:
        rules = {**rules, "num_speculative_tokens": drafts, "acceptance_rate": 0.7}
        settings |= {**DRAFT, "num_speculative_tokens": drafts}
    elif rng.random() < 0.25:
        settings |= {**MIXTURE, "data_parallel_size": 2, "expert_parallel_size": 2}
    elif rng.random() < 0.25:
        settings["host_kv_gib"] = 0.05
    bounds = limits(rng, rules, drafts=drafts)
    asks = crowd(rng, longest(bounds)) if rng.random() < 0.7 else conversations(rng, longest(bounds))
    return plan(rng, settings, bounds, dressed(rng, asks, rules))


def fixed(rng: Random) -> Row:
    """Fixed times, on a grid: much happens at one moment."""
    settings = {"ttft_ms": rng.choice([0.0, 62.5, 125.0]), "itl_ms": rng.choice([0.0, 15.625, 31.25])}
    settings |= {"instances": rng.randint(1, 3), "router": rng.choice(ROUTERS)}
    if rng.random() < 0.4:
        settings |= {"events": events(rng, settings["instances"]), "on_crash": rng.choice(["reroute", "fail"])}
    asks = crowd(rng, 300) if rng.random() < 0.5 else conversations(rng, 300)
    for ask in asks:
        ask["at"] = round(ask["at"] * 64) / 64
    return plan(rng, settings, {"kv_tokens": rng.choice([64, 200, 2000]), "max_model_len": None}, dressed(rng, asks, {}))


def mixed(rng: Random) -> Row:
    """Pools of several models or engines."""
    other = {"model": "Qwen/Qwen3-8B", "gpu": "h100_sxm"}
    pools = [
        {"name": "a", "instances": 2, "engine": rng.choice(ENGINES), **LLAMA},
        {"name": "b", "instances": 1, "engine": rng.choice(ENGINES), **rng.choice([LLAMA, other])},
        {"name": "c", "instances": 1, "engine": "vllm", **other},
    ]
    row = plan(rng, {"pools": pools, "router": rng.choice(ROUTERS)}, {}, crowd(rng, 400, 0.003))
    del row["cluster"]["instances"]
    for ask in row["requests"]:
        ask["model"] = rng.choice(["meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-8B"])
    return row


def configured(rng: Random) -> Row:
    """As users have it: every limit from the settings, prompts of hundreds of tokens, batches that last."""
    rules = RULES[rng.choice(sorted(RULES))]
    settings = {
        **rng.choice([LLAMA, LLAMA, WINDOWS, MIXTURE]),
        "engine": rules["scheduler"],
        "instances": rng.randint(1, 3),
        "router": rng.choice(ROUTERS),
        "max_model_len": 1500,
        "num_gpu_blocks_override": 6000 // {"vllm": 16, "sglang": 1, "trtllm": 32}[rules["scheduler"]],
        **{name: value for name, value in rules.items() if name != "scheduler"},
    }
    if rng.random() < 0.5:
        settings |= {"max_num_seqs": rng.choice([8, 64]), "max_num_batched_tokens": rng.choice([256, 1024])}
    asks = []
    for number, at_s in enumerate(moments(rng, rng.randint(40, 70), 0.02)):
        shared, own = rng.choice([0, 128, 500]), rng.choice([10, 200, rng.randint(1, 800)])
        out = rng.choice([1, 40, rng.randint(1, 150)])
        asks.append({"at": at_s, "in": [*([[rng.randrange(3), shared]] * bool(shared)), [100 + number, own]], "out": out})
    return plan(rng, settings, {}, dressed(rng, asks, rules, 0.05))


GROUPS: dict[str, tuple[Callable[[Random], Row], int]] = {
    **{name: (of_rules(rules), 16) for name, rules in RULES.items()},
    **{f"{name}_starved": (starved(rules), 8) for name, rules in RULES.items()},
    "tight": (tight, 30),
    "queued_heads": (queued_heads, 20),
    "reserving": (reserving, 24),
    "steady": (steady, 24),
    "mirrored": (mirrored, 24),
    "windows_vllm": (of_rules(RULES["vllm"], WINDOWS), 6),
    "windows_sglang": (of_rules(RULES["sglang_lpm"], WINDOWS), 6),
    "windows_trtllm": (of_rules(RULES["trtllm_most"], WINDOWS), 6),
    "routed": (routed, 28),
    "living": (living, 30),
    "scaled": (scaled, 14),
    "split": (split, 24),
    "offloaded": (offloaded, 20),
    "speculative": (speculative, 20),
    "ranks": (ranks, 16),
    "stages": (stages, 20),
    "fixed": (fixed, 12),
    "mixed": (mixed, 8),
    "configured": (configured, 10),
}
