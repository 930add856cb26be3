"""Token times, gaps and columns worked out together, against each request by itself and against its record."""

import dataclasses
import math
from array import array
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.load.conversation import Conversation, Identifiers
from llmirage_client.load.options import RunOptions
from llmirage_client.measure.columns import columns_of
from llmirage_client.measure.metrics import compute
from llmirage_client.simulate.simulation import simulate
from llmirage_client.simulate.token_rows import TokenRow
from llmirage_client.simulate.token_times import TokenTimes, weighted_summary
from llmirage_client.simulator.engine import ClusterConfig, Request
from llmirage_client.workload.session import Session
from llmirage_client.workload.synthetic_load import synthetic_load
from llmirage_server.cluster.limits import StreamInterval
from llmirage_shared.statistics import summarize

CONVERSATION = Conversation(Session("s", ()), 0, Identifiers(1), ())
STEPS = [
    array("d", np.cumsum(np.linspace(0.01, 0.3, 40) ** (1 + kind))) for kind in range(3)
]  # ends, of three rows of steps


@st.composite
def rows(draw: Any) -> list[TokenRow]:
    """Requests with some spans that follow each other, with tokens that were told, with both or with none."""
    made = []
    for number in range(draw(st.integers(0, 6))):
        request = Request(number, np.zeros(3, dtype=np.int32), np.zeros(90, dtype=np.int32))
        row = TokenRow(CONVERSATION, 0, request, 0.0, 0.0)
        now = 0.0
        for _ in range(draw(st.integers(0, 3))):
            ends_s = draw(st.sampled_from(STEPS))
            first = int(np.searchsorted(ends_s, now, side="right"))
            if first < len(ends_s):
                last = min(first + draw(st.sampled_from([0, 0, 1, 9])), len(ends_s) - 1)
                request.spans.append((ends_s, first, last))
                now = ends_s[last]
        if draw(st.integers(0, 4)) == 0:
            row.token_s += [now + 1.0, now + 1.5, now + 1.5]  # the last two from one step
        request.stream = draw(st.sampled_from([None, None, StreamInterval(3), StreamInterval(3, from_start=True)]))
        made.append(row)
    return made


@given(rows(), st.lists(st.booleans(), min_size=6, max_size=6))
def test_all_together_as_each_by_itself(rows: list[TokenRow], chosen: list[bool]) -> None:
    times = TokenTimes(rows)
    gaps = []
    for place, row in enumerate(rows):
        alone = row.arrivals.tolist()
        together = (times.first_s[place], times.second_s[place], times.last_s[place])
        padded = [*alone, np.nan, np.nan]
        assert together == pytest.approx((padded[0], padded[1], alone[-1] if alone else np.nan), abs=0.0, nan_ok=True)
        assert times.events[place] == len(alone)
        if chosen[place]:
            gaps += [1e3 * (later - earlier) for earlier, later in pairwise(alone)]
    summary = weighted_summary(*times.gaps_ms(np.array(chosen[: len(rows)], dtype=bool)))
    if not gaps:
        assert summary is None
    else:
        assert summary is not None
        wanted = summarize(gaps)
        assert wanted is not None
        for name in ("avg", "p50", "p90", "p99", "min", "max", "count"):
            assert getattr(summary, name) == pytest.approx(getattr(wanted, name), rel=1e-9)


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.integers(1, 7)), min_size=1, max_size=30))
def test_a_weighted_summary_is_that_of_the_sample_written_out(pairs: list[tuple[float, int]]) -> None:
    values, counts = np.array([value for value, _ in pairs]), np.array([count for _, count in pairs])
    wanted = summarize(np.repeat(values, counts))
    found = weighted_summary(values, counts)
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
