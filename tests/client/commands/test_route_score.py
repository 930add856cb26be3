"""Scores of routers: of records, and of a run before a fleet against simulations of the same load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from column_records import record
from invoked import invoke, summary_of

import llmirage
from llmirage_client.load.options import RunOptions
from llmirage_client.measure.record import RequestError
from llmirage_client.operations.route_score import RouteScore, route_score
from llmirage_client.simulate.simulation import simulate
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.workload.session import Session, Turn, Workload

CLUSTER = ("--model", "Qwen/Qwen3-8B", "--instances", "2", "--engine", "vllm")


def test_a_score_is_of_successful_requests_and_of_all_instances() -> None:
    records = [
        record(token_s=(1.0, 1.5), usage=(100, 10, 60)),  # 50 computed tokens
        record(start_s=2.0, token_s=(2.5,), usage=(100, 50, 0)),  # 150
        record(start_s=2.0, token_s=(4.0,), usage=(200, 1, 100)),  # of an unknown instance
        record(phase="warmup", token_s=(9.0,), usage=(900, 9, 9)),
        record(),
    ]
    for one, instance in zip(records, (0, 1, None, 0, 0), strict=True):
        one.exchange.instance = instance
    records[-1].exchange.error = RequestError(503, "http_error", "gone")
    found = route_score(records, 4)
    times = {"mean": pytest.approx(3500 / 3), "p50": 1000.0, "p90": 1800.0, "p99": pytest.approx(1980.0)}
    assert found == RouteScore(3, 2, 1, 160 / 400, 150 / 50, times)
    assert route_score([], 2) == RouteScore(0, 0, 0, None, None, None)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of conversations behind a router that takes turns."""
    folder = tmp_path_factory.mktemp("routed")
    settings: dict[str, Any] = {"sent_stamps": str(folder / "stamps"), "router": "round_robin"}
    with llmirage.Server(port=0, model="Qwen/Qwen3-8B", instances=2, engine="vllm", speed=20, set=settings) as server:
        llmirage.run(
            url=server.base_url,
            isl=1000,
            osl=5,
            turns=3,
            num_conversations=5,
            concurrency=3,
            speed=20,
            artifact_dir=folder / "run",
        )
    return folder


def scored(folder: Path, *more: str, status: int = 0) -> str:
    return invoke("route-score", folder / "run", folder / "stamps", *CLUSTER, *more, status=status).output


def test_a_run_is_compared_with_simulations_of_its_load(measured: Path) -> None:
    found = json.loads(scored(measured, "--routers", "llm-d:prefix-cache=3,queue=1,session,round_robin", "--json"))
    assert list(found["routers"]) == ["llm-d:prefix-cache=3,queue=1", "session", "round_robin"]
    every = [found["measured"], found["best"], *found["routers"].values()]
    assert {(one["requests"], one["placed"], one["failed"]) for one in every} == {(15, 15, 0)}
    hits = [found["routers"][name]["hit_rate"] for name in ("session", "round_robin")]
    assert found["best"]["hit_rate"] == hits[0] > hits[1]
    assert found["measured"]["hit_rate"] < hits[0]
    assert min(one["ttft_over_best"]["mean"] for one in (every[0], *every[2:])) > 1
    report = summary_of(measured / "run")
    assert found["measured"]["ttft_ms"]["mean"] == pytest.approx(report["time_to_first_token"]["avg"])
    table = scored(measured, "--routers", "session")
    assert [line.split()[0] for line in table.splitlines()[4:]] == ["measured", "best", "session"]


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (("--routers", "sesion"), "did you mean 'session'"), (("--instances", "1"), "has requests of instance 1"),
        (("--set", "ttft_ms=10"), "fixed times"), (("--workload", "x.jsonl"), "give it or WORKLOAD, not both"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused(measured: Path, more: tuple[str, ...], problem: str) -> None:
    assert problem in scored(measured, *more, status=2)


def test_simulated_conversations_in_messages_know_their_instances() -> None:
    turns = tuple(Turn(messages=({"role": "user", "content": f"{said} " * 100},), max_tokens=5) for said in "ab")
    workload = Workload("made", "made", {"s": Session("s", turns)}, ("s",))
    found = simulate(ClusterConfig(model="Qwen/Qwen3-8B", instances=2, router="round_robin"), workload, RunOptions())
    assert [one.exchange.instance for one in found.result.records] == [0, 1]
