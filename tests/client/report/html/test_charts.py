"""Every kind of chart: the figures that it draws are those it was given, and text stays text."""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from drawn import Chart, Document, charts_of
from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.report.html.charts import (
    BINS,
    MOST_DOTS,
    MOST_POINTS,
    Axis,
    Bars,
    Better,
    Mark,
    ParetoPoint,
    Sample,
    Scale,
    Series,
    bars,
    frontier,
    heat_strip,
    histogram,
    line,
    pareto,
    short_number,
)

HOSTILE = "<script>alert(1)</script>\"'&\x00\x1b]\ud800 ]]> \u202e"
Named = Callable[[str], str]


def drawn(page: str) -> Chart:
    (one,) = charts_of(page)
    return one


def _line(name: str) -> str:
    marks = [Mark(5.0, name), Mark(1.0, name)]
    series = [Series(name, [0, 1, 2], [3, 9, 4]), Series(name, [0, 2], [1, 2])]
    return line(series, title=name, x=Axis(name, name), y=Axis(name), marks=marks)


def _scatter(name: str) -> str:
    points = Series(name, [0, 1], [3, 9], "points", tips=[name, name])
    return line([Series(name, [0, 1, 2], [3, 9, 4], "dots"), points], title=name, x=Axis(name), y=Axis(name))


def _histogram(name: str) -> str:
    sample = Sample(name, [1, 2, 2, 3, 9], {name: 2.0, "p99": 8.8})
    return histogram([sample], title=name, x=Axis(name, name), counted=name)


def _overlay(name: str) -> str:
    return histogram([Sample(name, [1, 2, 3]), Sample(name + "2", [2, 3, 4])], title=name, x=Axis(name, "ms"))


def _bars(name: str) -> str:
    return bars([name, "b", "c"], [Bars(name, [1, 2, 3]), Bars("other", [3, np.nan, 1])], title=name, x=name, y=Axis(name))


def _heat(name: str) -> str:
    return heat_strip([name, "b"], [0, 1, 2], [[0, 1], [np.nan, 0.5]], title=name, x=Axis(name, "s"), value=Axis(name, name))


def _pareto(name: str) -> str:
    points = [ParetoPoint(1, 5, name, name, name), ParetoPoint(2, 4, "b", "g"), ParetoPoint(1.5, 1, "c", "g")]
    return pareto(points, title=name, x=Axis(name), y=Axis(name))


KINDS: list[Named] = [_line, _scatter, _histogram, _overlay, _bars, _heat, _pareto]


@pytest.mark.parametrize("chart", KINDS)
def test_text_from_outside_stays_text(chart: Named) -> None:
    document = Document(chart(HOSTILE))
    assert {tag for tag, _ in document.elements} <= {"h3", "div", "table", "caption", "tbody", "tr", "th", "td", "p", "i"}
    assert {name for _, found in document.elements for name in found} <= {
        "class", "role", "aria-label", "data-chart", "scope",
    }  # fmt: skip
    assert "<script>alert(1)</script>" in document.text


@pytest.mark.parametrize("chart", KINDS)
def test_a_chart_has_a_label_and_a_table_of_its_values(chart: Named) -> None:
    found = drawn(chart("Requests in flight"))
    assert found.title == "Requests in flight"
    assert found.label.startswith("Requests in flight")
    assert any(digit in found.table for digit in "123456789")


@pytest.mark.parametrize(
    "chart",
    [
        line([], title="t", x=Axis("x"), y=Axis("y")),
        line([Series("s", [], [])], title="t", x=Axis("x"), y=Axis("y")),
        line([Series("s", [1, 2], [np.nan, np.nan])], title="t", x=Axis("x"), y=Axis("y")),
        histogram([Sample("s", [])], title="t", x=Axis("x")),
        histogram([Sample("s", [np.nan])], title="t", x=Axis("x")),
        bars([], [], title="t", y=Axis("y")),
        bars(["a"], [Bars("s", [np.nan])], title="t", y=Axis("y")),
        heat_strip([], [0.0], np.empty((0, 0)), title="t", x=Axis("x"), value=Axis("v")),
        pareto([ParetoPoint(np.nan, 1)], title="t", x=Axis("x"), y=Axis("y")),
    ],
)
def test_a_chart_without_data_says_so(chart: str) -> None:
    assert "no data" in Document(chart).text
    assert not charts_of(chart)


