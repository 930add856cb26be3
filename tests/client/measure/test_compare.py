"""`llmirage compare`: what is more than noise, and what is not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from llmirage_client.cli import main
from llmirage_client.measure.columns import filled
from llmirage_client.measure.comparison import (
    Comparison,
    Difference,
    compare,
    draws,
    means,
    percentiles,
    ratios,
    run_differences,
    student_t,
)
from llmirage_client.measure.equal_load import loaded
from llmirage_client.measure.record import Exchange, Record, RequestError, RunResult
from llmirage_client.measure.request_metrics import request_columns
from llmirage_client.report.files import write_artifacts


def streamed(number: int, conversation: str, turn: int, own: str, at: float, stamps: list[float], **usage: Any) -> Record:
    exchange = Exchange(at, at, stamps[-1], stamps, stamps[0], 200, True, usage=usage)
    return Record(number, conversation, turn, f"{number}-{turn}", own, own, None, 0, at, exchange)


def run(
    seed: int, conversations: int = 40, turns: int = 4, ttft_s: float = 0.2, noise: float = 0.3, name: str = "c"
) -> RunResult:
    """Conversations that differ in how slow they are, as long contexts make them; turns of one are alike."""
    rng = np.random.default_rng(seed)
    records = []
    for number in range(conversations):
        slow = ttft_s * float(rng.lognormal(0, noise))
        at = float(rng.uniform(0, 60))
        for turn in range(turns):
            first = at + slow * float(rng.lognormal(0, 0.05))
            stamps = [first + 0.02 * i for i in range(5)]
            usage = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 20 * turn}}
            records.append(streamed(number, f"{name}{number}", turn, f"x{seed}-{number}", at, stamps, **usage))
            at = stamps[-1]
    return RunResult(records, None, 0.0, 70.0, 1e9, workload_path="w.jsonl", options={"concurrency": 8})


def figure(comparison: Comparison, tag: str, statistic: str = "") -> Difference:
    return next(d for d in comparison.differences if (d.tag, d.statistic) == (tag, statistic))


def test_drawing_clusters_by_hand() -> None:
    counts = np.array([[1, 1], [2, 0], [0, 2]], dtype=np.int32)
    values, cluster = np.array([1.0, 2.0, 9.0]), np.array([0, 0, 1])
    assert means(values, cluster, counts).tolist() == [4.0, 1.5, 9.0]
    assert percentiles(values, cluster, counts, (50, 99)).tolist() == [[2.0, 9.0], [1.0, 2.0], [9.0, 9.0]]
    assert ratios(np.array([1.0, 0.0, 4.0]), np.array([2.0, 2.0, 4.0]), cluster, counts).tolist() == [5 / 8, 0.25, 1.0]


def test_every_replicate_draws_as_many_clusters_as_there_are() -> None:
    counts = draws(7, np.random.default_rng(0), 50)
    assert counts.shape == (50, 7)
    assert (counts.sum(axis=1) == 7).all()
    assert counts.std() > 0


def test_a_run_differs_from_itself_by_nothing() -> None:
    comparison = compare(run(1), run(1))
    assert comparison.paired
    assert not any(d.beyond_noise for d in comparison.differences)
    assert {d.difference for d in comparison.differences} == {0.0}


def test_a_large_change_is_beyond_noise_and_has_a_direction() -> None:
    comparison = compare(run(1), run(2, ttft_s=0.4))
    ttft = figure(comparison, "time_to_first_token", "p50")
    assert ttft.beyond_noise
    assert ttft.better is False
    assert ttft.percent == pytest.approx(100, abs=40)
    assert ttft.low is not None
    assert ttft.high is not None
    assert 0 < ttft.low < ttft.difference < ttft.high
    back = figure(compare(run(2, ttft_s=0.4), run(1)), "time_to_first_token", "p50")
    assert back.better is True
    isl = figure(comparison, "input_sequence_length", "avg")
    assert (isl.beyond_noise, isl.better) == (False, None)


def test_chance_is_rarely_taken_for_a_change() -> None:
    # 200 pairs of samples of the same kind, in which the 10 values of a cluster are nearly alike: at 95 % about 10 pairs are
    # beyond the bounds. Were it values that are drawn and not clusters, it would be more than half of them.
    rng, cluster = np.random.default_rng(7), np.repeat(np.arange(40), 10)
    beyond = 0
    for _ in range(200):
        one, two = (rng.normal(size=40)[cluster] + 0.1 * rng.normal(size=400) for _ in range(2))
        apart = means(two, cluster, draws(40, rng, 200)) - means(one, cluster, draws(40, rng, 200))
        low, high = np.percentile(apart, (2.5, 97.5))
        beyond += low > 0 or high < 0
    assert 1 <= beyond <= 22


def test_twins_drawn_together_show_what_their_variety_would_hide() -> None:
    one, two = run(5, noise=1.0), run(5, noise=1.0, ttft_s=0.21)
    assert figure(compare(one, two), "time_to_first_token", "avg").beyond_noise
    other = replace(two, records=[replace(r, conversation_id="o" + r.conversation_id) for r in two.records])
    apart = compare(one, other)
    assert not apart.paired
    assert not figure(apart, "time_to_first_token", "avg").beyond_noise


def busy(seed: int, slower: float = 1.0) -> RunResult:
    """Requests on a server whose load goes up and down over the run, so that neighbours in time are slow together."""
    rng = np.random.default_rng(seed)
    load, records = 0.0, []
    for number in range(300):
        load = 0.9 * load + 0.015 * float(rng.normal())
        at, ttft = 0.2 * number, slower * 0.2 * float(np.exp(load + 0.02 * rng.normal()))
        stamps = [at + ttft + 0.02 * slower * float(np.exp(load)) * i for i in range(5)]
        records.append(streamed(number, f"c{number}", 0, f"x{number}", at, stamps, prompt_tokens=9, completion_tokens=5))
    return RunResult(records, None, 0.0, 70.0, 1e9, workload_path="w.jsonl")


def test_two_runs_of_one_server_pass_and_a_slower_one_fails() -> None:
    same = [compare(busy(seed), busy(seed + 100)) for seed in range(5)]
    assert sum(bool(one.worse()) for one in same) <= 1
    slow = [compare(busy(seed), busy(seed + 200, slower=1.1)) for seed in range(5)]
    assert sum(bool(one.worse()) for one in slow) >= 4
    assert not any(one.worse(0.25) for one in slow)
    ttft = figure(slow[0], "time_to_first_token", "p50")
    assert ttft.percent is not None
    assert 1 < (slow[0].seen(ttft) or 0) < 15
    assert slow[0].seen(ttft, 0.05) == pytest.approx((slow[0].seen(ttft) or 0) + 5)


def served(seed: int, slower: float = 1.0, rate: float = 4.0, count: int = 200) -> RunResult:
    """Requests of lognormal lengths, at random times, on a server whose step takes 5 ms, 0.15 ms for each it decodes and
    20 ms for each 1,000 tokens of a prompt. The step times scatter by 5 %."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1 / rate, count))
    isl = np.maximum(rng.lognormal(6.8, 0.9, count).astype(int), 1)
    osl = np.maximum(rng.lognormal(5.3, 0.9, count).astype(int), 2)
    now, waiting, decoding = 0.0, list(range(count)), list[int]()
    stamps: list[list[float]] = [[] for _ in range(count)]
    while waiting or decoding:
        if not decoding and arrivals[waiting[0]] > now:
            now = float(arrivals[waiting[0]])
        new = [waiting.pop(0)] if waiting and arrivals[waiting[0]] <= now else []
        step = 0.005 + 0.00015 * len(decoding) + 0.02 * float(isl[new].sum()) / 1000
        now += step * slower * float(rng.lognormal(0, 0.05))
        decoding += new
        for request in decoding:
            stamps[request].append(now)
        decoding = [request for request in decoding if len(stamps[request]) < osl[request]]
    records = []
    for n, (at, times) in enumerate(zip(arrivals.tolist(), stamps, strict=True)):
        usage = {"prompt_tokens": int(isl[n]), "completion_tokens": int(osl[n])}
        records.append(streamed(n, f"c{n}", 0, f"x{n}", at, times, **usage))
    return RunResult(records, None, 0.0, now, 1e9, workload_path="w.jsonl")


