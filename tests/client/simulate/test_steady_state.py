"""`simulate --steady-state`: requests are measured after the cluster has filled up and while the load is on."""

import statistics
from pathlib import Path
from typing import Any

import pytest
from invoked import invoke, json_of, refusal
from workload_files import write

from llmirage_client.measure.slo import STATISTICS

LOAD = ["--isl", "500", "--osl", "50", "--requests", "300", "--model", "llama-3.1-8b", "--weights", "bf16"]
SESSIONS = [*LOAD, "--turns", "10", "--think-time", "30", "--request-rate", "2"]


def summary(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json_of("simulate", *words)
    return found


def test_sessions_deliver_the_rate_once_as_many_end_as_begin() -> None:
    whole, steady = summary(*SESSIONS), summary(*SESSIONS, "--steady-state")
    assert (whole["steady_state"], steady["steady_state"]) == (False, True)
    assert whole["requests"] == steady["requests"] == 300
    assert whole["delivered_per_s"] < 1.5
    assert steady["delivered_per_s"] == pytest.approx(2.0, rel=steady["shortfall_allowed"])
    assert steady["offered_per_s"] == pytest.approx(2.0)
    assert steady["cached_token_share"] > 0.75


def test_users_have_all_begun_before_any_request_counts() -> None:
    closed = [*LOAD[:1], "2000", *LOAD[2:], "--concurrency", "32"]
    at_once, steady = summary(*closed), summary(*closed, "--steady-state")
    assert steady["requests"] == 300
    assert steady["ttft_ms"]["p99"] < 0.5 * at_once["ttft_ms"]["p99"]


@pytest.mark.parametrize("load", [["--concurrency", "32"], ["--request-rate", "5", "--arrival-pattern", "constant"]])
def test_throughput_does_not_depend_on_how_many_requests_are_measured(load: list[str]) -> None:
    """Their last answers come among those to later requests."""
    few, many = (summary(*LOAD, *load, "--steady-state", "--requests", count) for count in ("100", "2000"))
    for rate in ("request_per_s", "output_tok_per_s", "total_tok_per_s", "output_tok_per_s_per_gpu"):
        assert few[rate] == pytest.approx(many[rate], rel=0.01)
    assert few["usd_per_m_output_tokens"] == pytest.approx(many["usd_per_m_output_tokens"], rel=0.01)
    assert few["duration_s"] * few["request_per_s"] == pytest.approx(100)
    if load[0] == "--request-rate":
        assert few["request_per_s"] == few["delivered_per_s"] == pytest.approx(5.0)
    else:  # Little's law
        assert few["request_per_s"] * few["latency_ms"]["mean"] == pytest.approx(32e3)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([], "All requests count, from the first on an empty cluster to the last"),
        (["--steady-state"], "Measured in the steady state"),
    ],
)
def test_which_requests_count_is_said(more: list[str], said: str, tmp_path: Any) -> None:
    outcome = invoke("simulate", *LOAD, "--request-rate", "5", *more, "--artifact-dir", tmp_path / "o")
    assert said in " ".join(outcome.stdout.split())
    assert "interrupted" not in outcome.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            [*LOAD, "--request-rate", "5", "--num-conversations", "5"],
            "starts and ends the load itself: leave out --num-conversations",
        ),
        ([*LOAD, "--request-rate", "5", "--via", "api"], "--steady-state needs --via engine"),
        (["bundled:coding-agent-team"], "--steady-state: a steady state needs one request rate or a number of users"),
    ],
)
def test_what_has_no_steady_state_is_refused(words: list[str], said: str) -> None:
    assert said in refusal("simulate", *words, "--steady-state")


def test_another_seed_is_another_order_of_a_file_s_conversations(tmp_path: Path) -> None:
    file = tmp_path / "agents.jsonl"
    invoke("generate", "agent-chain", "--conversations", "12", "--no-token-ids", "-o", file)
    words = [str(file), "--agents", "8", "--steady-state", "--request-count", "60", "--model", "llama-3.1-8b"]
    found = [summary(*words, "--random-seed", seed)["ttft_ms"] for seed in ("0", "1", "0")]
    assert found[0] == found[2] != found[1]


