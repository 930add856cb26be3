"""Draws run and script plans: workloads under loads of every kind. What is drawn is kept as files."""

import json
from collections.abc import Callable
from random import Random

from draw_workloads import (
    bad_labels,
    blocks,
    eighths,
    flat,
    labels,
    lengths,
    lengths_and_ids,
    own_ids,
    texts,
    timed,
    trees,
    written,
)
from stored import Row

LLAMA = {"model": "meta-llama/Llama-3.1-8B", "gpu": "h100_sxm"}
GRID = {"ttft_ms": 125.0, "itl_ms": 62.5}  # much happens at one moment
DRAFTS = {
    "speculative_method": "draft_model",
    "draft_model": "meta-llama/Llama-3.2-1B",
    "num_speculative_tokens": 3,
    "acceptance_rate": 0.7,
}
CRASHES = [
    {"at_s": 1.0, "action": "crash", "instance": 0, "restart_after_s": 1.0},
    {"at_s": 2.5, "action": "crash", "instance": 1},
]
STARVED = {"num_gpu_blocks_override": 100, "max_model_len": 700}
CLUSTERS: list[Row] = [
    {**LLAMA, "instances": 2},
    {**LLAMA, "instances": 1, "engine": "vllm", "max_num_seqs": 4},
    GRID,
    GRID,
    {**GRID, "instances": 3, "router": "session"},
    {**LLAMA, "engine": "vllm", **STARVED, "router": "kv_aware", "instances": 2},
    {**LLAMA, "engine": "sglang", "num_gpu_blocks_override": 1600, "max_model_len": 700, "schedule_policy": "lpm"},
    {**LLAMA, "engine": "trtllm", "num_gpu_blocks_override": 50, "max_model_len": 700, "router": "least_loaded"},
    {**LLAMA, "instances": 3, "start_up_s": 1.0, "scale_interval_s": 0.5, "scale_on_concurrency": 1.0},
    {**LLAMA, **DRAFTS, "router": "power_of_two"},
    {**LLAMA, "instances": 2, "on_crash": "fail", "events": CRASHES, "router": "round_robin"},
    {**GRID, "on_crash": "fail", "events": CRASHES[:1]},
    {**GRID, "instances": 2, "on_crash": "reroute", "events": CRASHES, "router": "random"},
    {"model": "Qwen/Qwen3-30B-A3B", "gpu": "h100_sxm", "data_parallel_size": 2, "expert_parallel_size": 2, "instances": 1},
    {
        "pools": [
            {"name": "prefill", "role": "prefill", "instances": 1, **LLAMA},
            {"name": "decode", "role": "decode", "instances": 1, **LLAMA},
        ]
    },
]


# --- loads -------------------------------------------------------------------------------------------------------------


def load(rng: Random, workload: Row) -> Row:
    options: Row = {"seed": rng.randrange(4)}
    if rng.random() < 0.5:
        options["concurrency"] = rng.randint(1, 5)
    match rng.choice(["slots", "slots", "rate", "rate", "series", "users", *["schedule"] * 3 * timed(workload)]):
        case "slots":
            options.setdefault("concurrency", rng.choice([2, 3, 8]))
            if rng.random() < 0.5:
                options["concurrency_ramp_s"] = eighths(rng)
        case "rate":
            options["request_rate_per_s"] = rng.choice([0.5, 4.0, 100.0])
            options["arrival_pattern"] = rng.choice(["constant", "poisson", "gamma"])
            if options["arrival_pattern"] == "gamma":
                options["arrival_smoothness"] = rng.choice([0.5, 4.0])
            if rng.random() < 0.3:
                options["request_rate_ramp_s"] = 2.0
        case "series":
            last = rng.choice([0.0, 1.0])
            options["request_rate_series"] = rng.choice(
                [[[0.0, 2.0], [1.0, 8.0], [2.0, 8.0], [3.0, last]], [[0.0, 0.0], [1.0, 0.0], [1.0, 5.0], [4.0, last]]]
            )
        case "users":
            options |= {"user_rate_per_s": rng.choice([1.0, 4.0]), "num_users": rng.randint(1, 5)}
        case "schedule":
            options |= {"fixed_schedule": True, "schedule_speedup": rng.choice([1.0, 2.0])}
            options["schedule_auto_offset"] = rng.random() < 0.5
            if rng.random() < 0.3:
                options |= {"schedule_start_s": 0.5, "schedule_end_s": rng.choice([1.5, 2.5])}
    if "fixed_schedule" not in options:
        options["sampling"] = rng.choice(["sequential", "shuffle", "random"])
        if rng.random() < 0.1:
            options["first_root"] = rng.randint(1, 3)
    pauses(rng, options)
    stops(rng, options)
    warm_up(rng, options)
    if rng.random() < 0.3:
        options["session_prefix"] = "none"
    if rng.random() < 0.1:
        options["share"] = [rng.randrange(2), 2]
    return options


