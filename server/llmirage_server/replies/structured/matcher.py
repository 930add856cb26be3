"""Regular expressions of users, matched in time that grows with the text, not with its ways to match.

The set of places in the expression that the text so far can have reached is carried from character to character (Thompson's
simulation of an automaton). The engine of `re` tries one way after the other instead, and may need longer than the age of
the universe for a text of forty characters. Back-references, atomic groups, possessive quantifiers and conditions cannot be
matched with places alone and are refused. \\d, \\w, \\s and $ mean what they mean in ECMAScript, the dialect of JSON Schema.
"""

from __future__ import annotations

import re
import warnings
from bisect import bisect_right
from collections.abc import Callable

# The standard library's own parser; its tree is what `re` itself compiles. Renamed in Python 3.11.
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as sre_parser  # type: ignore[attr-defined]
from typing import Any, NoReturn

from llmirage_server.replies.structured.budget import spend

MOST_PLACES = 50_000  # in one expression: the memory of some ten megabytes
_KEPT_EXPRESSIONS, _KEPT_PLACES, _KEPT_CHARACTERS = 256, 512, 1_000  # what is compiled once and kept

# `parse` warns of sets as "[[a]" that may mean something else in a later Python. Users' expressions are not Python source.
warnings.filterwarnings("ignore", r"Possible (nested set|set \w+) at position", FutureWarning)

_SHOWN_CHARACTERS = 200  # of an expression in a message

CharTest = Callable[[str], bool]

_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_CATEGORIES: dict[Any, tuple[CharTest, bool]] = {  # what belongs to it, or what does not
    sre.CATEGORY_DIGIT: (frozenset("0123456789").__contains__, True),
    sre.CATEGORY_NOT_DIGIT: (frozenset("0123456789").__contains__, False),
    sre.CATEGORY_SPACE: (str.isspace, True),
    sre.CATEGORY_NOT_SPACE: (str.isspace, False),
    sre.CATEGORY_WORD: (_WORD.__contains__, True),
    sre.CATEGORY_NOT_WORD: (_WORD.__contains__, False),
}
_REFUSED = {
    sre.GROUPREF: "back-references", sre.GROUPREF_EXISTS: "conditions", sre.ATOMIC_GROUP: "atomic groups",
    sre.POSSESSIVE_REPEAT: "possessive quantifiers",
}  # fmt: skip
# What ECMAScript writes in another way than Python.
_DIALECT = re.compile(r"\\p\{([LN])[a-z]?\}|\\.|[\[\]]|\(\?<(?=[A-Za-z_])", re.DOTALL)


class GrammarError(ValueError):
    """The grammar cannot be read, or nothing follows it."""


class PatternError(ValueError):
    """The pattern cannot be followed, or no string for it was found."""


class NoPatternError(PatternError):
    """The pattern is not a regular expression."""


def compiled(pattern: str) -> PatternMatcher:
    """The pattern, ready to match. Raises PatternError."""
    found = _kept.get(pattern)
    if found is None:
        found = PatternMatcher(pattern)
        if found.places <= _KEPT_PLACES and len(pattern) <= _KEPT_CHARACTERS:
            if len(_kept) >= _KEPT_EXPRESSIONS:
                _kept.clear()
            _kept[pattern] = found
    return found


