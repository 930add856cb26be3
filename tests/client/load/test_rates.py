"""Rates along lines, and the gaps between arrivals; exact where the arithmetic is, by their moments where they are drawn."""

import itertools
import math
import random
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.workload.rates import ArrivalPattern, RateSeries, RateSeriesError, read_rate_series, unit_gaps


def ticks(series: RateSeries, count: int) -> list[float]:
    """When a constant pattern's first ticks are due."""
    time_s, times = series.after(0.0, 0.0), []
    for _ in range(count):
        times.append(time_s)
        time_s = series.after(time_s, 1.0)
    return times


def area(series: RateSeries, until_s: float) -> float:
    """Arrivals due until then: trapezoids, added up by hand."""
    total, points = 0.0, [*series.points, (math.inf, series.points[-1][1])]
    for (start_s, start), (end_s, end) in itertools.pairwise(points):
        if until_s <= start_s:
            break
        stop_s = min(end_s, until_s)
        rate = start if end_s == math.inf else start + (end - start) * (stop_s - start_s) / max(end_s - start_s, 1e-300)
        total += (start + rate) / 2 * (stop_s - start_s)
    return total


def test_a_constant_rate_ticks_evenly() -> None:
    assert ticks(RateSeries.constant(4.0), 5) == [0, 0.25, 0.5, 0.75, 1.0]


def test_a_ramp_reaches_its_rate_at_its_end() -> None:
    series = RateSeries.constant(2.0, ramp_s=4.0)  # the area after t seconds is t²/4, and 4 at the end of the ramp
    assert ticks(series, 7) == pytest.approx([0, 2, math.sqrt(8), math.sqrt(12), 4, 4.5, 5])


def test_steps_and_pauses_of_a_series() -> None:
    series = RateSeries(((0.0, 1.0), (2.0, 1.0), (2.0, 0.0), (10.0, 0.0), (10.0, 4.0)))
    assert ticks(series, 5) == pytest.approx([0, 1, 2, 10.25, 10.5])


def test_a_series_that_begins_with_nothing_begins_later() -> None:
    assert RateSeries(((0.0, 0.0), (5.0, 0.0), (5.0, 1.0))).after(0.0, 0.0) == 5.0


def test_a_rate_that_ends_at_zero_brings_no_more() -> None:
    series = RateSeries(((0.0, 1.0), (2.0, 1.0), (3.0, 0.0)))
    assert series.after(2.0, 1.0) == math.inf
    assert series.after(2.0, 0.5) == 3.0


@st.composite
def series(draw: st.DrawFn) -> RateSeries:
    gaps = draw(st.lists(st.floats(0.1, 50), min_size=1, max_size=5))
    rates = draw(st.lists(st.floats(0.01, 100), min_size=len(gaps), max_size=len(gaps)))
    times = itertools.accumulate([0.0, *gaps[1:]])
    return RateSeries(tuple(zip(times, rates, strict=True)))


@given(series(), st.floats(0, 100), st.floats(0.01, 500))
def test_arrivals_are_the_area_under_the_rate(rates: RateSeries, start_s: float, arrivals: float) -> None:
    end_s = rates.after(start_s, arrivals)
    assert end_s > start_s
    assert area(rates, end_s) - area(rates, start_s) == pytest.approx(arrivals, rel=1e-6)


@pytest.mark.parametrize(
    ("pattern", "smoothness", "variation"),
    [("constant", 1.0, 0.0), ("poisson", 1.0, 1.0), ("gamma", 0.25, 2.0), ("gamma", 1.0, 1.0), ("gamma", 16.0, 0.25)],
)
def test_gaps_have_mean_one_and_their_shapes_variation(pattern: ArrivalPattern, smoothness: float, variation: float) -> None:
    gaps = list(itertools.islice(unit_gaps(pattern, smoothness, random.Random(5)), 20_000))
    assert statistics.fmean(gaps) == pytest.approx(1.0, abs=0.05)
    assert statistics.pstdev(gaps) == pytest.approx(variation, abs=0.08)
    assert gaps == list(itertools.islice(unit_gaps(pattern, smoothness, random.Random(5)), 20_000))


@pytest.mark.parametrize(
    "content",
    [
        '{"points": [{"time_s": 0, "qps": 1}, {"time_s": 60, "qps": 10}]}',
        "[[0, 1], [60, 10]]",
        "time_s,qps\n0,1\n\n60,10\n",
        "# night to noon\n0 1\n60 10 # noon\n",
        "\ufeff0,1\r\n60,10\r\n",
    ],
)
def test_files_of_points(content: str, tmp_path: Path) -> None:
    file = tmp_path / "rates"
    file.write_text(content, encoding="utf-8", newline="")
    assert read_rate_series(str(file)).points == ((0.0, 1.0), (60.0, 10.0))


def test_points_on_the_command_line() -> None:
    assert read_rate_series("0:1, 60:10,120:10").points == ((0.0, 1.0), (60.0, 10.0), (120.0, 10.0))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is empty"),
        ("nothing-here.json", "neither a file nor points such as 0:1"),
        ("0:1,5", "neither a file nor points"),
        ("5:1,9:2", "begins at 0 s"),
        ("0:1,5:2,4:3", "4 s comes after 5 s"),
        ("0:1,5:-2", "from 0 up"),
        ("0:nan", "from 0 up"),
        ("0:0,5:0", "nothing would ever be sent"),
    ],
)
def test_what_is_no_series_is_refused(text: str, said: str) -> None:
    with pytest.raises(RateSeriesError, match=said):
        read_rate_series(text)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "there is no point"),
        ("{}", 'no array "points"'),
        ('{"points": [{"time_s": 0}]}', r"points\[0\] is neither"),
        ("[[0, true]]", r"points\[0\] is neither"),
        ("{oops", "not JSON"),
        ("0,1\n60;10\n", "line 2"),
        ("0,1\nten,10\n", "line 2"),
        ("0,1,2\n", "line 1"),
    ],
)
def test_a_bad_file_names_file_and_place(content: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "rates.txt"
    file.write_text(content)
    with pytest.raises(RateSeriesError, match=said) as caught:
        read_rate_series(str(file))
    assert "rates.txt" in str(caught.value)
