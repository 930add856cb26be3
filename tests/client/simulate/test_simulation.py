"""simulate(): what it returns, when it stops, and what it refuses."""

import dataclasses
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invoked import invoke, json_of, refusal, text_of
from traced import overlaps

from llmirage_client.load.options import RunOptions
from llmirage_client.measure.run_folder import read_cluster_series
from llmirage_client.simulate import token_times
from llmirage_client.simulate.report import cluster_blocks, write_trace
from llmirage_client.simulate.saturation import queue_of
from llmirage_client.simulate.simulation import SimulationError, Via, Window, simulate
from llmirage_client.simulate.summary import SHOWN_STATISTICS
from llmirage_client.simulate.token_rows import TokenRow
from llmirage_client.simulator.engine import ClusterConfig, ConfigError
from llmirage_client.workload.session import Branch, Session, TokenSpec, Turn, Workload
from llmirage_client.workload.synthetic_load import synthetic_load
from llmirage_server.app import LlmirageApp, create_app
from llmirage_server.cluster.schedulers import summed_batch

CLUSTER = ClusterConfig(model="meta-llama/Llama-3.1-8B", gpu="h100_sxm", instances=2)


def test_the_summary_and_the_cluster_fit_together() -> None:
    simulation = simulate(CLUSTER, synthetic_load(800, 100, 120, seed=1), RunOptions(request_rate_per_s=12.0, seed=1))
    summary, series = simulation.summary, simulation.series
    assert set(summary["ttft_ms"]) == set(SHOWN_STATISTICS) > {"mean", "p50", "p90", "p95", "p99", "max"}
    assert summary["requests"] == 120
    assert summary["saturated"] is False
    assert summary["gpus"] == 2
    assert summary["output_tok_per_s"] == pytest.approx(120 * 100 / summary["duration_s"])
    assert 0 < summary["utilisation"] <= 1
    assert sum(summary["step_shares"].values()) == pytest.approx(1.0)
    low, high = summary["usd_per_m_output_tokens"]
    assert low == pytest.approx(1.99 * 2 * summary["duration_s"] / 3600 / (120 * 100 / 1e6))
    assert low < high
    assert summary["energy_kwh_at_tdp"] <= 2 * 700 * summary["duration_s"] / 3.6e6
    hosts_kwh = 2 * 350 * summary["duration_s"] / 3.6e6
    idle_kwh = 0.2 * (2 * 700 * summary["duration_s"] / 3.6e6 - summary["energy_kwh_at_tdp"])
    assert summary["energy_kwh_with_hosts"] == pytest.approx(summary["energy_kwh_at_tdp"] + hosts_kwh + idle_kwh)
    network_kwh = summary["energy_kwh_with_network"] - summary["energy_kwh_with_hosts"]
    assert network_kwh == pytest.approx(0.1 * (3 * hosts_kwh + network_kwh))  # a tenth of all
    assert series.running.shape == (2, series.time_s.size)
    assert (np.diff(series.time_s) >= 0).all()
    assert series.running.max() > 1
    assert (np.diff(series.busy_s) >= 0).all()


def test_the_same_seed_gives_the_same_result_and_another_one_another() -> None:
    workload = synthetic_load("100:900", "10:90", 50, seed=1)
    one, two, three = (simulate(CLUSTER, workload, RunOptions(request_rate_per_s=9.0, seed=s)).summary for s in (5, 5, 6))
    assert one == two
    assert one != three


@pytest.mark.parametrize(
    ("engine", "prompt", "output"),
    [("vllm", "200:3000", "2:90"), ("sglang", "3000:20000", "300:900"), ("trtllm", "200:3000", "2:90")],
)
def test_figures_are_the_same_where_requests_are_dropped_on_the_way(
    monkeypatch: pytest.MonkeyPatch, engine: str, prompt: str, output: str
) -> None:
    """Requests fail and wait for room; the ends of steps are in many arrays."""
    cluster = dataclasses.replace(CLUSTER, engine=engine, max_model_len=18_000)
    workload, options = synthetic_load(prompt, output, 150, seed=1), RunOptions(request_rate_per_s=30.0, seed=1)
    kept = simulate(cluster, workload, options)
    monkeypatch.setattr(token_times, "_MOST_ROWS", 7)
    monkeypatch.setattr(summed_batch, "_MOST_ENDS", 5)
    dropped = simulate(cluster, workload, options, with_records=False)
    assert len(kept.result.records) == len(dropped.columns) == 150
    assert dropped.metrics.errors == kept.metrics.errors
    for name, column in dataclasses.asdict(kept.columns).items():
        np.testing.assert_equal(getattr(dropped.columns, name), column)
    gaps, same = kept.metrics.per_request["inter_chunk_latency"], dropped.metrics.per_request["inter_chunk_latency"]
    assert dataclasses.asdict(same) == pytest.approx(dataclasses.asdict(gaps), rel=1e-12)


