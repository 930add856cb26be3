"""llmirage size on the command line."""

import json
import re
from pathlib import Path

import pytest
from invoked import invoke, json_of, refusal, text_of

from llmirage_shared.plural import rounded

LOAD = ["--model", "llama-3.1-8b", "--weights", "bf16", "--isl", "500", "--osl", "40", "--requests", "30"]
SLO = ["--slo", "ttft_p99<300ms, tpot_avg<15ms"]


def test_the_answer_for_people_and_for_programs_is_the_same(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = [*LOAD, *SLO, "--gpus", "h100_sxm", "--request-rate", "10", "--html", str(page)]
    shown, told = invoke("size", *words), invoke("size", *words, "--json")
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
        assert objective["verdict"] in ("safe", "marginal", "not proven")
        low, high = objective["band_90"]
        assert low < objective["band_50"][0] < objective["value"] < objective["band_50"][1] < high
        band = f"{rounded(low)} to {rounded(high)}"
        assert band in shown.stdout
        assert f"90 % band {band}" in page.read_text()
    assert "90 % band" in shown.stdout


def test_prices_of_ones_own_decide(tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("h100: 1.0\nb200_sxm: 100\n")
    words = [*LOAD, *SLO, "--gpus", "b200_sxm,h100_sxm", "--request-rate", "5", "--price", str(prices), "--json"]
    cheap = json.loads(invoke("size", *words).stdout)
    assert cheap["answer"]["gpu"] == "h100_sxm"
    assert cheap["answer"]["usd_per_h"] == cheap["answer"]["gpus"] * 1.0
    prices.write_text("h100: 100\nb200_sxm: 1.0\n")
    assert json.loads(invoke("size", *words).stdout)["answer"]["gpu"] == "b200_sxm"


def test_an_answer_by_gpus_says_that_it_is_not_the_cheapest(tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("h100: 2.0\nl4: 0.1\n")
    words = [*LOAD, *SLO, "--gpus", "h100_sxm,l4,l40s", "--request-rate", "5", "--price", str(prices)]
    shown = text_of("size", *words)
    assert "Ranked by GPUs, not by cost: the price of l40s is not known (--price)." in shown
    assert "because they take more GPUs: " in shown
    assert "more expensive" not in shown
    asked = text_of("size", *words, "--goal", "gpus")
    assert "because they take more GPUs: " in asked
    assert "Ranked by" not in asked
    day = [*LOAD, *SLO, "--gpus", "mi350x", "--tps", "1", "--request-rate", "2", "--day", "office-hours"]
    assert "the price of mi350x is not known" in text_of("size", *day)


def test_a_bad_price_file_is_told_line_by_line(tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("h100: cheap\nh1000: 2\nb200: -1\n")
    said = refusal("size", *LOAD, *SLO, "--request-rate", "5", "--price", prices)
    assert all(f"prices.yaml:{line}:" in said for line in (1, 2, 3))


def test_what_a_cluster_carries() -> None:
    carried = json_of("size", *LOAD, *SLO, "--gpus", "h100_sxm", "--tps", "1,2", "--instances", "1", "--max-rate")["carried"]
    assert {one["tp"] for one in carried} == {1, 2}
    assert carried[0]["per_gpu"] >= carried[1]["per_gpu"]
    assert all(one["binding"]["amount"] > one["amount"] for one in carried)
    shown = invoke("size", *LOAD, *SLO, "--gpus", "h100_sxm", "--tps", "1", "--instances", "1", "--max-rate")
    assert "per GPU: req/s" in shown.stdout


def test_the_most_that_was_tried_is_said_to_be_that() -> None:
    words = [*LOAD, "--slo", "ttft_p99<100s", "--gpus", "h100_sxm", "--tps", "1,2", "--instances", "1"]
    shown = invoke("size", *words, "--concurrency", "1", "--max-rate")
    assert shown.stdout.count("the most that was tried: as many requests run at a time, by memory and limits") == 2
    assert shown.stderr.startswith("1 of 2, h100_sxm TP1: 0 requests")


def test_nothing_meets_what_nothing_can() -> None:
    outcome = invoke("size", *LOAD, "--slo", "ttft_p99<1ms", "--gpus", "h100_sxm", "--request-rate", "5", status=1)
    assert "No deployment meets the objectives." in outcome.stdout
    assert re.search(r"The closest was h100_sxm TP\d bf16: ttft_p99<1ms was \d", " ".join(outcome.stdout.split()))


def test_too_few_gpus_are_said_to_be_so_many_times_too_few() -> None:
    words = [*LOAD, "--slo", "ttft_p99<300ms, tpot_avg<8ms", "--gpus", "h100_sxm", "--request-rate", "100"]
    tree = json_of("size", *words, "--tps", "1", "--max-gpus", "2", status=1)
    [left], [line] = tree["not_looked_at"], tree["missed"]
    least = left["at_least_instances"]
    assert least > 2
    assert f"{least} instances or more needed, {least} GPUs, {least / 2:.2g} times --max-gpus 2" in line
    assert re.search(r"with [12], (ttft_p99<300ms|tpot_avg<8ms) was [\d.]+ ms, [\d.]+ times its limit", line)


def test_what_does_not_fit_is_a_line_and_explain_has_the_arithmetic() -> None:
    words = ["--isl", "500", "--osl", "40", "--request-rate", "3", *SLO]
    words += ["--model", "deepseek-r1", "--gpus", "l40s", "--pps", "1"]
    short, long = invoke("size", *words, status=2), invoke("size", *words, "--explain", status=2)
    assert len(short.output.splitlines()) == 5
    assert "l40s TP1 fp8_block: 629.8 GiB per GPU needed, and vLLM may use 40.5; it needs tp 8 pp 4" in short.output
    assert "others, which --explain tells" in short.output
    assert "weights 626" not in short.output
    assert "weights 626" in long.output
    assert len(long.output.splitlines()) > 8


def test_what_was_searched_and_what_was_held_is_a_line() -> None:
    words = [*LOAD, *SLO, "--gpus", "h100_sxm", "--request-rate", "10", "--pps", "1"]
    shown, told = invoke("size", *words), json_of("size", *words)
    assert "Searched: instances; TP 1, 2, 4, 8. Held fixed: GPU h100_sxm; weights bf16;" in shown.stdout
    assert (told["searched"]["tp"], told["searched"]["pp"]) == ([1, 2, 4, 8], [1])
    one = invoke("size", *LOAD, *SLO, "--instances", "2", "--max-rate", "--tps", "1")
    assert "1 instance" not in one.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--request-rate", "inf"], "must be above 0, not inf"),
        (["--request-rate", "3", "--concurrency", "3"], "with --request-rate or --concurrency"),
        ([], "set the traffic with"),
        (["--request-rate", "3", "--gpus", "h1000"], "gpus: unknown GPU 'h1000'"),
        (["--request-rate", "3", "--engines", "vlm"], "engines: unknown engine 'vlm'; did you mean vllm?"),
        (["--request-rate", "3", "--tps", "3"], "no deployment is possible"),
        (["--request-rate", "3", "--tps", "3", "--engines", "vllm,sglang"], "TP3 vllm bf16, h100_sxm TP3 sglang bf16: tp 3"),
        (["--request-rate", "3", "--max-rate"], "omit --request-rate"),
        (["--request-rate", "3", "--isl", "0"], "isl"),
        (["--request-rate", "3", "--slo", "goodput>3"], "goodput>3: no simulation of this load measures it"),
        (["--concurrency", "3", "--slo", "http_req_duration_p99<3s"], "no simulation of this load measures it"),
        (["--request-rate", "3", "--goal", "cost", "--gpus", "mi350x"], "the price of mi350x is not known"),
    ],
)
def test_input_that_makes_no_sense_is_refused(words: list[str], told: str) -> None:
    outcome = refusal("size", *LOAD, *SLO, *words)
    assert told in outcome


@pytest.mark.parametrize(
    ("cluster", "words", "told"),
    [
        ("bundled:disaggregated", ["--request-rate", "3"], "a grid over prefill.instances and decode.instances"),
        ("bundled:disaggregated", ["--max-rate", "--tps", "2", "--instances", "3"], "--tps, --instances: the cluster has"),
        ("bundled:heterogeneous", ["--max-rate"], "the pools serve several models"),
    ],
)
def test_several_pools_are_refused_with_what_to_use_instead(cluster: str, words: list[str], told: str) -> None:
    outcome = refusal("size", *LOAD[4:], *SLO, "--cluster", cluster, *words)
    assert told in outcome
    assert "--max-rate" in outcome


def test_pools_carry_what_they_carry_as_they_are_with_the_price_of_all_their_gpus(tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("h100: 3.6\n")
    words = [*LOAD[4:], *SLO, "--cluster", "bundled:disaggregated", "--max-rate", "--price", str(prices), "--json"]
    told = json.loads(invoke("size", *words).stdout)
    (carried,) = told["carried"]
    assert told["model"] == "Qwen/Qwen3-32B"
    assert carried["instances"] == 3
    tokens_per_s = carried["figures"]["output_tok_per_s"]
    assert carried["usd_per_m_output_tokens"] == pytest.approx(4 * 3.6 / 3600 * 1e6 / tokens_per_s)


def test_one_pool_is_the_cluster_itself(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("pools:\n  - {name: only, model: llama-3.1-8b, gpu: h100_sxm, weights: bf16, instances: 2, tp: 4}\n")
    words = [*LOAD[4:], *SLO, "--tps", "1,2", "--max-rate", "--json"]
    pooled = json.loads(invoke("size", *words, "--cluster", file).stdout)["carried"]
    plain = json.loads(invoke("size", *words, *LOAD[:4], "--gpus", "h100_sxm", "--instances", "2").stdout)["carried"]
    assert [(one["tp"], one["instances"], one["amount"]) for one in pooled] == [
        (one["tp"], one["instances"], one["amount"]) for one in plain
    ]
    assert pooled[0]["amount"] != pooled[1]["amount"]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (
            "scale_on_queue: 2\nstart_up_s: 30\nmin_instances: 2\ninitial_instances: 3\n",
            "Autoscaling (scale_on_...) is left",
        ),
        ("events:\n  - {at_s: 1, action: crash, instance: 3}\n", "events (crashes, stops and starts) are left out"),
    ],
)
def test_what_comes_and_goes_is_left_out_and_that_is_said(lines: str, told: str, tmp_path: Path) -> None:
    file, page = tmp_path / "cluster.yaml", tmp_path / "page.html"
    file.write_text(f"instances: 4\n{lines}")
    words = [*LOAD, *SLO, "--gpus", "h100_sxm", "--tps", "1", "--request-rate", "10"]
    changing = invoke("size", *words, "--cluster", file, "--html", page)
    assert f"Note: The cluster's {told}" in changing.stdout or f"Note: {told}" in changing.stdout
    assert told in page.read_text() or told in page.read_text().replace("&#x27;", "'")
    changing, steady = (json_of("size", *words, *more) for more in (["--cluster", str(file)], []))
    assert changing["answer"] == steady["answer"]
    assumed = "Assumed, as not given: vLLM with KV blocks of 1 token."
    assert (len(changing["notes"]), changing["notes"][1:], steady["notes"]) == (2, [assumed], [assumed])


def test_a_workload_with_times_is_sent_as_asked_and_that_is_said() -> None:
    words = ["bundled:coding-agent", "--model", "llama-3.1-8b", "--gpus", "h100_sxm", "--tps", "1", *SLO]
    assert "the file's own times are for `llmirage sweep`" in refusal("size", *words)
    told = json_of("size", *words, "--concurrency", "2", "--requests", "60")
    assert "says when its conversations arrive" in told["notes"][1]


def test_objectives_that_say_nothing_are_told_together_with_unknown_gpus() -> None:
    said = refusal("size", *LOAD, "--slo", "tfft<1, ttft<1", "--gpus", "h1000", "--request-rate", "3")
    assert all(word in said for word in ("tfft", "choose a statistic", "h1000"))


@pytest.mark.parametrize("question", [["--request-rate", "5"], ["--concurrency", "5"], ["--day", "office-hours"]])
def test_a_number_of_instances_is_refused_where_it_is_the_answer(question: list[str]) -> None:
    assert "--instances: their number is what size looks for" in refusal("size", *LOAD, *SLO, *question, "--instances", "3")


@pytest.mark.parametrize("question", [["--request-rate", "5"], ["--max-rate"]])
def test_a_long_search_tells_its_steps_and_keeps_its_answer(question: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmirage_client.simulate.progress.QUIET_S", -1.0)
    monkeypatch.setattr("llmirage_client.report.progress.PLAIN_LINE_S", 0.0)
    result = invoke("size", *LOAD, *SLO, "--gpus", "h100_sxm", "--tps", "1", *question, "--json")
    assert "h100_sxm TP1: " in result.stderr
    assert " requests, " in result.stderr
    assert " of cluster time" in result.stderr
    json.loads(result.stdout)


def test_a_page_that_cannot_be_written_is_told_before_anything_is_worked_out(tmp_path: Path) -> None:
    assert f"there is no folder {tmp_path / 'no'}" in refusal(
        "size", *LOAD, *SLO, "--request-rate", "5", "--html", tmp_path / "no" / "page.html"
    )


def test_requests_that_no_instance_has_room_for_are_refused() -> None:
    for traffic in (["--request-rate", "1"], ["--max-rate"]):
        lengths = ["--model", "llama-3.1-8b", "--isl", "500000", "--osl", "100", "--slo", "ttft_p99<900s"]
        lengths += ["--gpus", "h100_sxm", "--requests", "60"]
        assert "a request of 500,100 tokens can never finish: max_model_len is 131,072, at most the model's" in refusal(
            "size", *lengths, *traffic
        )
    allowed = invoke("size", *lengths, "--request-rate", "1", "--slo", "error_rate<1%", "--tps", "1", status=1)
    assert "no deployment is possible" not in allowed.output