def pauses(rng: Random, options: Row) -> None:
    if rng.random() < 0.35:
        options["inter_turn_delay_factor"] = rng.choice([0.0, 0.5, 2.0])
    if rng.random() < 0.2:
        options["inter_turn_delay_cap_s"] = eighths(rng)
    if rng.random() < 0.2:
        options |= {"inter_turn_delay_mean_s": 0.3, "inter_turn_delay_std_s": 0.1}


def stops(rng: Random, options: Row) -> None:
    if rng.random() < 0.5:
        options["num_conversations"] = rng.randint(1, 12)
    for name in rng.sample(["request_count", "soft_duration_s", "benchmark_duration_s"], rng.choice([0, 0, 1, 2])):
        options[name] = rng.randint(1, 25) if name == "request_count" else float(rng.randint(1, 5))
    if "benchmark_duration_s" in options:
        options["benchmark_grace_period_s"] = rng.choice([0.0, 0.5, 30.0])
    if rng.random() < 0.3:
        options["fail_fast"] = True
    if rng.random() < 0.2:
        options["fail_fast_children"] = True


def warm_up(rng: Random, options: Row) -> None:
    match rng.choice(["none", "none", "none", "count", "conversations", "duration"]):
        case "count":
            options["warmup_request_count"] = rng.randint(1, 5)
        case "conversations":
            options |= {"warmup_num_conversations": rng.randint(1, 3), "warmup_concurrency": 2}
            if rng.random() < 0.5:
                options["warmup_concurrency_ramp_s"] = 0.5
        case "duration":
            options |= {"warmup_duration_s": 1.0, "warmup_grace_period_s": rng.choice([0.0, 1.0])}
            if rng.random() < 0.6:
                options |= {"warmup_request_rate_per_s": 5.0, "warmup_arrival_pattern": rng.choice(["constant", "poisson"])}


def run(rng: Random, workload: Row, clusters: list[Row] = CLUSTERS) -> Row:
    options = load(rng, workload)
    row = {"cluster": rng.choice(clusters), "workload": workload, "options": options}
    bounded(options)
    if rng.random() < 0.25:
        row["max_time_s"] = rng.choice([0.25, 2.0, 3.125])
    return row


def bounded(options: Row) -> None:
    """No run goes on for long: a time alone may let thousands of requests through."""
    if "request_count" not in options and ("soft_duration_s" in options or "benchmark_duration_s" in options):
        options["request_count"] = 60


# --- groups ------------------------------------------------------------------------------------------------------------


def flat_lengths(rng: Random) -> Row:
    return run(rng, flat(rng, lengths))


def tree_lengths(rng: Random) -> Row:
    return run(rng, trees(rng, lengths))


LOSSES = [
    {**GRID, "on_crash": "fail", "events": [{"at_s": at_s, "action": "crash", "instance": 0, "restart_after_s": 0.0}]}
    for at_s in (0.5, 1.0, 2.0)
] + [
    {**GRID, "instances": 1, "on_crash": "fail", "events": [{"at_s": 1.5, "action": "crash", "instance": 0}]},
    {**LLAMA, "instances": 1, "on_crash": "fail", "events": [{**CRASHES[0], "at_s": 0.3}, {**CRASHES[0], "at_s": 1.7}]},
    {**LLAMA, "engine": "vllm", **STARVED},
    {**LLAMA, "engine": "vllm", **STARVED},
]


