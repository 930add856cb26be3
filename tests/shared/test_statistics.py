"""Summaries and histograms against numpy and against cases small enough to do by hand."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_shared.statistics import PERCENTILES, RATIO, LogHistogram, ServedTimes, summarize


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


VALUES = st.lists(st.floats(1e-5, 1e4), min_size=1, max_size=60)


def of(values: list[float]) -> LogHistogram:
    histogram = LogHistogram()
    for value in values:
        histogram.add(value)
    return histogram


@given(VALUES, st.sampled_from([0.1, 0.5, 0.9, 0.99, 1.0]))
def test_a_quantile_is_at_most_one_bin_from_the_value_of_that_rank(values: list[float], share: float) -> None:
    exact = sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]
    assert exact / RATIO * 0.999999 <= of(values).quantile(share) <= exact * RATIO * 1.000001


@given(VALUES, VALUES)
def test_what_was_added_later_is_the_difference_and_the_sum_of_both_is_the_whole(one: list[float], two: list[float]) -> None:
    before, after = of(one), of(one + two)
    later = after.since(before)
    assert later.as_dict()["bins"] == of(two).as_dict()["bins"]
    assert later.sum_s == pytest.approx(sum(two), abs=1e-12 * sum(one + two))  # of a difference: the rounding of the whole
    assert before.merged(later).as_dict()["bins"] == after.as_dict()["bins"]


@given(VALUES)
def test_json_gives_the_same_histogram_back(values: list[float]) -> None:
    histogram = of(values)
    again = LogHistogram.from_dict(json.loads(json.dumps(histogram.as_dict())))
    assert again.as_dict() == histogram.as_dict()
    assert again.count == len(values)


def test_counts_up_to_a_value() -> None:
    histogram = of([0.001, 0.002, 0.002, 0.5])
    histogram.add(3.0, times=4)
    assert [histogram.up_to(value) for value in (0.0001, 0.0015, 0.01, 1.0, 10.0)] == [0, 1, 3, 4, 8]


def test_nothing_and_zero() -> None:
    assert LogHistogram().quantile(0.5) == 0.0
    assert of([0.0, 0.0, 1.0]).quantile(0.5) == 0.0


def test_a_server_that_began_anew_is_noticed() -> None:
    with pytest.raises(ValueError, match="begun anew"):
        of([1.0]).since(of([1.0, 1.0]))
    with pytest.raises(ValueError, match="begun anew"):
        of([1.0]).since(of([2.0]))


@pytest.mark.parametrize("value", [{}, {"bins": [], "sum_s": 1}, {"bins": {"a": 1}, "sum_s": 1}, {"bins": {}, "sum_s": "?"}])
def test_what_is_no_histogram_is_refused(value: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        LogHistogram.from_dict(value)


def test_served_times_by_hand() -> None:
    times = ServedTimes()
    times.ended(0.03, 0.04, 4, 0.02, 0.024)
    before = ServedTimes.from_dict(json.loads(json.dumps(times.as_dict())))
    times.ended(0.05, 0.05, 0, 0.0, 0.0)  # one token: no gap
    later = times.since(before)
    assert (before.streams, later.streams, later.simulated_itl.count) == (1, 1, 0)
    assert before.sent_itl.quantile(1.0) == pytest.approx(0.006, rel=0.01)
    assert later.sent_ttft.quantile(1.0) == pytest.approx(0.05, rel=0.01)
    assert before.merged(later).as_dict() == times.as_dict()
