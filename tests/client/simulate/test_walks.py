"""Runs without asyncio against the same runs by phases of tasks: whatever the load, all is the same to the last bit."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmirage_client.load.options import RunOptions
from llmirage_client.load.rates import RateSeries
from llmirage_client.simulate import simulation
from llmirage_client.simulate.simulation import SimulationError, simulate
from llmirage_client.simulate.token_rows import TokenRow
from llmirage_client.simulate.window import Window
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.workload.session import Session, TokenSpec, Turn, Workload
from llmirage_client.workload.synthetic_load import synthetic_load
from llmirage_server.cluster.routers import ROUTERS
from llmirage_server.config.cluster import EventConfig

SECONDS = st.integers(0, 24).map(lambda eighths: eighths / 8)  # a coarse grid: much happens at the same time
LLAMA: dict[str, Any] = {"model": "meta-llama/Llama-3.1-8B", "gpu": "h100_sxm"}
GRID = {"ttft_ms": 125.0, "itl_ms": 62.5}
SPECULATION = {
    "speculative_method": "draft_model",
    "draft_model": "meta-llama/Llama-3.2-1B",
    "num_speculative_tokens": 3,
    "acceptance_rate": 0.7,
}
CRASH = (
    EventConfig(at_s=1.0, action="crash", instance=0, restart_after_s=1.0),
    EventConfig(at_s=2.5, action="crash", instance=1),
)
CLUSTERS: dict[str, dict[str, Any]] = {
    "plain": {**LLAMA, "instances": 2},
    "grid": GRID,
    "grid of sessions": {**GRID, "instances": 3, "router": "session"},
    "starved": {**LLAMA, "num_gpu_blocks_override": 100, "max_model_len": 700, "router": "kv_aware", "instances": 2},
    "autoscaled": {**LLAMA, "instances": 3, "start_up_s": 1.0, "scale_interval_s": 0.5, "scale_on_concurrency": 1.0},
    "speculative": {**LLAMA, **SPECULATION},
    "lost in part": {**LLAMA, "instances": 2, "on_crash": "fail", "events": CRASH, "router": "round_robin"},
    "lost": {**GRID, "on_crash": "fail", "events": CRASH[:1]},
    "lost for good": {**GRID, "instances": 1, "events": (EventConfig(at_s=1.0, action="crash", instance=0),)},
}


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    lengths = st.tuples(st.sampled_from([1, 40, 300, 600, 900]), st.sampled_from([1, 2, 8, 40]))
    sessions = {}
    timed = draw(st.booleans())
    for number in range(draw(st.integers(1, 7))):
        turns = []
        for index in range(draw(st.integers(1, 4))):
            prompt, reply = draw(lengths)
            arrival_s = draw(st.none() | SECONDS) if index else None
            turns.append(Turn(tokens=TokenSpec(prompt, reply), delay_s=draw(SECONDS), arrival_s=arrival_s))
        name = f"s{number}"
        arrival_s = draw(SECONDS) if timed else None
        ends = draw(st.booleans())
        sessions[name] = Session(name, tuple(turns), mode="tokens", arrival_s=arrival_s, ends_on_failure=ends)
    return Workload("made", "made", sessions, tuple(sessions))


@st.composite
def loads(draw: st.DrawFn, workload: Workload) -> dict[str, Any]:
    options: dict[str, Any] = {"seed": draw(st.integers(0, 3)), "concurrency": draw(st.none() | st.integers(1, 5))}
    ways = ["slots", "rate", "series", "users"] + ["schedule"] * 2 * workload.timed
    match draw(st.sampled_from(ways)):
        case "slots":
            options["concurrency"] = options["concurrency"] or 2
            options["concurrency_ramp_s"] = draw(SECONDS)
        case "rate":
            options["request_rate_per_s"] = draw(st.sampled_from([0.5, 4.0, 100.0]))
            options["request_rate_ramp_s"] = draw(st.sampled_from([0.0, 2.0]))
            options["arrival_pattern"] = draw(st.sampled_from(["constant", "poisson", "gamma"]))
        case "series":
            options["request_rate_series"] = RateSeries(
                ((0.0, 2.0), (1.0, 8.0), (2.0, 8.0), (3.0, draw(st.sampled_from([0.0, 1.0]))))
            )
        case "users":
            options["user_rate_per_s"] = draw(st.sampled_from([1.0, 4.0]))
            options["num_users"] = draw(st.integers(1, 5))
        case "schedule":
            options["fixed_schedule"] = True
            options["schedule_speedup"] = draw(st.sampled_from([1.0, 2.0]))
            options["schedule_auto_offset"] = draw(st.booleans())
    if "fixed_schedule" not in options:
        options["sampling"] = draw(st.sampled_from(["sequential", "shuffle", "random"]))
    if draw(st.booleans()):
        options["inter_turn_delay_factor"] = draw(st.sampled_from([0.0, 0.5]))
        options["inter_turn_delay_cap_s"] = draw(st.none() | SECONDS)
        options["inter_turn_delay_mean_s"] = draw(st.none() | st.just(0.3))
        options["inter_turn_delay_std_s"] = 0.1
    if draw(st.booleans()):
        options["num_conversations"] = draw(st.integers(1, 12))
    limits = {
        "request_count": st.integers(1, 20),
        "soft_duration_s": st.integers(1, 5).map(float),
        "benchmark_duration_s": st.integers(1, 5).map(float),
    }
    for name in draw(st.lists(st.sampled_from(sorted(limits)), unique=True, max_size=2)):
        options[name] = draw(limits[name])
    options["benchmark_grace_period_s"] = draw(st.sampled_from([0.0, 0.5, 30.0]))
    options["fail_fast"] = draw(st.booleans())
    match draw(st.sampled_from(["none", "none", "count", "conversations", "duration"])):
        case "count":
            options["warmup_request_count"] = draw(st.integers(1, 5))
        case "conversations":
            options["warmup_num_conversations"] = draw(st.integers(1, 3))
            options["warmup_concurrency"] = 2
        case "duration":
            options["warmup_duration_s"] = 1.0
            options["warmup_grace_period_s"] = draw(st.sampled_from([0.0, 1.0]))
            options["warmup_request_rate_per_s"] = 5.0
    options["session_prefix"] = draw(st.sampled_from(["extend", "none"]))
    return options


@st.composite
def runs(draw: st.DrawFn) -> tuple[str, Workload, dict[str, Any], dict[str, Any]]:
    workload = draw(workloads())
    limits: dict[str, Any] = {"max_time_s": draw(st.sampled_from([None, None, 0.25, 2.0]))}
    if draw(st.booleans()):
        limits["window"] = Window(draw(st.integers(0, 3)), draw(st.integers(1, 8)), draw(st.sampled_from([_never, _failed])))
    return draw(st.sampled_from(sorted(CLUSTERS))), workload, draw(loads(workload)), limits


def _never(row: TokenRow) -> None:
    return None


def _failed(row: TokenRow) -> str | None:
    return "it failed" if row.error else None


def told(cluster: str, workload: Workload, options: dict[str, Any], limits: dict[str, Any]) -> Any:
    """All that a run tells, or why there is none."""
    config = ClusterConfig(**CLUSTERS[cluster])
    try:
        found = simulate(config, workload, RunOptions(**options), **limits)
    except SimulationError as error:
        return str(error).split(":")[0]
    result = dataclasses.replace(found.result, client_cpu_s=0.0, start_unix_s=0.0)
    columns = {
        field.name: getattr(found.columns, field.name).tobytes()
        for field in dataclasses.fields(found.columns)
        if field.name not in ("usage", "stamps_s")
    }
    assert found.series is not None
    levels = [found.series.time_s.tobytes(), found.series.running.tobytes(), found.series.busy_s.tobytes()]
    return result, columns, found.summary, found.metrics.per_request, found.metrics.errors, levels


@settings(max_examples=250, deadline=None)
@given(run=runs())
def test_both_ways_tell_the_same(run: Any) -> None:
    walked = told(*run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "can_walk", lambda *_: False)
        by_tasks = told(*run)
    assert walked == by_tasks


@pytest.mark.parametrize("router", sorted(ROUTERS))
def test_requests_have_names_where_a_router_asks_for_them(router: str, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = synthetic_load("50:400", "2:20", 40, turns="1:4", wait_s=0.1, seed=2)
    config = ClusterConfig(**LLAMA, instances=4, router=router)
    options = RunOptions(concurrency=7, seed=2)
    found = simulate(config, workload, options).columns
    monkeypatch.setattr(simulation, "_NAMELESS", ())
    named = simulate(config, workload, options).columns
    assert np.array_equal(found.last_s, named.last_s)
