"""Axes: limits, ticks and labels."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.report.html.scale import Axis, figure, log_ticks, nice_ticks, scale, tick_labels


def laid(axis: Axis, values: list[float], most: int = 6, width: float = 400.0):  # type: ignore[no-untyped-def]
    return scale(axis, [np.array(values, dtype=float)], 0.0, width, most)


@pytest.mark.parametrize(
    ("low", "high", "most", "ticks"),
    [
        (0, 10, 5, [0, 2, 4, 6, 8, 10]),
        (0, 0.3, 3, [0, 0.1, 0.2, 0.3]),
        (0, 97, 4, [0, 50]),
        (3, 8, 5, [3, 4, 5, 6, 7, 8]),
        (-5, 5, 2, [-5, 0, 5]),
    ],
)
def test_ticks_are_multiples_of_one_two_or_five(low: float, high: float, most: int, ticks: list[float]) -> None:
    assert nice_ticks(low, high, most) == ticks


def test_ticks_of_times_may_be_quarters_and_halves_of_a_minute() -> None:
    assert nice_ticks(0, 60, 4, time=True) == [0, 15, 30, 45, 60]
    assert nice_ticks(0, 120, 4, time=True) == [0, 30, 60, 90, 120]


def test_ticks_of_counts_are_whole() -> None:
    assert nice_ticks(0, 2, 8, integer=True) == [0, 1, 2]


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.integers(1, 12))
def test_ticks_are_few_evenly_spaced_and_inside(low: float, span: float, most: int) -> None:
    ticks = nice_ticks(low, low + span, most)
    assert len(ticks) <= most + 1
    steps = [b - a for a, b in pairwise(ticks)]
    assert all(math.isclose(s, steps[0], rel_tol=1e-3) or abs(low) > 1e5 * span for s in steps)
    assert all(low - 0.01 * span - 1e-9 * abs(low) <= t <= low + span * 1.01 + 1e-9 * abs(low) for t in ticks)


def test_log_ticks_have_twos_and_fives_where_there_is_room() -> None:
    assert log_ticks(1, 100, 8) == [1, 2, 5, 10, 20, 50, 100]
    assert log_ticks(1, 100, 4) == [1, 3, 10, 30, 100]
    assert log_ticks(1, 100, 2) == [1, 10, 100]
    assert log_ticks(1, 1e8, 4) == [1, 100, 1e4, 1e6, 1e8]


def test_labels_share_their_decimals() -> None:
    assert tick_labels([0, 0.5, 1.0]) == ["0", "0.5", "1.0"]
    assert tick_labels([0, 5000, 10000]) == ["0", "5k", "10k"]
    assert tick_labels([0, 2.5e6, 5e6, 1e7]) == ["0", "2.5M", "5.0M", "10.0M"]
    assert tick_labels([0.01, 0.1, 1, 10]) == ["0.01", "0.1", "1", "10"]


@given(st.floats(0, 1e9), st.floats(1e-3, 1e9), st.booleans())
def test_labels_on_an_axis_differ_and_do_not_touch(low: float, span: float, log: bool) -> None:
    axis = laid(Axis("x", zero=False, log=log), [low, low + span])
    labels = [label for _, label in axis.ticks]
    if span > low * 1e-3:  # no one draws an axis over the last digits of large numbers
        assert len(set(labels)) == len(labels)
    places = axis([value for value, _ in axis.ticks])
    widths = [len(label) * 12 * 0.64 for label in labels]
    assert all(b - a > (u + v) / 2 for (a, u), (b, v) in pairwise(zip(places, widths, strict=True))) or len(labels) == 1


@given(st.lists(st.floats(0, 1e7).map(lambda v: round(v, 6)), min_size=1, max_size=30), st.booleans())
def test_every_value_lies_on_its_axis(values: list[float], log: bool) -> None:
    axis = laid(Axis("x", log=log), values)
    places = axis(values)
    seen = places[np.isfinite(places)]
    assert (seen >= -0.5).all()
    assert (seen <= 400.5).all()
    assert np.isfinite(places).sum() == sum(v > 1e-5 * max(values) for v in values) if log else np.isfinite(places).all()


def test_long_times_are_shown_in_minutes_and_hours() -> None:
    assert laid(Axis("t", "s"), [0, 100]).unit == "s"
    assert laid(Axis("t", "s"), [0, 600]).unit == "min"
    assert laid(Axis("t", "s"), [0, 600]).say(90) == "1.50 min"
    assert laid(Axis("t", "s"), [0, 9000]).unit == "h"
    assert laid(Axis("t", "ms"), [0, 800]).unit == "ms"
    assert laid(Axis("t", "ms"), [0, 8000]).say(1500) == "1.50 s"


def test_an_axis_decides_for_a_log_scale_by_the_spread_of_its_values() -> None:
    assert not laid(Axis("x", log=None), [10, 500]).log
    assert laid(Axis("x", log=None), [10, 700]).log
    assert not laid(Axis("x", log=None), [-1, 700]).log
    assert not laid(Axis("x", log=None), [0, 0]).log


def test_a_value_axis_ends_on_a_tick_above_all_values() -> None:
    upright = scale(Axis("y"), [np.array([3.0, 97.0])], 300.0, 0.0, 5)
    assert upright.ticks[-1] == (100.0, "100")
    assert upright.at(100.0) == 0.0
    assert upright.at(0.0) == 300.0


def test_an_axis_without_values_is_drawn_from_nought_to_one() -> None:
    axis = laid(Axis("x"), [])
    assert (axis.low, axis.high) == (0.0, 1.0)
    assert laid(Axis("x", log=True), [0.0, -1.0]).ticks


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.1234, "0.12"), (0.001234, "0.00123"), (12.345, "12.3"), (1234.5, "1,234"), (5.0, "5"), (2.5e6, "2.50M"), (0, "0")],
)
def test_figures_have_the_digits_one_reads(value: float, text: str) -> None:
    assert figure(value) == text
