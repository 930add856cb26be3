"""The same workload and seed via the engine and via the API: the same token times, bit for bit."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from workload_files import write

from llmirage_client.load.options import RunOptions
from llmirage_client.simulate.simulation import EngineRun, Simulation, Via, engine_run, simulate
from llmirage_client.simulator.engine import ClusterConfig, plan_of
from llmirage_client.workload.registry import load
from llmirage_client.workload.session import Branch, Session, TokenSpec, Turn, Workload
from llmirage_client.workload.synthetic_load import synthetic_load

WORKLOADS = Path(__file__).parents[3] / "workloads"


def told(via: Via, workload: Workload, options: RunOptions, **settings: Any) -> dict[Any, Any]:
    """What a client saw of every request."""
    config = ClusterConfig(model="meta-llama/Llama-3.1-8B", gpu="h100_sxm", **settings)
    result = simulate(config, workload, options, via=via).result
    seen = {}
    for record in result.records:
        exchange = record.exchange
        usage = exchange.usage or {}
        counts = usage.get("prompt_tokens"), usage.get("completion_tokens")
        place = record.session_num, record.conversation_id, record.turn_index
        seen[place] = exchange.start_s, exchange.token_s, counts, exchange.error and exchange.error.message
    return seen


def both(workload: Workload, options: RunOptions, **settings: Any) -> dict[Any, Any]:
    engine = told("engine", workload, options, **settings)
    assert engine == told("api", workload, options, **settings)
    return engine


def simulations(
    workload: Workload, options: RunOptions, max_time_s: float | None = None, **settings: Any
) -> tuple[Simulation, ...]:
    """Simulate by the engine alone, and by the whole API."""
    config = ClusterConfig(model="meta-llama/Llama-3.1-8B", gpu="h100_sxm", **settings)
    ways: tuple[Via, ...] = ("engine", "api")
    return tuple(simulate(config, workload, options, via=via, max_time_s=max_time_s, trace=True) for via in ways)


@pytest.mark.parametrize("router", ["prefix", "kv_aware", "least_loaded"])
def test_lengths_alone(router: str) -> None:
    workload = synthetic_load("200:1500", "5:60", 40, turns="1:4", wait_s=0.3, seed=4)
    seen = both(workload, RunOptions(concurrency=6, seed=4), instances=3, router=router)
    assert len(seen) == 40
    assert all(len(stamps) == counts[1] for _, stamps, counts, _ in seen.values())


def test_lengths_at_a_rate_with_memory_that_runs_out() -> None:
    workload = synthetic_load("300:900", "60:200", 30, seed=2)
    options = RunOptions(request_rate_per_s=60.0, seed=2)
    both(workload, options, num_gpu_blocks_override=220, max_model_len=1400)


def test_token_ids() -> None:
    workload = synthetic_load(300, "3:30", 16, turns=4, shared_prefix_tokens=120, seed=1)
    seen = both(workload, RunOptions(concurrency=3, seed=1), instances=2)
    assert any(counts[0] > 300 for _, _, counts, _ in seen.values())


def trace(tmp_path: Path, lines: list[dict[str, Any]]) -> Workload:
    path = write(tmp_path, *lines)
    return load(str(path), "mooncake_trace", {"block_size": 32}, {})


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("failing", [False, True])
def test_hash_blocks(tmp_path: Path, engine: str, failing: bool) -> None:
    """Blocks that prompts share, conversations that grow, prompts beyond the last block; some that do not fit."""
    rng, lines = Random(1), []
    for number in range(40):
        known = [rng.randrange(3), 10 + rng.randrange(3), 100 + number][: rng.randint(1, 3)]
        line = {"hash_ids": known, "input_length": 32 * len(known) + rng.choice([-5, 0, 40]), "output_length": 12}
        lines.append(line | ({"session_id": f"s{number % 7}"} if number % 2 else {}))
    workload, options = trace(tmp_path, lines), RunOptions(concurrency=5, seed=1)
    config = ClusterConfig(model="meta-llama/Llama-3.1-8B", gpu="h100_sxm", engine=engine)
    assert isinstance(engine_run(config, workload, options, plan_of(config)), EngineRun)  # without the server's endpoints
    settings: dict[str, Any] = {"engine": engine} | ({"max_model_len": 160} if failing else {})
    seen = [told(via, workload, options, **settings) for via in ("engine", "api")]
    assert len(seen[0]) == 40
    told_alike = [
        {
            place: (start_s, stamps, () if error else counts, bool(error))
            for place, (start_s, stamps, counts, error) in s.items()
        }
        for s in seen
    ]
    assert told_alike[0] == told_alike[1]
    assert any(error for *_, error in told_alike[0].values()) is failing


@pytest.mark.parametrize(
    "more",
    [
        {"extra": {"temperature": 1}},
        {"output_length": None},
        {"text_input": "Hello", "input_length": None, "hash_ids": None},
    ],
)
def test_hash_blocks_with_what_only_the_endpoints_read_go_through_these(tmp_path: Path, more: dict[str, Any]) -> None:
    line = {"hash_ids": [1], "input_length": 30, "output_length": 12} | more
    workload = trace(tmp_path, [{key: value for key, value in line.items() if value is not None}])
    config = ClusterConfig(model="meta-llama/Llama-3.1-8B", gpu="h100_sxm")
    options = RunOptions(concurrency=1, seed=1)
    assert engine_run(config, workload, options, plan_of(config)) is None
    assert len(both(workload, options)) == 1


@pytest.mark.parametrize("engine", ["sglang", "trtllm"])
def test_engines_whose_steps_are_followed_one_by_one(engine: str) -> None:
    workload = synthetic_load("100:800", "2:40", 20, turns=2, seed=5)
    both(workload, RunOptions(concurrency=5, seed=5), engine=engine)


@pytest.mark.parametrize("name", ["dag-agent-team.jsonl", "mixed-flat-agentic.jsonl"])
def test_bundled_files(name: str) -> None:
    workload = load(str(WORKLOADS / name), None, {}, {})
    options = RunOptions(seed=3, concurrency=None if workload.timed else 3, fixed_schedule=workload.timed, request_count=40)
    assert len(both(workload, options, instances=2)) > 10


@pytest.mark.parametrize("api", ["chat", "completions", "responses", "messages"])
@pytest.mark.parametrize("streaming", [True, False])
def test_every_api(api: Any, streaming: bool) -> None:
    workload = load(str(WORKLOADS / "dag-agent-team.jsonl"), None, {}, {})
    options = RunOptions(seed=3, concurrency=3, request_count=20, endpoint_type=api, streaming=streaming)
    seen = both(workload, options, instances=2)
    assert all(stamps and error is None for _, stamps, _, error in seen.values())


def test_tool_calls_and_forks() -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    ask = {"role": "user", "content": "Please call the tool and look."}
    parent = Session(
        "parent",
        (
            Turn((ask,), max_tokens=40, tools=(tool,), branches=(Branch("parent:0", "fork", ("child",), join_at=1),)),
            Turn(({"role": "user", "content": "And now?"},), max_tokens=25),
        ),
    )
    child = Session("child", (Turn(({"role": "user", "content": "Go on."},), max_tokens=30),))
    workload = Workload("made", "made", {"parent": parent, "child": child}, ("parent",))
    assert len(both(workload, RunOptions(num_conversations=3, concurrency=2, seed=1, tool_results="fitted"))) == 9


def test_speculative_decoding() -> None:
    workload = synthetic_load(400, 60, 12, seed=6)
    settings = {"num_speculative_tokens": 3, "acceptance_rate": 0.7, "speculative_method": "draft_model"}
    settings["draft_model"] = "meta-llama/Llama-3.2-1B"
    both(workload, RunOptions(concurrency=4, seed=6), **settings)


def test_requests_that_fail_leave_the_others_as_they_are() -> None:
    workload = synthetic_load("100:500", "5:60", 60, turns=4, seed=7)
    config = {"max_model_len": 1200}
    ways: tuple[Via, Via] = ("engine", "api")
    seen = [told(via, workload, RunOptions(concurrency=4, seed=7), **config) for via in ways]
    engine, api = ({place: (start_s, stamps, bool(error)) for place, (start_s, stamps, _, error) in s.items()} for s in seen)
    assert engine == api
    assert 0 < sum(failed for _, _, failed in engine.values()) < 60


@pytest.mark.parametrize("delay_s", [0.0, 0.05])
def test_requests_that_are_cancelled_on_purpose(delay_s: float) -> None:
    workload = synthetic_load("100:500", "5:60", 40, seed=7)
    options = RunOptions(concurrency=4, seed=7, cancellation_share=0.4, cancellation_delay_s=delay_s)
    seen = both(workload, options, instances=1)
    assert 8 <= sum(error is not None for _, _, _, error in seen.values()) <= 24


def test_forks_of_token_counts_share_what_came_before() -> None:
    def turn(tokens: int, *branches: Branch) -> Turn:
        return Turn(tokens=TokenSpec(tokens, 20), branches=branches)

    parent = Session("parent", (turn(400, Branch("parent:0", "fork", ("one", "two"), join_at=1)), turn(700)), mode="tokens")
    children = {name: Session(name, (turn(600), turn(900)), mode="tokens") for name in ("one", "two")}
    workload = Workload("made", "made", {"parent": parent, **children}, ("parent",))
    both(workload, RunOptions(num_conversations=3, concurrency=2, seed=1), instances=2)
    config = ClusterConfig(model="meta-llama/Llama-3.1-8B", gpu="h100_sxm")
    result = simulate(config, workload, RunOptions(num_conversations=1, seed=1)).result
    cached = {
        (record.conversation_id, record.turn_index): record.exchange.usage["prompt_tokens_details"]["cached_tokens"]
        for record in result.records
        if record.exchange.usage
    }
    assert cached == {
        ("parent", 0): 0,
        ("one", 0): 420,
        ("two", 0): 420,
        ("one", 1): 620,
        ("two", 1): 620,
        ("parent", 1): 420,
    }


@pytest.mark.parametrize("load", [{"request_rate_per_s": 12.0}, {"concurrency": 8}])
def test_the_cluster_looks_the_same_through_both_ways(load: dict[str, Any]) -> None:
    workload = synthetic_load("200:900", "20:120", 60, turns="1:3", wait_s=0.4, seed=1)
    engine, api = simulations(workload, RunOptions(seed=1, **load), instances=2, num_gpu_blocks_override=120)
    one, two = engine.series, api.series
    for name in ("time_s", "running", "waiting", "hit_tokens", "query_tokens", "preemptions"):
        assert (getattr(one, name) == getattr(two, name)).all(), name
    assert one.preemptions.max() > 0
    assert two.busy_s[:, -1] == pytest.approx(one.busy_s[:, -1])
    for name in ("kv_used", "cached"):  # behind by the steps of one run of decoding, see Cluster.readings
        assert getattr(two, name) == pytest.approx(getattr(one, name), abs=0.2), name
    for name in ("saturated", "preemptions", "energy_kwh_at_tdp", "instances_ready", "gpu_hours", "utilisation"):
        assert api.summary[name] == pytest.approx(engine.summary[name]), name
    for plain, merged in zip(api.steps, engine.steps, strict=True):
        assert sum(span.steps for span in plain) == sum(span.steps for span in merged)
        assert (plain[0].start_s, plain[-1].end_s) == (merged[0].start_s, pytest.approx(merged[-1].end_s))


def test_a_run_that_is_stopped_looks_the_same_too() -> None:
    workload = synthetic_load(2000, 400, 200, seed=1)
    engine, api = simulations(workload, RunOptions(seed=1, request_rate_per_s=40.0), max_time_s=3.9)
    assert (engine.series.time_s == api.series.time_s).all()
    assert (engine.series.waiting == api.series.waiting).all()
    assert api.summary["saturated"] is engine.summary["saturated"]


def test_instances_come_and_go_alike() -> None:
    workload = synthetic_load(1000, 200, 150, seed=1)
    scaled = {"scale_on_queue": 4.0, "min_instances": 1, "start_up_s": 2.0, "instances": 3}
    engine, api = simulations(workload, RunOptions(seed=1, request_rate_per_s=40.0), **scaled)
    assert (engine.series.phase == api.series.phase).all()
    assert api.summary["gpu_hours"] == engine.summary["gpu_hours"]