@given(st.lists(st.floats(0, 1e7).map(lambda v: round(v, 6)), min_size=1, max_size=30), st.sampled_from([True, False, None]))
def test_every_value_lies_on_its_axis(values: list[float], log: bool | None) -> None:
    one = drawn(line([Series("s", range(len(values)), values)], title="t", x=Axis("x"), y=Axis("y", "ms", log=log)))
    y, shown = one.panels[0]["y"], one.series["s"]["y"]
    assert all(v is None or y["low"] * 0.999 <= v <= y["high"] * 1.001 for v in shown)
    assert y["low"] < y["high"]
    assert not y["log"] or y["low"] > 0
    if max(values) > 1e-11 or not y["log"]:
        assert sum(v is not None for v in shown) == sum(not y["log"] or v > 1e-5 * max(values) for v in values)


def laid(axis: Axis, values: list[float]) -> Scale:
    return Scale.of(axis, [np.array(values, dtype=float)])


def test_long_times_are_shown_in_minutes_and_hours() -> None:
    assert laid(Axis("t", "s"), [0, 100]).unit == "s"
    assert laid(Axis("t", "s"), [0, 600]).unit == "min"
    assert laid(Axis("t", "s"), [0, 600]).say(90) == "1.50 min"
    assert laid(Axis("t", "s"), [0, 600]).shown([90.0, np.nan]) == [1.5, None]
    assert laid(Axis("t", "s"), [0, 9000]).unit == "h"
    assert laid(Axis("t", "ms"), [0, 800]).unit == "ms"
    assert laid(Axis("t", "ms"), [0, 8000]).say(1500) == "1.50 s"


def test_an_axis_decides_for_a_log_scale_by_the_spread_of_its_values() -> None:
    assert not laid(Axis("x", log=None), [10, 500]).log
    assert laid(Axis("x", log=None), [10, 700]).log
    assert not laid(Axis("x", log=None), [-1, 700]).log
    assert not laid(Axis("x", log=None), [0, 0]).log


def test_a_value_axis_ends_at_a_round_number_above_all_values() -> None:
    assert Scale.of(Axis("y"), [np.array([3.0, 97.0])], rounded=True).high == 100.0
    assert Scale.of(Axis("y", integer=True), [np.array([1.0, 2.0])], rounded=True).high == 2.0


def test_an_axis_without_values_goes_from_nought_to_one() -> None:
    assert (laid(Axis("x"), []).low, laid(Axis("x"), []).high) == (0.0, 1.0)
    assert laid(Axis("x", log=True), [0.0, -1.0]).low > 0


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1234, "0.12"), (0.001234, "0.00123"), (12.345, "12.3"), (1234.5, "1,234"), (5.0, "5"), (2.5e6, "2.50M"), (0, "0")],
)
def test_numbers_have_the_digits_one_reads(value: float, text: str) -> None:
    assert short_number(value) == text


def test_a_histogram_counts_every_value_once_and_its_line_ends_at_all() -> None:
    values = np.random.default_rng(1).lognormal(3, 0.5, 5000)
    one = drawn(histogram([Sample("s", values)], title="t", x=Axis("TTFT", "ms", high=float(values.max()) * 1.01)))
    assert len(one.rows) == BINS
    assert sum(one.series["s"]["y"]) == 5000
    assert sum(int(row[1].split()[0].replace(",", "")) for row in one.rows) == 5000
    assert one.rows[-1][1].endswith("100.0 % at or below")
    assert one.panels[1]["series"][0]["y"][-1] == 100


