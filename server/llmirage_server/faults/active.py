"""The faults in force, and which of them happens to a request."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from llmirage_server.faults.rule import FaultRule, Subject


class Pending(NamedTuple):
    """The faults that may happen to a request. The first depends on its body or its instance, which is not known yet."""

    rules: tuple[FaultRule, ...]


class ActiveFaults:
    """Faults in order: the first that fits a request happens to it."""

    def __init__(self, now_s: Callable[[], float], seed: int) -> None:
        """now_s: the cluster's time."""
        self.rules: tuple[FaultRule, ...] = ()
        self._now_s = now_s
        self._seed = seed
        self._numbers = itertools.count(1)

    def add(self, rules: Iterable[FaultRule]) -> None:
        """Put faults in force, behind those that are."""
        added = tuple(rules)
        for rule in added:
            rule.begin(next(self._numbers), self._seed, self._now_s())
        self.rules += added

    def remove(self, number: int) -> bool:
        """Take a fault out of force; False if there is none of this number."""
        left = tuple([rule for rule in self.rules if rule.number != number])
        removed = len(left) < len(self.rules)
        self.rules = left
        return removed

    def clear(self) -> None:
        self.rules = ()

    def first(self, subject: Subject, rules: Sequence[FaultRule] | None = None) -> FaultRule | Pending | None:
        """Return the fate of a request, as far as it is known. rules: those that are left to look at; None: all in force."""
        now_s = self._now_s()
        left = self.rules if rules is None else tuple(rules)
        for place, rule in enumerate(left):
            fits = rule.fits(subject, now_s)
            if fits is None:
                return Pending(left[place:])
            if fits and rule.drawn():
                return rule
        return None
