"""Offered and delivered rates stand side by side, and less than was offered is said."""

import numpy as np
import pytest

from llmirage_client.load.options import RunOptions
from llmirage_client.measure.columns import filled
from llmirage_client.simulate.report import cluster_blocks
from llmirage_client.simulate.saturation import rates_of
from llmirage_client.simulate.simulation import Simulation, simulate
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.workload.synthetic_load import synthetic_load

CLUSTER = ClusterConfig(model="meta-llama/Llama-3.1-8B", gpu="h100_sxm", weights="bf16", instances=1)


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
    assert short.rates is not None
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
    assert rates is not None
    assert rates.offered == pytest.approx(2.0)
    assert rates.allowed == pytest.approx(3 * np.sqrt(10 / 400))


def test_a_rate_that_was_delivered_is_no_shortfall() -> None:
    simulation = at_rate(10.0)
    assert simulation.rates is not None
    assert simulation.rates.delivered == pytest.approx(10.0, rel=simulation.rates.allowed)
    assert not [note for note in simulation.result.notes if "offered" in note]


def test_users_at_once_have_no_rate() -> None:
    workload = synthetic_load("500", "50", 40, seed=1)
    closed = simulate(CLUSTER, workload, RunOptions(concurrency=4, seed=1))
    assert closed.rates is None
    assert closed.summary["offered_per_s"] is None