def test_marks_stand_where_their_values_are() -> None:
    one = drawn(histogram([Sample("s", [0, 100], {"p50": 40.0})], title="t", x=Axis("x", "ms", high=100.0)))
    assert [panel["down"] for panel in one.panels] == [[[40, "p50 40 ms"]]] * 2
    assert one.label == "t. p50 40 ms"


def test_values_that_a_log_axis_cannot_show_are_said() -> None:
    chart = histogram([Sample("s", [0, 1, 10, 1000], {"p50": 0.0})], title="t", x=Axis("x", log=True))
    assert "25 % are about 0, left of the axis." in Document(chart).text
    assert drawn(chart).panels[0]["down"][0][0] == drawn(chart).x["low"]


def test_several_samples_are_shares_of_each() -> None:
    one = drawn(_overlay("name"))
    assert one.rows[-1][1:] == ["name: 0.0 %, 100.0 % at or below", "name2: 33.3 %, 100.0 % at or below"]
    assert all(math.isclose(sum(s["y"][:-1]), 100, abs_tol=0.01) for s in one.series.values())


def test_a_few_long_gaps_do_not_flatten_the_rest_and_are_told() -> None:
    gaps = np.concatenate([np.linspace(4.0, 6.0, 9_999), [500.0]])
    chart = histogram([Sample("ITL", gaps)], title="ITL", x=Axis("ITL", "ms"), counted="gaps", most=0.999)
    assert "0.1 % up to 500 ms, right of the axis." in Document(chart).text
    assert drawn(chart).x["high"] < 10
    assert drawn(histogram([Sample("ITL", gaps)], title="ITL", x=Axis("ITL", "ms"), counted="gaps")).x["high"] == 500


def test_long_lines_keep_their_peaks() -> None:
    y = np.zeros(100_000)
    y[77_777] = 50.0
    shown = drawn(line([Series("s", np.arange(y.size), y)], title="t", x=Axis("x"), y=Axis("y"))).series["s"]["y"]
    assert len(shown) <= MOST_POINTS
    assert max(shown) == 50


def test_a_cloud_is_thinned_but_keeps_the_highest() -> None:
    y = np.random.default_rng(2).random(200_000)
    chart = line([Series("s", np.arange(y.size), y, "dots")], title="t", x=Axis("x"), y=Axis("y"))
    assert len(chart) < 100_000
    assert len(drawn(chart).series["s"]["y"]) <= MOST_DOTS
    assert max(drawn(chart).series["s"]["y"]) == pytest.approx(y.max(), rel=1e-5)


def test_the_pointer_reads_the_values_of_every_line() -> None:
    series = [Series("a", [0, 10], [1, 2]), Series("b", [5], [7])]
    one = drawn(line(series, title="t", x=Axis("T", "s"), y=Axis("V", "ms")))
    assert one.rows == [["0 s", "a: 1 ms"], ["5 s", "a: 1 ms", "b: 7 ms"], ["10 s", "a: 2 ms", "b: 7 ms"]]
    assert one.at == [0, 5, 10]


def test_a_gap_in_the_values_is_a_gap_in_the_line() -> None:
    one = drawn(line([Series("a", [0, 1, 2, 3], [1, 2, np.nan, 3])], title="t", x=Axis("T"), y=Axis("V")))
    assert one.series["a"]["y"] == [1, 2, None, 3]


@given(st.integers(1, 80), st.integers(1, 3))
def test_bars_stand_beside_each_other_within_their_category(categories: int, series: int) -> None:
    values = [Bars(f"s{n}", np.arange(categories) + 1.0) for n in range(series)]
    found = drawn(bars([str(n) for n in range(categories)], values, title="t", y=Axis("y"))).panels[0]["series"]
    for place in range(categories):
        ends = [(one["x"][place], one["end"][place]) for one in found]
        assert all(a < b for a, b in ends)
        assert all(b <= c + 1e-9 for (_, b), (c, _) in pairwise(ends))
        assert place - 0.5 <= ends[0][0]
        assert ends[-1][1] <= place + 0.5


