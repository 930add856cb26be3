"""Conversations with prefix caches and maximum throughput: what is read, and how it is played."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from accuracy import engine
from accuracy.agents import (
    QWEN,
    AgentRun,
    play,
    predict,
    qwen_conversations,
    save_agents,
    tau_conversations,
)
from accuracy.csv_files import read_as
from accuracy.max_throughput import PublishedThroughput, bench_limits, reach

from llmirage_server.perf.deployment import Deployment

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "silicon"
TAU = AgentRun("tau", "retail", 8, 60, 0.9, 100, 100, 10, "a model", 4000, 150, 0.8, 0.9)


def test_runs_are_read_as_they_were_written(tmp_path: Path) -> None:
    runs = [TAU, replace(TAU, family="qwen36", ttft_ms=12.5)]
    save_agents(tmp_path / "agents.csv.gz", runs)
    assert read_as(AgentRun, tmp_path / "agents.csv.gz") == runs


def test_conversations_of_tau_repeat_as_much_as_the_run_did() -> None:
    requests = [request for calls in tau_conversations(TAU) for request in calls]
    assert len(requests) == 60
    assert sum(r.prompt_tokens for r in requests) / 60 == pytest.approx(4000, rel=0.1)
    seen: set[bytes] = set()
    new = 0
    for request in requests:
        tokens = {token.tobytes() for token in request.prompt}
        new += len(tokens - seen)
        seen |= tokens
    assert new / sum(r.prompt_tokens for r in requests) == pytest.approx(0.1, abs=0.04)


def test_prompts_repeat_those_before_them_without_the_reply() -> None:
    [first, second, *_] = next(iter(qwen_conversations(replace(TAU, workload="chatbot"))))
    same = (first.prompt[: second.prompt_tokens] == second.prompt[: first.prompt_tokens]).sum()
    assert same == first.prompt_tokens - 4


def test_calls_of_a_conversation_come_one_after_the_other() -> None:
    cluster = engine.cluster_of(Deployment.create(**QWEN), prefix_caching=True)
    conversations = list(qwen_conversations(replace(TAU, workload="agent")))
    served = play(cluster, iter(conversations), clients=2, most=12)
    assert len(served) == 12
    for calls in conversations:
        done = [call for call in calls if call in served]
        assert all(a.finished_s == b.arrival_s for a, b in pairwise(done))


@pytest.mark.parametrize(
    ("name", "clients"),
    [
        ("tau retail claude-opus-4-5", 64),
        ("tau banking_knowledge qwen3.5-397b-a17b-think", 4),
        ("qwen36 toolagent", 2),
        ("qwen36 agent", 2),
        ("qwen36 agent", 32),
    ],
)
def test_hit_rates_and_first_tokens_are_those_of_the_server(name: str, clients: int) -> None:
    run = next(run for run in read_as(AgentRun, DATA / "agents.csv.gz") if (run.name, run.clients) == (name, clients))
    found = predict(run)
    assert abs(found.error("hit")) * 100 < 3
    assert abs(found.error("ttft_p50_ms")) < 0.4  # those of Qwen3.6, whose steps with few prompt tokens are too fast


def test_batch_limits_are_those_that_the_benchmark_chooses() -> None:
    runs = read_as(PublishedThroughput, DATA / "max_throughput.csv.gz")
    assert len(runs) == 478
    run = next(r for r in runs if "8B" in r.model and r.gpu == "h100_sxm" and (r.isl, r.osl) == (1000, 1000))
    assert bench_limits(run) == (640, 2048)
    measured = replace(run, requests=1000)
    assert abs(reach(measured).error) < 0.15


def test_the_benchmark_counts_each_weight_once() -> None:
    """Llama-4-Maverick on eight H100: 401 billion weights of fp8, although ranks copy attention, dense layers and tables."""
    runs = read_as(PublishedThroughput, DATA / "max_throughput.csv.gz")
    run = next(r for r in runs if "Maverick" in r.model and r.gpu == "h100_sxm" and (r.isl, r.osl) == (500, 2000))
    held = (8 * 81_559 * 2**20 - 400.7e9) * 0.95 / (48 * 2 * 8 * 128) / 2500
    assert bench_limits(run) == (256 * math.ceil(held / 256), 2048) == (1280, 2048)


def test_what_does_not_fit_says_so() -> None:
    run = replace(read_as(PublishedThroughput, DATA / "max_throughput.csv.gz")[0], gpu="l40s", weights="bf16")
    assert "does not fit" in reach(run).problem
