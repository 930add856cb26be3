"""Every kind of chart: well-formed, readable, and showing what it was given."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
from drawn import SVG, Drawn
from hypothesis import example, given, settings
from hypothesis import strategies as st

from llmirage_client.report.html.bars import Bars, bars
from llmirage_client.report.html.distribution import _BINS, Sample, histogram
from llmirage_client.report.html.frame import HALF, SMALL, WIDE, Size
from llmirage_client.report.html.heat import heat_strip
from llmirage_client.report.html.pareto import ParetoPoint, frontier, pareto
from llmirage_client.report.html.scale import Axis
from llmirage_client.report.html.xy import MOST_DOTS, MOST_POINTS, Mark, Series, line

HOSTILE = "<script>alert(1)</script>\"'&\x00\x1b]\ud800 ]]> \u202e"
Named = Callable[[str], str]


def _line(name: str) -> str:
    marks = [Mark(5.0, name), Mark(1.0, name)]
    return line(
        [Series(name, [0, 1, 2], [3, 9, 4]), Series(name, [0, 2], [1, 2])],
        title=name,
        x=Axis(name, name),
        y=Axis(name),
        marks=marks,
    )


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


def test_names_stand_beside_the_line_through_the_best_where_there_is_room() -> None:
    points = [ParetoPoint(99.3, 5480, "1 x b200_sxm TP1 bf16"), ParetoPoint(103.1, 4850, "1 x b200_sxm TP2 bf16")]
    points.append(ParetoPoint(95.0, 1500, "1 x h100_sxm TP1 bf16"))
    drawn = Drawn(pareto(points, title="T", x=Axis("speed"), y=Axis("tokens")))
    front = drawn.of_class("front")[-1]
    (a, b), (c, d) = ((float(x), float(y)) for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", front.attrib["d"]))
    for name in ("1 x b200_sxm TP1 bf16", "1 x b200_sxm TP2 bf16"):
        (box,) = (text.box for text in drawn.texts if text.content == name)
        for step in range(101):
            x, y = a + (c - a) * step / 100, b + (d - b) * step / 100
            assert not (box.left < x < box.right and box.top < y < box.bottom), name


KINDS: list[Named] = [_line, _scatter, _histogram, _overlay, _bars, _heat, _pareto]


@pytest.mark.parametrize("chart", KINDS)
def test_text_from_outside_stays_text(chart: Named) -> None:
    drawn = Drawn(chart(HOSTILE))
    assert {e.tag for e in drawn.root.iter()} <= {
        f"{SVG}{t}" for t in ("svg", "text", "path", "rect", "circle", "title", "g")
    }
    assert any("<script>alert(1)</script>" in text for text in (*drawn.contents, drawn.root.attrib["aria-label"]))
    known = {
        "class",
        "d",
        "x",
        "y",
        "width",
        "height",
        "rx",
        "cx",
        "cy",
        "r",
        "text-anchor",
        "data-rows",
        "viewBox",
        "role",
        "aria-label",
    }
    assert {name for e in drawn.root.iter() for name in e.attrib} <= known


@pytest.mark.parametrize("chart", KINDS)
def test_a_chart_says_what_it_is_to_a_screen_reader(chart: Named) -> None:
    drawn = Drawn(chart("Requests in flight"))
    assert drawn.root.attrib["role"] == "img"
    assert drawn.root.attrib["aria-label"].startswith("Requests in flight")
    assert "Requests in flight" in drawn.contents


@pytest.mark.parametrize("chart", KINDS)
def test_no_text_touches_another_or_leaves_the_picture(chart: Named) -> None:
    drawn = Drawn(chart("short"))
    assert drawn.touching() == []
    assert drawn.outside() == []


@pytest.mark.parametrize(
    "svg",
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
def test_a_chart_without_data_says_so(svg: str) -> None:
    assert "no data" in Drawn(svg).contents


NUMBERS = st.floats(0, 1e7).map(lambda v: round(v, 4))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(NUMBERS, min_size=1, max_size=40),
    st.sampled_from(["ms", "s", "tokens/s", "%", ""]),
    st.sampled_from([True, False, None]),
    st.sampled_from([SMALL, HALF, WIDE]),
    st.integers(1, 5),
)
def test_labels_of_lines_never_touch(values: list[float], unit: str, log: bool | None, size: Size, lines: int) -> None:
    series = [Series(f"series number {i}", np.arange(len(values)), values) for i in range(lines)]
    drawn = Drawn(
        line(series, title="Some title of a chart", x=Axis("Time", "s"), y=Axis("Value", unit, log=log), size=size)
    )
    assert drawn.touching() == []
    assert drawn.outside() == []


@settings(max_examples=60, deadline=None)
@given(st.lists(NUMBERS, min_size=1, max_size=40), st.sampled_from(["ms", ""]), st.sampled_from([False, None]))
@example([0.0001], "ms", False)  # the last label, 0.00010, reaches the edge
def test_labels_of_distributions_never_touch(values: list[float], unit: str, log: bool | None) -> None:
    marks = {f"p{p}": float(np.percentile(values, p)) for p in (50, 90, 99)}
    drawn = Drawn(histogram([Sample("s", values, marks)], title="Some title", x=Axis("Time", unit, log=log)))
    assert drawn.touching() == []
    assert drawn.outside() == []
    assert sum(text.startswith(("p50 ", "p90 ", "p99 ")) for text in drawn.contents) == 3


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=30), st.booleans())
def test_names_of_the_best_touch_nothing(values: list[tuple[float, float]], log: bool) -> None:
    points = [ParetoPoint(x, y, f"h100_sxm TP{i} x {i}", f"gpu {i % 3}") for i, (x, y) in enumerate(values)]
    drawn = Drawn(pareto(points, title="t", x=Axis("x", "ms", log=log or None), y=Axis("y", "tokens/s")))
    assert drawn.touching() == []


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 150), st.text("abcdefgh /-", min_size=1, max_size=30), st.integers(1, 3))
def test_labels_of_bars_never_touch(count: int, name: str, series: int) -> None:
    rng = np.random.default_rng(0)
    values = [Bars(f"s{i}", rng.random(count) * 1e5) for i in range(series)]
    drawn = Drawn(bars([f"{name}{i}" for i in range(count)], values, title="t", x="Turn", y=Axis("Tokens")))
    assert drawn.touching() == []
    assert drawn.outside() == []


def test_a_histogram_counts_every_value_once_and_its_line_ends_at_all() -> None:
    values = np.random.default_rng(1).lognormal(3, 0.5, 5000)
    rows = Drawn(histogram([Sample("s", values)], title="t", x=Axis("TTFT", "ms", high=float(values.max()) * 1.01))).rows()
    assert len(rows) == _BINS
    assert sum(int(row[1].split()[0].replace(",", "")) for row in rows) == 5000
    assert rows[-1][1].endswith("100.0 % at or below")


def test_marks_stand_where_their_values_are() -> None:
    drawn = Drawn(histogram([Sample("s", [0, 100], {"p50": 40.0})], title="t", x=Axis("x", "ms", high=100.0)))
    dashed = [e.attrib["d"] for e in drawn.of_class("m")]
    at_40 = max((t.box for t in drawn.texts if t.content == "40"), key=lambda box: box.top)
    assert len(dashed) == 2  # in either part
    assert float(dashed[0][1:].split()[0]) == pytest.approx((at_40.left + at_40.right) / 2, abs=0.1)


def test_values_that_a_log_axis_cannot_show_are_said() -> None:
    drawn = Drawn(histogram([Sample("s", [0, 1, 10, 1000], {"p50": 0.0})], title="t", x=Axis("x", log=True)))
    assert "25 % are about 0, left of the axis" in drawn.contents


def test_several_samples_are_shares_of_each() -> None:
    rows = Drawn(_overlay("name")).rows()
    assert rows[-1][1:] == ["name: 0.0 %, 100.0 % at or below", "name2: 33.3 %, 100.0 % at or below"]


def test_long_lines_keep_their_peaks() -> None:
    y = np.zeros(100_000)
    y[77_777] = 50.0
    svg = line([Series("s", np.arange(y.size), y)], title="t", x=Axis("x"), y=Axis("y", high=50.0))
    drawn = Drawn(svg)
    plotted = drawn.of_class("l1")[0].attrib["d"]
    assert plotted.count("L") < MOST_POINTS + 1
    top = min(t.box.top for t in drawn.texts if t.content == "50")
    assert any(abs(float(p.split()[1]) - (top + 9.6) + 4.0) < 1 for p in plotted.replace("M", "L").split("L")[1:])


def test_a_cloud_is_thinned_but_keeps_the_highest() -> None:
    y = np.random.default_rng(2).random(200_000)
    svg = line([Series("s", np.arange(y.size), y, "dots")], title="t", x=Axis("x"), y=Axis("y"))
    assert len(svg) < 100_000
    assert svg.count("h0") <= MOST_DOTS + 1


def test_the_pointer_reads_the_values_of_every_line() -> None:
    drawn = Drawn(
        line([Series("a", [0, 10], [1, 2]), Series("b", [5], [7])], title="t", x=Axis("T", "s"), y=Axis("V", "ms"))
    )
    assert drawn.rows() == [["0 s", "a: 1 ms"], ["5 s", "a: 1 ms", "b: 7 ms"], ["10 s", "a: 2 ms", "b: 7 ms"]]


def test_a_gap_in_the_values_is_a_gap_in_the_line() -> None:
    svg = line([Series("a", [0, 1, 2, 3], [1, 2, np.nan, 3])], title="t", x=Axis("T"), y=Axis("V"))
    assert Drawn(svg).of_class("l1")[0].attrib["d"].count("M") == 2


def test_bars_stand_on_nought_in_proportion() -> None:
    drawn = Drawn(bars(["a", "b"], [Bars("s", [10, 20])], title="t", y=Axis("y")))
    low, high = (float(e.attrib["height"]) for e in drawn.of_class("f1"))
    assert high == pytest.approx(2 * low, abs=0.2)
    assert drawn.tips() == ["a: 10", "b: 20"]


def test_a_heat_strip_has_a_row_for_each_name_and_leaves_out_the_unknown() -> None:
    drawn = Drawn(
        heat_strip(
            ["i0", "i1"],
            [0, 1, 2, 3],
            [[0, 4, 8], [np.nan, np.nan, 8]],
            title="KV",
            x=Axis("Time", "s"),
            value=Axis("Used", "%"),
        )
    )
    assert {"i0", "i1"} <= set(drawn.contents)
    cells = [e for e in drawn.root.iter(f"{SVG}path") if e.attrib["class"].startswith("h")]
    assert sum(e.attrib["d"].count("M") for e in cells) == 4
    assert drawn.rows()[0] == ["0.50 s", "i0: 0 %"] or drawn.rows()[0] == ["0 s", "i0: 0 %"]


def test_a_heat_strip_of_many_rows_says_how_many_it_leaves_out() -> None:
    drawn = Drawn(
        heat_strip([f"i{n}" for n in range(100)], [0, 1], np.ones((100, 1)), title="KV", x=Axis("Time"), value=Axis("Used"))
    )
    assert "KV (first 64 of 100)" in drawn.contents
    assert drawn.touching() == []


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=25),
    st.sampled_from(["more", "less"]),
    st.sampled_from(["more", "less"]),
)
def test_the_frontier_is_what_nothing_beats(points: list[tuple[int, int]], better_x: str, better_y: str) -> None:
    x, y = (np.array(v, dtype=float) for v in zip(*points, strict=True))
    sx, sy = (1 if better_x == "more" else -1), (1 if better_y == "more" else -1)

    def beaten(i: int) -> bool:
        return any(
            sx * x[j] >= sx * x[i] and sy * y[j] >= sy * y[i] and (x[j], y[j]) != (x[i], y[i]) for j in range(len(points))
        )

    best = frontier(x, y, better_x, better_y)  # type: ignore[arg-type]
    assert {(x[i], y[i]) for i in best} == {(x[i], y[i]) for i in range(len(points)) if not beaten(i)}
    assert len(best) == len({(x[i], y[i]) for i in best})


def test_a_few_long_gaps_do_not_flatten_the_rest_and_are_told() -> None:
    gaps = np.concatenate([np.linspace(4.0, 6.0, 9_999), [500.0]])
    drawn = Drawn(histogram([Sample("ITL", gaps)], title="ITL", x=Axis("ITL", "ms"), counted="gaps", most=0.999))
    assert "0.1 % up to 500 ms, right of the axis" in drawn.contents
    assert "400" not in drawn.contents
    assert drawn.outside() == []
    whole = Drawn(histogram([Sample("ITL", gaps)], title="ITL", x=Axis("ITL", "ms"), counted="gaps"))
    assert "400" in whole.contents


def test_trade_offs_span_the_points_and_name_what_their_colours_mean() -> None:
    points = [ParetoPoint(900.0, 50.0, "a", "4"), ParetoPoint(1000.0, 40.0, "b", "8")]
    drawn = Drawn(pareto(points, title="T", x=Axis("speed"), y=Axis("cost"), groups_of="batch size"))
    assert "batch size:" in drawn.contents
    assert "0" not in drawn.contents
    across = [float(e.attrib["cx"]) for name in ("f1", "f2") for e in drawn.of_class(name)]
    assert max(across) - min(across) > HALF.width / 2
