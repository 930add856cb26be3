"""Regular expressions of users, matched, and texts found that match, in steps that are counted.

An expression is an alternating automaton whose places are made when they are reached: a place is a part of the expression
and what follows it, so that repetitions are counted, not written out. Where a text may be is a formula over places: "or"
where expressions leave a choice, "and" for a look ahead, "not" for a negative one and for expressions that must not match. A
formula is a set of alternatives: the number of a place, ("and", formulas) or ("not", formula). The engine of `re` tries one
way after the other instead, and may need longer than the age of the universe for a text of forty characters.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from llmirage_server.replies.structured.alphabet import Alphabet
from llmirage_server.replies.structured.budget import spend, spend_characters
from llmirage_server.replies.structured.regex_syntax import (
    ANY,
    EMPTY,
    LINE_ENDS,
    WORD,
    Alternation,
    Assertion,
    CharacterSet,
    Concatenation,
    PatternError,
    RegexNode,
    Repetition,
    parse,
)

_KEPT_LANGUAGES, _KEPT_SIZE, _KEPT_CHARACTERS = 128, 20_000, 1_000  # what is compiled once and kept, by each thread

Formula = frozenset[Any]
_FALSE: Formula = frozenset()
_ACCEPTS, _END = 0, 1  # the places after which any text may follow, and none
_TRUE: Formula = frozenset([_ACCEPTS])
_ANYTHING, _NOTHING = -1, -2  # instead of the number of a state: any rest, and none, makes a text meet the demands

# What stood before a place, as far as expressions ask: bits of an integer; more bits say which looks behind hold.
_START, _AFTER_WORD, _AFTER_LINE, _FIRST_LOOK = 1, 2, 4, 8


class GrammarError(ValueError):
    """The grammar cannot be read, or nothing follows it."""


class TextDemand(NamedTuple):
    """A demand on a text: the pattern matches in it, or from end to end (whole), or does not."""

    pattern: str
    whole: bool = False
    negative: bool = False


class TextState(NamedTuple):
    """The possible places of a text. alternatives: a formula, or while a text is sought, what must all hold of its rest."""

    alternatives: Formula
    before: int
    behind: tuple[Formula, ...]  # for each look behind, where its expression may be


class _Move(NamedTuple):
    """The places that characters of some classes (a mask) lead to.

    context: bits of the assertions about the text before that are true.
    """

    classes: int
    context: int
    before: int
    behind: tuple[Formula, ...]


class _Edges(NamedTuple):
    """The ways on from a place: by classes of characters to alternatives; before which classes the end is reached."""

    ways: list[tuple[int, Any]]
    ends: int


def compiled(pattern: str) -> Language:
    """Return the texts in which the pattern matches. Raises PatternError."""
    return language((TextDemand(pattern),))


def language(parts: tuple[TextDemand, ...]) -> Language:
    """Return the texts that meet all demands. Raises PatternError."""
    kept = _kept.languages
    if len(kept) >= _KEPT_LANGUAGES or _kept.grown > _KEPT_SIZE:
        kept.clear()
        _kept.grown = 0
    found = kept.get(parts)
    if found is None:
        found = Language(parts)
        if sum([len(part.pattern) for part in parts]) <= _KEPT_CHARACTERS:
            kept[parts] = found
    return found


def _grow(steps: int = 1) -> None:
    """Count steps that leave something in a language."""
    _kept.grown += steps
    spend(steps)


class Language:
    """The texts that meet demands of regular expressions."""

    def __init__(self, parts: Sequence[TextDemand]) -> None:
        """Compile the demands. Raises PatternError."""
        self._alphabet = Alphabet()
        self._nodes: list[Sequence[Any]] = []
        self._looks: list[int] = []  # the expressions of looks behind, inner ones first
        self._looks_behind = False  # while what is numbered is within one
        trees = [parse(part.pattern) for part in parts]
        numbered = [self._number(tree) for tree in trees]
        # What a text must have at least, in characters; texts may well be longer.
        wanted = [node for part, node in zip(parts, numbered, strict=True) if not part.negative]
        self.shortest = max([node.shortest for node in wanted], default=0)
        any_number = self._number(Repetition(CharacterSet(ANY), 0, -1)).number
        self._alphabet.close()
        self._every, self._end_bit = self._alphabet.every, self._alphabet.every + 1
        self._whole = self._every | self._end_bit
        self._words, self._line_ends = self._alphabet.mask(WORD), self._alphabet.mask(LINE_ENDS)
        self._numbers: dict[tuple[int, int, int], int] = {}  # of places: by node, count and what follows
        self._places: list[tuple[int, int, int]] = [(-1, 0, -1), (-1, 0, -1)]
        self._ranks = [0, 1]  # of places, whenever they were made
        self._edges_of: dict[tuple[int, int], _Edges] = {}
        self._steps: dict[tuple[Formula, int, int], Formula] = {}
        self._states: list[TextState] = []  # that texts were in, the first before any text
        self._numbers_of_states: dict[TextState, int] = {}
        self._following: list[dict[int, int]] = []  # by number of a state, by class: the number of the next
        self._moves: dict[tuple[int, tuple[Formula, ...]], list[_Move]] = {}
        self._ways: dict[TextState, list[tuple[int, TextState]]] = {}
        self.searches: dict[Any, Any] = {}  # of its user, who finds them again with the language
        demands: list[Formula] = []
        for part, tree, node in zip(parts, trees, numbered, strict=True):
            place = self._place(node.number, 0, _END if part.whole else _ACCEPTS)
            if not part.whole and not _starts_at_start(tree):
                place = self._place(any_number, 0, place)
            demands.append(_not(frozenset([place])) if part.negative else frozenset([place]))
        behind = tuple([frozenset([self._place(any_number, 0, self._place(look, 0, _END))]) for look in self._looks])
        self._start = TextState(_and(demands), _START, behind)
        self._numbered(self._start)

    def has(self, text: str) -> bool:
        """Return True if the text meets the demands."""
        spend_characters(len(text))
        number, following_of, classes = 0, self._following, self._alphabet.class_of
        for character in text:
            class_ = classes.get(character)
            if class_ is None:
                class_ = self._alphabet.classify(character)
            following = following_of[number].get(class_)
            if following is None:
                following = self._move(number, class_)
            if following < 0:
                return following == _ANYTHING
            number = following
        state = self._states[number]
        return bool(self._ends(state.alternatives, self._context_at_end(state)) & self._end_bit)

    # --- the search for texts ---

    def starts(self) -> list[TextState]:
        """Return the states that a text which is sought may begin in."""
        return [TextState(all_of, _START, self._start.behind) for all_of in self._ways_to_hold(self._start.alternatives)]

    def accepts(self, state: TextState) -> bool:
        """Return True if the text may end in a state of the search."""
        context = self._context_at_end(state)
        return all(self._ends(frozenset([one]), context) & self._end_bit for one in state.alternatives)

    def ways(self, state: TextState) -> list[tuple[int, TextState]]:
        """Return classes of characters (a mask), and the state of the search that they lead to."""
        found = self._ways.get(state)
        if found is None:
            _grow(2)
            written = self._alphabet.written
            found = self._ways[state] = [
                (classes & written, TextState(all_of, move.before, move.behind))
                for move in self._moves_from(state)
                for classes, all_of in self._all_ways(state.alternatives, move)
                if classes & written
            ]
        return found

    def characters(self, classes: int, every: bool = False) -> str:
        """Return characters to write for a mask of classes; without `every` the most readable of them."""
        return self._alphabet.characters(classes, every)

    def _all_ways(self, all_of: Formula, move: _Move) -> list[tuple[int, Formula]]:
        """Return how all alternatives of the set can hold after a character, by its classes."""
        ways: list[tuple[int, Formula]] = [(move.classes & self._every, frozenset())]
        for one in self._in_order(all_of):
            alone = frozenset([one])
            if isinstance(one, int):
                targets = [(mask, frozenset([target])) for mask, target in self._edges(one, move.context).ways]
            else:
                groups = [mask for mask in self._groups([alone], move.context) if mask & self._every]
                targets = [(mask, self._step(alone, move.context, _lowest(mask))) for mask in groups]
            onwards = [(mask, way) for mask, target in targets for way in self._ways_to_hold(target)]
            spend(1 + len(ways) * len(onwards) // 4)
            ways = [(mask & more, before | after) for mask, before in ways for more, after in onwards if mask & more]
        return list(dict.fromkeys(ways))

    def _ways_to_hold(self, formula: Formula) -> list[Formula]:
        """Return the sets of places and negations that make a formula true if all of a set hold."""
        ways: list[Formula] = []
        for one in self._in_order(formula):
            if one == _ACCEPTS:
                return [frozenset()]
            if isinstance(one, tuple) and one[0] == "and":
                products: list[Formula] = [frozenset()]
                for each in sorted(one[1], key=self._rank):
                    more = self._ways_to_hold(each)
                    spend(len(products) * len(more) // 4)
                    products = [left | right for left in products for right in more]
                ways += products
            else:
                ways.append(frozenset([one]))
        return ways

    def _in_order(self, formula: Formula) -> Sequence[Any]:
        return list(formula) if len(formula) < 2 else sorted(formula, key=self._rank)

    def _rank(self, one: Any) -> int:
        """Return what orders alternatives and formulas, however often this language was used before."""
        if isinstance(one, int):
            return self._ranks[one]
        if isinstance(one, tuple):
            return _mixed(2 if one[0] == "and" else 3, self._rank(one[1]))
        return _mixed(*sorted([self._rank(each) for each in one]))

    # --- steps ---

    def _context_at_end(self, state: TextState) -> int:
        return next(move.context for move in self._moves_from(state) if move.classes & self._end_bit)

    def _move(self, number: int, class_: int) -> int:
        """Return the number of the state after a character of that class, or _ANYTHING or _NOTHING if that is decided."""
        state = self._states[number]
        move = next(move for move in self._moves_from(state) if move.classes >> class_ & 1)
        alternatives = self._step(state.alternatives, move.context, class_)
        if not alternatives or alternatives == _TRUE:
            following = _ANYTHING if alternatives else _NOTHING
        else:
            following = self._numbered(TextState(alternatives, move.before, move.behind))
        self._following[number][class_] = following
        return following

    def _numbered(self, state: TextState) -> int:
        number = self._numbers_of_states.setdefault(state, len(self._states))
        if number == len(self._states):
            self._states.append(state)
            self._following.append({})
        return number

    def _moves_from(self, state: TextState) -> list[_Move]:
        """Return what holds before each class of characters (and before the end), and what is known after it."""
        key = (state.before, state.behind)
        found = self._moves.get(key)
        if found is not None:
            return found
        found = []
        for group in self._groups(state.behind, state.before, [self._words, self._line_ends]):
            class_ = _lowest(group)
            context = state.before
            behind = []
            for place, formula in enumerate(state.behind):
                if self._ends(formula, context) >> class_ & 1:
                    context |= _FIRST_LOOK << place
                behind.append(_FALSE if group & self._end_bit else self._step(formula, context, class_))
            before = (_AFTER_WORD if group & self._words else 0) | (_AFTER_LINE if group & self._line_ends else 0)
            found.append(_Move(group, context, before, tuple(behind)))
        self._moves[key] = found
        return found

    def _step(self, formula: Formula, context: int, class_: int) -> Formula:
        """Return the formula of the rest of the text, after a character of that class."""
        key = (formula, context, class_)
        found = self._steps.get(key)
        if found is None:
            _grow(1 + len(formula) // 2)
            bit = 1 << class_
            alternatives: list[Iterable[Any]] = []
            for one in formula:
                if isinstance(one, int):
                    alternatives.append([target for mask, target in self._edges(one, context).ways if mask & bit])
                elif one[0] == "and":
                    alternatives.append(_and([self._step(each, context, class_) for each in one[1]]))
                else:
                    alternatives.append(_not(self._step(one[1], context, class_)))
            found = frozenset().union(*alternatives)
            found = self._steps[key] = _TRUE if _ACCEPTS in found else found
        return found

    def _ends(self, formula: Formula, context: int) -> int:
        """Return the classes of characters (and the end of the text) before which a formula may end."""
        ends = 0
        for one in formula:
            if isinstance(one, int):
                ends |= self._edges(one, context).ends
            elif one[0] == "and":
                common = self._whole
                for each in one[1]:
                    common &= self._ends(each, context)
                ends |= common
            else:
                ends |= self._whole & ~self._ends(one[1], context)
        return ends

    def _groups(self, formulas: Iterable[Formula], context: int, masks: Sequence[int] = ()) -> list[int]:
        """Return masks of classes that are alike for all formulas: disjoint, together all; the end is one of its own."""
        found = dict.fromkeys(masks)
        pending = list(formulas)
        while pending:
            for one in self._in_order(pending.pop()):
                if isinstance(one, int):
                    edges = self._edges(one, context)
                    found.update(dict.fromkeys([mask for mask, _ in edges.ways]))
                    found[edges.ends] = None
                else:
                    pending += sorted(one[1], key=self._rank) if one[0] == "and" else [one[1]]
        groups = [self._every, self._end_bit]
        for mask in found:
            spend(len(groups) // 8)
            groups = [part for group in groups for part in (group & mask, group & ~mask) if part]
        return groups

    def _edges(self, start: int, context: int) -> _Edges:
        """Return the ways on from a place before which these bits hold."""
        key = (start, context)
        if (known := self._edges_of.get(key)) is not None:
            return known
        ways: list[tuple[int, Any]] = []
        ends = 0
        # A place, classes of the character that follows, and formulas of looks ahead that must hold after it.
        pending: list[_Pending] = [(start, self._whole, frozenset())]
        seen: dict[tuple[int, frozenset[Formula]], int] = {}
        begun: dict[tuple[int, int, frozenset[Formula]], int] = {}  # repetitions: the lowest count
        while pending:
            _grow()
            place, mask, beside = pending.pop()
            mask &= ~seen.get((place, beside), 0)
            if not mask:
                continue
            seen[place, beside] = seen.get((place, beside), 0) | mask
            if place in (_ACCEPTS, _END):
                ends |= mask
                if place == _ACCEPTS and mask & self._every:
                    ways.append((mask & self._every, _beside(place, beside)))
                continue
            node, count, following = self._places[place]
            kind, what, *more = self._nodes[node]
            if kind == "chars":
                if mask & what:
                    ways.append((mask & what, _beside(following, beside)))
            elif kind == "parts":
                for part in reversed(what):
                    following = self._place(part, 0, following)
                pending.append((following, mask, beside))
            elif kind == "choice":
                pending += [(self._place(option, 0, following), mask, beside) for option in reversed(what)]
            elif kind == "repeat":
                least, most, may_be_empty = more
                if count >= least:
                    pending.append((following, mask, beside))
                if most < 0 or count < most:
                    lowest = begun.setdefault((node, following, beside), count)
                    if not may_be_empty or count <= lowest:  # a round without a character gives nothing new
                        onwards = self._place(node, min(count + 1, least) if most < 0 else count + 1, following)
                        pending.append((self._place(what, 0, onwards), mask, beside))
            elif kind == "at":
                pending.append((following, mask & self._holding(what, context), beside))
            elif kind == "behind":
                if bool(context & _FIRST_LOOK << what) != more[0]:
                    pending.append((following, mask, beside))
            else:
                ahead = frozenset([self._place(what, 0, _ACCEPTS)])
                for group in self._groups([ahead], context):
                    if group & self._end_bit:
                        holds = bool(self._ends(ahead, context) & self._end_bit) != more[0]
                        rest = _TRUE if holds else _FALSE
                    else:
                        rest = self._step(ahead, context, _lowest(group))
                        rest = _not(rest) if more[0] else rest
                    if rest:
                        pending.append((following, mask & group, beside if rest == _TRUE else beside | {rest}))
        found = self._edges_of[key] = _Edges(ways, ends)
        return found

    def _holding(self, where: str, context: int) -> int:
        """Return the classes of characters (and the end) before which an assertion holds."""
        if where == "start":
            return self._whole if context & _START else 0
        if where == "end":
            return self._end_bit
        if where == "line start":
            return self._whole if context & (_START | _AFTER_LINE) else 0
        if where == "line end":
            return self._end_bit | self._line_ends
        at_boundary = self._whole & ~self._words if context & _AFTER_WORD else self._words
        return at_boundary if where == "boundary" else self._whole & ~at_boundary

    # --- nodes and places ---

    def _place(self, node: int, count: int, following: int) -> int:
        key = (node, count, following)
        number = self._numbers.get(key)
        if number is None:
            rank = _mixed(node, count, self._ranks[following])  # before anything is changed: it may be one call too deep
            number = self._numbers[key] = len(self._places)
            self._places.append(key)
            self._ranks.append(rank)
        return number

    def _number(self, tree: RegexNode) -> _Numbered:
        """Add the nodes of a tree. Raises PatternError for a look ahead within a look behind."""
        _grow()
        if isinstance(tree, CharacterSet):
            return self._add(self._alphabet.node(tree.bounds), False, False, 1)
        if isinstance(tree, Concatenation):
            parts = [self._number(part) for part in tree.parts]
            return self._add(
                ("parts", tuple([part.number for part in parts])),
                all(part.may_be_empty for part in parts),
                all(part.is_empty for part in parts),
                sum([part.shortest for part in parts]),
            )
        if isinstance(tree, Alternation):
            options = [self._number(option) for option in tree.options]
            return self._add(
                ("choice", tuple([option.number for option in options])),
                any(option.may_be_empty for option in options),
                all(option.is_empty for option in options),
                min([option.shortest for option in options]),
            )
        if isinstance(tree, Repetition):
            inner = self._number(tree.inner)
            if inner.is_empty or tree.most == 0:  # what takes no text holds once as well as more often
                return inner if tree.least else self._number(EMPTY)
            least = 0 if inner.may_be_empty else tree.least
            node = ("repeat", inner.number, least, tree.most, inner.may_be_empty)
            return self._add(node, not least, False, least * inner.shortest)
        if isinstance(tree, Assertion):
            if tree.where in ("boundary", "inside"):
                self._alphabet.node(WORD)
            elif tree.where in ("line start", "line end"):
                self._alphabet.node(LINE_ENDS)
            return self._add(("at", tree.where), False, True, 0)
        if not tree.behind:
            if self._looks_behind:
                raise PatternError("the regular expression uses a look ahead in a look behind, which is not supported")
            return self._add(("ahead", self._number(tree.inner).number, tree.negative), False, True, 0)
        within, self._looks_behind = self._looks_behind, True
        inner = self._number(tree.inner)
        self._looks_behind = within
        self._looks.append(inner.number)
        return self._add(("behind", len(self._looks) - 1, tree.negative), False, True, 0)

    def _add(self, node: Sequence[Any], may_be_empty: bool, is_empty: bool, shortest: int) -> _Numbered:
        self._nodes.append(node)
        return _Numbered(len(self._nodes) - 1, may_be_empty, is_empty, shortest)


_Pending = tuple[int, int, frozenset[Formula]]


class _Numbered(NamedTuple):
    """A node. may_be_empty: it takes no character in some way that asks for nothing else. is_empty: it never takes any."""

    number: int
    may_be_empty: bool
    is_empty: bool
    shortest: int  # the characters that it takes at least


class _KeptLanguages(threading.local):
    """The last languages of a thread: they make their places while they are used. grown: the steps that this took."""

    def __init__(self) -> None:
        self.grown = 0
        self.languages: dict[tuple[TextDemand, ...], Language] = {}


_kept = _KeptLanguages()


def _starts_at_start(tree: RegexNode) -> bool:
    while isinstance(tree, Concatenation) and tree.parts:
        tree = tree.parts[0]
    return isinstance(tree, Assertion) and tree.where == "start"


def _lowest(mask: int) -> int:
    """Return the lowest class of a mask."""
    return (mask & -mask).bit_length() - 1


def _mixed(*numbers: int) -> int:
    mixed = 0x345678
    for number in numbers:
        mixed = (mixed ^ number) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 29
    return mixed


def _beside(place: int, beside: frozenset[Formula]) -> Any:
    """Return the alternative that a place and formulas beside it all hold."""
    return ("and", beside | {frozenset([place])}) if beside else place


def _and(formulas: Iterable[Formula]) -> Formula:
    parts: set[Formula] = set()
    for formula in formulas:
        if not formula:
            return _FALSE
        [one, *others] = formula
        if not others and isinstance(one, tuple) and one[0] == "and":
            parts |= one[1]
        else:
            parts.add(formula)
    parts.discard(_TRUE)
    return frozenset([("and", frozenset(parts))]) if len(parts) > 1 else parts.pop() if parts else _TRUE


def _not(formula: Formula) -> Formula:
    if not formula or formula == _TRUE:
        return _FALSE if formula else _TRUE
    return frozenset([("not", formula)])
