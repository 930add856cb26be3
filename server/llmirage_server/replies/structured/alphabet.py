"""The characters of some regular expressions in classes, and those of each class that texts are written with."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from llmirage_server.replies.structured.budget import spend
from llmirage_server.replies.structured.regex_syntax import ANY, Bounds

_READABLE = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_ .,:/@#+()"
_LOWER = frozenset("abcdefghijklmnopqrstuvwxyz")
_ALPHANUMERIC = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
_FEW = 40  # characters of a class that texts are written with
_SURROGATES = range(0xD800, 0xE000)
_BEYOND = 0x110000
_MOST_CHARACTERS = 10_000  # whose class is remembered


class Alphabet:
    """Characters in classes that no set of the expressions tells apart. A mask has a bit for each class."""

    def __init__(self) -> None:
        self._sets: dict[Bounds, list[Any]] = {ANY: ["chars", 0]}  # the nodes of sets, whose masks follow
        self._starts: list[int] = []  # of the ranges of characters of one class
        self._classes: list[int] = []  # of these ranges
        self.class_of: dict[str, int] = {}  # of characters that were seen
        self._characters: list[str] = []
        self._readable: dict[tuple[int, bool], str] = {}
        self.every = 0
        self.written = 0  # classes of which a character can be written

    def node(self, bounds: Bounds) -> list[Any]:
        """Return the node of one character of a set, complete when the alphabet is closed."""
        return self._sets.setdefault(bounds, ["chars", 0])

    def mask(self, bounds: Bounds) -> int:
        """Return the mask of a set, 0 of one that no expression has."""
        mask: int = self._sets.get(bounds, [None, 0])[1]
        return mask

    def close(self) -> None:
        """Find the classes of all sets."""
        changes: dict[int, int] = {}  # at a character, which sets begin or end
        for place, bounds in enumerate(self._sets):
            spend(1 + len(bounds) // 8)
            for bound in bounds:
                changes[bound] = changes.get(bound, 0) ^ 1 << place
        within = 0
        known: dict[int, int] = {}
        for start in sorted(changes)[:-1]:  # the last is the end of ANY
            within ^= changes[start]
            self._starts.append(start)
            self._classes.append(known.setdefault(within, len(known)))
        for place, node in enumerate(self._sets.values()):
            node[1] = sum([1 << class_ for sets, class_ in known.items() if sets >> place & 1])
        spend(len(self._sets) * len(known) // 16)
        self.every = (1 << len(known)) - 1
        self._characters = [""] * len(known)
        for character in _READABLE:
            self._characters[self.classify(character)] += character
        ranges = zip(self._starts, [*self._starts[1:], _BEYOND], self._classes, strict=True)
        for start, end, class_ in ranges:
            missing = _FEW - len(self._characters[class_])
            if missing > 0 and (end > _SURROGATES.start or start < _SURROGATES.start):
                codes = [code for code in range(start, min(end, start + 4 * _FEW)) if code not in _SURROGATES]
                self._characters[class_] += "".join(
                    [chr(code) for code in codes if chr(code) not in self._characters[class_]][:missing]
                )
        self.written = sum([1 << class_ for class_, characters in enumerate(self._characters) if characters])

    def classify(self, character: str) -> int:
        """Return the class of a character that was not seen before."""
        if len(self.class_of) > _MOST_CHARACTERS:
            self.class_of.clear()
        class_ = self.class_of[character] = self._classes[bisect_right(self._starts, ord(character)) - 1]
        return class_

    def characters(self, mask: int, every: bool) -> str:
        """Return characters of the classes; without `every` letters and digits, or small letters of what has other signs."""
        found = self._readable.get((mask, every))
        if found is None:
            all_of = "".join([characters for class_, characters in enumerate(self._characters) if mask >> class_ & 1])
            found = self._readable[mask, every] = all_of if every else _most_readable(all_of)
        return found


def _most_readable(characters: str) -> str:
    letters = [character for character in characters if character in _ALPHANUMERIC]
    if len(letters) + sum(map(characters.count, "-_")) < len(characters):
        letters = [character for character in letters if character in _LOWER] or letters
    return "".join(letters or [character for character in characters if character.isprintable()] or characters)