def test_a_store_saves_what_another_instance_has_computed_and_the_report_tells_by_tier() -> None:
    """Conversations that come to either instance, whose own memory is too small for them."""
    workload = synthetic_load(1500, 20, 48, turns=4, seed=1)
    cluster = dataclasses.replace(CLUSTER, engine="vllm", router="random", num_gpu_blocks_override=600)
    stored = dataclasses.replace(cluster, kv_store_gib=40.0)
    options = RunOptions(concurrency=4, seed=1)
    without, found = (simulate(each, workload, options) for each in (cluster, stored))
    assert "kv_loaded_tokens" not in without.summary
    assert found.summary["kv_loaded_tokens"]["store"] > 10_000
    assert found.summary["cached_token_share"] > without.summary["cached_token_share"] + 0.1
    assert found.summary["ttft_ms"]["mean"] < without.summary["ttft_ms"]["mean"]
    [line] = [str(block) for block in cluster_blocks(found) if "KV loaded" in str(block)]
    assert line == f"Tokens of KV loaded in the whole run: {found.summary['kv_loaded_tokens']['store']:,} from the store"


def test_looking_at_the_cluster_changes_nothing() -> None:
    workload = synthetic_load("100:900", "10:90", 50, seed=1)
    plain, traced = (simulate(CLUSTER, workload, RunOptions(concurrency=9, seed=5), trace=t) for t in (False, True))
    assert plain.summary == traced.summary
    steps = traced.steps
    assert len(steps) == 2
    for spans in steps:
        assert all(before.end_s <= after.start_s + 1e-12 for before, after in itertools.pairwise(spans))
    prompt_tokens = sum(span.prompt_tokens * span.steps for spans in steps for span in spans)
    cached = traced.columns.usage["usage_prompt_cache_read_tokens"].sum()
    assert prompt_tokens == traced.columns.usage["usage_prompt_tokens"].sum() - cached


def test_it_stops_at_the_given_time_and_says_so() -> None:
    workload = synthetic_load(500, 50, 10, seed=1)
    options = RunOptions(concurrency=4, benchmark_duration_s=1e9, seed=1)
    simulation = simulate(CLUSTER, workload, options, max_time_s=20.0)
    assert simulation.stopped is not None
    assert "20 s" in simulation.stopped
    assert simulation.result.cancelled
    assert 15 < simulation.summary["duration_s"] <= 20


def test_a_load_that_takes_no_time_is_told_and_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmirage_shared.standstill.TURNS_AT_ONE_TIME", 5000)
    instant = ClusterConfig(ttft_ms=0.0, itl_ms=0.0)
    options = RunOptions(concurrency=1, benchmark_duration_s=10.0, seed=1)
    with pytest.raises(SimulationError, match="takes no time"):
        simulate(instant, synthetic_load(5, 1, 3, seed=1), options)


def test_a_workload_without_requests_is_refused() -> None:
    empty = Workload("made", "made", {"a": Session("a", ())}, ("a",))
    with pytest.raises(SimulationError, match="no request"):
        simulate(CLUSTER, empty, RunOptions())


def test_a_cluster_that_cannot_be_is_refused_with_the_arithmetic() -> None:
    with pytest.raises(ConfigError, match="does not fit"):
        simulate(ClusterConfig(model="meta-llama/Llama-3.1-70B", gpu="l4"), synthetic_load(5, 5, 1), RunOptions())


