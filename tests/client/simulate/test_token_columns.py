"""Columns and gaps worked out from the steps of instances, against those of single records."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.load.options import RunOptions
from llmirage_client.measure.columns import columns_of
from llmirage_client.measure.metrics import compute
from llmirage_client.simulate.simulation import simulate
from llmirage_client.simulate.token_times import weighted_summary
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.workload.synthetic_load import synthetic_load
from llmirage_shared.statistics import summarize


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.integers(1, 7)), min_size=1, max_size=30))
def test_a_weighted_summary_is_that_of_the_sample_written_out(pairs: list[tuple[float, int]]) -> None:
    values, counts = np.array([value for value, _ in pairs]), np.array([count for _, count in pairs])
    wanted = summarize(np.repeat(values, counts))
    found = weighted_summary(values, counts)
    assert wanted is not None
    assert found is not None
    for name, value in wanted.as_dict().items():
        assert math.isclose(getattr(found, name), value, rel_tol=1e-9, abs_tol=1e-6), name


def test_nothing_has_no_summary() -> None:
    assert weighted_summary(np.array([1.0]), np.array([0])) is None


@pytest.mark.parametrize("settings", [{}, {"num_gpu_blocks_override": 200, "max_model_len": 1500}, {"engine": "sglang"}])
def test_columns_and_metrics_are_those_of_the_records(settings: dict[str, Any]) -> None:
    """With memory that runs out, too: then tokens of one request come in several stretches."""
    workload = synthetic_load("100:900", "1:120", 60, turns="1:3", wait_s=0.2, seed=3)
    config = ClusterConfig(model="meta-llama/Llama-3.1-8B", gpu="h100_sxm", instances=2, **settings)
    simulation = simulate(config, workload, RunOptions(concurrency=24, seed=3))
    result = simulation.result
    assert any(record.exchange.token_s for record in result.records)
    if settings.get("num_gpu_blocks_override"):
        assert simulation.summary["preemptions"] > 0
    columns = columns_of(result.records)
    for field in dataclasses.fields(columns):
        if field.name not in ("stamps_s", "usage", "ack_s", "conversation"):
            assert np.array_equal(getattr(columns, field.name), getattr(simulation.columns, field.name), equal_nan=True), (
                field.name
            )
    for tag, counts in columns.usage.items():
        assert np.array_equal(counts, simulation.columns.usage[tag], equal_nan=True), tag
    wanted, found = compute(result), simulation.metrics
    assert wanted.per_request.keys() == found.per_request.keys()
    for tag, summary in wanted.per_request.items():
        assert found.per_request[tag].as_dict() == pytest.approx(summary.as_dict(), rel=1e-9), tag
    assert found.whole_run == pytest.approx(wanted.whole_run)
