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
from typing import Any

import numpy as np

from llmirage_client.workload.distribution_kinds import (
    BOUNDED,
    KINDS,
    LISTS,
    LOCATIONS,
    SPREADS,
    DistributionError,
    Floats,
    number_of,
)

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
        """`size` values, shape (size,)."""
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
        """`size` whole numbers, each at least `least`. Of a uniform one each number has the same chance, the ends too."""
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
    """From a number, a text or a mapping. least and most: no value may be lower or higher. Raises DistributionError."""
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
    """The mapping that a value stands for, with its `distribution`. Raises DistributionError."""
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
    """The distribution with another parameter; one that says the same in another way goes (a mean, where a median was)."""
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