def test_saturation_is_seen_in_the_last_requests() -> None:
    assert queue_of([]).overloaded is None
    assert queue_of([9.0] * 10 + [0.1] * 90).overloaded is None
    assert queue_of([0.1] * 90 + [9.0] * 10).overloaded == "the last requests waited 9 s in queues (median)"
    overloaded = simulate(CLUSTER, synthetic_load(4000, 400, 600, seed=1), RunOptions(request_rate_per_s=60.0, seed=1))
    assert overloaded.summary["saturated"] is True


def test_a_request_that_no_instance_has_room_for_fails_alone() -> None:
    config = ClusterConfig(model="meta-llama/Llama-3.1-8B", gpu="h100_sxm", max_model_len=1000)
    simulation = simulate(config, synthetic_load("100:2000", 20, 30, seed=2), RunOptions(concurrency=3, seed=2))
    failed = simulation.summary["failed_requests"]
    assert 0 < failed < 30
    assert simulation.summary["requests"] == 30 - failed


def test_a_crash_is_seen_and_survived() -> None:
    from llmirage_server.config import EventConfig

    event = EventConfig(at_s=2.0, action="crash", instance=0, restart_after_s=1.0)
    config = ClusterConfig(model="meta-llama/Llama-3.1-8B", gpu="h100_sxm", instances=2, events=(event,))
    simulation = simulate(config, synthetic_load(500, 100, 60, seed=1), RunOptions(request_rate_per_s=10.0, seed=1))
    assert simulation.summary["requests"] == 60


@pytest.mark.parametrize("branches", [False, True])
def test_requests_that_no_instance_will_ever_serve_fail_and_the_run_goes_on(branches: bool) -> None:
    from llmirage_server.config import EventConfig

    event = EventConfig(at_s=1.0, action="crash", instance=0)
    config = ClusterConfig(ttft_ms=100.0, itl_ms=10.0, instances=1, events=(event,), on_crash="fail")
    call = TokenSpec(5, 5)
    spawn = Branch("b", "spawn", ("child",), 1)
    parent = Session(
        "parent", (Turn(tokens=call, branches=(spawn,) * branches), *[Turn(tokens=call, delay_s=0.2)] * 9), "tokens"
    )
    workload = Workload(
        "made", "made", {"parent": parent, "child": Session("child", (Turn(tokens=call),), "tokens")}, ("parent",)
    )
    simulation = simulate(config, workload, RunOptions(seed=1))
    assert simulation.summary["requests"] == 3 + branches
    assert [(group.error.code, group.count) for group in simulation.metrics.errors] == [(503, 7)]


def test_the_trace_is_what_perfetto_reads(tmp_path: Path) -> None:
    simulation = simulate(CLUSTER, synthetic_load(300, 20, 12, seed=1), RunOptions(concurrency=4, seed=1), trace=True)
    path = tmp_path / "trace.json"
    assert write_trace(path, simulation.steps, simulation.result.records) == 0
    events = json.loads(path.read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in slices} == {1, 2, 3}
    assert sum(event["name"].startswith("request_") for event in slices) == 12
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in slices)
    assert overlaps(events) == []


FLAGS = ["simulate", "--isl", "300", "--osl", "20", "--model", "llama-3.1-8b", "--gpu", "h100_sxm"]


def test_the_command_writes_what_a_run_writes(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    words = [*FLAGS, "--requests", "20", "--request-rate", "9", "--artifact-dir", str(folder)]
    result = invoke(*words, "--set", "records=true", "--trace", tmp_path / "t.json")
    assert "Per output token (TPOT)" in result.stdout
    assert "Cluster, means over time" in result.stdout
    assert "USD per million output tokens" in result.stdout
    assert len((folder / "profile_export.jsonl").read_text().splitlines()) == 20
    series = read_cluster_series(folder)
    assert series.levels["running"].max() >= 1
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert any(event["name"].startswith("decode") for event in events)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--isl", "x", "--osl", "5"], "isl"),
        (["--isl", "5", "--osl", "5", "--gpu", "h1000"], "h1000"),
        (["--isl", "5", "--osl", "5", "--concurrency", "1,2"], "sweep"),
        (["no-such-file.jsonl"], "no-such-file.jsonl"),
        (["no-such-file.jsonl", "--isl", "5"], "--isl describes a load without a file"),
        (["--isl", "5", "--osl", "5", "--door", "memory"], "--door memory is now --via api"),
        (["--isl", "5", "--osl", "5", "--door", "direct"], "--door direct is now --via engine"),
        (["--isl", "5", "--osl", "5", "--door"], "--door"),
    ],
)
def test_bad_input_is_told_in_one_message(words: list[str], told: str) -> None:
    result = refusal("simulate", *words, "--json")
    assert told in result


