"""Scenarios: what they lock and fill in, the verdict on their runs, and their exit statuses."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from llmirage_client.cli import main
from llmirage_client.measure.submission import ReplayCounts, submission_of
from llmirage_client.operations.workload import load_workload
from llmirage_client.settings.contradictions import RunSettings
from llmirage_client.settings.scenario import ScenarioRefused, resolved

TRACE = {
    "id": "t", "models": ["m"], "block_size": 64, "hash_id_scope": "local",
    "requests": [
        {"t": 2.0 * k, "type": "s", "in": 64 * (k + 1), "out": 4, "hash_ids": list(range(k + 1)), "api_time": 0.5}
        for k in range(6)
    ],
}  # fmt: skip


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
    lanes = resolved(asked("agentx", **wrong, unsafe_override=True), "weka_trace").lanes
    assert lanes is not None
    assert len(lanes.violations) == 10
    assert not lanes.marks


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
    file = tmp_path / "t.json"
    file.write_text(json.dumps(TRACE))
    words = ["simulate", str(file), "--scenario", "agentx", "--gpu", "h100_sxm", "--model", "Qwen/Qwen3-8B", "--json"]
    refused = CliRunner().invoke(main, words)
    assert refused.exit_code == 1
    assert "local WEKA trace" in refused.output
    first, again = (CliRunner().invoke(main, [*words, "--unsafe-override", "--benchmark-duration", "900"]) for _ in range(2))
    assert first.exit_code == 0, first.output
    found, other = json.loads(first.stdout), json.loads(again.stdout)
    assert found == other
    assert found["metadata"]["submission_invalid_reasons"] == ["unsafe_override"]
    (coverage,) = found["metadata"]["metric_duration_coverage"]
    assert coverage["ttft_ratio"] > 0.99
    assert found["requests"] > 900 / 12 * 5  # six requests and ten seconds of pauses a play
    assert 0.4 < found["cached_token_share"] < 0.95  # within plays alone, as every one has a marker


def test_only_the_first_traces_that_fit_the_context_are_replayed(tmp_path: Path) -> None:
    for name, tokens in (("a", 9_000), ("b", 100), ("c", 100), ("d", 100)):
        one = {**TRACE, "id": name, "requests": [{**TRACE["requests"][0], "in": tokens}]}  # type: ignore[index, dict-item]
        (tmp_path / f"{name}.json").write_text(json.dumps(one))
    settings = asked("agentx", max_context_length=1_000, num_dataset_entries=2)
    loaded = load_workload(str(tmp_path), settings)
    assert loaded.roots == ("b", "c")
    (tmp_path / "e.json").write_text("no trace")  # it is not looked at
    assert load_workload(str(tmp_path), settings).roots == ("b", "c")
    (tmp_path / "e.json").unlink()
    assert load_workload(str(tmp_path), asked("agentx", dataset_offset=3, num_dataset_entries=9)).roots == ("d",)
