"""Summaries against numpy and against cases small enough to do by hand."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_shared.statistics import PERCENTILES, summarize


def test_no_values_have_no_summary() -> None:
    assert summarize([]) is None


def test_a_single_value_is_every_figure_but_the_spread() -> None:
    summary = summarize([7.5])
    assert summary is not None
    assert summary.as_dict() == {
        **dict.fromkeys(("avg", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "min", "max", "sum"), 7.5),
        "std": 0.0,
        "count": 1,
    }


def test_four_values_by_hand() -> None:
    summary = summarize([4.0, 1.0, 3.0, 2.0])
    assert summary is not None
    assert (summary.avg, summary.min, summary.max, summary.sum, summary.count) == (2.5, 1.0, 4.0, 10.0, 4)
    assert summary.p50 == 2.5
    assert summary.p25 == 1.75  # index 3 * 0.25 = 0.75, between 1 and 2
    assert summary.p90 == pytest.approx(3.7)
    assert summary.std == pytest.approx(1.25**0.5)  # squared distances 2.25 + 0.25 + 0.25 + 2.25, over 4 and not 3


def test_the_deviation_is_the_populations_as_in_a_recorded_aiperf_run() -> None:
    # A published export has 83 ones among 96 values and a std of 0.342168; the divisor 95 would give 0.343964.
    summary = summarize([1.0] * 83 + [0.0] * 13)
    assert summary is not None
    assert summary.std == pytest.approx(0.342168, abs=5e-7)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        summarize([1.0, bad])


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=200))
def test_every_figure_agrees_with_numpy(values: list[float]) -> None:
    summary = summarize(values)
    assert summary is not None
    for p in PERCENTILES:
        assert getattr(summary, f"p{p}") == pytest.approx(np.percentile(values, p, method="linear"), rel=1e-12, abs=1e-9)
    assert summary.avg == pytest.approx(np.mean(values), rel=1e-9, abs=1e-3)
    assert summary.std == pytest.approx(np.std(values, ddof=0), rel=1e-9, abs=1e-3)
    assert summary.sum == pytest.approx(np.sum(values), rel=1e-9, abs=1e-3)
    assert (summary.min, summary.max, summary.count) == (min(values), max(values), len(values))


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=200))
def test_figures_are_in_order(values: list[float]) -> None:
    summary = summarize(values)
    assert summary is not None
    ordered = [summary.min, *(getattr(summary, f"p{p}") for p in PERCENTILES), summary.max]
    assert all(low <= high or low == pytest.approx(high, rel=1e-12) for low, high in pairwise(ordered))
    assert summary.min <= summary.avg <= summary.max
