"""Scenarios: what they lock and fill in, the verdict on their runs, and their exit statuses."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from workload_files import write

from llmirage_client.cli import main
from llmirage_client.measure.columns import columns_of
from llmirage_client.measure.metrics import performance_of
from llmirage_client.measure.submission import ReplayCounts, submission_of
from llmirage_client.operations.workload import load_workload, resolved_scenario
from llmirage_client.report.records_file import event_lines
from llmirage_client.settings.run import RunSettings
from llmirage_client.settings.scenario import ScenarioRefused, resolved
from llmirage_client.workload.registry import load
from llmirage_client.workload.session import Workload
from llmirage_shared.settings import ConfigError

TRACE: dict[str, Any] = {
    "id": "t", "models": ["m"], "block_size": 64, "hash_id_scope": "local",
    "requests": [
        {"t": 2.0 * k, "type": "s", "in": 64 * (k + 1), "out": 4, "hash_ids": list(range(k + 1)), "api_time": 0.5}
        for k in range(6)
    ],
}  # fmt: skip


def invoke(folder: Path, command: str, *words: str, tokens: int | None = None) -> Any:
    """Run a command on the trace. tokens: of each prompt, which have nothing in common then."""
    own = {"in": tokens, "hash_ids": []} if tokens else {}
    file = folder / "t.json"
    file.write_text(json.dumps(TRACE | {"requests": [request | own for request in TRACE["requests"]]}))
    return CliRunner().invoke(main, [command, str(file), *words])


def asked(name: str, **given: Any) -> RunSettings:
    return RunSettings(url=("localhost:1",), scenario=name, **given)


def test_all_violations_come_at_once_and_an_override_allows_them() -> None:
    wrong: dict[str, Any] = {
        "request_rate": (2.0,),
        "streaming": False,
        "extra_inputs": {"ignore_eos": False},
        "ignore_trace_delays": True,
        "synthesis_max_isl": 100,
        "inter_turn_delay_cap_seconds": 5.0,
        "cache_bust": "none",
        "benchmark_duration": 899.0,
        "system_idle_gap_cap_seconds": 3.0,
    }
    with pytest.raises(ScenarioRefused) as refused:
        resolved(asked("agentx", **wrong), "weka_trace")
    assert "(10 conflicts)" in str(refused.value)  # these nine and the local corpus
    assert refused.value.status == 1
    allowed = resolved(asked("agentx", **wrong, unsafe_override=True), "weka_trace")
    assert len(allowed.violations) == 10
    assert allowed.lanes is not None
    assert not allowed.lanes.marks


@pytest.mark.parametrize(("format", "given"), [(None, {}), ("weka_trace", {"concurrency": (1, 2)})])
def test_no_override_allows_a_sweep_or_a_run_without_a_trace(format: str | None, given: dict[str, Any]) -> None:
    with pytest.raises(ScenarioRefused, match="cannot allow"):
        resolved(asked("agentx", unsafe_override=True, **given), format)


def test_what_is_not_given_the_scenario_says() -> None:
    agentx = resolved(asked("agentx", unsafe_override=True), "weka_trace")
    assert (agentx.settings.benchmark_duration, agentx.settings.random_seed) == (3600.0, 42)
    assert agentx.settings.extra_inputs == {"ignore_eos": True}
    lanes = agentx.lanes
    assert lanes is not None
    assert (lanes.start_min, lanes.start_max, lanes.pressure_requests, lanes.pressure_s) == (0.25, 0.75, 10, None)
    assert (lanes.system_idle_cap_s, lanes.tree_idle_cap_s, lanes.failed_request_threshold) == (10.0, 300.0, 0.1)
    assert lanes.warm_up_grace_s == 1800.0
    mvp = resolved(asked("inferencex-agentx-mvp", unsafe_override=True), "weka_trace")
    assert mvp.lanes is not None
    assert mvp.settings.benchmark_duration == 1800.0
    assert (mvp.lanes.start_min, mvp.lanes.start_max, mvp.lanes.has_pressure) == (0.0, 1.0, False)
    assert mvp.lanes.warm_up_grace_s == math.inf
    assert mvp.lanes.run_id != lanes.run_id
    timed = resolved(asked("agentx", unsafe_override=True, agentic_cache_warmup_duration=5.0), "weka_trace").lanes
    assert timed is not None
    assert (timed.pressure_requests, timed.pressure_s) == (None, 5.0)


def judge(**changes: Any) -> Any:
    given: dict[str, Any] = {
        "replay": ReplayCounts(), "completed": 99, "first_s": np.array([10.0, 960.0]), "ended_s": np.array([955.0]),
        "scenario": "agentx", "violations": (), "start_s": 5.0, "duration_s": 1000.0, "speed": 1.0, "cancelled": False,
    }  # fmt: skip
    return submission_of(**(given | changes))


def test_the_verdict() -> None:
    assert judge().metadata() == {
        "scenario": "agentx",
        "submission_valid": True,
        "metric_duration_coverage": [
            {
                "expected_duration_seconds": 1000.0, "ttft_ratio": 0.955, "inter_token_latency_ratio": 0.95,
                "required_ratio": 0.95, "phase_name": "profiling",
            }
        ],
    }  # fmt: skip
    late = judge(ended_s=np.array([954.9]))
    assert late.reasons == ("insufficient_profile_metric_coverage",)
    assert late.failed
    assert judge(duration_s=899.0, ended_s=np.array([])).reasons == ()
    assert judge(replay=ReplayCounts(context_overflows=1)).reasons == ()  # 1 of 100 is not over 1 %
    assert judge(replay=ReplayCounts(context_overflows=2)).reasons == ("context_overflow_rate_exceeded",)
    cancelled = judge(cancelled=True, violations=("x",), ended_s=np.array([]))
    assert cancelled.reasons == ("unsafe_override", "run_cancelled")


def test_a_simulated_run_is_judged_and_repeatable(tmp_path: Path) -> None:
    words = ["--scenario", "agentx", "--gpu", "h100_sxm", "--model", "Qwen/Qwen3-8B", "--json"]
    refused = invoke(tmp_path, "simulate", *words)
    assert refused.exit_code == 1
    assert "local WEKA trace" in refused.output
    first, again = (
        invoke(tmp_path, "simulate", *words, "--unsafe-override", "--benchmark-duration", "900") for _ in range(2)
    )
    assert first.exit_code == 0, first.output
    found, other = json.loads(first.stdout), json.loads(again.stdout)
    assert found == other
    assert found["metadata"]["submission_invalid_reasons"] == ["unsafe_override"]
    (coverage,) = found["metadata"]["metric_duration_coverage"]
    assert coverage["ttft_ratio"] > 0.99
    assert found["requests"] > 900 / 12 * 5  # six requests and ten seconds of pauses a play
    assert 0.4 < found["cached_token_share"] < 0.95  # within plays alone, as every one has a marker


@pytest.mark.parametrize(("more", "seed"), [((), 0), (("--random-seed", "0"), 0), (("--random-seed", "1"), 1)])
def test_a_simulation_has_a_seed_that_its_scenario_would_draw(tmp_path: Path, more: tuple[str, ...], seed: int) -> None:
    words = ["--scenario", "inferencex-agentx-mvp", "--unsafe-override", "--benchmark-duration", "30", "--concurrency", "2"]
    words += ["--gpu", "h100_sxm", "--model", "Qwen/Qwen3-8B", "--artifact-dir", str(tmp_path / "run"), *more]
    assert invoke(tmp_path, "simulate", *words).exit_code == 0
    told = json.loads((tmp_path / "run" / "profile_export_aiperf.json").read_text())
    assert told["input_config"]["options"]["random_seed"] == seed


@pytest.mark.parametrize("via", ["engine", "api"])
def test_a_prompt_over_the_window_is_an_overflow_in_a_simulation(tmp_path: Path, via: str) -> None:
    words = ["--scenario", "inferencex-agentx-mvp", "--unsafe-override", "--benchmark-duration", "60", "--via", via]
    words += ["--trajectory-start-max-ratio", "0.3", "--gpu", "h100_sxm", "--model", "Qwen/Qwen3-8B"]
    done = invoke(tmp_path, "simulate", *words, "--max-model-len", "300", "--artifact-dir", str(tmp_path / "run"))
    told = json.loads((tmp_path / "run" / "profile_export_aiperf.json").read_text())
    assert (done.exit_code, told["error_request_count"]["avg"]) == (0, 0)
    assert told["context_overflow_count"]["avg"] > 5  # the fifth request ends each play
    assert told["metadata"]["submission_invalid_reasons"] == ["unsafe_override", "context_overflow_rate_exceeded"]


def test_a_size_is_of_the_profile_that_a_simulation_of_the_answer_has(tmp_path: Path) -> None:
    lanes = ["--scenario", "agentx", "--concurrency", "2", "--benchmark-duration", "900", "--model", "Qwen/Qwen3-8B"]
    page = tmp_path / "size.html"
    words = [*lanes, "--gpus", "h100_sxm", "--tps", "1", "--slo", "ttft_p99<300ms", "--html", str(page), "--json"]
    done = invoke(tmp_path, "size", *words, tokens=8_000)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    held = {"kind": "concurrency", "amount": 2, "scenario": "agentx", "benchmark_duration": 900.0, "random_seed": 42}
    assert found["traffic"].items() >= held.items()
    ttft_ms = []
    for instances in ("2", "1"):
        given = ["--gpu", "h100_sxm", "--instances", instances, "--unsafe-override", "--json"]
        ttft_ms.append(json.loads(invoke(tmp_path, "simulate", *lanes, *given, tokens=8_000).stdout)["ttft_ms"]["p99"])
    assert (found["answer"]["instances"], found["answer"]["objectives"][0]["value"]) == (2, ttft_ms[0])
    assert ttft_ms[0] < 300 < ttft_ms[1]
    assert "scenario agentx with 2 lanes for 900 s" in page.read_text()


@pytest.mark.parametrize(
    ("words", "status", "problem"),
    [
        ("--scenario agentx --request-rate 2 --max-rate", 2, "fixes the load: omit --request-rate, --max-rate"),
        ("--scenario agentx --benchmark-duration 60", 1, "900 seconds or more --unsafe-override makes warnings of them."),
        ("--scenario agent", 1, "Unknown scenario 'agent'"),
        ("--scenario agentx --max-model-len 200 --gpus h100_sxm --tps 1", 1, "conversation 't': 400: This model's maximum"),
        ("--benchmark-duration 60 --concurrency 2", 2, "--benchmark-duration needs --scenario"),
        ("--unsafe-override --concurrency 2", 2, "--unsafe-override needs --scenario"),
    ],
)  # fmt: skip
def test_what_no_size_of_a_scenario_can_have_is_refused(tmp_path: Path, words: str, status: int, problem: str) -> None:
    given = ["--slo", "ttft_p99<150ms", *words.split()]
    done = invoke(tmp_path, "size", *given)
    assert done.exit_code == status
    assert problem in " ".join(done.output.split())


def test_agentx_keeps_the_recorded_order_between_agents(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    file.write_text(json.dumps(TRACE))
    settings = asked("agentx", unsafe_override=True)
    assert not load_workload(str(file), resolved(settings, "weka_trace").settings).frees_early
    with pytest.raises(ConfigError, match="recorded_order=true"):
        resolved_scenario(load(str(file)), settings)
    ordered = load(str(file), options={"recorded_order": True})
    assert resolved_scenario(ordered, settings).lanes is not None


def test_only_the_first_traces_that_fit_the_context_are_replayed(tmp_path: Path) -> None:
    for name, tokens in (("a", 9_000), ("b", 100), ("c", 100), ("d", 100)):
        one = {**TRACE, "id": name, "requests": [{**TRACE["requests"][0], "in": tokens}]}
        (tmp_path / f"{name}.json").write_text(json.dumps(one))
    settings = asked("agentx", max_context_length=1_000, num_dataset_entries=2)
    loaded = load_workload(str(tmp_path), settings)
    assert loaded.roots == ("b", "c")
    (tmp_path / "e.json").write_text("no trace")  # it is not looked at
    assert load_workload(str(tmp_path), settings).roots == ("b", "c")
    (tmp_path / "e.json").unlink()
    assert load_workload(str(tmp_path), asked("agentx", dataset_offset=3, num_dataset_entries=9)).roots == ("d",)


# --- scenarios without lanes ---------------------------------------------------------------------------------------------


def test_random_prompts_run_ten_times_their_slots_after_twice_as_many_to_warm_up() -> None:
    found = resolved(asked("inferencex", isl=500, osl=50, concurrency=(4,)), None)
    assert (found.settings.request_count, found.settings.warmup_request_count) == ((40,), 8)
    assert found.settings.extra_inputs == {"ignore_eos": True}
    assert found.fields == {"violations": ()}
    with pytest.raises(ScenarioRefused) as refused:
        resolved(asked("inferencex", isl=500, osl=50, concurrency=(4,), request_rate=(2.0,), requests=30), None)
    assert "(2 conflicts)" in str(refused.value)
    assert "--requests: got 30, required 40: 10 times --concurrency" in str(refused.value)
    loose = resolved(asked("inferencex", isl=500, osl=50, concurrency=(4,), requests=30, unsafe_override=True), None)
    assert loose.settings.request_count == (30,)
    assert len(loose.violations) == 1
    for wrong in ({"isl": 500, "osl": 50}, {"concurrency": (4,)}, {"isl": 5, "osl": 5, "concurrency": (2, 4)}):
        with pytest.raises(ScenarioRefused, match="cannot allow"):
            resolved(asked("inferencex", unsafe_override=True, **wrong), None)
    with pytest.raises(ScenarioRefused, match="burst-phase-starts: only for scenarios that replay recorded trees"):
        resolved(asked("inferencex", isl=5, osl=5, concurrency=(2,), burst_phase_starts=True), None)


def test_mlperf_salts_its_conversations_and_allows_no_warm_up() -> None:
    found = resolved(asked("mlperf-agentic", concurrency=(2,)), "mlperf_agentic").settings
    assert found.format_option == ("salts=true", "tool_delays=true")
    assert found.request_timeout_seconds == 86_400.0
    shorter = asked("mlperf-agentic", concurrency=(2,), request_timeout_seconds=5.0)
    assert resolved(shorter, "mlperf_agentic").settings.request_timeout_seconds == 5.0
    wrong = asked("mlperf-agentic", concurrency=(2,), warmup_request_count=3, format_option=("salts=false",))
    with pytest.raises(ScenarioRefused) as refused:
        resolved(wrong, "mlperf_agentic")
    assert "(2 conflicts)" in str(refused.value)
    with pytest.raises(ScenarioRefused, match="got weka_trace, required mlperf_agentic"):
        resolved(asked("mlperf-agentic", concurrency=(2,)), "weka_trace")


def conversations(folder: Path, **turns: int) -> Workload:
    rows: list[dict[str, Any]] = []
    for name, count in turns.items():
        for number in range(2 * count):
            row = {"conversation_id": name, "turn": number + 1, "content": f"{name}{number}", "system": "be brief"}
            rows.append(row | {"role": "assistant" if number % 2 else "user", "delay_seconds": 0.25})
    return load(write(folder, *rows))


def test_turns_count_that_are_issued_while_all_slots_have_work(bench: Any, tmp_path: Path) -> None:
    def performance(workload: Workload, target: Any, **options: Any) -> dict[str, Any]:
        result, _ = bench.run(workload, target, **options)
        return performance_of(columns_of(result.records), result.window, 1.0)

    three = conversations(tmp_path, a=2, b=1, c=4)  # a turn takes 1.25 s: c begins at 1.25, and a is over at 2.5
    found = performance(three, bench.FakeTarget(reply_s=1.0), concurrency=2)
    assert (found["n_samples_issued"], found["n_samples_failed"], found["complete"]) == (4, 0, True)
    assert found["duration_ns"] == 2_250_000_000  # from the first request on, which is sent after 0.25 s
    assert found["qps"] == found["successful_qps"] == pytest.approx(4 / 2.25)
    all_at_once = performance(three, bench.FakeTarget(reply_s=1.0), concurrency=9)
    assert all_at_once["n_samples_issued"] == 3  # b is over at 1.25
    assert all_at_once["duration_ns"] == 1_000_000_000

    result, _ = bench.run(three, bench.FakeTarget(reply_s=1.0), concurrency=2)
    events = [json.loads(line) for line in event_lines(result)]
    since_ns = [event["timestamp_ns"] - events[0]["timestamp_ns"] for event in events]
    assert since_ns == sorted(since_ns)
    kinds = [event["event_type"] for event in events]
    assert kinds[:2] == ["session.started", "session.start_performance_tracking"]
    assert kinds[-1] == "session.ended"
    assert [kinds.count(f"sample.{kind}") for kind in ("issued", "recv_first", "complete")] == [7, 7, 7]
    issued = [event for event in events if event["event_type"] == "sample.issued"]
    assert [event["turn"] for event in issued if event["conversation_id"] == "c"] == [1, 3, 5, 7]
    assert issued[0]["data"]["messages"][0] == {"role": "system", "content": "be brief"}
    stop = kinds.index("session.stop_performance_tracking")
    assert since_ns[stop] == 2_500_000_000

    failing = bench.FakeTarget(fails=lambda _, label: label == "a0")
    lost = performance(three, failing, concurrency=2)  # a is over at 1.25, as b; c begins, and nothing is left
    assert (lost["n_samples_issued"], lost["n_samples_failed"], lost["n_samples_unsent"]) == (3, 2, 1)
    assert lost["qps"] == pytest.approx(3 * lost["successful_qps"])
