"""Draws what engine plans are made of: limits of schedulers with little memory, requests that fight for it, accidents."""

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


def events(rng: Random, instances: int) -> list[Row]:
    """What happens to instances."""
    drawn = []
    for _ in range(rng.randint(1, 4)):
        event: Row = {"at_s": round(rng.random() * 0.3, 4), "action": rng.choice(["crash", "crash", "stop", "start"])}
        event["instance"] = rng.randrange(instances)
        if event["action"] == "crash" and rng.random() < 0.7:
            event["restart_after_s"] = rng.choice([0.0, 0.05, 0.2])
        drawn.append(event)
    return drawn
