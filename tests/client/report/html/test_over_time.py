"""Series over a run's time, by hand."""

import numpy as np
import pytest
from made_runs import many, record, run

from llmirage_client.report.html.run_view import bins, mean_active, names_of, output_rate, rolling, view_run


def test_requests_in_flight_are_averaged_over_each_bin() -> None:
    starts, ends = np.array([0.0, 0.5, np.nan]), np.array([1.0, 2.5, 3.0])
    assert mean_active(starts, ends, np.array([0.0, 1.0, 2.0, 3.0])) == pytest.approx([1.5, 1.0, 0.5])


def test_rates_add_up_to_all_tokens() -> None:
    view = view_run(run(many(20, 5)))
    edges = bins(float(view.end_s.max()))
    total = view.metrics.whole_run["total_osl"]
    assert (output_rate(view, edges) * np.diff(edges)).sum() == pytest.approx(total)


def test_tokens_count_when_they_arrive() -> None:
    view = view_run(run([record(ttft_s=0.95, tpot_s=0.1, tokens=2)]))
    assert output_rate(view, np.array([0.0, 1.0, 2.0])) == pytest.approx([1.0, 1.0])


def test_times_are_of_the_cluster_and_from_the_first_request() -> None:
    view = view_run(run([record(start_s=7.0), record("b", start_s=8.0)], speed=10.0))
    assert view.start_s == pytest.approx([0.0, 10.0])
    assert view.value("time_to_first_token") == pytest.approx([1000.0, 1000.0])


def test_rolling_percentiles_follow_the_values() -> None:
    times = np.arange(1000.0)
    rolled = rolling(times, np.where(times < 500, 10.0, 20.0))
    assert set(rolled.percentiles) == {50, 90}
    assert rolled.percentiles[50][0] == 10.0
    assert rolled.percentiles[50][-1] == 20.0
    assert rolling(np.arange(20_000.0), np.ones(20_000)).percentiles.keys() == {50, 90, 99}


def test_a_percentile_needs_enough_requests() -> None:
    assert rolling(np.arange(6.0), np.ones(6)).percentiles == {}
    assert rolling(np.zeros(50), np.ones(50)).percentiles == {}


def test_bins_cover_the_run_with_a_width_one_would_choose() -> None:
    edges = bins(100.0)
    assert edges[0] == 0
    assert edges[-1] >= 100
    assert edges[1] == 1.0
    assert bins(0.0).tolist() == [0.0, 1.0]


def test_names_have_as_many_parts_as_tell_them_apart() -> None:
    assert names_of(["/runs/a", "/runs/b"]) == ["a", "b"]
    assert names_of(["/x/c1/run", "/x/c2/run"]) == ["c1/run", "c2/run"]
    assert names_of(["/x/run"]) == ["run"]
