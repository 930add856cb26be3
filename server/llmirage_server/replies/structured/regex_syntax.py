r"""The syntax of regular expressions: ECMA-262 with the flag u, the dialect of JSON Schema, as a tree.

Where ECMA-262 has an error and Python's `re` has a meaning that users of guided decoding rely on, the meaning is Python's:
`\\A`, `\\Z`, `(?P<name>...)`, the flags i, m and s, `{,n}`, comments, `]` and braces that stand for themselves, and escaped
characters that need none. What expressions mean beyond sets of strings (back-references, atomic groups) is recognised and
refused.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np

from llmirage_server.replies.structured.budget import spend
from llmirage_shared.texts import short_cache

_MOST_LEVELS = 90  # of groups within each other
_LAST = 0x10FFFF
_STEPS_OF_PROPERTY = 600  # to find out which of 1.1 million characters have it takes 3 ms
_STEPS_OF_TABLE, _STEPS_OF_CASES = 3_000, 8_000  # once: 20 ms and 40 ms, more than the event loop has time for
_SHOWN_CHARACTERS = 200  # of an expression in a message


class PatternError(ValueError):
    """The expression cannot be followed, or no string for it was found."""


class NoPatternError(PatternError):
    """The text is not a regular expression."""


# --- sets of characters -------------------------------------------------------------------------------------------------

Bounds = tuple[int, ...]  # code points at which a set begins and ends in turn; an ascending sequence of even length


def bounds_of(ranges: Iterable[tuple[int, int]]) -> Bounds:
    """Return the set of ranges of code points, their ends included."""
    bounds: list[int] = []
    for low, high in sorted(ranges):
        if bounds and low <= bounds[-1]:
            bounds[-1] = max(bounds[-1], high + 1)
        else:
            bounds += (low, high + 1)
    return tuple(bounds)


def ranges_of(bounds: Bounds) -> Iterator[tuple[int, int]]:
    """Return the ranges of a set, their ends included."""
    return ((bounds[place], bounds[place + 1] - 1) for place in range(0, len(bounds), 2))


def complement(bounds: Bounds) -> Bounds:
    """Return all characters that are not in the set."""
    inner = bounds[1:] if bounds[:1] == (0,) else (0, *bounds)
    return inner[:-1] if inner[-1:] == (_LAST + 1,) else (*inner, _LAST + 1)


def contains(bounds: Bounds, code: int) -> bool:
    """Return if a code point is in the set."""
    return bisect_right(bounds, code) % 2 == 1


def _of(*texts: str) -> Bounds:
    """Return the set of single characters and of ranges, written as two characters."""
    return bounds_of((ord(text[0]), ord(text[-1])) for text in texts)


ANY: Bounds = (0, _LAST + 1)
LINE_ENDS = _of("\n", "\r", "\u2028\u2029")
WORD = _of("az", "AZ", "09", "_")
_DIGIT = _of("09")
_SPACE = _of("\t\r", " ", "\xa0", "\u1680", "\u2000\u200a", "\u2028\u2029", "\u202f", "\u205f", "\u3000", "\ufeff")
_CLASSES = {
    "d": _DIGIT, "D": complement(_DIGIT), "s": _SPACE, "S": complement(_SPACE), "w": WORD, "W": complement(WORD),
}  # fmt: skip
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}


@lru_cache(maxsize=1)
def _every_character() -> str:
    spend(_STEPS_OF_TABLE)
    return np.arange(_LAST + 1, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")


def load_regex() -> Any:
    r"""Return the library that \p{...} is read with; it takes 8 ms to import, or 0.1 s where no compiled files are kept."""
    import regex

    return regex


@short_cache(128)
def _property(name: str) -> Bounds | None:
    r"""Return the characters of \p{name}, None if there is no such property."""
    characters = _every_character()  # first: it takes more steps than the event loop has, which the import must not hold up
    regex = load_regex()
    try:
        having = regex.compile(rf"\p{{{name}}}+")
    except regex.error:
        return None
    spend(_STEPS_OF_PROPERTY)
    found: list[int] = []
    for match in having.finditer(characters):
        found += match.span()
    return tuple(found)


@lru_cache(maxsize=1)
def _other_cases() -> dict[int, tuple[int, ...]]:
    """Return the other cases of the characters that have any."""
    spend(_STEPS_OF_CASES)
    cases: dict[int, set[int]] = {}
    for code in range(0x1E944):  # beyond, no character has a case
        character = chr(code)
        forms = {ord(form) for form in (character.lower(), character.upper()) if len(form) == 1 and form != character}
        for form in forms:
            cases.setdefault(code, set()).update(forms)
            cases.setdefault(form, set()).add(code)
    return {code: tuple(sorted(forms - {code})) for code, forms in cases.items()}


def _in_any_case(bounds: Bounds) -> Bounds:
    others = _other_cases()
    spend(len(others) // 8)
    found = [(form, form) for code, forms in others.items() if contains(bounds, code) for form in forms]
    return bounds_of([*ranges_of(bounds), *found])


# --- the tree -----------------------------------------------------------------------------------------------------------

Where = Literal["start", "end", "line start", "line end", "boundary", "inside"]


class CharacterSet(NamedTuple):
    """One character of a set."""

    bounds: Bounds


class Concatenation(NamedTuple):
    """Parts one after the other."""

    parts: tuple[RegexNode, ...]


class Alternation(NamedTuple):
    """Alternatives."""

    options: tuple[RegexNode, ...]


class Repetition(NamedTuple):
    """most: -1 for any number."""

    inner: RegexNode
    least: int
    most: int


class Assertion(NamedTuple):
    """An assertion about a place, such as a word boundary."""

    where: Where


class LookAround(NamedTuple):
    """A look ahead or behind."""

    inner: RegexNode
    behind: bool
    negative: bool


RegexNode = CharacterSet | Concatenation | Alternation | Repetition | Assertion | LookAround
EMPTY = Concatenation(())


class _Flags(NamedTuple):
    i: bool = False
    m: bool = False
    s: bool = False


def parse(pattern: str) -> RegexNode:
    """Return the tree of a regular expression. Raises NoPatternError for no pattern, PatternError for one not supported."""
    spend(len(pattern) // 4)
    parser = _Parser(pattern)
    tree = parser.choice(_Flags(), 0)
    if parser.at < len(pattern):
        parser.fail("unmatched )")
    if parser.refers_to is not None:
        if parser.refers_to > parser.groups:
            parser.fail("a reference to a group that is not there")
        _unsupported("back-references")
    return tree


def _unsupported(what: str) -> NoReturn:
    raise PatternError(f"the regular expression uses {what}, which are not supported")


_COUNTS = re.compile(r"\{(\d{1,20})?(,)?(\d{1,20})?\}")
_NAMED_GROUP = re.compile(r"P?<([\w$]+)>")
_SET_FLAGS = re.compile(r"([aimsuxL]*)(?:-([imsx]+))?([:)])")
_PROPERTY = re.compile(r"[pP](?:\{(\^?[\w =:&-]{1,80})\}|([A-Z]))")
_ESCAPED_CODE = re.compile(
    r"u\{([0-9A-Fa-f]{1,8})\}|u([dD][89abAB]\w\w)\\u([dD][c-fC-F]\w\w)|u([0-9A-Fa-f]{4})|x([0-9A-Fa-f]{2})"
)
_ANCHORS: dict[str, Where] = {"b": "boundary", "B": "inside", "A": "start", "Z": "end", "z": "end"}


class _Parser:
    """Recursive descent."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self.at = 0
        self.groups = 0
        self.refers_to: int | None = None  # the highest group that a back-reference names

    def fail(self, why: str) -> NoReturn:
        shown = self._pattern
        shown = shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}..."
        raise NoPatternError(f"{shown!r} is not a regular expression: {why} at position {self.at}")

    def _take(self, text: str) -> bool:
        if self._pattern.startswith(text, self.at):
            self.at += len(text)
            return True
        return False

    def _match(self, expression: re.Pattern[str]) -> re.Match[str] | None:
        match = expression.match(self._pattern, self.at)
        if match is not None:
            self.at = match.end()
        return match

    def choice(self, flags: _Flags, level: int) -> RegexNode:
        """Up to the `)` that ends it, or the end."""
        if level > _MOST_LEVELS:
            raise PatternError("the regular expression is nested too deeply")
        options: list[RegexNode] = []
        parts: list[RegexNode] = []
        while True:
            spend()
            if self.at >= len(self._pattern) or self._pattern[self.at] == ")":
                options.append(_sequence(parts))
                return options[0] if len(options) == 1 else Alternation(tuple(options))
            if self._take("|"):
                options.append(_sequence(parts))
                parts = []
            elif (set_flags := self._flags_for_the_rest(flags)) is not None:
                flags = set_flags
            else:
                is_group = self._pattern[self.at] == "("
                parts.append(self._repeated(self._term(flags, level), is_group))

    def _flags_for_the_rest(self, flags: _Flags) -> _Flags | None:
        """Python's (?i), which applies up to the end of the group."""
        start = self.at
        if self._take("(?") and (found := self._match(_SET_FLAGS)) and found[3] == ")" and (found[1] or found[2]):
            return self._changed(flags, found)
        self.at = start
        return None

    def _changed(self, flags: _Flags, found: re.Match[str]) -> _Flags:
        if "L" in found[1]:
            self.fail("a flag that there is not")
        if "x" in found[1]:
            _unsupported("verbose expressions")
        removed = found[2] or ""
        return _Flags(*[(name in found[1] or on) and name not in removed for name, on in zip("ims", flags, strict=True)])

    def _repeated(self, node: RegexNode, is_group: bool) -> RegexNode:
        """Return the node with the quantifier that follows it."""
        quantified = False
        while True:
            start = self.at
            if self._take("*"):
                least, most = 0, -1
            elif self._take("+"):
                least, most = 1, -1
            elif self._take("?"):
                least, most = 0, 1
            elif (counts := self._match(_COUNTS)) is not None and (counts[1] or (counts[2] and counts[3])):
                least = int(counts[1] or 0)
                most = int(counts[3]) if counts[3] else -1 if counts[2] else least
                if -1 < most < least:
                    self.fail("the smallest number of repetitions is larger than the largest")
            else:
                self.at = start
                return node
            if quantified or (isinstance(node, Assertion) and not is_group):
                self.fail("nothing to repeat")
            quantified = True
            self._take("?")  # lazy: the same strings
            if self._pattern.startswith("+", self.at):
                _unsupported("possessive quantifiers")
            node = Repetition(node, least, most)

    def _term(self, flags: _Flags, level: int) -> RegexNode:
        character = self._pattern[self.at]
        self.at += 1
        if character == "(":
            return self._group(flags, level)
        if character == "[":
            return CharacterSet(self._set(flags))
        if character == ".":
            return CharacterSet(ANY if flags.s else complement(LINE_ENDS))
        if character == "^":
            return Assertion("line start" if flags.m else "start")
        if character == "$":
            return Assertion("line end" if flags.m else "end")
        if character in "*+?":
            self.at -= 1
            self.fail("nothing to repeat")
        if character != "\\":
            return CharacterSet(self._single(ord(character), flags))
        following = self._pattern[self.at : self.at + 1]
        if following in _ANCHORS:
            self.at += 1
            return Assertion(_ANCHORS[following])
        if following and following in "123456789":
            number = self._match(_NUMBER)
            assert number is not None
            self.refers_to = max(self.refers_to or 0, int(number[0]))
            return EMPTY
        if following == "k" and self._match(_NAMED_REFERENCE):
            _unsupported("back-references")
        found = self._escape(flags)
        return CharacterSet(self._single(found, flags) if isinstance(found, int) else found)

    def _group(self, flags: _Flags, level: int) -> RegexNode:
        kind: tuple[bool, bool] | None = None  # of a look around: behind, negative
        comment = self._take("?#")
        if comment:
            end = self._pattern.find(")", self.at)
            self.at = end if end >= 0 else len(self._pattern)
            inner: RegexNode = EMPTY
        elif not self._take("?"):
            self.groups += 1
            inner = self.choice(flags, level + 1)
        elif self._take(">"):
            _unsupported("atomic groups")
        elif self._take("("):
            _unsupported("conditions")
        elif self._take("P="):
            _unsupported("back-references")
        elif any(self._take(mark) for mark in ("=", "!", "<=", "<!")):
            mark = self._pattern[self.at - 1]
            kind = (self._pattern[self.at - 2] == "<", mark == "!")
            inner = self.choice(flags, level + 1)
        elif self._match(_NAMED_GROUP):
            self.groups += 1
            inner = self.choice(flags, level + 1)
        elif (found := self._match(_SET_FLAGS)) is not None and found[3] == ":":
            inner = self.choice(self._changed(flags, found), level + 1)
        else:
            self.fail("an unknown kind of group")
        if not self._take(")"):
            self.fail("missing )")
        return inner if kind is None else LookAround(inner, *kind)

    def _set(self, flags: _Flags) -> Bounds:
        """Return the rest of [...]."""
        negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        while not self._take("]"):
            spend()
            low = self._member(flags)
            start = self.at
            if self._take("-") and not self._pattern.startswith("]", self.at):
                high = self._member(flags)
                if not isinstance(low, int) or not isinstance(high, int):
                    self.fail("a range from or to a set of characters")
                if low > high:
                    self.fail("a range that ends before it begins")
                ranges.append((low, high))
                continue
            self.at = start
            ranges += [(low, low)] if isinstance(low, int) else ranges_of(low)
        bounds = bounds_of(ranges)
        bounds = _in_any_case(bounds) if flags.i else bounds
        return complement(bounds) if negated else bounds

    def _member(self, flags: _Flags) -> int | Bounds:
        if self.at >= len(self._pattern):
            self.fail("missing ]")
        character = self._pattern[self.at]
        self.at += 1
        if character != "\\":
            return ord(character)
        if self._take("b"):
            return 8
        return self._escape(flags)

    def _single(self, code: int, flags: _Flags) -> Bounds:
        return _in_any_case((code, code + 1)) if flags.i else (code, code + 1)

    def _escape(self, flags: _Flags) -> int | Bounds:
        """Return the character, or the characters, of an escape, after its backslash."""
        if self.at >= len(self._pattern):
            self.fail("a backslash at the end")
        character = self._pattern[self.at]
        if character in _CLASSES:
            self.at += 1
            return _CLASSES[character]
        if character in _CONTROLS:
            self.at += 1
            return _CONTROLS[character]
        if (named := self._match(_PROPERTY)) is not None:
            name = named[1] or named[2]
            bounds = _property(name.removeprefix("^"))
            if bounds is None:
                self.fail(f"no property of characters {name!r}")
            return complement(bounds) if (character == "P") != name.startswith("^") else bounds
        if (written := self._match(_ESCAPED_CODE)) is not None:
            return self._code(written)
        control = self._pattern[self.at + 1 : self.at + 2]
        if character == "c" and control.isascii() and control.isalpha():
            self.at += 2
            return ord(control) % 32
        if character == "0" and not control.isdigit():
            self.at += 1
            return 0
        if character.isalnum():
            self.fail(f"no escape \\{character}")
        self.at += 1
        return ord(character)

    def _code(self, written: re.Match[str]) -> int:
        """Return the code point of an escape, or of a pair of surrogates."""
        try:
            if written[2]:
                return 0x10000 + ((int(written[2], 16) & 0x3FF) << 10) + (int(written[3], 16) & 0x3FF)
            code = int(written[1] or written[4] or written[5], 16)
        except ValueError:
            code = _LAST + 1
        if code > _LAST:
            self.fail("a character that there is not")
        return code


_NUMBER = re.compile(r"\d{1,20}")
_NAMED_REFERENCE = re.compile(r"k<[\w$]+>")


def _sequence(parts: list[RegexNode]) -> RegexNode:
    return parts[0] if len(parts) == 1 else Concatenation(tuple(parts))