def test_the_command_says_that_it_was_stopped() -> None:
    words = [*FLAGS, "--requests", "50", "--request-rate", "5", "--max-time", "3", "--json"]
    result = invoke(*words, status=1)
    assert "3 s of the cluster's time are over" in result.stderr
    assert 0 < json.loads(result.stdout)["requests"] < 50


def test_requests_can_be_of_another_api_and_a_warm_up_does_not_count() -> None:
    words = ["simulate", "bundled:dag-agent-team", "--model", "llama-3.1-8b", "--gpu", "h100_sxm", "--concurrency", "2"]
    words += ["--num-conversations", "2", "--endpoint-type", "responses", "--warmup-request-count", "3", "--json"]
    result = invoke(*words)
    assert json.loads(result.stdout)["requests"] == 24


def test_a_simulation_can_be_stopped_and_reported() -> None:
    stops: list[Callable[[str], None]] = []

    def late(row: TokenRow) -> None:
        if row.start_s > 3.0:
            stops[0]("enough")

    workload = synthetic_load(500, 50, 200, seed=1)
    options = RunOptions(request_rate_per_s=10.0, seed=1)
    simulation = simulate(CLUSTER, workload, options, stoppable=stops.append, window=Window(0, 200, late))
    assert simulation.stopped == "enough"
    assert 10 < simulation.summary["requests"] < 50


def test_files_that_cannot_be_written_are_told_before_anything_is_worked_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("it was simulated")

    monkeypatch.setattr("llmirage_client.simulate.simulation.simulate", never)
    (tmp_path / "file").write_text("")
    places = ["--artifact-dir", str(tmp_path / "file" / "below"), "--trace", str(tmp_path / "no" / "t.json")]
    result = refusal(*FLAGS, *places)
    assert f"{tmp_path / 'file'} is not a folder" in result
    assert f"there is no folder {tmp_path / 'no'}" in result


def test_what_was_worked_out_is_shown_though_files_fail_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("llmirage_client.report.files.write_artifacts", full)
    result = invoke(*FLAGS, "--requests", "5", "--artifact-dir", tmp_path / "out", "--json", status=1)
    assert "No space left" in result.stderr
    assert json.loads(result.stdout)["requests"] == 5


@pytest.mark.parametrize("via", ["engine", "api"])
def test_progress_is_told_by_requests_and_cluster_time_either_way(via: Via) -> None:
    told: list[tuple[int, float]] = []
    options = RunOptions(request_rate_per_s=8.0, seed=1)
    workload = synthetic_load(300, 60, 40, seed=1)
    simulate(CLUSTER, workload, options, via=via, on_progress=lambda over, now, _: told.append((over, now)))
    assert len(told) > 10
    assert told == sorted(told)
    assert 30 < told[-1][0] <= 40


def test_a_long_simulation_says_how_far_it_is_and_a_short_one_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [*FLAGS, "--requests", "60", "--request-rate", "10", "--json"]
    assert invoke(*command).stderr == ""
    monkeypatch.setattr("llmirage_client.simulate.progress.QUIET_S", -1.0)
    monkeypatch.setattr("llmirage_client.report.progress.PLAIN_LINE_S", 0.0)
    long = invoke(*command)
    assert " of 60 requests, " in long.stderr
    assert re.search(r" s of cluster time, 0:\d\d elapsed", long.stderr)
    assert json.loads(long.stdout)["requests"] == 60


@pytest.mark.parametrize("option", ["--max-time", "--benchmark-duration", "--duration", "--arrival-smoothness"])
def test_nan_is_no_number_of_seconds(option: str) -> None:
    refused = refusal(*FLAGS, "--request-rate", "5", option, "nan")
    assert f"Invalid value for '{option}'" in refused
    assert "not nan" in refused


def test_why_requests_failed_is_said_beside_the_json() -> None:
    failed = invoke(*FLAGS, "--requests", "7", "--max-model-len", "310", "--json", status=1)
    assert json.loads(failed.stdout)["failed_requests"] == 7
    assert (
        "7 of 7 requests failed: This model's maximum context length is 310 tokens. However, you requested 320"
        in failed.stderr
    )


