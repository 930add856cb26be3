"""Options that take one number or several: several make a run at several points of load."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import click

_NUMBERS = re.compile(r"[\d.,e+]+")


class NumberList(click.ParamType[tuple[float, ...]]):
    """Numbers between commas, as a tuple; whole: int, from 1 up; else float, above 0."""

    def __init__(self, whole: bool) -> None:
        self.name = "N[,N...]"
        self._whole = whole

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        if not isinstance(value, str):
            return tuple(value) if isinstance(value, Sequence) else (value,)
        return tuple(self._number(part.strip(), param, ctx) for part in value.split(","))

    def _number(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = int(text) if self._whole else float(text)
        except ValueError:
            number = 0
        if not 0 < number < math.inf:
            kind = "a whole number from 1 up" if self._whole else "a number above 0"
            self.fail(f"{text!r} is not {kind}" + ("" if text else " (two commas?)"), param, ctx)
        return number


def join_lists(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    """The words of a command line with `--parallel 1 2 4` as `--parallel 1,2,4`, as evalscope's users write it."""
    joined: list[str] = []
    flag = None
    for word in words:
        if flag is not None and _NUMBERS.fullmatch(word):
            if joined[-1] == flag:
                joined.append(word)
            else:
                joined[-1] += f",{word}"
        else:
            flag = word if word in flags else None
            joined.append(word)
    return joined


def only(value: Sequence[float] | float | None) -> Any:
    """The one number of an option that takes several; None stays None."""
    if isinstance(value, Sequence):
        assert len(value) == 1, "points have one number each"
        return value[0]
    return value
