"""Numbers that obey a schema's bounds and multiples: of usual sizes where that is possible."""

from __future__ import annotations

import math
import random
from collections.abc import Container, Iterator, Sequence
from fractions import Fraction
from typing import Any

from llmirage_server.replies.structured.budget import spend
from llmirage_server.replies.structured.facts import NOT_MULTIPLE, Facts, NoValueError
from llmirage_server.replies.structured.keywords import exact, is_multiple, is_quotient_whole
from llmirage_shared.texts import short_cache

_TRIES = 20  # at random, in each range
_NEXT_TO_BOUNDS = 1_000  # multiples, or numbers, looked at from a bound on

_Range = tuple[float, float]


def number_for(facts: Facts, name: str, rng: random.Random, besides: Container[Any]) -> float | int:
    """Return a number that obeys the facts, other than those of `besides`. Raises NoValueError."""
    allowed = facts.types
    low = max(facts.each("minimum"), default=-math.inf)
    above = max(facts.each("exclusiveMinimum"), default=-math.inf)
    high = min(facts.each("maximum"), default=math.inf)
    below = min(facts.each("exclusiveMaximum"), default=math.inf)
    steps, not_steps = facts.each("multipleOf"), facts.each(NOT_MULTIPLE)

    def fits(value: float | int) -> bool:
        whole = isinstance(value, int) or value.is_integer()
        return (
            low <= value <= high
            and above < value < below
            and ("integer" if whole else "fraction") in allowed
            and all(is_multiple(value, step) for step in steps)
            and not any(is_multiple(value, step) for step in not_steps)
            and not (besides and (value, False) in besides)
        )

    nearly: float | None = None
    try:
        usual, bounds, whole = _usual_range(name), (max(low, above), min(high, below)), "fraction" not in allowed
        drawn = _multiples(usual, bounds, rng, steps, whole) if steps or whole else _fractions(usual, bounds, rng)
        for place, value in enumerate(drawn):
            spend(place % 8 == 0)
            if fits(value):
                if all(is_quotient_whole(value, step) for step in steps):
                    return value
                nearly = value  # a multiple that python-jsonschema takes for none
    except ArithmeticError:
        raise NoValueError("its bounds are too large or too small for numbers of double precision") from None
    if nearly is None:
        raise NoValueError(_no_number(facts))
    return nearly


def _multiples(usual: _Range, bounds: _Range, rng: random.Random, steps: Sequence[float], whole: bool) -> Iterator[float]:
    """Yield multiples of all steps: some at random, of usual sizes first, then those next to the bounds."""
    step = _common_multiple([*steps, 1] if whole else steps) if steps else 1
    ranges = []
    least: float | Fraction
    most: float | Fraction
    for least, most in (_common(bounds, usual), bounds):
        if least == -math.inf:
            least = min(most, 0) - 10 * max(1, step) - abs(min(most, 0)) if most != math.inf else -100 * step
        if most == math.inf:
            most = least + max(10 * step, abs(Fraction(least)))
        first = math.ceil(least if step == 1 else Fraction(least) / step)
        last = math.floor(most if step == 1 else Fraction(most) / step)
        if first <= last:
            ranges.append((first, last))
            for _ in range(_TRIES):
                yield _as_number(rng.randint(first, last) * step)
    for first, last in ranges[-1:]:
        yield from (_as_number(number * step) for number in range(first, min(last, first + _NEXT_TO_BOUNDS) + 1))
        yield from (_as_number(number * step) for number in range(last, max(first, last - _NEXT_TO_BOUNDS) - 1, -1))


def _fractions(usual: _Range, bounds: _Range, rng: random.Random) -> Iterator[float]:
    """Yield numbers of few digits, then of many, then those next to the bounds."""
    for least, most in (_common(bounds, usual), bounds):
        if least == -math.inf:
            least = most - max(10.0, abs(most))
        if most == math.inf:
            most = least + max(10.0, abs(least))
        if least > most:
            continue
        for digits in (1, 2, 4, 8):
            yield round(rng.uniform(least, most), digits)
        yield rng.uniform(least, most)
        yield least / 2 + most / 2
    finite = [bound for bound in bounds if math.isfinite(bound)]
    yield from finite
    yield from (math.nextafter(bound, towards) for bound in finite for towards in (-math.inf, math.inf))
    for bound in finite or [0]:
        yield from (bound + number for number in range(-_NEXT_TO_BOUNDS, _NEXT_TO_BOUNDS))
        yield from (bound + rng.random() * number for number in range(-_NEXT_TO_BOUNDS, _NEXT_TO_BOUNDS))


def _common(one: _Range, other: _Range) -> _Range:
    return max(one[0], other[0]), min(one[1], other[1])


def _common_multiple(steps: Sequence[float]) -> Fraction:
    """Return the least common multiple of numbers as JSON writes them."""
    common, *others = map(exact, steps)
    for step in others:
        numerator = math.lcm(common.numerator * step.denominator, step.numerator * common.denominator)
        common = Fraction(numerator, common.denominator * step.denominator)
    return common


def _as_number(value: Fraction | int) -> float | int:
    return int(value) if isinstance(value, int) or value.denominator == 1 else float(value)


def _no_number(facts: Facts) -> str:
    words = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")
    said = [f"{word} {value}" for word in words for value in facts.each(word)]
    return f"no number of its type obeys {', '.join(said) or 'its keywords'}"


@short_cache(1024)
def _usual_range(name: str) -> _Range:
    """Return what numbers of this name are usually like."""
    lower = name.lower()
    for words, low, high in (
        (("year",), 1990, 2030),
        (("month",), 1, 12),
        (("day",), 1, 28),
        (("age",), 18, 80),
        (("lat",), -60, 60),
        (("lon", "lng"), -150, 150),
        (("temperature", "celsius"), -5, 35),
        (("percent",), 0, 100),
        (("confidence", "probability", "score", "ratio", "rate"), 0, 1),
        (("price", "cost", "amount", "total"), 5, 500),
        (("count", "number", "quantity", "size", "length"), 1, 20),
    ):
        if any(word in lower for word in words):
            return float(low), float(high)
    return 1.0, 100.0