def test_every_key_of_the_json_summary_is_documented() -> None:
    result = invoke(*FLAGS, "--requests", "5", "--json")
    page = (Path(__file__).parents[3] / "docs" / "simulate.md").read_text()
    assert [key for key in json.loads(result.stdout) if f"`{key}`" not in page] == []


def test_bands_stand_beside_the_figures() -> None:
    summary = json_of(*FLAGS, "--requests", "5")
    for name in ("ttft_ms", "tpot_ms", "latency_ms", "output_tok_per_s"):
        mean = summary[name]["mean"] if name.endswith("ms") else summary[name]
        (low, high), (lowest, highest) = summary["bands"][name]["50"], summary["bands"][name]["90"]
        assert lowest < low < mean < high < highest
        assert low * high == pytest.approx(mean**2)
    shown = text_of(*FLAGS, "--requests", "5")
    assert "Error bands mean simulated 50 % of measured 90 % of measured" in shown
    assert f"Bands of {summary['bands']['of']}" in shown


def test_times_of_the_users_own_have_no_bands() -> None:
    assert json_of("simulate", "--ttft", "10", "--itl", "1", "--isl", "10", "--osl", "5")["bands"] is None


@pytest.mark.parametrize("engine", ["vllm", "trtllm"])
def test_streams_in_intervals_have_fewer_events_and_the_same_ends(engine: str) -> None:
    """Tokens 1, 6, 11, ... end a chunk, of TensorRT-LLM 1, 5, 10, ...; by both ways of simulating."""
    workload, options = synthetic_load(300, 22, 12, seed=1), RunOptions(concurrency=4, seed=1)
    plain, chunked = (
        simulate(dataclasses.replace(CLUSTER, engine=engine, stream_interval=n), workload, options) for n in (1, 5)
    )
    ends = [1, 6, 11, 16, 21, 22] if engine == "vllm" else [1, 5, 10, 15, 20, 22]
    for before, after in zip(plain.result.records, chunked.result.records, strict=True):
        assert after.exchange.token_s == [before.exchange.token_s[end - 1] for end in ends]
    for same in ("ttft_ms", "tpot_ms", "latency_ms"):
        assert chunked.summary[same] == plain.summary[same]
    assert chunked.summary["itl_ms"]["p50"] == pytest.approx(5 * plain.summary["itl_ms"]["p50"], rel=0.05)
    config = dataclasses.replace(CLUSTER, engine=engine, stream_interval=5)
    protocol = simulate(config, workload, options, via="api")
    assert [each.exchange.token_s for each in protocol.result.records] == [
        each.exchange.token_s for each in chunked.result.records
    ]


def test_the_servers_metrics_agree_with_the_clients_report(monkeypatch: pytest.MonkeyPatch) -> None:
    apps = []

    def remembered(*settings: Any, **parts: Any) -> LlmirageApp:
        apps.append(create_app(*settings, **parts))
        return apps[-1]

    monkeypatch.setattr("llmirage_client.simulator.in_process.create_app", remembered)
    run = simulate(CLUSTER, synthetic_load(300, 22, 24, seed=1), RunOptions(concurrency=6, seed=1), via="api")
    lines = [line.rpartition(" ") for line in apps[-1].exposition().splitlines() if line[0] != "#"]

    def total(name: str) -> float:
        return sum(float(value) for key, _, value in lines if key.partition("{")[0] == f"vllm:{name}")

    def mean_ms(name: str) -> float:
        return 1000 * total(f"{name}_seconds_sum") / total(f"{name}_seconds_count")

    summary, records = run.summary, run.result.records
    assert total("request_success_total") == len(records) == 24
    assert total("generation_tokens_total") == 24 * 22
    assert mean_ms("time_to_first_token") == pytest.approx(summary["ttft_ms"]["mean"], rel=0.01)
    assert mean_ms("request_time_per_output_token") == pytest.approx(summary["tpot_ms"]["mean"], rel=0.01)
    assert mean_ms("inter_token_latency") == pytest.approx(summary["itl_ms"]["mean"], rel=0.01)
    assert mean_ms("e2e_request_latency") == pytest.approx(summary["latency_ms"]["mean"], rel=0.01)