class PatternMatcher:
    """One regular expression. tree: as the standard library parses it."""

    def __init__(self, pattern: str) -> None:
        """Raises PatternError for what is no regular expression, and for one that places cannot match."""
        self.pattern = pattern
        spend(len(pattern) // 4)
        try:
            self.tree = sre_parser.parse(_in_python(pattern))
            flags = self.tree.state.flags
            self._program = _Compiler().program(self.tree, flags)
        except PatternError:
            raise
        except (re.error, OverflowError, ValueError) as error:
            raise NoPatternError(f"{_shown(pattern)} is not a regular expression: {error}") from None
        except RecursionError:
            raise PatternError("the regular expression is nested too deeply") from None
        self.places = len(self._program.code)

    def search(self, text: str) -> bool:
        """Whether it matches anywhere in the text."""
        return self._program.matches(text, 0, anywhere=True, whole=False)

    def fullmatch(self, text: str) -> bool:
        """Whether it matches the text from end to end."""
        return self._program.matches(text, 0, anywhere=False, whole=True)


_kept: dict[str, PatternMatcher] = {}


def _shown(pattern: str) -> str:
    return repr(pattern if len(pattern) <= _SHOWN_CHARACTERS else f"{pattern[:_SHOWN_CHARACTERS]}...")


def _in_python(pattern: str) -> str:
    in_set = False

    def written(match: re.Match[str]) -> str:
        nonlocal in_set
        text = match.group(0)
        if kind := match.group(1):
            members = "a-zA-Z" if kind == "L" else "0-9"
            return members if in_set else f"[{members}]"
        if text == "[":
            if in_set:
                return "\\["
            in_set = True
        elif text == "]":
            in_set = False
        return "(?P<" if text == "(?<" else text

    return _DIALECT.sub(written, pattern)


# --- the places of an expression ----------------------------------------------------------------------------------------

# A place is an index into the code and a count: how often a repeated character was seen. What stands there is one of
#   ("char", test), then the next index;   ("loop", test, least, most or -1), then the next index;
#   ("split", (indexes)), all of them at once;   ("at", where), ("look", program, negated, width before or -1): to the next
#   index if it holds;   ("end",).
_Instruction = tuple[Any, ...]


class _Program:
    """Code without jumps backwards, except those of loops."""

    def __init__(self) -> None:
        self.code: list[_Instruction] = []
        self.anchored = False  # only matches at the beginning of the text

    def matches(self, text: str, start: int, *, anywhere: bool, whole: bool) -> bool:
        """Whether it matches from `start` on, or from anywhere after it; whole: up to the end of the text."""
        code, length = self.code, len(text)
        at_start = [(0, 0)]
        arriving, at = at_start, start
        while True:
            places, ends = self._reached(arriving, text, at)
            if ends and (not whole or at == length):
                return True
            if at == length:
                return False
            character = text[at]
            arriving = []
            for place in places:
                instruction = code[place[0]]
                if instruction[0] == "char":
                    if instruction[1](character):
                        arriving.append((place[0] + 1, 0))
                else:  # a loop
                    _, test, least, most = instruction
                    count = place[1] + 1
                    if (most < 0 or count <= most) and test(character):
                        arriving.append((place[0], min(count, least) if most < 0 else count))
            if anywhere and not self.anchored:
                arriving += at_start
            elif not arriving:
                return False
            at += 1

    def _reached(self, arriving: list[tuple[int, int]], text: str, at: int) -> tuple[list[tuple[int, int]], bool]:
        """The places that wait for a character, of all that are reached without one; and whether the end is reached."""
        code = self.code
        seen = set(arriving)
        stack, waiting, ends = list(seen), [], False
        while stack:
            place = stack.pop()
            instruction = code[place[0]]
            kind = instruction[0]
            following: tuple[int, ...] = ()
            if kind == "char":
                waiting.append(place)
            elif kind == "loop":
                waiting.append(place)
                if place[1] >= instruction[2]:
                    following = (place[0] + 1,)
            elif kind == "split":
                following = instruction[1]
            elif kind == "end":
                ends = True
            elif (kind == "at" and _holds(instruction[1], text, at)) or (kind == "look" and _seen(instruction, text, at)):
                following = (place[0] + 1,)
            for index in following:
                next_place = (index, 0)
                if next_place not in seen:
                    seen.add(next_place)
                    stack.append(next_place)
        spend(1 + len(seen) // 2)
        return waiting, ends


def _holds(where: Any, text: str, at: int) -> bool:
    if where in (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING):
        return at == 0
    if where in (sre.AT_END, sre.AT_END_STRING):
        return at == len(text)
    if where is sre.AT_BEGINNING_LINE:
        return at == 0 or text[at - 1] == "\n"
    if where is sre.AT_END_LINE:
        return at == len(text) or text[at] == "\n"
    inside = (at > 0 and text[at - 1] in _WORD) != (at < len(text) and text[at] in _WORD)
    return inside == (where is sre.AT_BOUNDARY)


def _seen(instruction: _Instruction, text: str, at: int) -> bool:
    """Whether a look ahead or behind finds what it asks for."""
    _, program, negated, width = instruction
    start = at if width < 0 else at - width
    if start < 0:
        return bool(negated)
    around = text if width < 0 else text[:at]
    found = program.matches(around, start, anywhere=False, whole=width >= 0)
    return bool(found != negated)


class _Compiler:
    """Writes the program of a parsed expression. Raises PatternError for what cannot be matched with places."""

    def __init__(self) -> None:
        self._places = 0

    def program(self, tree: Any, flags: int) -> _Program:
        if flags & re.LOCALE:
            _refuse("the flag L")
        program = _Program()
        self._sequence(program.code, tree, flags)
        self._add(program.code, ("end",))
        program.anchored = program.code[0] in (("at", sre.AT_BEGINNING), ("at", sre.AT_BEGINNING_STRING))
        return program

    def _add(self, code: list[_Instruction], instruction: _Instruction) -> None:
        self._places += 1
        if self._places > MOST_PLACES:
            raise PatternError(
                f"the regular expression has more than {MOST_PLACES:,} places once its repetitions are written out"
            )
        spend()
        code.append(instruction)

    def _sequence(self, code: list[_Instruction], tree: Any, flags: int) -> None:
        for op, argument in tree:
            self._one(code, op, argument, flags)

    def _one(self, code: list[_Instruction], op: Any, argument: Any, flags: int) -> None:
        if op in _REFUSED:
            _refuse(_REFUSED[op])
        if (test := _char_test(op, argument, flags)) is not None:
            self._add(code, ("char", test))
        elif op is sre.AT:
            if flags & re.MULTILINE:
                argument = {sre.AT_BEGINNING: sre.AT_BEGINNING_LINE, sre.AT_END: sre.AT_END_LINE}.get(argument, argument)
            self._add(code, ("at", argument))
        elif op is sre.SUBPATTERN:
            _, added, removed, inner = argument
            self._sequence(code, inner, (flags | added) & ~removed)
        elif op is sre.BRANCH:
            self._branch(code, argument[1], flags)
        elif op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            self._repeat(code, argument, flags)
        elif op in (sre.ASSERT, sre.ASSERT_NOT):
            direction, inner = argument
            width = -1
            if direction < 0:
                width, widest = inner.getwidth()
                if width != widest:
                    _refuse("a look behind of no fixed width")
            around = _Compiler()
            around._places = self._places
            program = around.program(inner, flags)
            self._places = around._places
            self._add(code, ("look", program, op is sre.ASSERT_NOT, width))
        elif op is sre.FAILURE:
            self._add(code, ("split", ()))
        else:
            _refuse(str(op).lower())

    def _branch(self, code: list[_Instruction], options: list[Any], flags: int) -> None:
        split = len(code)
        self._add(code, ("split", ()))
        starts, exits = [], []
        for option in options:
            starts.append(len(code))
            self._sequence(code, option, flags)
            exits.append(len(code))
            self._add(code, ("split", ()))
        for exit_ in exits:
            code[exit_] = ("split", (len(code),))
        code[split] = ("split", tuple(starts))

    def _repeat(self, code: list[_Instruction], argument: Any, flags: int) -> None:
        least, most, inner = argument
        endless = most is sre.MAXREPEAT
        if len(inner) == 1 and (test := _char_test(inner[0][0], inner[0][1], flags)) is not None:
            self._add(code, ("loop", test, int(least), -1 if endless else int(most)))
            return
        copies = int(least) if endless else int(most)
        if inner.getwidth()[1] == 0:
            copies, least, endless = min(copies, 1), min(least, 1), False  # what takes no text holds as well once
        spend(copies)
        splits = []
        for copy in range(copies):
            if copy >= least:
                splits.append(len(code))
                self._add(code, ("split", ()))
            self._sequence(code, inner, flags)
        if endless:
            split = len(code)
            self._add(code, ("split", ()))
            self._sequence(code, inner, flags)
            self._add(code, ("split", (split,)))
            code[split] = ("split", (split + 1, len(code)))
        for split in splits:
            code[split] = ("split", (split + 1, len(code)))


def _refuse(what: str) -> NoReturn:
    raise PatternError(f"the regular expression uses {what}, which are not supported")


# --- characters ---------------------------------------------------------------------------------------------------------


def _char_test(op: Any, argument: Any, flags: int) -> CharTest | None:
    """What one character must be; None for what is not one character."""
    either = bool(flags & re.IGNORECASE)
    if op is sre.LITERAL:
        return _in_any_case(chr(argument).__eq__) if either else chr(argument).__eq__
    if op is sre.NOT_LITERAL:
        return _negated(_in_any_case(chr(argument).__eq__)) if either else chr(argument).__ne__
    if op is sre.ANY:
        return (lambda character: True) if flags & re.DOTALL else "\n".__ne__
    if op is not sre.IN:
        return None
    negated = argument[0][0] is sre.NEGATE
    test = _set_test(argument[1:] if negated else argument)
    test = _in_any_case(test) if either else test
    return _negated(test) if negated else test


def _set_test(items: Any) -> CharTest:
    spend(len(items))
    ranges, categories = [], []
    for op, argument in items:
        if op is sre.CATEGORY:
            categories.append(_CATEGORIES[argument])
        else:
            ranges.append((argument, argument) if op is sre.LITERAL else argument)
    if not categories and sum([high - low + 1 for low, high in ranges]) <= 256:
        return frozenset([chr(code) for low, high in ranges for code in range(low, high + 1)]).__contains__
    bounds: list[int] = []  # where ranges begin, and where they have ended, in turn
    for low, high in sorted(ranges):
        if bounds and low <= bounds[-1]:
            bounds[-1] = max(bounds[-1], high + 1)
        else:
            bounds += (low, high + 1)
    if not categories:
        return lambda character: bisect_right(bounds, ord(character)) % 2 == 1
    distinct = list(dict.fromkeys(categories))
    return lambda character: (
        bisect_right(bounds, ord(character)) % 2 == 1 or any(test(character) == wanted for test, wanted in distinct)
    )


def _negated(test: CharTest) -> CharTest:
    return lambda character: not test(character)


def _in_any_case(test: CharTest) -> CharTest:
    def either(character: str) -> bool:
        return any(test(form) for form in (character, character.lower(), character.upper()) if len(form) == 1)

    return either
