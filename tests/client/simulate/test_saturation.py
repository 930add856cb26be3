"""Whether the cluster kept up, from how long requests waited; and whether the start of a closed loop is its tail."""

import dataclasses

import numpy as np
import pytest

from llmirage_client.load.options import RunOptions
from llmirage_client.measure.columns import filled
from llmirage_client.simulate.report import cluster_blocks
from llmirage_client.simulate.saturation import queue_of, queues_of, rates_of
from llmirage_client.simulate.simulation import Simulation, simulate
from llmirage_client.simulator.engine import ClusterConfig, QueueWait, plan_of
from llmirage_client.workload.synthetic_load import synthetic_load
from llmirage_server.config import PoolConfig

CLUSTER = ClusterConfig(model="meta-llama/Llama-3.1-8B", gpu="h100_sxm", weights="bf16", instances=1)


def saturated(waited_s: list[float], users: int = 0) -> str | None:
    return queue_of(waited_s, users).overloaded


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
    options = RunOptions(concurrency=users, concurrency_ramp_s=ramp_s, seed=1)
    notes = simulate(CLUSTER, synthetic_load("2000", "100", 400, seed=1), options).result.notes
    assert any(note.startswith("All 64 conversations start at once") for note in notes) is said


def at_rate(rate: float, turns: str = "1", **more: object) -> Simulation:
    workload = synthetic_load("500", "50", 400, turns=turns, wait_s="30", seed=1)
    return simulate(CLUSTER, workload, RunOptions(request_rate_per_s=rate, seed=1, **more))  # type: ignore[arg-type]


def test_rates_by_hand() -> None:
    """Requests every second for 100 s, each over after 10 s: none is missing, though the first answer comes after 10 s."""
    start_s = np.arange(101.0)
    steady = rates_of(filled(start_s, end_s=start_s + 10), 1.0, 1.0, kept_on=False)
    assert (steady.sent, steady.delivered) == pytest.approx((1.0, 1.0), abs=0.02)
    assert steady.allowed == pytest.approx(3 / np.sqrt(101))
    assert steady.shortfall is None
    slower = rates_of(filled(start_s, end_s=2 * start_s), 1.0, 1.0, kept_on=False)
    assert slower.delivered == pytest.approx(0.5, abs=0.02)
    assert slower.shortfall == "the load is not sustained: 0.5067 of 1 requests/s are answered"
    assert rates_of(filled(start_s, end_s=start_s + 10), 2.0, 1.0, kept_on=False).shortfall is not None


def test_too_few_conversations_for_the_rate_are_said() -> None:
    """40 conversations of ten turns with 30 s between them send about 1.3 turns/s, whatever the rate."""
    short = at_rate(20.0, "10")
    assert short.rates.offered == 20.0
    assert short.rates.sent < 2.0
    assert short.summary["offered_per_s"] == 20.0
    assert short.summary["delivered_per_s"] < 2.0
    assert [note for note in short.result.notes if "of 20 turns/s were there to send" in note]
    assert "Offered: 20 requests/s. Delivered: 1." in str(cluster_blocks(short))


@pytest.mark.parametrize("turns", ["1", "4"])
def test_a_rate_beyond_what_the_concurrency_lets_through_is_said(turns: str) -> None:
    """More requests would not help: conversations wait for each other."""
    notes = at_rate(50.0, turns, concurrency=4).result.notes
    assert [note for note in notes if "as only 4 conversations may be in progress at a time (--concurrency)" in note]
    assert not [note for note in notes if "more requests" in note]


def test_a_concurrency_that_was_never_reached_is_not_to_blame() -> None:
    """40 conversations of ten turns, and room for all of them."""
    notes = at_rate(20.0, "10", concurrency=40).result.notes
    assert [note for note in notes if "of 20 turns/s were there to send: more requests" in note]


def test_a_rate_of_conversations_offers_all_their_turns() -> None:
    rates = at_rate(0.2, "10", request_rate_of="conversations").rates
    assert rates.offered == pytest.approx(2.0)
    assert rates.allowed == pytest.approx(3 * np.sqrt(10 / 400))


def test_a_rate_that_was_delivered_is_no_shortfall() -> None:
    simulation = at_rate(10.0)
    assert simulation.rates.delivered == pytest.approx(10.0, rel=simulation.rates.allowed)
    assert not [note for note in simulation.result.notes if "offered" in note]


def test_users_at_once_have_no_rate() -> None:
    workload = synthetic_load("500", "50", 40, seed=1)
    closed = simulate(CLUSTER, workload, RunOptions(concurrency=4, seed=1))
    assert closed.rates is None
    assert closed.summary["offered_per_s"] is None


def test_a_load_that_ends_before_its_requests_do_delivers_no_more_than_was_answered() -> None:
    """Batched requests end together: as many in so short a time are no rate."""
    start_s = np.linspace(0.0, 4.0, 201)
    burst = rates_of(filled(start_s, end_s=8.0 + start_s / 8), 50.0, 1.0, kept_on=False)
    assert burst.delivered == pytest.approx(201 / 8.5)
    assert burst.shortfall is not None
    assert "more requests tell" in burst.shortfall
    longer = rates_of(filled(start_s * 10, end_s=8.0 + start_s * 10), 5.0, 1.0, kept_on=False)
    assert longer.shortfall is None
    assert longer.delivered == pytest.approx(5.0, rel=0.02)