def test_lengths_and_arrivals_drawn_anew_do_not_hide_a_slower_server() -> None:
    before = [served(seed) for seed in range(5)]
    same = [compare(one, served(seed + 100)) for seed, one in enumerate(before)]
    assert sum(bool(one.worse()) for one in same) <= 1
    slow = [compare(one, served(seed + 200, slower=1.1)) for seed, one in enumerate(before)]
    assert sum(bool(one.worse()) for one in slow) >= 4
    changes = [figure(one, "inter_token_latency", "at_equal_load").percent for one in slow]
    assert np.mean([change for change in changes if change is not None]) == pytest.approx(10, abs=1)


def test_what_a_load_takes_by_hand() -> None:
    # Two seconds of one request that decodes, one of two, and one of one: a mean of 1.25 over the four seconds.
    known = {"first_s": np.array([1.0, 3.0]), "last_s": np.array([5.0, 4.0]), "output_tokens": np.array([5.0, 2.0])}
    columns = filled(np.array([0.0, 2.0]), input_tokens=np.array([10.0, 40.0]), events=np.array([5, 2]), **known)
    found = loaded(columns, request_columns(columns), np.zeros(2, dtype=np.int64))
    tpot = found["inter_token_latency"]
    assert tpot.values.tolist() == [1000.0, 1000.0]
    # 1, decoding, tokens held (10 + 5 / 2; beside it for a quarter of the time 40 + 2 / 2), prompt tokens and prompts a step
    assert tpot.loads.tolist() == [[1, 1.25, 12.5 + 41 / 4, 10, 0.25], [1, 2, 12.5 + 41, 0, 0]]
    ttft = found["time_to_first_token"]  # 1, own tokens, those that wait, whether any do, decoding, tokens held
    assert ttft.loads.tolist() == [[1, 10, 0, 0, 0, 0], [1, 40, 0, 0, 1, 12.5]]


