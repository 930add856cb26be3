"""Traffic of tenants: arrivals whose rate changes over time, and figures by tenant, class and priority."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from column_records import record
from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.cli import main
from llmirage_client.measure.breakdowns import jain_index
from llmirage_client.measure.columns import columns_of
from llmirage_client.measure.metrics import compute_columns
from llmirage_client.measure.request_metrics import parse_goodput
from llmirage_client.measure.run_folder import record_of
from llmirage_client.report.records_file import RunClock, record_line
from llmirage_client.workload.rates import RateSeries, Spike, read_rate_series
from llmirage_client.workload.registry import load
from llmirage_client.workload.schedule import ArrivalProcess, Process
from llmirage_client.workload.session import Tenant, WorkloadError
from llmirage_client.workload.synthesis.parameters import read_profile

TRAFFIC = """
preset: chat
turns: 2
output: 5
arrivals: {duration_s: 60}
tenants:
  - {name: chat, class: interactive, peak: 0.5}
  - {name: nightly, class: batch, priority: 5, rates: [1], arrivals: {process: weibull, cv: 3}, output: 9}
"""
GATEWAY = ["--set", "gateway_queue=true", "--set", "gateway_queue_depth=1"]
SHED = [*GATEWAY, "--set", "gateway_sheddable_max_requests=0", "--set", "objective_priorities=batch:-1"]
SERIES = "0:0,600:4,600:1,900:2"


@given(
    arrivals=st.floats(0.01, 3000),
    spikes=st.lists(st.builds(Spike, *[st.integers(1, 900)] * 2, st.floats(0, 9)), max_size=3),
)
def test_arrivals_until_a_time_are_the_inverse_of_the_time_of_arrivals(arrivals: float, spikes: list[Spike]) -> None:
    series = read_rate_series(SERIES).spiked(spikes)
    assert series.until(series.after(0.0, arrivals)) == pytest.approx(arrivals, rel=1e-6)


def test_spikes_multiply_a_rate_where_they_are_and_nowhere_else() -> None:
    series = RateSeries.hourly([1, 3]).spiked([Spike(1800, 3600, 2), Spike(5000, 100, 10)])
    assert series.until(7200) == 1800 + 2 * 1800 + 2 * 1800 * 3 + 9 * 100 * 6 + 1800 * 3


@pytest.mark.parametrize(
    ("process", "cv"), [("constant", 0), ("poisson", 1), ("gamma", 2.5), ("weibull", 0.4), ("weibull", 2)]
)
def test_gaps_of_a_process_are_as_varied_as_asked_in_the_time_of_its_rate(process: Process, cv: float) -> None:
    rates = read_rate_series(SERIES)
    arrivals = ArrivalProcess(process, cv=cv, rates=rates, duration_s=6000.0)
    times_s = arrivals.times_s(0, np.random.default_rng(7)) or []
    assert len(times_s) == pytest.approx(rates.until(6000.0), rel=0.02 + 0.03 * cv)
    gaps = np.diff([rates.until(time_s) for time_s in times_s])
    assert gaps.std() / gaps.mean() == pytest.approx(cv, abs=0.02 + 0.06 * cv)
    assert times_s == arrivals.times_s(0, np.random.default_rng(7))


@pytest.mark.parametrize("format", ["dag_jsonl", "agentic_jsonl"])
def test_a_file_of_traffic_says_whose_requests_it_has(tmp_path: Path, format: str) -> None:
    traffic, file = tmp_path / "traffic.yaml", tmp_path / "traffic.jsonl"
    traffic.write_text(TRAFFIC)
    done = CliRunner().invoke(main, ["generate", str(traffic), "--to", format, "--set", "wait_s=0", "-o", str(file)])
    assert done.exit_code == 0, done.output
    workload = load(str(file))
    sessions = [workload.sessions[root] for root in workload.roots]
    times_s = [session.arrival_s or 0.0 for session in sessions]
    assert times_s == sorted(times_s)
    assert times_s[0] == 0
    assert max(times_s) < 60
    counts = {"chat": 0, "nightly": 0}
    for session in sessions:
        own = session.tenant.name == "nightly"
        assert session.tenant == (Tenant("nightly", "batch") if own else Tenant("chat", "interactive"))
        assert {turn.extra.get("priority", 0) for turn in session.turns} == {5 if own else 0}
        assert {turn.limit for turn in session.turns} == {9 if own else 5}
        counts[session.tenant.name] += 1
    assert 15 <= counts["chat"] <= 50  # 30 in the mean
    assert 15 <= counts["nightly"] <= 140  # 60


def test_problems_of_traffic_are_told_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "traffic.yaml"
    file.write_text(
        "tenants:\n- name: a\n  arrivals: {rates: '0:1', spikes: '1:2'}\n  ouput: 3\n"
        "- {name: a, priority: high, rates: [1, x]}\n- 5\n- {name: b, shape: office_hours, peak: 1e5}\n"
    )
    with pytest.raises(WorkloadError) as error:
        read_profile(str(file))
    told = "\n".join(map(str, error.value.problems))
    for place, problem in [
        ("line 3: tenants.0.arrivals.rates", "have no end"),
        ("line 4: tenants.0.ouput", "did you mean 'output'"),
        ("line 5: tenants.1.priority", "'high' is not a whole number"),
        ("line 5: tenants.1.name", "the name of another"),
        ("line 5: tenants.1.arrivals.rates", "is a list of numbers"),
        ("line 6: tenants.2", "a tenant is a mapping"),
        ("line 7: tenants.3.arrivals.rates", "conversations would begin"),
    ]:
        assert any(line.startswith(place) and problem in line for line in told.splitlines()), (place, told)


def test_figures_by_tenant_class_and_priority_by_hand() -> None:
    fast, slow = Tenant("a", "interactive"), Tenant("b", "batch", 5)
    drawn = [(0.0, 0.1, 90), (1.0, 0.3, 90), (2.0, 1.0, 390)]
    records = [record(start_s=at, token_s=(at + ttft, at + 2.0), usage=(tokens, 10, None)) for at, ttft, tokens in drawn]
    for one, tenant in zip(records, (fast, Tenant("c", "interactive"), slow), strict=True):
        one.tenant = tenant
    limits = parse_goodput("ttft:200 batch/ttft:1500")
    metrics = compute_columns(columns_of(records), goodput=limits)
    assert [(one.name, one.ok, one.tokens, one.good) for one in metrics.by_tenants["tenant"]] == [
        ("a", 1, 100, 1), ("b", 1, 400, 1), ("c", 1, 100, 0)
    ]  # fmt: skip
    assert [(one.name, one.good_share) for one in metrics.by_tenants["class"]] == [("batch", 1.0), ("interactive", 0.5)]
    assert [one.name for one in metrics.by_tenants["priority"]] == ["0", "5"]
    assert metrics.fairness == {
        "tokens": pytest.approx(600**2 / (3 * 180_000)),
        "time_to_first_token": pytest.approx(1.4**2 / (3 * 1.1)),
        "good_request_fraction": pytest.approx(2 / 3),
    }
    again = [record_of(json.loads(record_line(one, RunClock(0.0, 0.0))), 0, 1.0).tenant for one in records]
    assert again == [one.tenant for one in records]
    for one in records:
        one.tenant = fast
    assert not compute_columns(columns_of(records)).by_tenants


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20))
def test_jains_index_is_between_one_in_n_and_one(values: list[float]) -> None:
    index = jain_index(values)
    assert index is None or 1 / len(values) - 1e-9 <= index <= 1 + 1e-9
    assert jain_index([3.0] * len(values)) == pytest.approx(1.0)
    assert jain_index([0.0, 2.0]) == 0.5


def simulated(tmp_path: Path, via: str, traffic: str, *more: str, goodput: str = "ttft:500") -> dict[str, Any]:
    file = tmp_path / "traffic.yaml"
    file.write_text(traffic.replace("duration_s: 60", "duration_s: 10").replace("peak: 0.5", "peak: 1"))
    words = ["simulate", str(file), "--model", "llama-3.1-8b", "--via", via, "--set", "schedule_policy=priority", *more]
    done = CliRunner().invoke(main, [*words, "--goodput", goodput, "--json", "--artifact-dir", str(tmp_path / "run")])
    assert done.exit_code == (SHED[-1] in more), done.output  # 1 where requests fail
    found: dict[str, Any] = json.loads(done.output.splitlines()[-1])
    return found


@pytest.mark.parametrize("via", ["engine", "api"])
def test_both_ways_to_simulate_traffic_tell_figures_by_class(tmp_path: Path, via: str) -> None:
    found = simulated(tmp_path, via, TRAFFIC)
    assert sum(one["requests"] for one in found["by_class"].values()) == found["requests"]
    assert found["by_class"]["batch"] == found["by_tenant"]["nightly"] == found["by_priority"]["5"]
    assert found["by_class"]["batch"]["good_request_fraction"] == 1.0
    assert sum(one["token_share"] for one in found["by_tenant"].values()) == pytest.approx(1.0)
    assert set(found["fairness"]) == {"tokens", "time_to_first_token", "good_request_fraction"}
    written = json.loads((tmp_path / "run" / "profile_export_aiperf.json").read_text())["llmirage"]
    assert [one["class"] for one in written["by_class"]] == ["batch", "interactive"]
    assert written["fairness"] == found["fairness"]
    page = CliRunner().invoke(main, ["report", str(tmp_path / "run"), "-o", "-"])
    assert f"fairness among tenants (1: equal): tokens {found['fairness']['tokens']:.3f}" in page.output
    wrong = ["simulate", str(tmp_path / "traffic.yaml"), "--model", "llama-3.1-8b", "--goodput", "interactiv/ttft:5"]
    done = CliRunner().invoke(main, wrong)
    assert done.exit_code == 2
    assert "has the class 'interactiv'; it has batch, interactive" in done.output


@pytest.mark.parametrize(
    "of_class", [["--set", "class_priorities=batch:5"], [*GATEWAY, "--set", "objective_priorities=interactive:1"], SHED]
)
def test_priorities_of_classes_are_the_same_in_both_ways_to_simulate(tmp_path: Path, of_class: list[str]) -> None:
    plain = TRAFFIC.replace("priority: 5, ", "").replace("output: 9", "output: 200").replace("weibull", "constant")
    few = ["--set", "max_num_seqs=1", "--overwrite"]
    found = [
        simulated(tmp_path, via, plain, *few, *more)["by_class"]
        for via, more in (("engine", []), ("engine", of_class), ("api", of_class))
    ]
    means = [{name: one["ttft_ms"]["mean"] for name, one in by_class.items()} for by_class in found]
    assert means[1] == pytest.approx(means[2], rel=1e-6)
    assert means[1]["interactive"] < means[0]["interactive"] / 2
    failed = [[by_class[name]["failed_requests"] for name in ("interactive", "batch")] for by_class in found]
    assert failed[1] == failed[2] == [0, failed[1][1]]
    assert bool(failed[1][1]) == (of_class == SHED)


def test_objectives_of_classes_reach_the_router_both_ways(tmp_path: Path) -> None:
    """All instances that meet the objective are as good, so that the one with the least headroom is chosen."""
    llm_d = ["--router", "llm-d:predicted-latency", "--instances", "3", "--overwrite", "--set", "max_num_seqs=2"]
    plain = (
        TRAFFIC.replace("output: 9", "output: 100")
        .replace("rates: [1]", "rates: [20]")
        .replace("duration_s: 60", "duration_s: 6")
    )
    engine, api, without = [
        simulated(tmp_path, via, plain, *llm_d, goodput=goodput)["by_class"]["batch"]["ttft_ms"]["mean"]
        for via, goodput in (("engine", "batch/ttft:9e4"), ("api", "batch/ttft:9e4"), ("engine", "ttft:9e4"))
    ]
    assert engine == pytest.approx(api, rel=1e-6)
    assert engine != pytest.approx(without, rel=0.1)
