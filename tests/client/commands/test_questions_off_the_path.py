"""Questions that a load of lengths or a cluster cannot answer as asked: the output says so, or the command refuses."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from invoked import invoke, json_of, refusal, summary_of

from llmirage import Server

CLUSTER = ["--model", "llama-3.1-8b", "--gpu", "h100_sxm"]


def notes(folder: Path, *words: Any) -> list[str]:
    invoke("simulate", "--isl", 500, "--osl", 20, *words, "--artifact-dir", folder)
    exported = summary_of(folder)
    said: list[str] = exported["llmirage"]["notes"]
    return said


def simulated(*words: Any) -> dict[str, Any]:
    figures: dict[str, Any] = json_of("simulate", *words)
    return figures


@pytest.mark.parametrize("command", [["simulate"], ["size", "--slo", "ttft_p99<1s"], ["run", "--url", "localhost:1"]])
@pytest.mark.parametrize("option", [["--turns", 3], ["--think-time", 3], ["--shared-prefix", 100], ["--requests", 7]])
def test_lengths_beside_a_file_are_refused(command: list[str], option: list[Any]) -> None:
    if command[0] == "size" and option[0] == "--requests":
        pytest.skip("size has the option for files, too")
    assert f"{option[0]} describes a load without a file: give it or WORKLOAD, not both" in refusal(
        command[0], "bundled:chat", *command[1:], "--request-rate", 3, *option
    )


@pytest.mark.parametrize("command", [["simulate"], ["size", "--slo", "ttft_p99<1s"], ["run", "--url", "localhost:1"]])
def test_a_pause_between_requests_of_sessions_of_one_is_refused(command: list[str]) -> None:
    assert "--think-time is the pause between requests of a session: give --turns, which is 1" in refusal(
        *command, "--isl", 100, "--osl", 10, "--think-time", 5, "--request-rate", 3
    )


@pytest.mark.parametrize(
    ("slo", "osl", "said"),
    [
        ("rps>10", 20, "rps>10: the load decides this, not the deployment"),
        ("isl_p50<100", 20, "isl_p50<100: the load decides this"),
        ("tpot_p99<10ms", 1, "tpot_p99<10ms: replies have one token"),
    ],
)
def test_objectives_that_no_deployment_changes_are_refused(slo: str, osl: int, said: str) -> None:
    """size looked at ever larger clusters for more requests a second than were offered."""
    words = [
        "--isl",
        500,
        "--osl",
        osl,
        *CLUSTER[:2],
        "--gpus",
        "h100_sxm",
        "--request-rate",
        5,
        "--slo",
        f"ttft_p99<1s,{slo}",
    ]
    assert f"--slo: {said}" in refusal("size", *words)


def test_a_rate_that_too_few_conversations_could_offer_is_told(tmp_path: Path) -> None:
    told = notes(tmp_path / "a", *CLUSTER, "--requests", 60, "--request-rate", 5, "--turns", 4, "--think-time", 100)
    assert any(note.startswith("Less than the offered rate: ") for note in told)
    kept = notes(tmp_path / "b", *CLUSTER, "--requests", 60, "--request-rate", 5)
    assert not any("offered rate" in note for note in kept)


def test_models_that_got_no_request_are_told(tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    pools = [{"name": "a", "model": "llama-3.1-8b"}, {"name": "b", "model": "qwen3-32b", "instances": 2, "tp": 2}]
    cluster.write_text(json.dumps({"gpu": "h100_sxm", "pools": pools}))
    told = notes(tmp_path / "out", "--cluster", cluster, "--requests", 20, "--request-rate", 5)
    said = "No request was for Qwen/Qwen3-32B: 4 GPUs of the cluster served nothing"
    assert any(said in note for note in told)
    assert any(
        said in note
        for note in json_of("simulate", "--isl", 500, "--osl", 20, "--cluster", cluster, "--requests", 20)["notes"]
    )


def test_studies_say_it_too(tmp_path: Path) -> None:
    study = tmp_path / "study.yaml"
    pools = [{"name": "a", "model": "llama-3.1-8b"}, {"name": "b", "model": "qwen3-32b"}]
    load = {"name": "x", "isl": 500, "osl": 20, "requests": 20, "gpu": "h100_sxm", "pools": pools}
    words = ["sweep", study, "--artifact-dir", tmp_path / "out", "--workers", 1]
    study.write_text(json.dumps(load | {"grid": {"think_time": [0, 5]}}))
    assert "think_time is the pause between requests of a session: give turns, which is 1" in refusal(*words)
    study.write_text(json.dumps(load | {"grid": {"request_rate": [5]}}))
    invoke(*words)
    row = json.loads((tmp_path / "out" / "results.jsonl").read_text())
    assert "No request was for Qwen/Qwen3-32B: 1 GPU of the cluster" in row["reason"]


@pytest.mark.parametrize(("think", "users", "said"), [("9", 8, True), ("5:13", 8, False), ("9", 1, False)])
def test_users_who_are_all_alike_are_said_to_come_in_bursts(tmp_path: Path, think: str, users: int, said: bool) -> None:
    asked = ["--turns", 2, "--think-time", think, "--requests", 40, "--concurrency", users]
    found = notes(tmp_path / "run", *CLUSTER, *asked)
    assert any("stay in step and come as bursts" in note for note in found) is said
    sized = invoke("size", "--slo", "ttft_p50<9s", "--isl", 500, "--osl", 20, "--tps", 1, "--model", "llama-3.1-8b", *asked)
    assert ("come as bursts" in sized.stdout.replace("\n", " ")) is said


def test_the_number_of_users_that_a_search_for_it_is_given_is_said_to_be_none_of_it() -> None:
    asked = ["size", "--max-rate", "--slo", "tpot_p50<9ms", "--isl", 500, "--osl", 20, "--tps", 1, "--model", "llama-3.1-8b"]
    asked += ["--requests", 100]
    assert "with --max-rate the number itself says nothing" in invoke(*asked, "--concurrency", 50).stdout.replace("\n", " ")
    assert "says nothing" not in invoke(*asked, "--concurrency", 1).stdout


def test_no_more_requests_are_in_flight_than_there_are_users() -> None:
    asked = ["--slo", "tpot_p50<60ms", "--isl", 200, "--osl", 40, "--tps", 1, "--model", "llama-3.1-8b", "--gpu", "h100_sxm"]
    assert "In-flight requests: 800, or " in invoke("size", *asked, "--concurrency", 800).stdout


def test_assumed_acceptance_of_drafts_is_said_with_how_much_it_moves(tmp_path: Path) -> None:
    words = ["--isl", 500, "--osl", 200, "--requests", 1, "--model", "llama-3.1-8b", "--gpu", "h100_sxm"]
    words += ["--num-speculative-tokens", 4, "--set", "speculative_method=ngram"]
    told = simulated(*words)
    [line] = [line for line in told["assumed"] if "of draft tokens hold" in line]
    found = re.search(r"(\d+)% of draft tokens hold.*with (\d+)%, TPOT is ([\d.]+) times as long", line)
    assert found, line
    rate, less, times = int(found[1]) / 100, int(found[2]) / 100, float(found[3])
    given = {each: simulated(*words, "--acceptance-rate", each) for each in (rate, less)}
    assert given[rate]["tpot_ms"] == told["tpot_ms"]
    assert given[less]["tpot_ms"]["mean"] / told["tpot_ms"]["mean"] == pytest.approx(times, rel=0.1)
    assert not any("of draft tokens hold" in text for text in given[rate]["assumed"])


@pytest.mark.parametrize(("split", "said"), [(["--tp", 4], False), (["--tp", 4, "--ep", 4], True)])
def test_experts_that_are_not_used_evenly_are_said_where_they_are_spread(split: list[Any], said: bool) -> None:
    words = ["--isl", 500, "--osl", 20, "--requests", 1, "--model", "Qwen/Qwen3-30B-A3B", "--gpu", "h100_sxm", *split]
    found = simulated(*words)["assumed"]
    lines = [line for line in found if "experts unevenly used" in line]
    assert bool(lines) is said
    for line in lines:
        times = re.search(r"the busiest GPU gets ([\d.]+) times the mean", line)
        assert times, line
        assert 1 < float(times[1]) < 4


NOTE = "Turns with a limit below 16 tokens: 2. They asked for 16, the least that responses takes."


@pytest.mark.parametrize(
    ("settings", "tokens", "notes"), [({}, 3, []), ({"dialect": "vllm"}, 3, []), ({"dialect": "sglang"}, 16, [NOTE])]
)
def test_short_turns_reach_every_server(tmp_path: Path, settings: Any, tokens: int, notes: list[str]) -> None:
    file, out = tmp_path / "turns.jsonl", tmp_path / "out"
    turns = [{"text": text, "output_length": 3} for text in ("Hello", "And again")]
    file.write_text(json.dumps({"session_id": "s", "turns": turns}) + "\n")
    with Server(port=0, ttft=0, itl=0, **settings) as server:
        words = [
            "run", file, "--url", server.base_url, "--endpoint-type", "responses", "--model", "m", "--artifact-dir", out,
        ]  # fmt: skip
        result = invoke(*([str(word) for word in words]))
    assert result.exit_code == 0, result.output
    summary = summary_of(out)
    assert summary["request_count"]["avg"] == 2
    assert summary["output_sequence_length"]["max"] == tokens
    assert [note for note in summary["llmirage"]["notes"] if "limit" in note] == notes
