"""What a simulation sums up over time: levels, work, cost and energy, over random clusters, idle ones among them."""

from __future__ import annotations

import numpy as np
import pytest

from llmirage_client.load.options import RunOptions
from llmirage_client.simulate.report import report_series
from llmirage_client.simulate.simulation import Simulation, simulate
from llmirage_client.simulator.engine import ClusterConfig, plan_of
from llmirage_client.workload.synthetic_load import synthetic_load


def one(rate: float, instances: int = 1, *, requests: int = 200, warm_up: int = 0, seed: int = 1) -> Simulation:
    config = ClusterConfig(model="llama-3.1-8b", gpu="h100_sxm", instances=instances)
    options = RunOptions(request_rate_per_s=rate, warmup_request_count=warm_up or None, seed=seed)
    return simulate(config, synthetic_load("200:3000", "20:200", requests + warm_up, seed=seed), options, trace=True)


@pytest.mark.parametrize("seed", range(6))
def test_totals_are_those_summed_up_by_hand(seed: int) -> None:
    draw = np.random.default_rng(seed)
    instances, warm_up = int(draw.integers(1, 4)), int(draw.choice([0, 60]))
    found = one(float(draw.choice([0.2, 3.0, 25.0])), instances, warm_up=warm_up, seed=seed)
    columns, summary, series = found.columns, found.summary, found.series
    measured = columns.measured
    start_s, end_s = columns.start_s[measured].min(), columns.end_s[measured].max()
    assert summary["requests"] == measured.sum()
    assert summary["duration_s"] == pytest.approx(end_s - start_s)
    # every token that came was asked for, and each was counted once
    assert summary["output_tok_per_s"] * summary["duration_s"] == pytest.approx(np.nansum(columns.asked_tokens[measured]))
    # cost and energy are of the measured time, without the warm-up
    gpu = plan_of(found.config)[0].deployment.gpu
    assert gpu.tdp_w is not None
    assert gpu.price_usd_per_h is not None
    hours = instances * (end_s - start_s) / 3600
    assert found.bill.gpu_hours == pytest.approx(hours)
    assert found.bill.usd == pytest.approx(tuple(price * hours for price in gpu.price_usd_per_h))
    steps = [step for its in found.steps for step in its]
    busy_s = sum(max(0.0, min(step.end_s, end_s) - max(step.start_s, start_s)) for step in steps)
    assert found.bill.energy_kwh == pytest.approx(busy_s * gpu.tdp_w / 3.6e6, rel=0.01)
    # Little's law: requests in the cluster are arrivals a second times seconds in it
    there = report_series(series)
    widths = np.diff(there.edges_s)
    in_cluster = ((there.levels["running"] + there.levels["waiting"]) * widths).sum()
    assert in_cluster == pytest.approx((columns.end_s - columns.start_s).sum(), rel=0.12)


def test_a_cluster_that_idles_has_a_small_batch_in_the_mean() -> None:
    """The last busy sample was held until the next request: a mean batch of 1.00 at 5 % utilisation."""
    found = one(0.05, requests=600)
    batch = found.series.held[0, 0, -1] / found.series.time_s[-1]
    assert found.summary["utilisation"] < 0.06
    assert batch == pytest.approx(found.summary["utilisation"], rel=0.5)


def test_a_pipeline_with_one_batch_is_busy_one_stage_at_a_time() -> None:
    config = ClusterConfig(model="llama-3.1-8b", gpu="h100_sxm", instances=1, pipeline_parallel_size=4)
    found = simulate(config, synthetic_load(500, 100, 20, seed=1), RunOptions(concurrency=1, seed=1))
    assert 0.2 < found.summary["utilisation"] < 0.26
