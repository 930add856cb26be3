"""Conditions on a text: it contains words, is equal to one, or matches a pattern."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from llmirage_server.replies import patterns

Kind = Literal["contains", "exact", "regex", "glob"]


@dataclass(slots=True)
class Groups:
    """What the groups of a rule's regular expressions matched, in the order of the rule's conditions."""

    numbered: list[str] = field(default_factory=list)
    named: dict[str, str] = field(default_factory=dict)


@functools.lru_cache(maxsize=4)  # every rule looks at the same texts, which may be long
def _folded(text: str) -> str:
    return text.casefold()


@dataclass(frozen=True, slots=True)
class TextMatch:
    """One condition on a text. texts: what it looks for, one text unless `contains` needs several.

    contains: all texts occur, whatever their case. exact: the whole text is equal. glob: the whole text is equal, where `*`
    stands for anything. regex: a regular expression matches somewhere.
    """

    kind: Kind
    texts: tuple[str, ...]
    pattern: Any = field(default=None, compare=False)

    @staticmethod
    def of(kind: Kind, *texts: str) -> TextMatch:
        """Raises ValueError for a regular expression that is none, and for an empty text."""
        if not all(texts) and kind != "exact":
            raise ValueError("must not be empty")
        if kind == "contains":
            return TextMatch(kind, tuple(text.casefold() for text in texts))
        if kind == "exact":
            return TextMatch(kind, texts)
        written = texts[0] if kind == "regex" else r"(?s)\A" + ".*".join(map(re.escape, texts[0].split("*"))) + r"\z"
        return TextMatch(kind, texts, patterns.compiled(written))

    @property
    def group_names(self) -> Mapping[str, int]:
        return dict(self.pattern.groupindex) if self.pattern is not None else {}

    @property
    def group_count(self) -> int:
        return int(self.pattern.groups) if self.pattern is not None else 0

    def fits(self, text: str, groups: Groups | None = None) -> bool:
        """Return True for a text that fits. groups: gets what the groups of a regular expression matched.

        Raises BudgetError where planning has too few steps left.
        """
        if self.kind == "contains":
            folded = _folded(text)
            return all(wanted in folded for wanted in self.texts)
        if self.kind == "exact":
            return text == self.texts[0]
        found = patterns.search(self.pattern, text)
        if found is None:
            return False
        if groups is not None:
            groups.numbered += [group or "" for group in found.groups()]
            groups.named |= {name: value or "" for name, value in found.groupdict().items()}
        return True

    def covers(self, other: TextMatch) -> bool:
        """Whether it is certain that every text which fits `other` fits this one."""
        if self == other:
            return True
        if other.kind == "exact":
            return self.fits(other.texts[0])
        if self.kind == "contains" and other.kind == "contains":
            return all(any(mine in theirs for theirs in other.texts) for mine in self.texts)
        return self.kind == "glob" and other.kind == "glob" and self.fits(other.texts[0])
