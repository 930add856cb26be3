"""Simulations: CPU time of `simulate()` for jobs of the shapes that studies have.

None of them leaves so much behind that simulate() collects garbage of earlier runs within the repetitions of a process.
"""

import itertools
import json
import random
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.measurement import Cost, Work, measures, own_cpu
from bench.product import (
    Branch,
    ClusterConfig,
    Session,
    Simulation,
    TokenSpec,
    Turn,
    Workload,
    load_workload,
    make_config,
    simulate_by_api,
    simulate_by_engine,
    synthetic_load,
)

LLAMA: Mapping[str, Any] = {"model": "meta-llama/Llama-3.1-8B", "gpu": "h100_sxm", "weights": "fp8"}


def llama(instances: int, **settings: Any) -> ClusterConfig:
    return make_config(None, {**LLAMA, "instances": instances, **settings})


def cost(config: ClusterConfig, workload: Workload, *, repeated: int = 1, **options: Any) -> Cost:
    """Of each request. Every request must have succeeded."""

    def run() -> float:
        return sum(requests_of(simulate_by_engine(config, workload, **options)) for _ in range(repeated))

    return own_cpu(run)


def requests_of(simulation: Simulation) -> int:
    assert not simulation.summary["failed_requests"], simulation.metrics.errors
    requests: int = simulation.summary["requests"]
    assert requests, "the simulation did nothing"
    return requests


def independent(config: ClusterConfig, requests: int, rate_per_s: float) -> Work:
    """Requests of 2000 tokens in and 500 out, Poisson arrivals: the standard job."""

    def work(share: float) -> Cost:
        return cost(config, synthetic_load(2000, 500, _part(requests, share), seed=1), request_rate_per_s=rate_per_s)

    return work


def _part(count: int, share: float) -> int:
    return max(20, int(count * share))


@measures("request")
def standard() -> Iterator[Work]:
    """Llama-3.1-8B on 8 instances of one H100, 2000 tokens in, 500 out, Poisson arrivals, 32 requests a second."""
    yield independent(llama(8), 4000, 32.0)


@measures("request", beside="simulate_standard")
def sglang() -> Iterator[Work]:
    """The standard job under the rules of SGLang."""
    yield independent(llama(8, engine="sglang"), 4000, 32.0)


@measures("request", beside="simulate_standard")
def trtllm() -> Iterator[Work]:
    """The standard job under the rules of TensorRT-LLM."""
    yield independent(llama(8, engine="trtllm"), 4000, 32.0)


@measures("request")
def agentic() -> Iterator[Work]:
    """100 sessions of 12 turns, one a second: 1500 new tokens, 300 out, 2 s of thinking, 4 instances."""

    def work(share: float) -> Cost:
        loaded = synthetic_load(1500, 300, _part(100, share) * 12, turns=12, wait_s=2, seed=1)
        sessions = {
            name: Session(name, session.turns, session.mode, arrival_s=float(place))
            for place, (name, session) in enumerate(loaded.sessions.items())
        }
        timed = Workload(loaded.format, loaded.path, sessions, loaded.roots)
        return cost(llama(4), timed, repeated=3, fixed_schedule=True)

    yield work


@measures("request")
def hour() -> Iterator[Work]:
    """80 seconds of an hour of 64 instances with 256 agents at a time, of 20 turns each."""

    def work(share: float) -> Cost:
        workload = synthetic_load(1500, 300, _part(8000, share), turns=20, wait_s=2, seed=1)
        lasts_s = 80.0 * share
        return cost(llama(64), workload, concurrency=256, benchmark_duration_s=lasts_s, benchmark_grace_period_s=0.0)

    yield work


@measures("request")
def kv_aware() -> Iterator[Work]:
    """Agents on 64 instances behind the router kv_aware, which asks each of them at every turn."""

    def work(share: float) -> Cost:
        workload = synthetic_load(1500, 300, _part(1200, share), turns=10, wait_s=2, seed=1)
        return cost(llama(64, router="kv_aware"), workload, concurrency=256)

    yield work


def trees(count: int, branching: bool) -> Workload:
    """Trees of 12 requests in token counts, four a second.

    A root of 4 turns spawns 3 children of 2 turns after its second turn and waits for them before its last; its last turn
    forks into 2 children of 1 turn. Every turn adds 600 tokens and is answered with 150. Without branching the same requests
    are sessions that all start with their tree.
    """

    def chain(before: int, turns: int) -> list[Turn]:
        return [Turn(tokens=TokenSpec(before + 600 + 750 * turn, 150)) for turn in range(turns)]

    sessions: dict[str, Session] = {}
    roots: list[str] = []
    for number in range(count):
        root, at_s = f"root{number}", number / 4
        spawned, forked = [f"{root}-spawn{i}" for i in range(3)], [f"{root}-fork{i}" for i in range(2)]
        turns = chain(0, 4)
        if branching:
            turns[1] = Turn(tokens=turns[1].tokens, branches=(Branch(f"{root}:1", "spawn", tuple(spawned), join_at=3),))
            turns[3] = Turn(tokens=turns[3].tokens, branches=(Branch(f"{root}:3", "fork", tuple(forked)),))
        sessions[root] = Session(root, tuple(turns), mode="tokens", arrival_s=at_s)
        for children, chained in ((spawned, chain(0, 2)), (forked, chain(3000, 1))):
            for child in children:
                sessions[child] = Session(child, tuple(chained), mode="tokens", arrival_s=None if branching else at_s)
        roots += [root] if branching else [root, *spawned, *forked]
    return Workload("made", "made", sessions, tuple(roots))