def test_a_shared_prefix_has_a_steady_state() -> None:
    words = [*LOAD, "--shared-prefix", "1000", "--request-rate", "5", "--steady-state"]
    found = summary(*words)
    assert found["requests"] == 300
    assert found["cached_token_share"] == pytest.approx(1000 / 1500, abs=0.01)


def test_users_do_not_all_begin_at_once_after_a_warm_up() -> None:
    closed = [*LOAD[:1], "2000", *LOAD[2:], "--concurrency", "32"]
    warm = [*closed, "--warmup-request-count", "64"]
    at_once, gradual = summary(*closed), summary(*warm)
    assert gradual["ttft_ms"]["p99"] < 0.5 * at_once["ttft_ms"]["p99"]
    assert any("After the warm-up, users begin one by one over" in note for note in gradual["notes"])
    own = summary(*warm, "--concurrency-ramp-duration", "0.001")
    assert own["ttft_ms"]["p99"] > 2 * gradual["ttft_ms"]["p99"]


def test_several_seeds_show_the_spread() -> None:
    words = [*LOAD, "--request-rate", "20"]
    spread = summary(*words, "--seeds", "3")["seeds"]["ttft_ms.p90"]
    each = [summary(*words, "--random-seed", str(seed))["ttft_ms"]["p90"] for seed in range(3)]
    assert (spread["min"], spread["max"]) == (min(each), max(each))
    assert spread["mean"] == pytest.approx(statistics.mean(each))
    assert spread["sd"] == pytest.approx(statistics.stdev(each))
    shown = invoke("simulate", *words, "--seeds", "2")
    assert "Over several seeds" in shown.stdout


def test_json_has_every_percentile_that_an_objective_may_name() -> None:
    words = [*LOAD, "--request-rate", "20"]
    names = [name for name in STATISTICS if name[0] == "p"]
    found = summary(*words, "--slo", ", ".join(f"ttft_{name}<10s" for name in names))
    assert {"p1", "p95", "p99"} < set(names)
    assert [found["ttft_ms"][name] for name in names] == [verdict["value"] for verdict in found["slo"]["objectives"]]


def test_requests_of_a_priority_overtake_others_where_the_engine_schedules_by_it(tmp_path: Path) -> None:
    calls = ({"arrival_time_ns": 0, "input_toks": 900, "output_toks": 60, "priority": place % 2} for place in range(80))
    file = write(tmp_path, *calls)
    words = [str(file), "--concurrency", "40", "--model", "llama-3.1-8b", "--set", "max_num_seqs=8"]
    fcfs, urgent = summary(*words), summary(*words, "--set", "schedule_policy=priority")
    for found in (fcfs, urgent):
        assert [found["by_priority"][name]["requests"] for name in ("0", "1")] == [40, 40]
    first, last = (urgent["by_priority"][name]["ttft_ms"]["p50"] for name in ("0", "1"))
    assert first < 0.5 * last
    assert fcfs["by_priority"]["0"]["ttft_ms"]["p50"] == pytest.approx(fcfs["by_priority"]["1"]["ttft_ms"]["p50"], rel=0.3)
    assert any("Priorities have no effect" in note for note in fcfs["notes"])
    assert not any("Priorities have no effect" in note for note in urgent["notes"])


def test_a_file_of_parameters_is_drawn_as_a_preset_is(tmp_path: Path) -> None:
    file = tmp_path / "agents.yaml"
    file.write_text("preset: agent-chain\nconversations: 3\n")
    found = summary(str(file), "--model", "llama-3.1-8b")
    assert found["requests"] == summary("agent-chain", "--num-conversations", "3", "--model", "llama-3.1-8b")["requests"]


def test_a_table_that_is_not_known_is_told_of_tables_alone(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("time,user,input\n0.1,a,100\n")
    outcome = refusal("simulate", file)
    assert "no known CSV: its header has the columns 'time', 'user', 'input'. Known tables: " in outcome
    assert "azure_trace needs a header" in outcome
    assert "dag_jsonl" not in outcome
