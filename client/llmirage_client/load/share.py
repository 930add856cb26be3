"""The part of a run that one of several workers does, such that all parts together are the run."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

_T = TypeVar("_T")


@dataclass(slots=True, frozen=True)
class Share:
    """Places (of roots in their order, ticks of a rate, slots, seats of users) are dealt out in turn: worker `index` of `of`
    has those that leave the remainder `index`. Alone, it has all.
    """

    index: int = 0
    of: int = 1

    def part(self, count: int, start: int = 0) -> int:
        """How many of `count` places from `start` on are its own; over all shares the sum is `count`."""
        return len(range(self.first(start), start + count, self.of))

    def first(self, start: int) -> int:
        """The first of its places from `start` on."""
        return start + (self.index - start) % self.of

    def has(self, place: int) -> bool:
        return place % self.of == self.index

    def pick(self, things: Iterable[_T]) -> Iterator[_T]:
        """Its own of things that have the places 0, 1, 2, ..."""
        return itertools.islice(things, self.index, None, self.of)


def own_gaps(gaps: Iterator[float], share: Share) -> tuple[float, Iterator[float]]:
    """From the gaps between all ticks: how long the share's own first is after the very first, and the gaps between its own.

    The ticks of all shares together are those of the run: any process of arrivals stays what it is.
    """
    if share.of == 1:
        return 0.0, gaps
    return sum(itertools.islice(gaps, share.index)), _sums(gaps, share.of)


def _sums(gaps: Iterator[float], count: int) -> Iterator[float]:
    while True:
        yield sum(itertools.islice(gaps, count))
