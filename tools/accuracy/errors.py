"""Error figures: bias, median and 90th percentile of the absolute error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Spread:
    """In percent. `bias` is the median of the signed error: above 0 we are too slow."""

    n: int
    median: float
    p90: float
    bias: float

    @classmethod
    def of(cls, errors: Iterable[float]) -> Spread:
        """Return the figures of relative errors (0.1 is 10 %); NaN is none."""
        e = np.array([error for error in errors if not math.isnan(error)]) * 100
        if not len(e):
            return cls(0, math.nan, math.nan, math.nan)
        return cls(len(e), float(np.median(abs(e))), float(np.percentile(abs(e), 90)), float(np.median(e)))

    @property
    def signed(self) -> str:
        return f"{self.bias:+.1f}" if self.n else "-"

    def __str__(self) -> str:
        return f"{self.median:.1f} / {self.p90:.1f}" if self.n else "-"


def grouped(items: Iterable[Item], key: Callable[[Item], tuple[str, ...]]) -> dict[tuple[str, ...], list[Item]]:
    """Items by key, in order of the keys."""
    groups: dict[tuple[str, ...], list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return dict(sorted(groups.items()))
