"""llmirage size on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from llmirage_client.cli import main

LOAD = ["--model", "llama-3.1-8b", "--weights", "bf16", "--isl", "500", "--osl", "40", "--requests", "60"]
SLO = ["--slo", "ttft_p99<300ms, tpot_avg<15ms"]


def size(*words: str) -> Result:
    return CliRunner().invoke(main, ["size", *words])


def test_the_answer_for_people_and_for_programs_is_the_same(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = [*LOAD, *SLO, "--gpus", "h100_sxm", "--request-rate", "10", "--html", str(page)]
    shown, told = size(*words), size(*words, "--json")
    assert (shown.exit_code, told.exit_code) == (0, 0), shown.output
    tree = json.loads(told.stdout)
    answer = tree["answer"]
    first = f"{answer['instances']} x h100_sxm TP{answer['tp']} bf16: {answer['gpus']} GPU"
    assert first in shown.stdout
    assert "simulations of" in shown.stdout
    assert "mercatus-ai.com" in shown.stdout
    assert first in page.read_text()
    for objective in answer["objectives"]:
        assert objective["value"] < objective["limit"]
        assert objective["proof"] in ("safe", "marginal", "not proven")


def test_prices_of_ones_own_decide(tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("h100: 1.0\nb200_sxm: 100\n")
    words = [*LOAD, *SLO, "--gpus", "b200_sxm,h100_sxm", "--request-rate", "5", "--price", str(prices), "--json"]
    cheap = json.loads(size(*words).stdout)
    assert cheap["answer"]["gpu"] == "h100_sxm"
    assert cheap["answer"]["usd_per_h"] == cheap["answer"]["gpus"] * 1.0
    prices.write_text("h100: 100\nb200_sxm: 1.0\n")
    assert json.loads(size(*words).stdout)["answer"]["gpu"] == "b200_sxm"


def test_a_bad_price_file_is_told_line_by_line(tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("h100: cheap\nh1000: 2\nb200: -1\n")
    refused = size(*LOAD, *SLO, "--request-rate", "5", "--price", str(prices))
    assert refused.exit_code == 2
    assert [f"prices.yaml:{line}:" in refused.output for line in (1, 2, 3)] == [True] * 3


def test_what_a_cluster_carries() -> None:
    told = size(*LOAD, *SLO, "--gpus", "h100_sxm", "--tps", "1,2", "--instances", "1", "--max-rate", "--json")
    assert told.exit_code == 0, told.output
    carried = json.loads(told.stdout)["carried"]
    assert {one["tp"] for one in carried} == {1, 2}
    assert carried[0]["per_gpu"] >= carried[1]["per_gpu"]
    assert all(one["binding"]["amount"] > one["amount"] for one in carried)
    shown = size(*LOAD, *SLO, "--gpus", "h100_sxm", "--tps", "1", "--instances", "1", "--max-rate")
    assert "per GPU: req/s" in shown.stdout


def test_nothing_meets_what_nothing_can() -> None:
    outcome = size(*LOAD, "--slo", "ttft_p99<1ms", "--gpus", "h100_sxm", "--request-rate", "5")
    assert outcome.exit_code == 1
    assert "Nothing meets the objectives." in outcome.stdout
    assert "The nearest was h100_sxm TP8 bf16: ttft_p99<1ms came to " in " ".join(outcome.stdout.split())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--request-rate", "inf"], "a load without end has no answer"),
        (["--request-rate", "3", "--concurrency", "3"], "by --request-rate or by --concurrency"),
        ([], "say how much traffic there is"),
        (["--request-rate", "3", "--gpus", "h1000"], "unknown GPU 'h1000'"),
        (["--request-rate", "3", "--tps", "3"], "no deployment is possible"),
        (["--request-rate", "3", "--max-rate"], "leave --request-rate out"),
        (["--request-rate", "3", "--isl", "0"], "isl"),
        (["--request-rate", "3", "--goal", "cost", "--gpus", "mi350x"], "the price of mi350x is not known"),
    ],
)
def test_input_that_makes_no_sense_is_refused(words: list[str], told: str) -> None:
    outcome = size(*LOAD, *SLO, *words)
    assert outcome.exit_code == 2, outcome.output
    assert told in outcome.output
    assert "Traceback" not in outcome.output


def test_objectives_that_say_nothing_are_told_together_with_unknown_gpus() -> None:
    outcome = size(*LOAD, "--slo", "tfft<1, ttft<1", "--gpus", "h1000", "--request-rate", "3")
    assert outcome.exit_code == 2
    assert all(word in outcome.output for word in ("tfft", "say which statistic", "h1000"))


@pytest.mark.parametrize("question", [["--request-rate", "5"], ["--max-rate"]])
def test_a_long_search_says_what_it_looks_at_and_leaves_the_answer_alone(
    question: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llmirage_client.report.simulation_progress.QUIET_S", -1.0)
    monkeypatch.setattr("llmirage_client.report.progress.PLAIN_LINE_S", 0.0)
    result = size(*LOAD, *SLO, "--gpus", "h100_sxm", "--tps", "1", *question, "--json")
    assert "h100_sxm TP1: " in result.stderr
    assert " requests, " in result.stderr
    assert " of cluster time" in result.stderr
    json.loads(result.stdout)
