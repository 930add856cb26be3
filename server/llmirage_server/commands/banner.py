"""The text that `llmirage serve` prints when it starts and when it ends, and the speed that this machine can hold."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from heapq import heappop, heappush
from typing import Any

from llmirage_server.app import LlmirageApp
from llmirage_server.config import ClusterConfig
from llmirage_server.config.planning import ServedPool
from llmirage_server.drivers.pacing import PacingSummary
from llmirage_server.perf.catalogue.gpus import GIB
from llmirage_server.perf.speculation import Speculative
from llmirage_server.perf.steps.step_model import StepBatch
from llmirage_shared.plural import plural


def served(app: LlmirageApp, url: str, fleet: Sequence[str] = ()) -> dict[str, Any]:
    """Return the start-up facts of `llmirage serve --json`."""
    config = app.config
    return {
        "url": url,
        "api": f"{url}/v1",
        "fleet": list(fleet),
        "models": list(app.model_names),
        "router": config.router,
        "speed": "max" if config.speed == float("inf") else config.speed,
        "pools": [_pool(pool) for pool in app.pools],
    }


def _pool(pool: ServedPool) -> dict[str, Any]:
    deployment, config = pool.deployment, pool.config
    return {
        "name": config.name,
        "role": config.role,
        "models": list(pool.names),
        "gpu": deployment.gpu.name,
        "gpus": config.instances * deployment.gpus,
        "instances": config.instances,
        "deployment": deployment.describe(),
        "engine": deployment.engine.title,
        "kv_capacity_tokens": pool.limits.kv_capacity_tokens,
        "max_model_len": pool.max_model_len,
        "assumed": list(pool.assumptions.values()),
    }


def pacing_json(summary: PacingSummary) -> dict[str, Any] | None:
    """None where no token was sent."""
    return asdict(summary) if summary.tokens else None


def banner(app: LlmirageApp, url: str, cost: MachineCost, fleet: Sequence[str] = ()) -> str:
    """Return the start-up text: the cluster, its speed, a command that works as pasted.

    cost: of this machine. fleet: the URL of each instance.
    """
    config = app.config
    lines = [f"llmirage serves {', '.join(app.model_names)}"]
    for pool in app.pools:
        if config.pools:
            role = "" if pool.config.role == "both" else f", {pool.config.role} only"
            lines += ["", f"  pool {pool.config.name}{role}: {', '.join(pool.names)}"]
        lines += _rows(_pool_rows(pool))
    if config.pools:
        lines.append("")
    lines += _rows(_cluster_rows(app, url, cost))
    if fleet:
        lines += _rows([("fleet", f"{_fleet_urls(fleet)}, an engine each")])
    body = (
        f'{{"model": "{app.model_names[0]}", "messages": [{{"role": "user", "content": "Hello"}}], '
        '"max_tokens": 60, "stream": true}'
    )
    lines += ["", f"  curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' \\", f"    -d '{body}'", ""]
    return "\n".join(lines)


def _fleet_urls(fleet: Sequence[str]) -> str:
    ports = [int(url.rpartition(":")[2]) for url in fleet]
    ranged = len(ports) > 1 and ports[-1] - ports[0] == len(ports) - 1
    return f"{fleet[0]} to {ports[-1]}" if ranged else ", ".join([fleet[0], *map(str, ports[1:])])


def _rows(rows: list[tuple[str, str]]) -> list[str]:
    return [f"  {name:<9} {text}" for name, text in rows]


def _pool_rows(pool: ServedPool) -> list[tuple[str, str]]:
    deployment, instances = pool.deployment, pool.config.instances
    replicas = plural(instances, "instance")
    ranks = deployment.parallel.dp
    each = "on each instance" if ranks == 1 else f"on each of {ranks} ranks of an instance"
    rows = [
        ("cluster", f"{replicas} of {deployment.describe()}"),
        ("GPUs", f"{instances * deployment.gpus} x {deployment.gpu.name} (simulated)"),
        ("KV cache", f"{pool.limits.kv_capacity_tokens:,} tokens {each}; at most {pool.max_model_len:,} tokens per request"),
        ("unloaded", _unloaded(pool)),
    ]
    if pool.assumptions:
        rows.append(("assumed", "; ".join(pool.assumptions.values())))
    if pool.config.scales:
        rows.append(("scaling", _scaling(pool)))
    if not pool.config.fixed_times:
        rate = saturation_requests_per_s(pool)
        rows += [
            (
                "capacity",
                f"about {rate:.{1 if rate < 10 else 0}f} requests/s of {EXAMPLE_PROMPT_TOKENS:,} tokens in, "
                f"{EXAMPLE_REPLY_TOKENS} out, without cache hits",
            ),
            ("engine", _engine(pool)),
        ]
        if deployment.speculative is not None:
            rows.append(("drafting", _drafts(deployment.speculative)))
        if pool.tiers:
            tiers = [f"{t.capacity_bytes / GIB:g} GiB of {t.name} at {t.read_bytes_per_s / 1e9:g} GB/s" for t in pool.tiers]
            rows.append(("offload", f"{', '.join(tiers)}, for each instance"))
    return rows


def _scaling(pool: ServedPool) -> str:
    config = pool.config
    targets = (
        (config.scale_on_queue, "{:g} waiting"),
        (config.scale_on_concurrency, "{:g} in progress"),
        (config.scale_on_kv, "{:.0%} KV cache usage"),
        (config.scale_on_rate, "{:g} requests/s"),
    )
    wanted = [f"{words.format(target)} per instance" for target, words in targets if target is not None]
    for name, target in (("TTFT", config.scale_on_ttft_ms), ("ITL", config.scale_on_itl_ms)):
        if target is not None:
            wanted.append(f"{name} p{config.scale_percentile:g} of {target:g} ms")
    if config.scale_advisory:
        return f"{config.instances} instances; decisions on {' or '.join(wanted)} are logged, not carried out"
    first = config.min_instances if config.initial_instances is None else config.initial_instances
    return (
        f"{config.min_instances} to {config.instances} instances, scaled to {' or '.join(wanted)}, {first} at the start; "
        f"a new instance takes requests after {config.start_up_s:g} s"
    )


def _engine(pool: ServedPool) -> str:
    if pool.deployment.perf_model != "roofline":
        return f"{pool.deployment.engine.title}, {pool.kv_blocks}; step times of the {pool.deployment.perf_model} model"
    model = pool.deployment.model.confidence
    shapes = f"; shapes {model}" if model.startswith("transferred") else ""
    return f"{pool.deployment.engine.title}, {pool.kv_blocks}; constants {pool.deployment.gpu.confidence}{shapes}"


def _drafts(speculative: Speculative) -> str:
    who = _DRAFTERS.get(speculative.method, speculative.draft_model)
    rates = ", ".join([f"{rate:g}" for rate in speculative.acceptance_rates])
    accepted = f"by position {rates}" if rates else f"acceptance rate {speculative.acceptance_rate:.3g}"
    source = f" ({speculative.acceptance_source})" if speculative.acceptance_source else ""
    return (
        f"{speculative.num_speculative_tokens} tokens per step by {who}, {accepted}: "
        f"{speculative.tokens_per_step:.2f} tokens per step{source}"
    )


_DRAFTERS = {"mtp": "the model's own prediction layer", "eagle3": "an EAGLE-3 head", "ngram": "n-grams of the text so far"}


def _cluster_rows(app: LlmirageApp, url: str, cost: MachineCost) -> list[tuple[str, str]]:
    config = app.config
    choice = any(pool.config.instances > 1 for pool in app.pools) or len(app.pools) > len(app.model_names)
    rows = [("router", config.router if choice else f"{config.router} (without effect: there is one instance)")]
    if any(pool.config.role == "prefill" for pool in app.pools):
        rows.append(("transfer", _transfer(app)))
    if config.kv_store_gib:
        rate = "" if config.kv_store_gb_per_s is None else f" at {config.kv_store_gb_per_s:g} GB/s"
        rows.append(("KV store", f"{config.kv_store_gib:g} GiB{rate}, shared by all instances"))
    if config.events:
        rows.append(("events", _events(config)))
    rules = 0 if app.service.scripts is None else len(app.service.scripts.shown()["rules"])
    if rules:
        rows.append(("script", f"{', '.join(config.script)}: {plural(rules, 'rule')}"))
    page = [("page", f"{url}/")] if app.page else []
    pace = [("pace", words)] if (words := _pace(app, cost)) else []
    return [*rows, ("speed", _speed(config.speed)), *pace, *page, ("API", f"{url}/v1")]


def _unloaded(pool: ServedPool) -> str:
    config, deployment = pool.config, pool.deployment
    if config.fixed_times:
        return f"TTFT {config.ttft_ms or 0:g} ms, ITL {config.itl_ms or 0:g} ms, at any load (fixed times)"
    ttft_ms = _ttft_s(pool) * 1000
    tpot_ms = deployment.tpot_s(EXAMPLE_PROMPT_TOKENS) * 1000
    ttft = f"TTFT {ttft_ms:.1f} ms for {EXAMPLE_PROMPT_TOKENS:,} prompt tokens"
    tpot = f"TPOT {tpot_ms:.2f} ms ({1000 / tpot_ms:.0f} tokens/s)"
    return {"prefill": ttft, "decode": tpot}.get(config.role, f"{ttft}, {tpot}")


def _ttft_s(pool: ServedPool) -> float:
    """Of the example's prompt, on an instance without other work."""
    deployment, config = pool.deployment, pool.config
    if config.fixed_times:
        return (config.ttft_ms or 0.0) / 1000
    return deployment.engine.front_end_ttft_s + deployment.ttft_s(EXAMPLE_PROMPT_TOKENS)


