"""The kinds of distributions: which parameters each has, and how to draw from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

LOCATIONS = ("mean", "median", "p50")
SPREADS = ("sigma", "std", "p95")
_Z95 = 1.6448536269514722  # the standard normal's 95th percentile
_LARGEST = 1e12


class DistributionError(ValueError):
    """A distribution that cannot be: the message says what is wrong, without the name of the parameter it is for."""


def number_of(value: Any, key: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not abs(number) <= _LARGEST:
        raise DistributionError(f"{key}: {value!r} is not a number up to {_LARGEST:g}")
    return number


Parameters = Mapping[str, Any]
Made: TypeAlias = "tuple[Callable[[np.random.Generator, int], Floats], tuple[float, float]]"
"""How to draw, and the range of what can be drawn."""


def _constant(parameters: Parameters) -> Made:
    value = _needed(parameters, "constant", "value")
    return (lambda _, size: np.full(size, value)), (value, value)


def _uniform(parameters: Parameters) -> Made:
    low, high = _needed(parameters, "uniform", "min"), _needed(parameters, "uniform", "max")
    return (lambda source, size: source.uniform(low, high, size)), (low, high)


def _normal(parameters: Parameters) -> Made:
    mean, std = _needed(parameters, "normal", "mean"), _positive(parameters, "normal", "std")
    return (lambda source, size: source.normal(mean, std, size)), (-math.inf, math.inf)


def _lognormal(parameters: Parameters) -> Made:
    mu, sigma = _mu_and_sigma(parameters)
    return (lambda source, size: source.lognormal(mu, sigma, size)), (0.0, math.inf)


def _mu_and_sigma(parameters: Parameters) -> tuple[float, float]:
    """Mean and standard deviation of the logarithm, from one of mean, median, p50 and one of sigma, std, p95."""
    places = [key for key in LOCATIONS if key in parameters]
    spreads = [key for key in SPREADS if key in parameters]
    if len(places) != 1 or len(spreads) != 1:
        raise DistributionError("lognormal needs one of mean, median, p50 and one of sigma, std, p95")
    place = _positive(parameters, "lognormal", places[0])
    spread = _positive(parameters, "lognormal", spreads[0])
    of_mean = places[0] == "mean"
    ratio = spread / place
    match spreads[0]:
        case "sigma":
            sigma = spread
        case "std" if of_mean:
            sigma = math.sqrt(math.log1p(ratio**2))
        case "std":  # (e^s2 - 1) e^s2 = ratio^2, for the square s2 of sigma
            sigma = math.sqrt(math.log((1 + math.sqrt(1 + 4 * ratio**2)) / 2))
        case _:
            if ratio <= 1:
                raise DistributionError(f"p95 {spread:g} must be above the {places[0]} {place:g}")
            root = _Z95**2 - 2 * math.log(ratio)
            if of_mean and root < 0:
                raise DistributionError(
                    f"no lognormal has a p95 of {spread:g} with a mean of {place:g}: at most {3.868:g} times"
                )
            sigma = _Z95 - math.sqrt(root) if of_mean else math.log(ratio) / _Z95
    if sigma > 10:
        raise DistributionError(f"sigma {sigma:g} is above 10")
    return math.log(place) - (sigma**2 / 2 if of_mean else 0.0), sigma


def _exponential(parameters: Parameters) -> Made:
    mean = _positive(parameters, "exponential", "mean")
    return (lambda source, size: source.exponential(mean, size)), (0.0, math.inf)


def _gamma(parameters: Parameters) -> Made:
    """shape k, or cv: the standard deviation over the mean, which is 1/sqrt(k)."""
    mean = _positive(parameters, "gamma", "mean")
    given = [key for key in ("shape", "cv") if key in parameters]
    if len(given) != 1:
        raise DistributionError("gamma needs a mean and one of shape, cv")
    number = _positive(parameters, "gamma", given[0])
    shape = number if given[0] == "shape" else 1 / number**2
    return (lambda source, size: source.gamma(shape, mean / shape, size)), (0.0, math.inf)


def _empirical(parameters: Parameters) -> Made:
    """values (with weights, or each as likely as the others), or a histogram: edges of bins and a count for each."""
    if "values" in parameters:
        values = _numbers(parameters["values"], "values")
        shares = _shares(parameters.get("weights"), "weights", len(values))
        return (lambda source, size: source.choice(values, size, p=shares)), (float(values.min()), float(values.max()))
    if "edges" not in parameters:
        raise DistributionError("empirical needs values (and weights, if they differ), or edges and counts")
    edges = _numbers(parameters["edges"], "edges")
    if len(edges) < 2 or (np.diff(edges) <= 0).any():
        raise DistributionError("edges: give at least two, in increasing order")
    shares = _shares(parameters.get("counts"), "counts", len(edges) - 1)

    def draw(source: np.random.Generator, size: int) -> Floats:
        bins = source.choice(len(edges) - 1, size, p=shares)
        values: Floats = edges[bins] + source.random(size) * np.diff(edges)[bins]
        return values

    return draw, (float(edges[0]), float(edges[-1]))


def _numbers(value: Any, key: str) -> Floats:
    if not isinstance(value, list | tuple) or not value:
        raise DistributionError(f"{key}: give a list of numbers")
    return np.array([number_of(entry, f"{key}.{i}") for i, entry in enumerate(value)])


def _shares(value: Any, key: str, count: int) -> Floats:
    if value is None and key == "weights":
        return np.full(count, 1 / count)
    weights = _numbers(value, key)
    if len(weights) != count or (weights < 0).any() or not weights.sum():
        raise DistributionError(f"{key}: give {count}, one for each, none negative and not all 0")
    shares: Floats = weights / weights.sum()
    return shares


def _needed(parameters: Parameters, kind: str, key: str) -> float:
    if key not in parameters:
        raise DistributionError(f"{kind} needs '{key}'")
    return float(parameters[key])


def _positive(parameters: Parameters, kind: str, key: str) -> float:
    number = _needed(parameters, kind, key)
    if number <= 0:
        raise DistributionError(f"{key}: {number:g} is not above 0")
    return number


BOUNDED = ("constant", "uniform", "empirical")
LISTS = ("values", "weights", "edges", "counts")
KINDS: Mapping[str, tuple[tuple[str, ...], Callable[[Parameters], Made]]] = {
    "constant": (("value",), _constant),
    "uniform": (("min", "max"), _uniform),
    "normal": (("mean", "std"), _normal),
    "lognormal": ((*LOCATIONS, *SPREADS), _lognormal),
    "exponential": (("mean",), _exponential),
    "gamma": (("mean", "shape", "cv"), _gamma),
    "empirical": (LISTS, _empirical),
}
