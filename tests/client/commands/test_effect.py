"""Settings of a deployment that do nothing are refused by the commands that search and compare deployments."""

from pathlib import Path

import pytest
from invoked import text_of

import llmirage

LOAD = "--isl 100 --osl 4 --requests 20"


def flat(line: str, status: int = 0) -> str:
    return text_of(*line.split(), status=status)


@pytest.mark.parametrize(
    "line",
    [
        f"simulate {LOAD} --request-rate 1 --set kv_store_gb_per_s=5",
        f"size {LOAD} --request-rate 1 --slo ttft_p99<9s --set kv_store_gb_per_s=5",
        "serve --set kv_store_gb_per_s=5 --port 0",
    ],
)
def test_every_command_refuses_what_has_no_effect(line: str) -> None:
    result = flat(line, 2)
    assert "kv_store_gb_per_s has no effect here: it needs kv_store_gib" in result


def test_so_do_the_functions_of_python() -> None:
    for function in (llmirage.Cluster, llmirage.Server):
        with pytest.raises(
            llmirage.ConfigError, match="acceptance_rate has no effect here: it needs num_speculative_tokens"
        ):
            function(acceptance_rate=0.5)


def test_a_size_takes_what_has_an_effect_in_one_of_its_deployments() -> None:
    asked = f"size --model deepseek-ai/DeepSeek-V3 --gpus b200_sxm {LOAD} --request-rate 1 --slo ttft_p99<9s"
    given = "--set prefill_schedule_interval=2"
    note = "prefill_schedule_interval has no effect here: it needs data_parallel_size above 1."
    assert note in flat(f"{asked} {given} --tps 8 --dps 1")
    assert note not in flat(f"{asked} {given} --tps 1 --dps 1,8 --eps 1,8")


def test_a_router_counts_where_a_size_has_several_instances() -> None:
    asked = f"size --model llama-3.1-8b --tps 1 {LOAD} --slo ttft_p99<9s --router session"
    assert "router has no effect" not in flat(f"{asked} --request-rate 1")
    assert "router has no effect here: it needs several instances" in flat(f"{asked} --max-rate")
    assert "router has no effect" not in flat(f"{asked} --max-rate --instances 2")


def test_crashes_are_events_where_there_is_no_server() -> None:
    for line in (f"simulate {LOAD} --request-rate 1", f"size {LOAD} --request-rate 1 --slo ttft_p99<9s"):
        told = flat(f"{line} --set on_crash=fail")
        assert "on_crash has no effect here: it needs `events` with a crash." in told


def test_a_scan_over_instances_goes_on_at_one_with_a_note() -> None:
    line = f"simulate {LOAD} --request-rate 1 --model llama-3.1-8b --router session --instances"
    told = [flat(f"{line} {count} --json") for count in (1, 2)]
    assert ["router has no effect here" in text for text in told] == [True, False]


def study(tmp_path: Path, text: str) -> str:
    path = tmp_path / "study.yaml"
    path.write_text("isl: 100\nosl: 4\nrequests: 20\nrequest_rate: 1\n" + text)
    return f"sweep {path} --artifact-dir {tmp_path / 'out'}"


def test_a_study_refuses_what_has_no_effect_in_any_point_and_says_its_line(tmp_path: Path) -> None:
    result = flat(study(tmp_path, "kv_store_gb_per_s: 5\ngrid:\n  instances: [1, 2]\n"), 2)
    assert f"{tmp_path}/study.yaml:5: kv_store_gb_per_s has no effect here: it needs kv_store_gib" in result
    result = flat(study(tmp_path, "grid:\n  instances: [1, 2]\n  min_instances: [0, 1]\n"), 2)
    assert f"{tmp_path}/study.yaml:7: min_instances has no effect here: it needs a target" in result


def test_a_study_refuses_what_only_the_server_has(tmp_path: Path) -> None:
    result = flat(study(tmp_path, "rate_limit: 5\ngrid:\n  speed: [1, 2]\n"), 2)
    for place in (":5: rate_limit", ":7: speed"):
        assert f"{tmp_path}/study.yaml{place}: only `llmirage serve` has it: a simulation does not follow it" in result


def test_a_study_takes_what_has_an_effect_in_one_point(tmp_path: Path) -> None:
    flat(study(tmp_path, "kv_store_gb_per_s: 5\ngrid:\n  kv_store_gib: [0, 100]\n"))


def test_what_only_the_server_has_is_told_beside_the_figures(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("model: llama-3.1-8b\nrate_limit: 1\nfaults: faults.yaml\n")
    told = "Note: Left out, as only `llmirage serve` has them: rate_limit, faults."
    assert told in flat(f"simulate {LOAD} --request-rate 1 --cluster {path}")
    assert told in flat(f"size {LOAD} --request-rate 1 --slo ttft_p99<9s --cluster {path}")


def test_without_an_answered_request_there_are_no_bands_and_no_word_on_streaming() -> None:
    output = flat("simulate --model llama-3.1-8b --isl 500000 --osl 4 --requests 2 --request-rate 1", 1)
    assert "500000 tokens. Please reduce the length" in output
    assert "Error bands" not in output
    assert "not streamed" not in output


def test_fixed_times_have_no_size_and_say_that_nothing_waits() -> None:
    fixed = "--model llama-3.1-8b --set ttft=20 --set itl_ms=5"
    for line in (f"size {LOAD} --request-rate 9 --slo ttft_p99<9s", "size --isl 9 --osl 9 --max-rate --slo ttft_p99<9s"):
        result = flat(f"{line} {fixed}", 2)
        assert "fixed times (ttft_ms, itl_ms) are the same on any number of any GPU" in result
    output = flat(f"simulate {LOAD} --request-rate 9 {fixed}")
    assert "Fixed times (ttft_ms, itl_ms): no request waits for another" in output