def _pace(app: LlmirageApp, cost: MachineCost) -> str:
    """Up to which speed this machine holds the cluster's times; empty where there are none to hold."""
    speed, entries = app.config.speed, [pool for pool in app.pools if pool.config.role != "decode"]
    ttft_s = min([_ttft_s(pool) for pool in entries])
    if speed == math.inf or ttft_s <= 0:
        return ""
    light = cost.held_speed(ttft_s)
    text = f"this machine, now: TTFT within 10 % up to --speed {rounded(light)} at light load"
    rates = [saturation_requests_per_s(pool) for pool in entries if not pool.config.fixed_times]
    if rates:
        text += f", enough CPU up to {rounded(cost.carried_speed(sum(rates), EXAMPLE_REPLY_TOKENS))} at capacity"
    if speed > light:
        text += f"; at {speed:g} TTFT is about {cost.excess(ttft_s, speed):.0%} too long"
    return f"{text} (estimates)"


def _transfer(app: LlmirageApp) -> str:
    link = app.kv_link
    kv = next(pool.deployment.kv_bytes_per_token for pool in app.pools if pool.config.role == "prefill")
    ms = (EXAMPLE_PROMPT_TOKENS * kv / link.bytes_per_s + link.latency_s) * 1000
    overlap = ", mostly during the prefill" if link.layers > 1 else ""
    return f"{link.bytes_per_s / 1e9:g} GB/s between instances: {ms:.1f} ms for {EXAMPLE_PROMPT_TOKENS:,} tokens{overlap}"