@measures("request")
def flat() -> Iterator[Work]:
    """The requests of simulate_dag as sessions without branches."""
    yield lambda share: cost(llama(8), trees(_part(250, share), False), fixed_schedule=True)


@measures("request", beside="simulate_flat")
def dag() -> Iterator[Work]:
    """Trees of 12 requests in token counts, with spawns that join and forks."""
    yield lambda share: cost(llama(8), trees(_part(250, share), True), fixed_schedule=True)


def trace_rows(count: int, seed: int = 1) -> list[dict[str, Any]]:
    """1 to 15 blocks of 512 tokens of one of 60 documents, then 1 to 4 of its own; 182 tokens out; 4 requests a second.

    Traces of different seeds have no block in common.
    """
    draw = random.Random(seed)
    first = 10_000_000 * seed
    rows = []
    for number in range(count):
        document, shared, own = draw.randrange(60), draw.randrange(1, 16), draw.randrange(1, 5)
        blocks = [first + 1000 * document + i for i in range(shared)]
        blocks += [first + 1_000_000 + 10 * number + i for i in range(own)]
        tokens = 512 * len(blocks) - draw.randrange(500)
        rows.append({"timestamp": 250 * number, "input_length": tokens, "output_length": 182, "hash_ids": blocks})
    return rows


@measures("request")
def lengths() -> Iterator[Work]:
    """The requests of simulate_hash_blocks as lengths that share nothing."""

    def work(share: float) -> Cost:
        sessions = {}
        for number, row in enumerate(trace_rows(_part(2000, share))):
            turn = Turn(tokens=TokenSpec(row["input_length"], row["output_length"]))
            name = f"request{number}"
            sessions[name] = Session(name, (turn,), mode="tokens", arrival_s=row["timestamp"] / 1e3)
        return cost(llama(4), Workload("made", "made", sessions, tuple(sessions)), fixed_schedule=True)

    yield work


@measures("request", beside="simulate_lengths")
def hash_blocks() -> Iterator[Work]:
    """A mooncake_trace: prompts known by the hashes of their blocks. Each has blocks that nobody has seen before."""
    seeds = itertools.count(2)
    with tempfile.TemporaryDirectory() as folder:

        def work(share: float) -> Cost:
            path = Path(folder) / "trace.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in trace_rows(_part(120, share), next(seeds))))
            return cost(llama(4), load_workload(str(path), "mooncake_trace"), fixed_schedule=True)

        yield work


@measures("request")
def data_parallel() -> Iterator[Work]:
    """The standard requests on bundled:large-moe: DeepSeek-V3 on 8 GPUs, attention data parallelism; 2 a second."""
    yield independent(make_config("bundled:large-moe", {}), 300, 2.0)


@measures("request")
def prefill_decode() -> Iterator[Work]:
    """The standard requests on bundled:disaggregated: pools for prefill and decode; 3 a second."""
    yield independent(make_config("bundled:disaggregated", {}), 500, 3.0)


@measures("request")
def pipeline() -> Iterator[Work]:
    """The standard requests on Qwen3-32B in 4 pipeline stages; 4 a second."""
    stages: dict[str, Any] = {"instances": 2, "engine": "vllm", "pipeline_parallel_size": 4}
    yield independent(llama(**stages, model="Qwen/Qwen3-32B"), 250, 4.0)


@measures("request")
def speculation() -> Iterator[Work]:
    """The standard requests on 2 instances that draft 3 tokens a step; 8 a second."""
    drafts = {"speculative_method": "draft_model", "draft_model": "meta-llama/Llama-3.2-1B", "num_speculative_tokens": 3}
    yield independent(llama(2, **drafts), 300, 8.0)


@measures("request")
def offload() -> Iterator[Work]:
    """bundled:offload: 20 agents of 10 turns whose contexts exceed the GPU's KV memory."""

    def work(share: float) -> Cost:
        workload = synthetic_load(800, 200, _part(400, share), turns=10, wait_s=1, seed=1)
        return cost(make_config("bundled:offload", {}), workload, concurrency=20)

    yield work


@measures("token")
def api() -> Iterator[Work]:
    """Through the whole API in this process: 500 tokens in, 450 out, 32 at a time on 2 instances."""

    def work(share: float) -> Cost:
        workload = synthetic_load(500, 450, _part(70, share), seed=1)
        return own_cpu(lambda: 450 * requests_of(simulate_by_api(llama(2), workload, concurrency=32)))

    yield work
