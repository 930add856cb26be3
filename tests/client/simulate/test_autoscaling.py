"""Simulated autoscaling: the same both ways, seen over time, and paid for only while it is there."""

from pathlib import Path

import numpy as np
import pytest

from llmirage_client.load.options import RunOptions
from llmirage_client.measure.run_folder import read_cluster_series
from llmirage_client.simulate.report import report_series
from llmirage_client.simulate.simulation import Simulation, simulate
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.workload.synthetic_load import synthetic_load


def simulated(via: str = "engine", **settings: float) -> Simulation:
    workload = synthetic_load("200:3000", "20:60", 40, turns="1", wait_s="0", shared_prefix_tokens=0, seed=1)
    config = ClusterConfig(
        model="llama-3.1-8b",
        gpu="h100_sxm",
        engine="vllm",
        instances=4,
        start_up_s=2.0,
        scale_interval_s=1.0,
        scale_down_after_s=3.0,
        **settings,  # type: ignore[arg-type]
    )
    return simulate(config, workload, RunOptions(request_rate_per_s=6.0), via=via)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "rule",
    [
        {"scale_on_concurrency": 1.0},
        {"scale_on_kv": 0.004},
        {"scale_on_rate": 2.0},
        {"scale_on_ttft_ms": 40.0, "scale_on_itl_ms": 9.0},
    ],
)
def test_both_ways_agree(rule: dict[str, float]) -> None:
    engine, api = simulated("engine", **rule), simulated("api", **rule)
    ends = [np.sort(one.columns.last_s) for one in (engine, api)]
    np.testing.assert_array_equal(ends[0], ends[1])
    assert engine.series.autoscaling == api.series.autoscaling
    assert engine.series.ready().max() > engine.series.ready().min()


def test_only_what_is_there_is_paid_for(tmp_path: Path) -> None:
    all_the_time, scaled = simulated(), simulated(scale_on_concurrency=1.0)
    assert all_the_time.bill.gpu_hours == pytest.approx(4 * all_the_time.summary["duration_s"] / 3600)
    assert scaled.bill.gpu_hours < 0.9 * all_the_time.bill.gpu_hours
    assert scaled.summary["failed_requests"] == 0
    assert scaled.series is not None
    assert scaled.bill.gpu_hours >= scaled.summary["duration_s"] / 3600
    report_series(scaled.series).write(tmp_path)
    series = read_cluster_series(tmp_path)
    assert {"accepts requests", "starts up", "drains"} <= series.levels.keys()
    assert (series.levels["accepts requests"][0] == 1.0).all()