def _events(config: ClusterConfig) -> str:
    events = [f"{event.action} at {event.at_s:g} s" for event in sorted(config.events, key=lambda event: event.at_s)]
    lost = {
        "reroute": "requests of a crashed instance restart on another one",
        "fail": "requests of a crashed instance fail",
    }[config.on_crash]
    crashes = any(event.action == "crash" for event in config.events)
    return ", ".join(events) + f" of cluster time{'; ' + lost if crashes else ''}"


def _speed(speed: float) -> str:
    if speed == math.inf:
        return "max: without waiting"
    if speed == 1:
        return "1: real time"
    how = f"{speed:g} times faster" if speed > 1 else f"{1 / speed:g} times slower"
    return f"{speed:g}: {how} than real time; use `llmirage run --speed {speed:g}`"


def farewell(pacing: PacingSummary) -> str:
    """Return the text at the end: how well the server kept time. Empty when nothing was sent, or nothing was paced."""
    if not pacing.tokens:
        return ""
    late = pacing.late_tokens / pacing.tokens
    return (
        f"{pacing.tokens:,} tokens sent. Late by {pacing.mean_s * 1000:.2f} ms on average, "
        f"p50 {pacing.p50_s * 1000:.2g} ms, p99 {pacing.p99_s * 1000:.2g} ms; "
        f"{late:.1%} more than {pacing.late_s * 1000:.3g} ms."
    )


EXAMPLE_PROMPT_TOKENS = 1000
EXAMPLE_REPLY_TOKENS = 200


