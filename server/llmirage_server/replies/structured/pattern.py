"""Readable strings that match a regular expression."""

from __future__ import annotations

import random

# The standard library's own parser; its tree is what `re` itself compiles. Renamed in Python 3.11.
from re import _constants as sre  # type: ignore[attr-defined]
from typing import Any

from llmirage_server.replies.structured.budget import spend, spend_characters
from llmirage_server.replies.structured.matcher import PatternError, compiled

_MORE = 4  # repetitions beyond the smallest number, where a pattern leaves it open
_TRIES = 50
_READABLE = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ-_ .,:/@#+()"
_CATEGORIES = {
    sre.CATEGORY_DIGIT: "0123456789",
    sre.CATEGORY_NOT_DIGIT: "abcdefghijklmnopqrstuvwxyz",
    sre.CATEGORY_SPACE: " ",
    sre.CATEGORY_NOT_SPACE: "abcdefghijklmnopqrstuvwxyz0123456789",
    sre.CATEGORY_WORD: "abcdefghijklmnopqrstuvwxyz",
    sre.CATEGORY_NOT_WORD: " -",
}


def matching(pattern: str, rng: random.Random, min_length: int = 0, max_length: int | None = None) -> str:
    """Return a string that `pattern` matches (anywhere in it, as JSON Schema asks), in characters within the lengths.

    Raises PatternError when none is found, BudgetError when finding one is too much work.
    """
    expression = compiled(pattern)
    spend_characters(min_length)
    longest = max_length if max_length is not None else 1 << 30
    for attempt in range(_TRIES):
        text = _PatternWriter(rng, attempt, min_length).sequence(expression.tree)
        if len(text) < min_length and not _anchored_at_end(expression.tree):
            text += "".join([rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(min_length - len(text))])
        if min_length <= len(text) <= longest and expression.search(text):
            return text
    raise PatternError(f"found no string of {min_length} to {max_length} characters that matches {pattern!r}")


def whole_match(pattern: str, seed: int) -> str:
    """Return a string that is a match from end to end, as guided decoding by a regex asks. Raises as `matching`."""
    expression = compiled(pattern)
    rng = random.Random(seed)
    for attempt in range(_TRIES):
        text = _PatternWriter(rng, attempt, 0).sequence(expression.tree)
        if expression.fullmatch(text):
            return text
    raise PatternError(f"found no string that {pattern!r} matches from end to end")


def _anchored_at_end(tree: Any) -> bool:
    return bool(len(tree)) and tree[-1][0] is sre.AT and tree[-1][1] in (sre.AT_END, sre.AT_END_STRING)


class _PatternWriter:
    """Walks the parsed pattern. Later attempts repeat less or more often than the first, to meet the length asked for."""

    def __init__(self, rng: random.Random, attempt: int, min_length: int) -> None:
        self._rng = rng
        self._more = min_length + _MORE if attempt % 2 and min_length else max(0, _MORE - attempt // 4)

    def sequence(self, tree: Any) -> str:
        return "".join([self._one(op, argument) for op, argument in tree])

    def _one(self, op: Any, argument: Any) -> str:
        spend()
        if op is sre.LITERAL:
            return chr(argument)
        if op is sre.NOT_LITERAL:
            return self._other_than({chr(argument)})
        if op is sre.ANY:
            return self._rng.choice("abcdefghijklmnopqrstuvwxyz")
        if op is sre.IN:
            return self._member(argument)
        if op is sre.BRANCH:
            return self.sequence(self._rng.choice(argument[1]))
        if op is sre.SUBPATTERN:
            return self.sequence(argument[3])
        if op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            least, most, inner = argument
            most = least + self._more if most is sre.MAXREPEAT else min(most, least + max(self._more, 1))
            count = self._rng.randint(least, max(least, most))
            spend(count)
            return "".join([self.sequence(inner) for _ in range(count)])
        return ""  # anchors and look-arounds: whether they hold is checked on the finished string

    def _member(self, items: Any) -> str:
        if items[0][0] is sre.NEGATE:
            return self._other_than(set("".join(self._characters(items[1:]))))
        return self._rng.choice(self._rng.choice(self._characters(items)))

    def _characters(self, items: Any) -> list[str]:
        """One string of characters for each item of a set."""
        found = []
        for op, argument in items:
            if op is sre.LITERAL:
                found.append(chr(argument))
            elif op is sre.RANGE:
                low, high = argument
                found.append("".join(map(chr, range(low, min(high, low + 255) + 1))))
                spend_characters(len(found[-1]))
            elif op is sre.CATEGORY:
                found.append(_CATEGORIES[argument])
            spend()
        return found

    def _other_than(self, excluded: set[str]) -> str:
        choices = [c for c in _READABLE if c not in excluded] or [c for c in map(chr, range(33, 0x250)) if c not in excluded]
        return self._rng.choice(choices[:26])
