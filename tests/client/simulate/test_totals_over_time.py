"""What a simulation sums up over time: levels, work, cost and energy, over random clusters, idle ones among them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from llmirage_client.load.options import RunOptions
from llmirage_client.simulate.report import report_series
from llmirage_client.simulate.simulation import Simulation, simulate
from llmirage_client.simulator.engine import ClusterConfig, plan_of
from llmirage_client.workload.synthetic_load import synthetic_load
from llmirage_server.config.file import make_config

CLUSTERS = st.fixed_dictionaries(
    {"gpu": st.sampled_from(["h100_sxm", "b200_sxm", "l40s"]), "instances": st.integers(1, 4)},
    optional={
        "tensor_parallel_size": st.just(2),
        "pipeline_parallel_size": st.just(2),
        "engine": st.sampled_from(["vllm", "sglang", "trtllm"]),
        "max_num_seqs": st.sampled_from([2, 8]),
        "num_gpu_blocks_override": st.just(6000),  # preempts
    },
)
LOADS = st.one_of(
    st.sampled_from([0.05, 0.5, 3.0, 20.0]).map(lambda rate: {"request_rate_per_s": rate}),
    st.sampled_from([1, 8]).map(lambda users: {"concurrency": users}),
)


def run(cluster: dict[str, Any], load: dict[str, Any], requests: int = 80, warm_up: int = 0, seed: int = 1) -> Simulation:
    config = ClusterConfig(model="llama-3.1-8b", **cluster)
    options = RunOptions(**load, warmup_request_count=warm_up or None, seed=seed)
    return simulate(config, synthetic_load("200:3000", "20:200", requests, seed=seed), options, trace=True)


def within(start_s: Any, end_s: Any, span: tuple[float, float]) -> Any:
    """Seconds of each stretch that are in the span."""
    return np.maximum(np.minimum(end_s, span[1]) - np.maximum(start_s, span[0]), 0.0)


@settings(phases=[Phase.explicit, Phase.reuse, Phase.generate])  # to shrink a case takes minutes
@given(cluster=CLUSTERS, load=LOADS, warm_up=st.sampled_from([0, 30]), seed=st.integers(0, 99))
def test_totals_are_those_summed_up_by_hand(cluster: Any, load: Any, warm_up: int, seed: int) -> None:
    found = run(cluster, load, warm_up=warm_up, seed=seed)
    columns, summary, series, totals = found.columns, found.summary, found.series, found.totals
    measured = columns.measured
    span = float(columns.start_s[measured].min()), float(columns.end_s[measured].max())
    whole_s = span[1] - span[0]
    assert summary["requests"] == measured.sum()
    assert summary["duration_s"] == pytest.approx(whole_s)
    # conservation: every token that was asked for came, and each was counted once
    assert summary["output_tok_per_s"] * whole_s == pytest.approx(np.nansum(columns.asked_tokens[measured]))
    assert series.held[:2, :, 0].sum() == 0 == (series.running + series.waiting)[:, -1].sum()
    # Little's law: the mean number in the cluster is arrivals a second times seconds in it
    assert series.held[:2, :, -1].sum() == pytest.approx((columns.end_s - columns.start_s).sum(), rel=1e-9)
    assert (series.held[:, :, -1] >= -1e-6).all()
    # a warm-up counts nowhere; counters are read at samples, of which there are 128 at least in a long run
    sample_s = float(np.diff(series.time_s).max())
    slack = 2 * sample_s * (series.running + series.waiting).sum(axis=0).max() + 1e-6
    in_span = within(columns.start_s, columns.end_s, span).sum()
    assert totals.means[:2].sum() * whole_s == pytest.approx(in_span, abs=slack)
    # cost and energy
    deployment = plan_of(found.config)[0].deployment
    assert deployment.gpu.price_usd_per_h is not None
    hours = cluster["instances"] * deployment.gpus * whole_s / 3600
    assert found.bill.gpu_hours == pytest.approx(hours)
    assert found.bill.usd == pytest.approx(tuple(price * hours for price in deployment.gpu.price_usd_per_h))
    if "pipeline_parallel_size" in cluster:
        return  # the spans of its steps overlap
    busy_s = sum(within(step.start_s, step.end_s, span) for its in found.steps for step in its)
    # a step counts whole from its start on: one of each instance may be under way where the measured part begins
    begun_s = sum(
        max((step.end_s - step.start_s for step in its if step.start_s < span[0]), default=0.0) for its in found.steps
    )
    slack_s = 2 * sample_s * cluster["instances"] + begun_s if warm_up else 1e-6 * cluster["instances"]
    assert totals.busy_s.sum() == pytest.approx(busy_s, abs=slack_s)
    assert found.bill.energy_kwh == pytest.approx(totals.busy_s.sum() * deployment.gpus * deployment.gpu.tdp_w / 3.6e6)
    assert summary["utilisation"] == pytest.approx(totals.busy_s.sum() / whole_s / cluster["instances"])


def test_the_warm_up_counts_in_no_figure_of_the_cluster() -> None:
    """A warm-up that preempts and fills the cluster, before a run that does neither."""
    cluster = {"gpu": "h100_sxm", "instances": 1, "num_gpu_blocks_override": 4000, "engine": "vllm"}
    options = RunOptions(request_rate_per_s=0.2, warmup_request_count=60, warmup_concurrency=60, seed=1)
    config = ClusterConfig(model="llama-3.1-8b", **cluster)  # type: ignore[arg-type]
    found = simulate(config, synthetic_load(2000, 400, 90, seed=1), options)
    assert found.series.preemptions[:, -1].sum() > 0 == found.summary["preemptions"]
    assert found.totals.means[1].sum() < 0.1 < found.series.held[1, :, -1].sum() / found.series.time_s[-1]
    assert found.totals.most[0].max() < 10 < found.series.most[0].max()


def test_instances_that_left_during_the_warm_up_are_not_paid_for() -> None:
    """GPU hours were the mean number of instances over the whole simulation times the measured time."""
    cluster = {"gpu": "h100_sxm", "instances": 4, "initial_instances": 4, "min_instances": 1, "scale_on_concurrency": 8.0}
    cluster |= {"scale_interval_s": 1.0, "scale_down_after_s": 1.0}
    found = run(cluster, {"concurrency": 1}, requests=60, warm_up=30)
    assert found.series.paid_s[:, -1].sum() > 1.02 * found.series.time_s[-1]
    assert found.bill.gpu_hours == pytest.approx(found.summary["duration_s"] / 3600, rel=1e-6)


def test_totals_of_two_pools_with_other_gpus(tmp_path: Path) -> None:
    """Cost and energy of prefill on one kind of GPU and decode on another, each by its own prices and watts."""
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "model: llama-3.1-8b\nengine: vllm\nkv_transfer: {handoff_ms: 0}\npools:\n"
        "  - {name: in, role: prefill, gpu: h100_sxm, instances: 2}\n"
        "  - {name: out, role: decode, gpu: h200_sxm, instances: 1, tp: 2}\n"
    )
    load = synthetic_load("200:3000", "20:200", 80, seed=1)
    found = simulate(make_config(str(file), {}), load, RunOptions(request_rate_per_s=2.0, seed=1), trace=True)
    whole_s, hours = found.summary["duration_s"], np.array([2, 2]) * found.summary["duration_s"] / 3600
    gpus = [pool.deployment.gpu for pool in plan_of(found.config)]
    prices = [gpu.price_usd_per_h or (0.0, 0.0) for gpu in gpus]
    assert found.bill.gpu_hours == pytest.approx(hours.sum())
    assert found.bill.usd == pytest.approx(
        tuple(sum(h * price[end] for h, price in zip(hours, prices, strict=True)) for end in (0, 1))
    )
    busy_s = [sum(step.end_s - step.start_s for step in its) for its in found.steps]
    assert found.totals.busy_s == pytest.approx(busy_s)
    watts = [gpus[0].tdp_w or 0, gpus[0].tdp_w or 0, 2 * (gpus[1].tdp_w or 0)]
    assert found.bill.energy_kwh == pytest.approx(np.dot(watts, busy_s) / 3.6e6)
    # no request is in both pools, nor in one while its KV is on the way
    stayed = (found.columns.end_s - found.columns.start_s).sum() / whole_s
    assert 0.9 * stayed < found.totals.means[:2].sum() <= stayed * (1 + 1e-9)


def test_a_cluster_that_idles_has_a_small_batch_in_the_mean() -> None:
    """The last busy sample was held until the next request: a mean batch of 1.00 at 5 % utilisation."""
    found = run({"gpu": "h100_sxm", "instances": 1}, {"request_rate_per_s": 0.05}, requests=600)
    columns = found.columns
    in_cluster = (columns.end_s - columns.start_s).sum() / found.summary["duration_s"]
    assert found.summary["utilisation"] < 0.06
    assert found.totals.means[:2].sum() == pytest.approx(in_cluster, rel=0.001)
    drawn = report_series(found.series)
    widths = np.diff(drawn.edges_s)
    charted = ((drawn.levels["running"] + drawn.levels["waiting"]) * widths).sum()
    assert charted == pytest.approx((columns.end_s - columns.start_s).sum(), rel=1e-6)


def test_a_pipeline_with_one_batch_is_busy_one_stage_at_a_time() -> None:
    cluster = {"gpu": "h100_sxm", "instances": 1, "pipeline_parallel_size": 4}
    assert 0.2 < run(cluster, {"concurrency": 1}, requests=20).summary["utilisation"] < 0.26