def failing(rng: Random) -> Row:
    """Requests that are lost, or never taken."""
    row = run(rng, rng.choice([flat, trees, trees])(rng, lengths), LOSSES)
    for session in row["workload"]["sessions"].values():
        session["ends_on_failure"] = rng.random() < 0.3
    row["options"].pop("fail_fast", None)
    row["options"].pop("fail_fast_children", None)
    row["options"] |= rng.choice([{}, {}, {"fail_fast": True}, {"fail_fast_children": True}])
    return row


def lossy(rng: Random) -> Row:
    """Trees under which instances crash again and again."""
    times = sorted(round(rng.random() * 5, 3) for _ in range(rng.randint(3, 8)))
    events = [
        {"at_s": at_s, "action": "crash", "instance": rng.randrange(2), "restart_after_s": rng.choice([0.0, 0.25])}
        for at_s in times
    ]
    cluster = {**rng.choice([GRID, LLAMA]), "instances": 2, "on_crash": "fail", "events": events, "router": "round_robin"}
    row = run(rng, trees(rng, lengths), [cluster])
    for session in row["workload"]["sessions"].values():
        session["ends_on_failure"] = rng.random() < 0.5
    row["options"].pop("fail_fast", None)
    if rng.random() < 0.6:
        row["options"].pop("fail_fast_children", None)
    return row


def protocol(rng: Random) -> Row:
    """What the server's API has to tell as the cluster alone does: token ids, which no reply has a part in."""
    row = run(rng, rng.choice([flat, trees])(rng, own_ids), [*CLUSTERS[:6], CLUSTERS[8]])
    row.pop("max_time_s", None)
    row["options"].pop("benchmark_duration_s", None)  # nothing is cancelled: the API tells less of such requests
    return row


def ids(rng: Random) -> Row:
    return run(rng, flat(rng, rng.choice([own_ids, lengths_and_ids])))


def cancelled(rng: Random) -> Row:
    """Users who give up."""
    row = run(rng, rng.choice([flat, trees])(rng, lengths))
    row["options"] |= {"cancellation_share": rng.choice([0.2, 0.6]), "cancellation_delay_s": rng.choice([0.0, 0.125, 0.3])}
    return row


PLAIN = [CLUSTERS[0], CLUSTERS[1], CLUSTERS[2], CLUSTERS[6], CLUSTERS[10], CLUSTERS[11]]


def tree_texts(rng: Random) -> Row:
    modes = ("accumulate", "accumulate", "accumulate_authored", "isolated", "server_state")
    workload = trees(rng, texts, modes, most=9)
    return of_api(rng, run(rng, workload, PLAIN), workload)


def flat_texts(rng: Random) -> Row:
    workload = flat(rng, rng.choice([texts, blocks, written]), rng.choice(["accumulate", "isolated"]), most=5)
    return of_api(rng, run(rng, workload, PLAIN), workload)


def of_api(rng: Random, row: Row, workload: Row) -> Row:
    modes = {made["mode"] for made in workload["sessions"].values()}
    kinds = ["responses"] if "server_state" in modes else [None, "chat", "responses", "messages", "completions"]
    if kind := rng.choice(kinds):
        row["options"]["endpoint_type"] = kind
    row["options"]["streaming"] = rng.random() < 0.8
    return row


def trace(rng: Random) -> Row:
    """A published trace's form: lengths, hashes of blocks of 16 tokens, times."""
    lines = []
    for number in range(rng.randint(4, 10)):
        known = [rng.randrange(2), 10 + rng.randrange(2), 100 + number][: rng.randint(1, 3)]
        line = {"timestamp": rng.randrange(0, 3000, 125), "input_length": len(known) * 16 - rng.randrange(8)}
        line |= {"output_length": rng.choice([2, 8, 16]), "hash_ids": known}
        if rng.random() < 0.3:
            line["session_id"] = f"t{rng.randrange(2)}"
        lines.append(line)
    lines.sort(key=lambda line: line["timestamp"])
    text = "\n".join(map(json.dumps, lines))
    workload = {"format": "mooncake_trace", "options": {"block_size": 16}, "text": text}
    options: Row = {"seed": rng.randrange(3)}
    if rng.random() < 0.6:
        options |= {"fixed_schedule": True, "schedule_speedup": rng.choice([1.0, 4.0])}
    else:
        options["concurrency"] = rng.randint(1, 4)
    return {"cluster": rng.choice(PLAIN[:4]), "workload": workload, "options": options}


