"""Whether the cluster kept up, from how long requests waited; and whether the start of a closed loop is its tail."""

from __future__ import annotations

import numpy as np
import pytest

from llmirage_client.load.options import RunOptions
from llmirage_client.simulate.saturation import saturation
from llmirage_client.simulate.simulation import Simulation, simulate
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.workload.synthetic_load import synthetic_load
from llmirage_server.config import PoolConfig

CLUSTER = ClusterConfig(model="meta-llama/Llama-3.1-8B", gpu="h100_sxm", weights="bf16", instances=1)


def closed_loop(users: int, **more: float) -> Simulation:
    workload = synthetic_load("2000", "100", 400, seed=1)
    return simulate(CLUSTER, workload, RunOptions(concurrency=users, seed=1, **more))  # type: ignore[arg-type]


def test_waits_that_grow_are_a_queue_that_grows() -> None:
    grow = np.linspace(0, 4, 400).tolist()
    assert saturation(grow) == "the queue grows, requests waited 1.50 s at first and 3.50 s at last"
    assert saturation(grow[::-1]) is None
    assert saturation([1.0] * 400) is None
    assert saturation([0.001 * wait for wait in grow]) is None  # milliseconds


def test_random_waits_do_not_grow() -> None:
    grown = sum(saturation(np.random.default_rng(seed).exponential(size=400).tolist()) is not None for seed in range(200))
    assert grown == 0


def test_users_of_a_closed_loop_wait_for_each_other_at_first() -> None:
    waits = [0.0] * 100 + np.linspace(0, 2, 200).tolist() + [2.0] * 150
    assert saturation(waits) is not None
    assert saturation(waits, users=150) is None


def test_an_open_loop_beyond_capacity_is_saturated_before_anyone_waits_for_long() -> None:
    workload = synthetic_load("2000", "100", 400, seed=1)
    light, heavy = (simulate(CLUSTER, workload, RunOptions(request_rate_per_s=rate, seed=1)) for rate in (10.0, 18.0))
    assert light.summary["saturated"] is False
    assert heavy.summary["saturated"] is True
    assert heavy.saturation is not None
    assert heavy.saturation.startswith("the queue grows")


def test_waiting_for_a_decode_instance_is_waiting() -> None:
    """One decode instance with room for a quarter of the replies that come; prompts start at once."""
    cluster = ClusterConfig(
        model="meta-llama/Llama-3.1-8B",
        gpu="h100_sxm",
        weights="bf16",
        pools=(
            PoolConfig(name="prefill", role="prefill", instances=2),
            PoolConfig(name="decode", role="decode", max_num_seqs=8),
        ),
    )
    workload = synthetic_load("100", "200", 400, seed=1)
    kept_up, starved = (simulate(cluster, workload, RunOptions(request_rate_per_s=rate, seed=1)) for rate in (2.0, 20.0))
    assert kept_up.summary["saturated"] is False
    assert starved.summary["saturated"] is True
    assert starved.summary["ttft_ms"]["p50"] > 5000


@pytest.mark.parametrize(("users", "ramp_s", "said"), [(64, 0.0, True), (64, 8.0, False), (2, 0.0, False)])
def test_a_start_that_decides_the_tail_is_named(users: int, ramp_s: float, said: bool) -> None:
    notes = closed_loop(users, concurrency_ramp_s=ramp_s).result.notes
    assert any(note.startswith("All 64 conversations start at once") for note in notes) is said