def saturation_requests_per_s(pool: ServedPool) -> float:
    """Return the most uncached requests of the example's length that all instances of a pool finish in a second.

    The batch is as large as limits and KV memory allow, every request costs its prefill once and its share of as many steps
    as its reply has tokens. A prefill pool does the first alone, a decode pool the second.
    """
    tokens = EXAMPLE_PROMPT_TOKENS + EXAMPLE_REPLY_TOKENS
    batch = max(1, min(pool.limits.max_num_seqs, pool.limits.kv_capacity_tokens // tokens))
    speculative = pool.deployment.speculative
    steps = EXAMPLE_REPLY_TOKENS / (speculative.tokens_per_step if speculative else 1.0)
    context = EXAMPLE_PROMPT_TOKENS + EXAMPLE_REPLY_TOKENS // 2
    role = pool.config.role
    prefill_s = 0.0 if role == "decode" else _period_s(pool, StepBatch([(EXAMPLE_PROMPT_TOKENS, 0)]))
    decode_s = 0.0 if role == "prefill" else _period_s(pool, StepBatch((), [context] * batch))
    ranks = pool.deployment.parallel.dp
    return pool.config.instances * ranks / (prefill_s + steps * decode_s / batch)


def _period_s(pool: ServedPool, batch: StepBatch) -> float:
    """Seconds between two such steps, on every rank at once; a pipeline waits for its slowest stage alone."""
    step: Any = pool.step_model
    ranks = pool.deployment.parallel.dp
    if ranks == 1 and pool.deployment.parallel.pp == 1:
        return pool.step_model.step_s(batch.prefill, batch.decode_contexts)
    return float(max(step.stages_s([batch] * ranks)))


# --- held speed ---------------------------------------------------------------------------------------------------------
# Up to which `--speed` this machine keeps the times of a cluster: an estimate that takes the start 15 ms. What the server
# does takes real time, which counts N times at speed N. How much it does for a request and for a token is known, in passes
# of a fixed loop; how long a pass takes, and how late this machine wakes up, is measured.

EXCESS = 0.1  # of TTFT, that still counts as held
BUSY = 0.7  # of one core: what a server may use before requests wait for each other
# In passes of `_loop`: `python -m pacing` and `make bench ARGS=server` in tests/benchmarks, prompts of 1,000 tokens.
_FRONT_END = 3400  # a request that comes after a pause, from its last byte until the cluster has it
_REQUEST = 1850  # CPU of one among many
_TOKEN = 7  # CPU of one among many
_WAY = 300  # of the bytes, to the server and back to the client, both on this machine
_PASSES = 2500  # about 2 ms
_TRIES = 3
_NAPS, _NAP_S = 6, 0.0005


@dataclass(slots=True, frozen=True)
class MachineCost:
    """Seconds of real time. front_end_s: of a request that comes alone; request_s, token_s: CPU of one among many.

    wake_s: how late a client sees a token that is due at a time when the server sleeps.
    """

    front_end_s: float
    request_s: float
    token_s: float
    wake_s: float

    def excess(self, ttft_s: float, speed: float) -> float:
        """Return the share by which a client sees an unloaded TTFT longer than the cluster has it. ttft_s: cluster time."""
        late_s = self.wake_s + max(0.0, self.front_end_s - ttft_s / speed)
        return late_s * speed / ttft_s

    def held_speed(self, ttft_s: float) -> float:
        """Return the highest speed at which `excess` is at most EXCESS. ttft_s: above 0."""
        hidden = ttft_s / self.front_end_s  # up to this speed the front end ends before the first token is due
        beyond = (1 + EXCESS) * ttft_s / (self.wake_s + self.front_end_s)
        return beyond if beyond > hidden else min(hidden, EXCESS * ttft_s / self.wake_s)

    def carried_speed(self, requests_per_s: float, reply_tokens: int) -> float:
        """Return the highest speed at which the server has CPU for this load. requests_per_s: of cluster time."""
        return BUSY / (requests_per_s * (self.request_s + reply_tokens * self.token_s))


def machine_cost(clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep) -> MachineCost:
    """Measure this machine, as it is now."""
    passes, late = [], []
    for _ in range(_TRIES):
        begun_s = clock()
        _loop(_PASSES)
        passes.append((clock() - begun_s) / _PASSES)
    for _ in range(_NAPS):
        due_s = clock() + _NAP_S
        sleep(_NAP_S)
        late.append(max(clock() - due_s, 0.0))
    pass_s = min(passes)
    late_s = sorted(late)[_NAPS // 2]
    return MachineCost(_FRONT_END * pass_s, _REQUEST * pass_s, _TOKEN * pass_s, late_s + _WAY * pass_s)


def rounded(speed: float) -> str:
    """Round a speed down to one digit or two."""
    if speed >= 1:
        digits = 10 ** max(int(math.log10(speed)) - 1, 0)
        return f"{math.floor(speed / digits) * digits:,}"
    return f"{math.floor(speed * 100) / 100:g}"


class _Event:
    __slots__ = ("at_s", "number", "tokens")

    def __init__(self, number: int, at_s: float) -> None:
        self.number = number
        self.at_s = at_s
        self.tokens = [number, number + 1]


def _loop(passes: int) -> float:
    """Do the work of the engine for an event: objects, a dict, a heap, floats."""
    events: dict[int, _Event] = {}
    agenda: list[tuple[float, int]] = []
    now_s = 0.0
    for number in range(passes):
        at_s = now_s + (number * 7919 % 1009) * 0.001
        events[number & 4095] = _Event(number, at_s)
        heappush(agenda, (at_s, number))
        if len(agenda) > 64:
            due_s, due = heappop(agenda)
            event = events.get(due & 4095)
            if event is not None and event.number == due:
                now_s += (due_s - event.at_s + len(event.tokens) * 0.5) * 1e-3
    return now_s
