"""Intervals hold what an endless simulation would show; a stricter objective is never met where a laxer one is missed."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.measure.slo import parse_slo
from llmirage_client.size.early_stopping import Interval, interval_of


@pytest.mark.parametrize(("statistic", "truth"), [("avg", 1.0), ("p50", math.log(2)), ("p99", math.log(100))])
def test_intervals_hold_the_truth_in_nine_of_ten_simulations(statistic: str, truth: float) -> None:
    held = 0
    for seed in range(200):
        interval = interval_of(np.random.default_rng(seed).exponential(size=2000), statistic)
        assert interval is not None
        held += interval.low <= truth <= interval.high
    assert held >= 180


def test_a_slow_spell_widens_the_interval() -> None:
    """The same values, once mixed and once with all slow ones in a row."""
    values = np.random.default_rng(0).exponential(size=2000)
    mixed, sorted_ = interval_of(values, "p90"), interval_of(np.sort(values), "p90")
    assert mixed is not None
    assert sorted_ is not None
    assert sorted_.high - sorted_.low > 2 * (mixed.high - mixed.low)


def test_too_few_requests_say_nothing() -> None:
    assert interval_of(np.array([1.0, 2.0]), "avg") == Interval(-math.inf, math.inf)
    few = interval_of(np.random.default_rng(0).exponential(size=100), "p99")
    assert few is not None
    assert few.high > math.log(100)


@given(st.floats(1, 100), st.floats(0, 50), st.floats(1, 150), st.floats(0, 50), st.sampled_from("<>"))
def test_stricter_objectives_are_never_met_alone(
    low: float, width: float, limit: float, stricter: float, comparison: str
) -> None:
    interval = Interval(low, low + width)
    strict = limit - stricter if comparison == "<" else limit + stricter
    if strict <= 0:
        return
    lax_told, strict_told = (interval.clear(parse_slo(f"ttft_p99{comparison}{bound!r}ms")[0]) for bound in (limit, strict))
    assert not (strict_told is True and lax_told is not True)
    assert not (lax_told is False and strict_told is not False)