def agents(rng: Random) -> Row:
    """The form of agents' calls: lengths, pauses for tools, times."""
    lines: list[Row] = []
    for number in range(rng.randint(3, 8)):
        arrival_ns = rng.randrange(0, 2000, 125) * 1_000_000
        if rng.random() < 0.3:
            lines.append({"input_toks": rng.randint(20, 300), "output_toks": 12, "arrival_time_ns": arrival_ns})
            continue
        tokens, calls = rng.randint(50, 200), []
        for _ in range(rng.randint(2, 6)):
            out = rng.choice([4, 10, 24])
            calls.append(
                {"input_toks": tokens, "output_toks": out, "tool_duration_ns": rng.randrange(0, 700, 50) * 1_000_000}
            )
            tokens += out + rng.randint(5, 80)
        lines.append({"session_id": f"agent {number}", "arrival_time_ns": arrival_ns, "sub_requests": calls})
    text = "\n".join(map(json.dumps, lines))
    workload = {"format": "agentic_jsonl", "text": text}
    options: Row = {"seed": rng.randrange(3)}
    if rng.random() < 0.5:
        options |= {"fixed_schedule": True, "schedule_speedup": rng.choice([1.0, 2.0])}
    else:
        options["concurrency"] = rng.randint(1, 4)
    return {"cluster": rng.choice(CLUSTERS), "workload": workload, "options": options}


RUN_GROUPS: dict[str, tuple[Callable[[Random], Row], int]] = {
    "flat": (flat_lengths, 70),
    "trees": (tree_lengths, 110),
    "failing": (failing, 60),
    "lossy": (lossy, 40),
    "ids": (ids, 16),
    "protocol": (protocol, 14),
    "cancelled": (cancelled, 20),
    "tree_texts": (tree_texts, 24),
    "flat_texts": (flat_texts, 16),
    "trace": (trace, 8),
    "agents": (agents, 12),
}


def script(rng: Random) -> Row:
    modes = ("accumulate", "accumulate", "accumulate_authored", "isolated", "server_state", "server_conversation")
    workload = trees(rng, labels, modes)
    row = {"workload": workload, "options": {"model": "m", **load(rng, workload)}}
    bounded(row["options"])
    if rng.random() < 0.15:
        row["options"] |= {"cancellation_share": 0.4, "cancellation_delay_s": rng.choice([0.0, 0.5])}
    if rng.random() < 0.25:
        row["max_time_s"] = rng.choice([0.5, 2.0, 6.125])
    if rng.random() < 0.15:
        row["options"]["speed"] = rng.choice([2.0, 10.0])
    return of_api(rng, row, workload)


def bad_script(rng: Random) -> Row:
    """Many failures, and what they mean for those who wait."""
    workload = trees(rng, bad_labels, ("accumulate", "isolated"))
    for session in workload["sessions"].values():
        session["ends_on_failure"] = rng.random() < 0.4
    row = {"workload": workload, "options": {"model": "m", **load(rng, workload)}}
    bounded(row["options"])
    for name in ("fail_fast", "fail_fast_children"):
        row["options"].pop(name, None)
        if rng.random() < 0.2:
            row["options"][name] = True
    return row


def verbatim(rng: Random) -> Row:
    """Whole bodies, as the file has them."""

    def body(rng: Random, name: str, index: int) -> Row:
        return {"payload": {"model": "m", "stream": rng.random() < 0.5, **labels(rng, name, index)}}

    workload = flat(rng, body, "verbatim")
    row = {"workload": workload, "options": {"model": "m", **load(rng, workload)}}
    bounded(row["options"])
    return row


SCRIPT_GROUPS: dict[str, tuple[Callable[[Random], Row], int]] = {
    "script": (script, 110),
    "bad_script": (bad_script, 50),
    "verbatim": (verbatim, 10),
}
