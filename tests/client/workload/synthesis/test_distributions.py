"""Distributions: what they give, what they refuse, and how their parameters may be overridden."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.workload.distributions import DistributionError, overridden, parameters_of, read_distribution


def drawn(value: Any, size: int = 200_000) -> Any:
    return read_distribution(value).sample(np.random.default_rng(1), size)


@pytest.mark.parametrize(
    ("text", "mean", "median", "p95"),
    [
        ("7", 7, 7, 7),
        ("10:20", 15, 15, 19.5),
        ("normal(mean=100, std=10)", 100, 100, 116.45),
        ("lognormal(median=100, sigma=0.5)", 113.31, 100, 227.6),
        ("lognormal(mean=100, sigma=0.5)", 100, 88.25, 200.9),
        ("lognormal(p50=100, p95=400)", 142.6, 100, 400),
        ("lognormal(mean=100, p95=250)", 100, 77.0, 250),
        ("lognormal(mean=100, std=50)", 100, 89.44, 194.9),
        ("lognormal(median=100, std=50)", 109.9, 100, 204.9),
        ("exponential(mean=3)", 3, 2.079, 8.987),
        ("gamma(mean=8, cv=0.5)", 8, 7.344, 15.51),
        ("gamma(mean=8, shape=4)", 8, 7.344, 15.51),
        ("lognormal(median=100, sigma=1, max=100)", 52.4, 50.9, 93.7),  # the upper half is drawn anew
    ],
)
def test_the_figures_are_those_that_were_asked_for(text: str, mean: float, median: float, p95: float) -> None:
    values = drawn(text)
    assert values.mean() == pytest.approx(mean, rel=0.02)
    assert np.percentile(values, [50, 95]) == pytest.approx([median, p95], rel=0.02)


def test_an_empirical_one_gives_its_values_with_their_weights() -> None:
    values = drawn({"distribution": "empirical", "values": [1, 5, 9], "weights": [1, 2, 1]})
    assert set(values) == {1, 5, 9}
    assert (values == 5).mean() == pytest.approx(0.5, abs=0.01)
    assert set(drawn([2, 4])) == {2, 4}


def test_a_histogram_spreads_each_count_over_its_bin() -> None:
    values = drawn({"distribution": "empirical", "edges": [0, 10, 100], "counts": [1, 3]})
    assert (values < 10).mean() == pytest.approx(0.25, abs=0.01)
    assert values[values >= 10].mean() == pytest.approx(55, rel=0.01)


def test_bounds_hold_and_gather_no_values() -> None:
    values = drawn("normal(mean=10, std=5, min=8, max=12)")
    assert (values >= 8).all()
    assert (values <= 12).all()
    assert ((values == 8) | (values == 12)).sum() == 0
    assert set(drawn("exponential(mean=1, min=1000)", 10)) == {1000}  # out of reach: the bound itself


def test_whole_numbers_of_a_range_are_equally_likely() -> None:
    counts = read_distribution("1:3").counts(np.random.default_rng(0), 30_000)
    assert sorted(set(counts)) == [1, 2, 3]
    assert counts.count(1) == pytest.approx(10_000, rel=0.05)
    assert min(read_distribution("gamma(mean=1, cv=1)").counts(np.random.default_rng(0), 1000, least=1)) == 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("many", "'many' is neither a number nor LOW:HIGH nor of the form 'lognormal(median=200, sigma=0.8)'"),
        ("3:1", "the lowest value 3 is above the largest, 1"),
        ("lognormal(mean=1)", "lognormal needs one of mean, median, p50 and one of sigma, std, p95"),
        ("lognormal(mean=1, median=2, sigma=1)", "lognormal needs one of mean, median, p50 and one of sigma, std, p95"),
        ("lognormal(p50=5, p95=4)", "p95 4 must be above the p50 5"),
        ("lognormal(mean=100, p95=1000)", "no lognormal has a p95 of 1000 with a mean of 100: at most 3.868 times"),
        ("lognormal(mean=1, sigma=11)", "sigma 11 is above 10"),
        ("normal(mean=1, std=0)", "std: 0 is not above 0"),
        ("normal(1, 2)", "'1' in 'normal(1, 2)' is not NAME=NUMBER"),
        ("pareto(alpha=1)", "there is no distribution 'pareto'; choose one of constant, uniform, normal"),
        ("gamma(mean=1, std=2)", "gamma has no 'std'; it has mean, shape, cv, min, max"),
        ("gamma(mean=1)", "gamma needs a mean and one of shape, cv"),
        ("exponential()", "exponential needs 'mean'"),
        ("uniform(min=1)", "uniform needs 'max'"),
        ("constant(value=5, min=6)", "gives values from 5 to 5, none of them between 6 and inf"),
        (-1, "gives -1; values below 0 are not allowed here"),
        (float("nan"), "value: nan is not a number up to 1e+12"),
        (True, "True is not a distribution; write a number, LOW:HIGH, or"),
        (None, "None is not a distribution; write a number, LOW:HIGH, or"),
        ([], "values: give a list of numbers"),
        ([1, "a"], "values.1: 'a' is not a number up to 1e+12"),
        ({"mean": 5}, "'distribution' is missing: the kind of distribution, such as lognormal"),
        ({"distribution": "empirical"}, "empirical needs values (and weights, if they differ), or edges and counts"),
        ({"distribution": "empirical", "values": [1, 2], "weights": [1]}, "weights: give 2, one for each"),
        ({"distribution": "empirical", "edges": [1, 1], "counts": [1]}, "edges: give at least two, in increasing order"),
    ],
)
def test_one_that_cannot_be_is_refused_with_a_reason(value: Any, message: str) -> None:
    with pytest.raises(DistributionError) as caught:
        read_distribution(value)
    assert str(caught.value).startswith(message)


def test_another_parameter_takes_the_place_of_one_that_says_the_same() -> None:
    before = parameters_of({"distribution": "lognormal", "median": 200, "sigma": 0.8, "max": 900})
    assert overridden(before, "mean", 300) == {"distribution": "lognormal", "mean": 300, "sigma": 0.8, "max": 900}
    assert overridden(before, "p95", 800) == {"distribution": "lognormal", "median": 200, "p95": 800, "max": 900}
    assert overridden(parameters_of("normal(mean=5, std=1)"), "std", 2) == {"distribution": "normal", "mean": "5", "std": 2}


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.lists(st.integers(-3, 9), max_size=4)
)
KEYS = [
    "mean",
    "median",
    "p50",
    "sigma",
    "std",
    "p95",
    "shape",
    "cv",
    "min",
    "max",
    "value",
    "values",
    "weights",
    "edges",
    "counts",
]
KINDS = ["constant", "uniform", "normal", "lognormal", "exponential", "gamma", "empirical", "x"]


NUMBERS = st.dictionaries(st.sampled_from(KEYS), st.one_of(VALUES, st.integers(1, 9)), max_size=4)
MAPPINGS = st.builds(lambda kind, rest: {"distribution": kind, **rest}, st.sampled_from(KINDS), NUMBERS)


@given(st.one_of(VALUES, MAPPINGS))
def test_anything_is_a_distribution_within_its_bounds_or_refused(value: Any) -> None:
    try:
        distribution = read_distribution(value, least=1)
    except DistributionError:
        return
    values = distribution.sample(np.random.default_rng(0), 20)
    assert np.isfinite(values).all()
    assert (values >= 1).all()
    assert all(count >= 1 for count in distribution.counts(np.random.default_rng(0), 20, least=1))
    assert json.dumps(str(distribution))
