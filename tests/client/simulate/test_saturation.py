"""Whether the cluster kept up, from how long requests waited; and whether the start of a closed loop is its tail."""

import dataclasses

import numpy as np
import pytest

from llmirage_client.load.options import RunOptions
from llmirage_client.simulate.saturation import queue_of, queues_of
from llmirage_client.simulate.simulation import Simulation, simulate
from llmirage_client.simulator.engine import ClusterConfig, QueueWait, plan_of
from llmirage_client.workload.synthetic_load import synthetic_load
from llmirage_server.config import PoolConfig

CLUSTER = ClusterConfig(model="meta-llama/Llama-3.1-8B", gpu="h100_sxm", weights="bf16", instances=1)


def saturated(waited_s: list[float], users: int = 0) -> str | None:
    return queue_of(waited_s, users).overloaded


def closed_loop(users: int, **more: float) -> Simulation:
    workload = synthetic_load("2000", "100", 400, seed=1)
    return simulate(CLUSTER, workload, RunOptions(concurrency=users, seed=1, **more))  # type: ignore[arg-type]


def test_waits_that_grow_are_a_queue_that_grows() -> None:
    grow = np.linspace(0, 4, 400).tolist()
    assert saturated(grow) == "the queue grows, requests waited 1.50 s at first and 3.50 s at last"
    assert saturated(grow[::-1]) is None
    assert saturated([1.0] * 400) is None
    assert saturated([0.001 * wait for wait in grow]) is None  # milliseconds


def test_random_waits_do_not_grow() -> None:
    grown = sum(saturated(np.random.default_rng(seed).exponential(size=400).tolist()) is not None for seed in range(200))
    assert grown == 0


def test_users_of_a_closed_loop_wait_for_each_other_at_first() -> None:
    waits = [0.0] * 100 + np.linspace(0, 2, 200).tolist() + [2.0] * 150
    assert saturated(waits) is not None
    assert saturated(waits, users=150) is None


def test_an_open_loop_beyond_capacity_is_saturated_before_anyone_waits_for_long() -> None:
    workload = synthetic_load("2000", "100", 400, seed=1)
    light, heavy = (simulate(CLUSTER, workload, RunOptions(request_rate_per_s=rate, seed=1)) for rate in (10.0, 22.0))
    assert light.summary["saturated"] is False
    assert heavy.summary["saturated"] is True
    assert heavy.saturation is not None
    assert heavy.saturation.startswith("the queue grows")


def test_an_overloaded_instance_is_named_though_the_others_keep_up() -> None:
    """A fifth of the requests wait on one of five instances: the last tenth of all shows nothing in the median."""
    waits = [QueueWait(0.2 * step if index == 3 else 0.0, index) for step in range(200) for index in range(5)]
    pools = plan_of(dataclasses.replace(CLUSTER, instances=5))
    whole, *each = queues_of(waits, 0, pools)
    assert [queue.overloaded is not None for queue in each] == [False, False, False, True, False]
    assert (whole.state, each[3].state, each[0].state) == ("growing", "growing", "stable")
    assert whole.overloaded == "instance 3 of 5 is overloaded: the last requests waited 38 s in queues (median)"
    assert each[3].waited_s[2] == pytest.approx(38, abs=1)


def test_a_slow_pool_beside_a_fast_one_is_the_one_that_is_overloaded() -> None:
    pools = (PoolConfig(name="fast", instances=1), PoolConfig(name="slow", instances=1, max_num_seqs=2))
    model = {"model": "meta-llama/Llama-3.1-8B", "gpu": "h100_sxm", "weights": "bf16"}
    cluster = ClusterConfig(**model, router="round_robin", pools=pools)  # type: ignore[arg-type]
    found = simulate(cluster, synthetic_load("500", "200", 300, seed=1), RunOptions(request_rate_per_s=6.0, seed=1))
    fast, slow = found.summary["queues"]
    assert found.summary["saturated"] is True
    assert (fast["overloaded"], fast["state"], slow["state"]) == (None, "stable", "growing")
    assert slow["waiting_most"] > 50 > fast["waiting_most"]
    assert found.saturation is not None
    assert found.saturation.startswith("instance 1 of 2 is overloaded: ")


def test_a_burst_that_drains_is_said_to_drain() -> None:
    """Half of all requests wait for a minute; the last ones wait for nobody."""
    workload = synthetic_load("2000", "100", 500, seed=1)
    for place, name in enumerate(workload.roots):
        at_s = 0.001 * place if place < 350 else 100.0 + place
        workload.sessions[name] = dataclasses.replace(workload.sessions[name], arrival_s=at_s)
    found = simulate(CLUSTER, workload, RunOptions(fixed_schedule=True, seed=1))
    assert found.summary["ttft_ms"]["p50"] > 4000
    assert (found.summary["saturated"], found.summary["queue"]) == (True, "draining")
    assert found.summary["queues"][0]["waited_last_s"] < 0.5 < found.summary["queues"][0]["waited_worst_s"]
    assert found.saturation is not None
    assert "the queue drains" in found.saturation


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
    assert starved.summary["ttft_ms"]["p50"] > 4000


@pytest.mark.parametrize(("users", "ramp_s", "said"), [(64, 0.0, True), (64, 8.0, False), (2, 0.0, False)])
def test_a_start_that_decides_the_tail_is_named(users: int, ramp_s: float, said: bool) -> None:
    notes = closed_loop(users, concurrency_ramp_s=ramp_s).result.notes
    assert any(note.startswith("All 64 conversations start at once") for note in notes) is said