def test_loads_that_the_baseline_never_met_are_not_extrapolated() -> None:
    one, two = served(1), served(2, rate=12)
    assert figure(compare(one, two), "inter_token_latency", "at_equal_load").why_not == "the runs had different loads"
    few = figure(compare(served(1, count=40), served(2, count=40)), "inter_token_latency", "at_equal_load")
    assert few.why_not == "only 40 requests"


def test_a_percentile_of_one_busy_moment_is_not_judged() -> None:
    one, two = busy(1), busy(2)
    for record in two.records[100:140]:
        record.exchange.token_s[:] = [at + 1.0 for at in record.exchange.token_s]
        record.exchange.first_output_s = record.exchange.token_s[0]
    assert figure(compare(one, two), "time_to_first_token", "p90").why_not == (
        "the values above Time to First Token p90 are all from 2 of 10 parts of a run"
    )


def test_students_t() -> None:  # tables: t(9), one-sided
    assert [student_t(p, 9) for p in (0.9, 0.975, 0.995, 0.999)] == pytest.approx([1.383, 2.262, 3.250, 4.297], abs=0.01)


def test_too_little_is_said_to_be_too_little() -> None:
    few = compare(run(1, conversations=3), run(2, conversations=3))
    assert figure(few, "time_to_first_token", "p50").beyond_noise is None
    assert figure(few, "time_to_first_token", "p50").why_not == "only 3 conversations"
    enough = compare(run(1), run(2))
    assert figure(enough, "time_to_first_token", "p99").why_not == "only 160 requests"
    assert figure(enough, "time_to_first_token", "p90").why_not is None


def test_shares_and_rates() -> None:
    one, two = run(1, 200), run(2, 200)
    for record in two.records[::3]:
        record.exchange.error = RequestError(500, "http_error", "no")
    comparison = compare(one, two)
    errors = figure(comparison, "request_error_rate")
    assert (errors.baseline, errors.value) == (0.0, pytest.approx(33.375))
    assert errors.beyond_noise
    assert errors.better is False
    assert errors.percent is None
    cached = figure(comparison, "overall_usage_prompt_cache_read_pct")
    assert cached.baseline == pytest.approx(30.0)  # 0, 20, 40 and 60 of 100
    rate = figure(comparison, "request_throughput")
    assert rate.beyond_noise
    assert rate.better is False


