"""Draws engine plans: clusters with little memory, and requests that fight for it. What is drawn is kept as a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from stored import Row

LLAMA = {"model": "meta-llama/Llama-3.1-8B", "gpu": "h100_sxm"}
WINDOWS = {"model": "openai/gpt-oss-20b", "gpu": "h100_sxm"}  # of 128 tokens, in every other layer
MIXTURE = {"model": "Qwen/Qwen3-30B-A3B", "gpu": "h100_sxm"}  # of experts
HYBRID = {"model": "Qwen/Qwen3.5-35B-A3B", "gpu": "h100_sxm"}  # with linear attention
DRAFT = {"draft_model": "meta-llama/Llama-3.2-1B"}
ROUTERS = ("round_robin", "random", "least_loaded", "power_of_two", "session", "prefix", "kv_aware")
ENGINES = ("vllm", "sglang", "trtllm")
PAGES = {"vllm": (1, 3, 16), "sglang": (1, 1, 4), "trtllm": (4, 8, 16)}

RULES: dict[str, dict[str, Any]] = {
    "vllm": {"scheduler": "vllm"},
    "vllm_priority": {"scheduler": "vllm", "schedule_policy": "priority"},
    "vllm_long": {"scheduler": "vllm", "long_prefill_token_threshold": 24},
    "sglang": {"scheduler": "sglang"},
    "sglang_lpm": {"scheduler": "sglang", "schedule_policy": "lpm"},
    "sglang_mixed": {"scheduler": "sglang", "enable_mixed_chunk": True},
    "sglang_few": {"scheduler": "sglang", "max_prefill_tokens": 60, "schedule_conservativeness": 0.2},
    "trtllm": {"scheduler": "trtllm"},
    "trtllm_most": {"scheduler": "trtllm", "capacity_scheduler_policy": "max_utilization"},
}


# --- limits ------------------------------------------------------------------------------------------------------------


def limits(rng: Random, rules: dict[str, Any], *, drafts: int = 0, roomy: bool = False) -> dict[str, Any]:
    """Of a scheduler: little memory (or four times as much), small batches."""
    scheduler = rules["scheduler"]
    page = rng.choice(PAGES[scheduler])
    seqs = rng.choice([2, 4, 6, 16, 16])
    kv_tokens = rng.choice([160, 240, 400]) * (4 if roomy else 1)
    chunked = rng.random() < 0.75
    least = max(seqs * (1 + drafts), page, 1 + drafts)
    room = rng.choice([0, 8, 30, 100]) if chunked else rng.choice([100, 300])
    return {
        "kv_tokens": kv_tokens,
        "page_size": page,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": least + room,
        "enable_chunked_prefill": chunked,
        "enable_prefix_caching": rng.random() < 0.75,
        "max_model_len": None,
        **rules,
    }


def longest(bounds: dict[str, Any]) -> int:
    """Prompt and output tokens that such a scheduler can ever finish."""
    tokens = bounds["kv_tokens"] // bounds["page_size"] * bounds["page_size"]
    whole = not bounds["enable_chunked_prefill"] and bounds["scheduler"] != "sglang"
    return min(tokens, bounds["max_num_batched_tokens"]) if whole else tokens


# --- requests ----------------------------------------------------------------------------------------------------------


def moments(rng: Random, count: int, gap_s: float) -> list[float]:
    """When so many requests come: at once, in waves, or one after the other."""
    match rng.choice(["burst", "waves", "spread", "spread"]):
        case "burst":
            times = [0.0 if rng.random() < 0.8 else rng.random() * gap_s * count for _ in range(count)]
        case "waves":
            times = [rng.randrange(3) * gap_s * count / 2 for _ in range(count)]
        case _:
            times = [rng.random() * gap_s * count for _ in range(count)]
    return sorted(round(time_s, 4) for time_s in times)


def crowd(rng: Random, room: int, gap_s: float = 0.006, few: int = 14, many: int = 36) -> list[Row]:
    """Requests that share beginnings, or do not: short prompts with long answers, long prompts with short ones."""
    long_answers = rng.random() < 0.5
    asks = []
    for number, at_s in enumerate(moments(rng, rng.randint(few, many), gap_s)):
        shared = rng.choice([0, 0, 15, 16, 40])
        own = rng.randint(1, 25) if long_answers else rng.choice([1, 20, 60, 90])
        out = rng.randint(15, 60) if long_answers else rng.choice([1, 1, 2, 8, 30])
        if shared + own + out > room and rng.random() < 0.9:  # else it is refused
            shared, own, out = 0, max(min(own, room // 2), 1), max(min(out, room // 2 - 1), 1)
        prompt = [[rng.randrange(3), shared], [100 + number, own]] if shared else [[100 + number, own]]
        asks.append({"at": at_s, "in": prompt, "out": out})
    return asks


def conversations(rng: Random, room: int, gap_s: float = 0.05) -> list[Row]:
    """Turns that go on where the last one ended; some conversations begin alike."""
    turns: list[tuple[float, int]] = []
    for talk in range(rng.randint(4, 9)):
        at_s = rng.random() * 0.2
        for _ in range(rng.randint(1, 5)):
            turns.append((round(at_s, 4), talk))
            at_s += gap_s * (0.5 + rng.random())
    heads = [[rng.randrange(2), rng.choice([8, 16, 33])] for _ in range(9)]
    context: dict[int, list[list[int]]] = {}
    asks = []
    for number, (at_s, talk) in enumerate(sorted(turns)):
        prompt = [*context.get(talk, [heads[talk]]), [100 + number, rng.randint(1, 20)]]
        out = rng.randint(1, 25)
        if sum(tokens for _, tokens in prompt) + out > room:
            prompt, out = [[100 + number, max(min(20, room // 2), 1)]], max(min(out, room // 2 - 1), 1)
        context[talk] = [*prompt, [10_000 + number, out]]
        asks.append({"at": at_s, "in": prompt, "out": out, "key": f"talk {talk}"})
    return asks


def dressed(rng: Random, asks: list[Row], rules: dict[str, Any], cancels: float = 0.12) -> list[Row]:
    """With priorities, allowances, cancellations and times at the door."""
    for ask in asks:
        if rules.get("schedule_policy") == "priority" and rng.random() < 0.7:
            ask["priority"] = rng.randint(-1, 2)
        if rng.random() < 0.15:
            ask["max"] = ask["out"] + rng.choice([5, 60, 4000])
        if rng.random() < cancels:
            ask["cancel"] = round(ask["at"] + rng.choice([0.0, 0.004, 0.03, 0.12, 0.4]), 4)
        if rng.random() < 0.05:
            ask["age"] = rng.choice([0.002, 0.02])
    return asks


def some_looks(rng: Random) -> list[float]:
    return sorted(round(rng.random() * 0.8, 4) for _ in range(rng.randint(0, 3)))


def plan(rng: Random, settings: dict[str, Any], bounds: dict[str, Any], asks: list[Row], **more: Any) -> Row:
    row = {"cluster": {"instances": 1, "seed": rng.randrange(5), **settings}, "limits": bounds, "requests": asks, **more}
    if looks := some_looks(rng):
        row["looks"] = looks
    if rng.random() < 0.08:
        row["clear"] = [round(rng.random() * 0.4, 4)]
    if rng.random() < 0.3:
        row["front_end_s"] = rng.choice([0.0, 0.003])
    return row


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


def routed(rng: Random) -> Row:
    """Conversations over several instances, by every router."""
    rules = RULES[rng.choice(sorted(RULES))]
    bounds = limits(rng, rules, roomy=rng.random() < 0.5)
    router = ROUTERS[rng.randrange(len(ROUTERS))]
    settings = {**LLAMA, "engine": rules["scheduler"], "instances": rng.randint(2, 4), "router": router}
    asks = conversations(rng, longest(bounds)) if rng.random() < 0.7 else crowd(rng, longest(bounds))
    return plan(rng, settings, bounds, dressed(rng, asks, rules))


def events(rng: Random, instances: int) -> list[Row]:
    drawn = []
    for _ in range(rng.randint(1, 4)):
        event: Row = {"at_s": round(rng.random() * 0.3, 4), "action": rng.choice(["crash", "crash", "stop", "start"])}
        event["instance"] = rng.randrange(instances)
        if event["action"] == "crash" and rng.random() < 0.7:
            event["restart_after_s"] = rng.choice([0.0, 0.05, 0.2])
        drawn.append(event)
    return drawn


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
    "steady": (steady, 24),
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


def drawn() -> Iterator[Row]:
    """Every engine plan."""
    for group, (draw, count) in GROUPS.items():
        for number in range(count):
            yield {"name": f"{group}-{number}", **draw(Random(f"{group} {number}"))}
