"""A JSON value for a schema: always valid, readable, the same for the same seed.

Schemas are turned into facts (`facts.py`), of which the value is made, its parts by the same rules. Where that is
impossible, the next way to obey the schemas is taken. What is found is validated in the end.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from llmirage_server.replies.structured import strings
from llmirage_server.replies.structured.budget import spend
from llmirage_server.replies.structured.facts import (
    EVERY_TYPE,
    NOT_FORMAT,
    NOT_PATTERN,
    NOT_VALUES,
    REPEATS,
    SOME,
    TYPES,
    Facts,
    NoValueError,
    Ways,
)
from llmirage_server.replies.structured.keywords import FORMATS, has_format, lookup_key
from llmirage_server.replies.structured.matcher import TextDemand, compiled
from llmirage_server.replies.structured.numbers import number_for
from llmirage_server.replies.structured.regex_syntax import PatternError
from llmirage_server.replies.structured.schema import Placed, Schema, SchemaError, Scope, types_of
from llmirage_server.replies.structured.strings import text_of
from llmirage_server.replies.structured.validity import Validator, validator_for

_DEEP = 5  # levels after which everything optional is left out,
_FAILURES_A_LEVEL = 6  # and one less each time that so many ways led nowhere
_MOST_FAILURES = 200  # of an attempt
_TRIES = 8  # for a whole value: the first takes alternatives to exclude one another
_TRIES_FOR_ANOTHER = 20  # for a value other than those that are there
_MOST_LEVELS = 150  # of a value; about as many as there are, if they are arrays
_FEW_LEVELS = 12  # in the second half of the tries: what has more may have no end
_MOST_OPTIONAL = 24  # optional properties written at most
_ANY_TEXT = "^[a-z ]*$"
_TEXT: Placed = ({"type": "string"}, ("",))
_KINDS: tuple[str, ...] = ("object", "array", "string", "boolean", "number", "null")
_NESTED = ("object", "array")

_Keys = frozenset[Any] | set[Any]  # of values, as `lookup_key` gives them

T = TypeVar("T")


def value_for(schema: Any, seed: int) -> Any:
    """Return a value that is valid against the schema (draft 2020-12), chosen by `seed`.

    schema: a JSON Schema or its validator. Raises SchemaError when the schema is none, when nothing satisfies it, or when no
    value was found that does, BudgetError when to find one is too much work.
    """
    validator = schema if isinstance(schema, Validator) else validator_for(schema)
    resolver = validator.resolver
    problem = ""
    for attempt in range(_TRIES):
        writer = _ValueWriter(validator, random.Random(f"{seed} {attempt}"), attempt)
        try:
            value = writer.value(((validator.schema, resolver.scope),))
        except (NoValueError, _TooManyFailuresError) as error:
            problem = problem or str(error)
            continue
        except RecursionError:
            problem = problem or "it is nested too deeply"
            continue
        invalid = next(validator.problems(value), None)
        if invalid is None:
            return value
        problem = problem or str(invalid)
    raise SchemaError(f"found no value for it: {problem}")


class _TooManyFailuresError(Exception):
    """An attempt has led nowhere for so long that one which leaves out more is likelier to succeed."""


class _ValueWriter:
    """Writes one value with one source of randomness, which is likely valid, not certainly.

    attempt: the first takes the alternatives of `oneOf` to exclude one another by themselves; later ones leave out more.
    """

    def __init__(self, validator: Validator, rng: random.Random, attempt: int) -> None:
        self._validator = validator
        self._resolver = validator.resolver
        self.rng = rng
        self._ways = Ways(validator.resolver, rng, exact=attempt > 0)
        self._failures = attempt * _FAILURES_A_LEVEL
        self._most_failures = self._failures + _MOST_FAILURES
        self._most_levels = _MOST_LEVELS if attempt < _TRIES // 2 else _FEW_LEVELS

    @property
    def deep(self) -> int:
        """The level from which everything optional is left out."""
        return max(0, _DEEP - self._failures // _FAILURES_A_LEVEL)

    def value(self, demands: Sequence[Placed], name: str = "", depth: int = 0, besides: _Keys = frozenset()) -> Any:
        """Return a value that obeys all demands, other than those of `besides`. Raises NoValueError."""
        spend(4)  # some 20 microseconds, whatever it is
        if depth > self._most_levels:
            raise NoValueError("it is nested too deeply")
        problem: NoValueError | None = None
        for facts in self._ways.to_obey(demands, depth >= self.deep):
            try:
                value = self._of_facts(facts, demands, name, depth, besides)
                if facts.are_sure or all(self.is_valid(value, demand) for demand in demands):
                    return value
                problem = problem or NoValueError(self._problem(value, demands))
            except NoValueError as error:
                problem = problem or error.alone()
            self._failures += 1
            if self._failures > self._most_failures:
                raise _TooManyFailuresError(str(problem))
        raise (problem or NoValueError("nothing satisfies it")).alone()

    def _problem(self, value: Any, demands: Sequence[Placed]) -> str:
        return next(str(problem) for schema, scope in demands for problem in self._validator.problems(value, schema, scope))

    def height(self, schema: Any, scope: Scope) -> float:
        """Return the levels of objects and arrays that a value needs at least."""
        return self._resolver.height(schema, scope)

    def is_valid(self, value: Any, demand: Placed) -> bool:
        """Return True if a value obeys a demand."""
        return self._validator.is_valid(value, *demand)

    # --- from facts to a value ---

    def _of_facts(self, facts: Facts, demands: Sequence[Placed], name: str, depth: int, besides: _Keys) -> Any:
        if listed := [*[[value] for value in facts.each("const")], *facts.each("enum")]:
            return self._listed(min(listed, key=len), demands, besides)
        if excluded := facts.each(NOT_VALUES):
            besides = besides.union(*[map(lookup_key, values) for values in excluded])
        problem: NoValueError | None = None
        for kind in self._types_in_order(facts, name, depth):
            try:
                return _MAKERS[kind](self, facts, name, depth, besides)
            except NoValueError as error:
                problem = problem or error.alone()
            except PatternError as error:
                problem = problem or NoValueError(str(error))
        raise (problem or NoValueError("no type is allowed by all that applies to it")).alone()

    def _listed(self, values: Sequence[Any], demands: Sequence[Placed], besides: _Keys) -> Any:
        """Return one of the values that obeys all demands."""
        if not values:
            raise NoValueError("an enum of nothing")
        start = self.rng.randrange(len(values))
        for value in (*values[start:], *values[:start]):
            known = besides and lookup_key(value) in besides
            if not known and all(self.is_valid(value, demand) for demand in demands):
                return value
        raise NoValueError(f"no value of its {'const' if len(values) == 1 else 'enum'} is valid")

    def _types_in_order(self, facts: Facts, name: str, depth: int) -> list[str]:
        allowed = facts.types
        kinds = [kind for kind in _KINDS if kind in allowed or (kind == "number" and allowed & TYPES["number"])]
        if len(kinds) == 1:
            return kinds
        self.rng.shuffle(kinds)
        last = _NESTED if depth >= self.deep else ("null",) if allowed is not EVERY_TYPE else ()
        if allowed is not EVERY_TYPE:
            return sorted(kinds, key=lambda kind: kind in last)
        suggested = next(
            (kind for fact in facts.facts for kind in types_of(fact.schema)), "string" if name or depth else "object"
        )
        return sorted(kinds, key=lambda kind: (kind in last, kind != suggested))

    def _boolean(self, facts: Facts, name: str, depth: int, besides: _Keys) -> bool:
        value = self.rng.random() < 0.7
        if (value, True) not in besides:
            return value
        if (not value, True) not in besides:
            return not value
        raise NoValueError("there are no more values than true and false")

    def _another(self, make: Callable[[], T], besides: _Keys) -> T:
        """Return what is made that is not in `besides`."""
        value = make()
        if not besides:
            return value
        for _ in range(_TRIES_FOR_ANOTHER):
            spend()
            if lookup_key(value) not in besides:
                return value
            value = make()
        raise NoValueError("found no value other than those that are there")

    # --- strings ---

    def _string(self, facts: Facts, name: str, depth: int, besides: _Keys) -> str:
        least, most = int(max(facts.each("minLength"), default=0)), min(facts.each("maxLength"), default=None)
        if most is not None and (most := int(most)) < least:
            raise NoValueError(f"minLength {least} is more than maxLength {most}")
        forms = [form for form in facts.each("format") if form in FORMATS]
        not_forms = facts.each(NOT_FORMAT)
        texts = [TextDemand(pattern) for pattern in facts.each("pattern")]
        texts += [TextDemand(pattern, negative=True) for pattern in facts.each(NOT_PATTERN)]

        def fits(text: str) -> bool:
            return (
                least <= len(text) <= (len(text) if most is None else most)
                and all(has_format(form, text) for form in forms)
                and not any(has_format(form, text) for form in not_forms)
                and all(compiled(demand.pattern).has(text) != demand.negative for demand in texts)
                and not (besides and (text, False) in besides)
            )

        form = next((form for form in facts.each("format") if form in strings.FORMATS), None)
        plain = not (texts or forms or not_forms)
        for _ in range(_TRIES_FOR_ANOTHER if besides else 1):
            usual = strings.by_name(name, self.rng) if form is None else strings.FORMATS[form](self.rng)
            if plain:
                usual = strings.fitted(usual, least, most, self.rng)
            if fits(usual):
                return usual
        texts += [TextDemand(FORMATS[form].written, whole=True) for form in forms]
        known = [key[0] for key in besides if isinstance(key, tuple) and isinstance(key[0], str) and key[1:] == (False,)]
        for _ in range(_TRIES_FOR_ANOTHER if forms or not_forms else 1):
            text = text_of(texts or [TextDemand(_ANY_TEXT)], self.rng, least, most, known)
            if fits(text):
                return text
        raise NoValueError(f"found no text of format {' and '.join(forms)} that its other keywords allow")

    # --- arrays ---

    def _array(self, facts: Facts, name: str, depth: int, besides: _Keys) -> list[Any]:
        least, most = int(max(facts.each("minItems"), default=0)), int(min(facts.each("maxItems"), default=1 << 40))
        for fact in facts.facts:
            if fact.schema.get("items") is False:
                most = min(most, len(fact.schema.get("prefixItems", ())))
        if least > most:
            raise NoValueError(f"no array of {least} to {most} items")
        if any(facts.each(REPEATS)):
            least = max(least, 2)
        prefix = max([len(items) for items in facts.each("prefixItems")], default=0)
        wanted = least if depth >= self.deep else max(least, prefix, self.rng.randint(1, 3))
        if depth > 1 and not prefix and all(items in ({}, True) for items in facts.each("items")):
            wanted = least  # of anything: what a library writes where a recursive model goes on
        if any(self.height(fact.schema["items"], fact.scope) == math.inf for fact in facts.facts if "items" in fact.schema):
            wanted = least
            if least > prefix and depth >= self.deep:
                raise NoValueError("it only contains itself")
        spend(min(wanted, most))
        problem: NoValueError | None = None
        for slots in self._slots(facts, prefix):
            length = max([least, *[slot + 1 for slot in slots]])
            if length > most:
                problem = problem or NoValueError(f"maxItems {most} is less than what it must contain")
                continue
            try:
                return self._another(
                    lambda slots=slots, length=length: self._items(  # type: ignore[misc]
                        facts, name, depth, slots, length, min(most, max(length, wanted))
                    ),
                    besides,
                )
            except NoValueError as error:
                problem = problem or error.alone()
        raise (problem or NoValueError("no items satisfy it")).alone()

    @staticmethod
    def _slots(facts: Facts, prefix: int) -> Iterator[dict[int, list[int]]]:
        """Yield where items may be that `contains` asks for: by index, the numbers of the facts that ask."""
        asking = [(number, int(fact.schema.get("minContains", 1))) for number, fact in enumerate(facts.facts)
                  if "contains" in fact.schema]  # fmt: skip
        for number, count in asking:
            if count > facts.facts[number].schema.get("maxContains", count):
                raise NoValueError(f"minContains {count} is more than maxContains")
        if not asking:
            yield {}
            return
        for start, apart in ((prefix, True), (0, True), (prefix, False), (0, False)):
            slots: dict[int, list[int]] = {}
            at = start
            for number, count in asking:
                spend(count)
                for index in range(at, at + count):
                    slots.setdefault(index, []).append(number)
                at += count if apart else 0
            yield slots

    def _items(
        self, facts: Facts, name: str, depth: int, slots: Mapping[int, list[int]], least: int, wanted: int
    ) -> list[Any]:
        singular = name[:-1] if name.endswith("s") and len(name) > 3 else name
        unique = any(facts.each("uniqueItems"))
        repeats = any(facts.each(REPEATS))
        made: list[Any] = []
        seen: set[Any] = set()
        for index in range(wanted):
            if repeats and index == 1:
                made.append(copy.deepcopy(made[0]))
                continue
            demands = self._item(facts, index, slots.get(index, ()))
            if repeats and index == 0:
                demands += self._item(facts, 1, slots.get(1, ()))
            try:
                item = self.value(demands, singular, depth + 1, seen if unique else frozenset())
            except NoValueError as error:
                if index < least:
                    raise error.inside(index) from None
                break
            made.append(item)
            if unique:
                seen.add(lookup_key(item))
        return made

    def _item(self, facts: Facts, index: int, contained: Sequence[int]) -> list[Placed]:
        """Return the demands on an item. contained: the facts whose `contains` it must satisfy."""
        spend()
        demands: list[Placed] = []
        for number, (schema, scope) in enumerate(facts.facts):
            prefix = schema.get("prefixItems", ())
            if index < len(prefix):
                demands.append((prefix[index], scope))
            elif "items" in schema:
                demands.append((schema["items"], scope))
            if number in contained:
                demands.append((schema["contains"], scope))
            elif "contains" in schema and "maxContains" in schema:
                demands.append(({"not": schema["contains"]}, scope))
            if "unevaluatedItems" in schema and not any(
                index < len(inner.schema.get("prefixItems", ()))
                or "items" in inner.schema
                or ("unevaluatedItems" in inner.schema and inner.schema is not schema)
                or any(facts.facts[each] is inner for each in contained)
                for inner in facts.within(number)
            ):
                demands.append((schema["unevaluatedItems"], scope))
        return demands

    # --- objects ---

    def _object(self, facts: Facts, name: str, depth: int, besides: _Keys) -> dict[str, Any]:
        return self._another(lambda: _ObjectWriter(self, facts, depth).written(), besides)


_MAKERS: dict[str, Callable[[_ValueWriter, Facts, str, int, _Keys], Any]] = {
    "null": lambda *_: None, "boolean": _ValueWriter._boolean, "string": _ValueWriter._string,
    "number": lambda writer, facts, name, _, besides: number_for(facts, name, writer.rng, besides),
    "array": _ValueWriter._array, "object": _ValueWriter._object,
}  # fmt: skip


class _ObjectWriter:
    """Writes the properties of one object."""

    def __init__(self, writer: _ValueWriter, facts: Facts, depth: int) -> None:
        self._writer = writer
        self._facts = facts
        self._depth = depth
        self._declared = {name: None for properties in facts.each("properties") for name in properties}
        self._required = {name: None for names in facts.each("required") for name in names}
        self._needs = [(name, needed) for key in ("dependentRequired", "dependencies") for demand in facts.each(key)
                       for name, needed in demand.items() if isinstance(needed, list)]  # fmt: skip
        self._names = [(fact.schema["propertyNames"], fact.scope) for fact in facts.facts if "propertyNames" in fact.schema]
        self._least = int(max(facts.each("minProperties"), default=0))
        self._most = int(min(facts.each("maxProperties"), default=1 << 40))
        self._made: dict[str, Any] = {}
        self._demands: dict[str, list[Placed]] = {}
        spend((len(self._declared) + len(self._required)) // 4)
        _add_needed(self._required, self._needs)

    def written(self) -> dict[str, Any]:
        """Return an object. Raises NoValueError."""
        required = self._required
        if len(required) > self._most:
            raise NoValueError(f"maxProperties {self._most} is less than the number of required properties")
        names = [key for key in self._declared if key in required or self._wants(key)]
        if not names and not self._depth and self._writer.deep:  # nothing is required: an empty answer would say nothing
            names = [key for key in self._declared if self._height(key) < math.inf]
        optional = [key for key in names if key not in required]
        kept = dict.fromkeys(optional[: min(_MOST_OPTIONAL, self._most - len(required))])
        _add_needed(kept, self._needs)
        names = [*[key for key in names if key in required or key in kept],
                 *[key for key in (*required, *kept) if key not in self._declared]]  # fmt: skip
        for key in names:
            self._add(key)
        for name, part, scope in self._facts.each(SOME):
            self._add_some((name, scope), (part, scope))
        self._fill()
        self._drop_what_lacks_others()
        if len(self._made) < self._least:
            raise NoValueError(f"found no more than {len(self._made)} properties, and minProperties is {self._least}")
        if len(self._made) > self._most:
            raise NoValueError(f"found no less than {len(self._made)} properties, and maxProperties is {self._most}")
        return self._made

    def _add(self, key: str, *demands: Placed) -> bool:
        """Add a property, if there is a value for it. Raises NoValueError if it is required and there is none."""
        try:
            if not all(self._writer.is_valid(key, each) for each in self._names):
                raise NoValueError("its name is not valid against propertyNames")
            if self._depth >= self._writer.deep and self._height(key) == math.inf:
                raise NoValueError("it only contains itself")
            self._made[key] = self._writer.value([*self._property(key), *demands], key, self._depth + 1)
        except NoValueError as error:
            if key in self._required:
                raise error.inside(key) from None
            return False
        return True

    def _property(self, key: str) -> list[Placed]:
        """Return the demands on the value of a property."""
        known = self._demands.get(key)
        if known is not None:
            return known
        spend()
        demands: list[Placed] = []
        for number, (schema, scope) in enumerate(self._facts.facts):
            before = len(demands)
            if key in schema.get("properties", ()):
                demands.append((schema["properties"][key], scope))
            if "patternProperties" in schema:
                demands += [
                    (part, scope) for pattern, part in schema["patternProperties"].items() if compiled(pattern).has(key)
                ]
            if len(demands) == before and "additionalProperties" in schema:
                demands.append((schema["additionalProperties"], scope))
            if "unevaluatedProperties" in schema and not any(
                _evaluates(inner.schema, key, inner.schema is schema) for inner in self._facts.within(number)
            ):
                demands.append((schema["unevaluatedProperties"], scope))
        self._demands[key] = demands
        return demands

    def _height(self, key: str) -> float:
        return max(
            [math.inf if part is False else self._writer.height(part, scope) for part, scope in self._property(key)],
            default=0.0,
        )

    def _wants(self, key: str) -> bool:
        """Return True if an optional property is to be written."""
        if self._depth >= self._writer.deep:
            return False
        height = self._height(key)
        return (
            height < math.inf
            and not (height > 0 and self._depth >= self._writer.deep - 2)
            and self._writer.rng.random() < 0.8
        )

    def _add_some(self, name: Placed, part: Placed) -> None:
        """Add a property whose name and whose value obey these."""
        for key in self._declared:
            if self._writer.is_valid(key, name) and self._add(key, part):
                return
        for _ in range(_TRIES_FOR_ANOTHER):
            key = self._new_name([name])
            if self._add(key, part):
                return
        raise NoValueError("found no property that is as it must be")

    def _new_name(self, demands: Sequence[Placed]) -> str:
        """Return a name that no property has yet. Raises NoValueError."""
        taken = frozenset([lookup_key(key) for key in self._made])
        name: str = self._writer.value([*demands, *self._names, _TEXT], "tag", self._depth + 1, taken)
        return name

    def _fill(self) -> None:
        """Add properties where the schema asks for more, or is nothing but a map."""
        wanted = self._least
        facts = self._facts
        patterns = [pattern for patterns in facts.each("patternProperties") for pattern in patterns]
        others = [fact for fact in facts.facts if isinstance(fact.schema.get("additionalProperties"), Mapping)]
        is_map = not self._made and not self._declared and self._depth < self._writer.deep
        free = any(fact.schema["additionalProperties"] for fact in others) or patterns
        heights = [self._writer.height(fact.schema["additionalProperties"], fact.scope) for fact in others]
        if is_map and free and math.inf not in heights:
            wanted = max(wanted, min(2, self._most))
        spend(max(0, wanted - len(self._made)))
        for key in self._declared:
            if len(self._made) >= self._least:
                break
            if key not in self._made:
                self._add(key)
        closed = any(fact.schema.get("additionalProperties") is False for fact in facts.facts)
        misses = 0
        while len(self._made) < wanted and misses < _TRIES_FOR_ANOTHER:
            spend()
            demand: list[Placed] = []
            if patterns and (closed or self._writer.rng.random() < 0.5):
                demand = [({"pattern": self._writer.rng.choice(patterns)}, ("",))]
            try:
                if not self._add(self._new_name(demand)):
                    misses += 1
            except NoValueError:
                misses += 1

    def _drop_what_lacks_others(self) -> None:
        """Remove optional properties that need others which are not there."""
        changed = True
        while changed:
            changed = False
            for name, needed in self._needs:
                if name in self._made and any(each not in self._made for each in needed):
                    del self._made[name]
                    changed = True


def _add_needed(names: dict[str, None], needs: Sequence[tuple[str, Sequence[str]]]) -> None:
    pending = list(names) if needs else []
    while pending:
        spend()
        name = pending.pop()
        for needing, needed in needs:
            if needing == name:
                pending += [each for each in needed if each not in names]
                names.update(dict.fromkeys(needed))


def _evaluates(schema: Schema, key: str, itself: bool) -> bool:
    return (
        key in schema.get("properties", ())
        or "additionalProperties" in schema
        or (not itself and "unevaluatedProperties" in schema)
        or any(compiled(pattern).has(key) for pattern in schema.get("patternProperties", ()))
    )