def test_bars_tell_their_values() -> None:
    one = drawn(bars(["a", "b"], [Bars("s", [10, 20]), Bars("r", [np.nan, 1])], title="t", y=Axis("y", "ms")))
    assert one.rows == [["a", "s: 10 ms"], ["b", "s: 20 ms", "r: 1 ms"]]
    assert one.panels[0]["y"]["low"] == 0


def test_a_heat_strip_has_a_row_for_each_name_and_leaves_out_the_unknown() -> None:
    cells = [[0, 4, 8], [np.nan, np.nan, 8]]
    one = drawn(heat_strip(["i0", "i1"], [0, 1, 2, 3], cells, title="KV", x=Axis("Time", "s"), value=Axis("Used", "%")))
    assert one.panels[0]["y"]["names"] == ["i0", "i1"]
    assert one.panels[0]["cells"] == {"x": [0, 1, 2, 3], "levels": ["148", "008"]}
    assert one.rows[0] == ["0 s", "i0: 0 %"]


def test_a_heat_strip_of_many_rows_says_how_many_it_leaves_out() -> None:
    names = [f"i{n}" for n in range(100)]
    chart = heat_strip(names, [0, 1], np.ones((100, 1)), title="KV", x=Axis("Time"), value=Axis("Used"))
    assert drawn(chart).title == "KV (first 64 of 100)"
    assert len(drawn(chart).panels[0]["cells"]["levels"]) == 64


def test_columns_of_a_heat_strip_are_averaged_by_their_width() -> None:
    edges = np.concatenate(
        [[0.0, 9.0], np.arange(10.0, 609.0)]
    )  # 600 columns, drawn as 300; the first is nine times as wide
    cells = np.where(np.arange(600) == 0, 8.0, 0.0)[None, :]
    one = drawn(heat_strip(["i"], edges, cells, title="KV", x=Axis("Time"), value=Axis("Used", high=8.0)))
    assert one.panels[0]["cells"]["levels"][0][:2] == "81"  # 7.2 of 8, not 4


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=25),
    st.sampled_from(["more", "less"]),
    st.sampled_from(["more", "less"]),
)
def test_the_frontier_is_what_nothing_beats(points: list[tuple[int, int]], better_x: Better, better_y: Better) -> None:
    x, y = (np.array(v, dtype=float) for v in zip(*points, strict=True))
    sx, sy = (1 if better_x == "more" else -1), (1 if better_y == "more" else -1)

    def beaten(i: int) -> bool:
        return any(
            sx * x[j] >= sx * x[i] and sy * y[j] >= sy * y[i] and (x[j], y[j]) != (x[i], y[i]) for j in range(len(points))
        )

    best = frontier(x, y, better_x, better_y)
    assert {(x[i], y[i]) for i in best} == {(x[i], y[i]) for i in range(len(points)) if not beaten(i)}
    assert len(best) == len({(x[i], y[i]) for i in best})


def test_trade_offs_span_the_points_and_name_what_their_colours_mean() -> None:
    points = [ParetoPoint(900.0, 50.0, "a", "4"), ParetoPoint(1000.0, 40.0, "b", "8"), ParetoPoint(950.0, 30.0, "c", "8")]
    one = drawn(pareto(points, title="T", x=Axis("speed"), y=Axis("cost"), groups_of="batch size"))
    assert list(one.series) == ["not beaten by any other", "batch size: 4", "batch size: 8"]
    assert 800 < one.x["low"] < 900
    assert one.series["batch size: 8"]["big"] == [0]
    assert [name for *_, name in one.panels[0]["names"]] == ["a", "b"]
