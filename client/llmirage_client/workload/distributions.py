"""Distributions of lengths, counts and times: read from YAML values or short texts, drawn with a numpy generator.

    1000                                   always 1000
    800:1200                               uniform, both ends included
    lognormal(p50=200, p95=1500, max=4000) or the same as a mapping {distribution: lognormal, p50: 200, ...}

Values below `min` or above `max` are drawn anew, so that the bounds cut the tails and gather no values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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


def to_float(value: Any) -> float:
    """Return a value as a number; NaN where it is none."""
    try:
        return math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def number_of(value: Any, key: str) -> float:
    number = to_float(value)
    if not abs(number) <= _LARGEST:
        raise DistributionError(f"{key}: {value!r} is not a number up to {_LARGEST:g}")
    return number


Parameters = Mapping[str, Any]
Made: TypeAlias = "tuple[Callable[[np.random.Generator, int], Floats], tuple[float, float]]"
"""Draws values, and holds their range."""


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
    """Return mean and standard deviation of the logarithm, from one of mean, median, p50 and one of sigma, std, p95."""
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
    """Make a gamma distribution. shape k, or cv: the standard deviation over the mean, which is 1/sqrt(k)."""
    mean = _positive(parameters, "gamma", "mean")
    given = [key for key in ("shape", "cv") if key in parameters]
    if len(given) != 1:
        raise DistributionError("gamma needs a mean and one of shape, cv")
    number = _positive(parameters, "gamma", given[0])
    shape = number if given[0] == "shape" else 1 / number**2
    return (lambda source, size: source.gamma(shape, mean / shape, size)), (0.0, math.inf)


def _empirical(parameters: Parameters) -> Made:
    """Make an empirical distribution.

    Values (with weights, or each as likely as the others), or a histogram: edges of bins and a count for each.
    """
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


__all__ = ["Distribution", "DistributionError", "overridden", "parameters_of", "read_distribution"]


_DRAWS_BEFORE_CLAMPING = 64
_CALL = re.compile(r"\s*([a-z]+)\s*\((.*)\)\s*", re.DOTALL)


@dataclass(slots=True, frozen=True)
class Distribution:
    """kind and parameters as they were given, and how to draw.

    low and high bound what is drawn, both included.
    """

    kind: str
    parameters: Mapping[str, Any]
    low: float
    high: float
    _draw: Callable[[np.random.Generator, int], Floats]

    def sample(self, source: np.random.Generator, size: int) -> Floats:
        """Draw `size` values, shape (size,)."""
        values = self._draw(source, size)
        for _ in range(_DRAWS_BEFORE_CLAMPING):
            outside = (values < self.low) | (values > self.high)
            if not outside.any():
                return values
            values[outside] = self._draw(source, int(outside.sum()))
        return np.clip(values, self.low, self.high)

    def one(self, source: np.random.Generator) -> float:
        return float(self.sample(source, 1)[0])

    def counts(self, source: np.random.Generator, size: int, least: int = 0) -> list[int]:
        """Draw `size` whole numbers, each at least `least`.

        Of a uniform one each number has the same chance, the ends too.
        """
        low, high = self.low, self.high
        if self.kind == "uniform" and low.is_integer() and high.is_integer():
            numbers = source.integers(int(low), int(high), size, endpoint=True)
        else:
            numbers = np.rint(self.sample(source, size)).astype(np.int64)
        whole: list[int] = np.maximum(numbers, least).tolist()
        return whole

    def count(self, source: np.random.Generator, least: int = 0) -> int:
        return self.counts(source, 1, least)[0]

    def __str__(self) -> str:
        if self.kind == "constant":
            return f"{self.parameters['value']:g}"
        if self.kind == "empirical":
            return "empirical"
        return f"{self.kind}({', '.join(f'{key}={_shown(value)}' for key, value in self.parameters.items())})"


def read_distribution(value: Any, *, least: float = 0.0, most: float = math.inf) -> Distribution:
    """Read a distribution from a number, a text or a mapping.

    Least and most: no value may be lower or higher. Raises DistributionError.
    """
    given = parameters_of(value)
    kind = given.pop("distribution")
    if kind not in KINDS:
        raise DistributionError(f"there is no distribution '{kind}'; choose one of {', '.join(KINDS)}")
    known, make = KINDS[kind]
    for key in given:
        if key not in (*known, "min", "max"):
            raise DistributionError(f"{kind} has no '{key}'; it has {', '.join(dict.fromkeys((*known, 'min', 'max')))}")
    parameters = {key: entry if key in LISTS else number_of(entry, key) for key, entry in given.items()}
    low, high = max(parameters.get("min", least), least), min(parameters.get("max", most), most)
    if parameters.get("min", least) > parameters.get("max", math.inf):
        raise DistributionError(f"the lowest value {low:g} is above the largest, {parameters['max']:g}")
    draw, (first, last) = make(parameters)
    if first < least and kind in BOUNDED:
        raise DistributionError(f"gives {first:g}; values below {least:g} are not allowed here")
    if last > most and kind in BOUNDED:
        raise DistributionError(f"gives {last:g}; values above {most:,.12g} make no sense here")
    if last < low or first > high:
        raise DistributionError(f"gives values from {first:g} to {last:g}, none of them between {low:g} and {high:g}")
    return Distribution(kind, parameters, low, high, draw)


def parameters_of(value: Any) -> dict[str, Any]:
    """Return the mapping that a value stands for, with its `distribution`. Raises DistributionError."""
    if isinstance(value, bool) or value is None:
        raise DistributionError(f"{value!r} is not a distribution; write a number, LOW:HIGH, or {_EXAMPLE}")
    if isinstance(value, int | float):
        return {"distribution": "constant", "value": value}
    if isinstance(value, Mapping):
        given = {str(key): entry for key, entry in value.items()}
        kind = given.pop("distribution", None)
        if kind is None:
            raise DistributionError("'distribution' is missing: the kind of distribution, such as lognormal")
        return {"distribution": str(kind), **given}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return {"distribution": "empirical", "values": list(value)}
    return _from_text(str(value))


def overridden(before: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Return the distribution with another parameter.

    One that says the same in another way goes (a mean, where a median was).
    """
    after = dict(before)
    for group in (LOCATIONS, SPREADS, ("shape", "cv")):
        if key in group and after.get("distribution") != "normal":
            for other in group:
                after.pop(other, None)
    return {**after, key: value}


_EXAMPLE = "'lognormal(median=200, sigma=0.8)'"


def _from_text(text: str) -> dict[str, Any]:
    call = _CALL.fullmatch(text)
    if call is not None:
        given: dict[str, Any] = {"distribution": call[1]}
        for pair in filter(None, (part.strip() for part in call[2].split(","))):
            key, equals, number = pair.partition("=")
            if not equals:
                raise DistributionError(f"{pair!r} in {text!r} is not NAME=NUMBER")
            given[key.strip()] = number.strip()
        return given
    low, colon, high = text.partition(":")
    try:
        if colon:
            return {"distribution": "uniform", "min": float(low), "max": float(high)}
        return {"distribution": "constant", "value": float(text)}
    except ValueError:
        raise DistributionError(f"{text!r} is neither a number nor LOW:HIGH nor of the form {_EXAMPLE}") from None


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