def test_runs_without_a_request_compare_to_nothing() -> None:
    empty = replace(run(1), records=[])
    assert [d.tag for d in compare(empty, run(1)).differences] == []


def test_what_the_runs_were_told_differently_is_said() -> None:
    one = run(1)
    two = replace(
        run(1, conversations=39),
        options={"concurrency": [16], "seed": 1, "artifact_dir": "b", "retries": 0, "fail_fast": False},
        workload_path="v.jsonl",
        cancelled=True,
        client_cpu_s=69.0,
        cancel_reason="Ctrl-C",
    )
    assert run_differences(one, two) == [
        "The workload differs: w.jsonl and v.jsonl.",
        "Settings differ: concurrency (8, 16), seed (not given, 1).",
        "The runs have different conversations (40 and 39 different ones).",
        "The other run is not whole: Ctrl-C.",
        "The client of the other run was busy: its figures may be worse than the endpoint is.",
    ]
    assert run_differences(one, one) == []


@pytest.fixture
def folders(tmp_path: Path) -> tuple[str, str]:
    write_artifacts(run(1), tmp_path / "a")
    write_artifacts(run(2, ttft_s=0.4), tmp_path / "b")
    return str(tmp_path / "a"), str(tmp_path / "b")


def test_the_command_prints_a_table(folders: tuple[str, str]) -> None:
    result = CliRunner().invoke(main, ["compare", *folders], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    line = next(line for line in result.output.splitlines() if line.startswith("TTFT p50, ms"))
    assert line.endswith("worse")
    assert f"baseline: {folders[0]}\n" in result.output
    assert "drawn in pairs" in " ".join(result.output.split())


def test_the_command_writes_json_and_fails_when_asked_to(folders: tuple[str, str]) -> None:
    result = CliRunner().invoke(main, ["compare", *folders, folders[0], "--json", "--fail-if-worse"])
    assert result.exit_code == 1
    content = json.loads(result.output)
    assert [c["run"] for c in content["comparisons"]] == [folders[1], folders[0]]
    metrics = content["comparisons"][0]["metrics"]
    ttft = next(m for m in metrics if (m["metric"], m["statistic"]) == ("time_to_first_token", "p50"))
    assert ttft["better"] is False
    assert ttft["low"] < ttft["difference"] < ttft["high"]
    assert CliRunner().invoke(main, ["compare", *folders[::-1], "--fail-if-worse"]).exit_code == 0


@pytest.mark.parametrize(
    ("tolerance", "status"), [("--fail-if-worse", 1), ("--fail-if-worse=5%", 1), ("--fail-if-worse=900", 0)]
)
def test_a_tolerance_may_follow_or_not(tolerance: str, status: int, folders: tuple[str, str]) -> None:
    result = CliRunner().invoke(main, ["compare", tolerance, *folders], env={"COLUMNS": "200"})
    assert result.exit_code == status, result.output
    text = " ".join(result.output.split())
    assert ("worse: TTFT avg by +" in text) == bool(status)
    assert "would have been found 9 times in 10: TTFT avg" in text
    worse = json.loads(CliRunner().invoke(main, ["compare", tolerance, *folders, "--json"]).output)["comparisons"][0][
        "worse"
    ]
    assert ("time_to_first_token_p50" in worse) == bool(status)


def test_runs_too_short_to_be_judged_do_not_pass(tmp_path: Path) -> None:
    write_artifacts(run(1, conversations=3), tmp_path / "a")
    result = CliRunner().invoke(main, ["compare", str(tmp_path / "a"), str(tmp_path / "a"), "--fail-if-worse", "5%"])
    assert result.exit_code == 2
    assert "too few requests to tell whether a metric is worse" in result.output
    result = CliRunner().invoke(main, ["compare", str(tmp_path / "a"), str(tmp_path / "a"), "--fail-if-worse=-3"])
    assert "must be a number of percent from 0 up" in result.output


def test_every_run_that_cannot_be_read_is_named(folders: tuple[str, str]) -> None:
    result = CliRunner().invoke(main, ["compare", "nowhere", folders[0], "elsewhere"])
    assert result.exit_code == 2
    assert "nowhere: No such file or directory" in result.output
    assert "elsewhere: No such file or directory" in result.output
