"""The facts that a value must obey to obey schemas, found by a tableau.

What applies schemas to the same value (`$ref`, `allOf`, `anyOf`, `not`, ...) is followed until only keywords of single types
are left, with one way taken wherever schemas leave a choice. A negation is such a choice: one keyword is violated.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from llmirage_server.replies.structured.budget import spend
from llmirage_server.replies.structured.keywords import FORMATS
from llmirage_server.replies.structured.schema import Placed, Resolver, Schema, Scope, types_of

_SHOWN_CHARACTERS = 100  # of a path in a message
_Pending = tuple[Any, Scope, int]  # a schema, its scope, and the number of the fact that applies it (-1: none)


class NoValueError(ValueError):
    """This way there is no value. path: the property or item, from the outermost."""

    def __init__(self, message: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.path = path

    def inside(self, key: str | int) -> NoValueError:
        return NoValueError(self.message, (key, *self.path))

    def alone(self) -> NoValueError:
        """Return one without the frames that raised it: an error that a variable of its own frames holds is a cycle."""
        return NoValueError(self.message, self.path)

    def __str__(self) -> str:
        path = ".".join(map(str, self.path))
        path = path if len(path) <= _SHOWN_CHARACTERS else f"{path[:_SHOWN_CHARACTERS]}..."
        return f"{path}: {self.message}" if path else self.message


# Keywords of facts that negations make; no JSON has such keys.
NOT_TYPE, NOT_VALUES, NOT_MULTIPLE, NOT_PATTERN, NOT_FORMAT, REPEATS, SOME = (
    ("not", name) for name in ("type", "values", "multipleOf", "pattern", "format", "uniqueItems", "some")
)
EVERY_TYPE = frozenset(("null", "boolean", "integer", "fraction", "string", "array", "object"))
TYPES = {name: frozenset([name]) for name in EVERY_TYPE} | {"number": frozenset(("integer", "fraction"))}
_APPLY = frozenset(("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "dependencies"))
_UNSURE = frozenset(("oneOf", "not", "if", "contains", "unevaluatedItems", "unevaluatedProperties", "dependentSchemas",
                     "dependentRequired", "dependencies"))  # fmt: skip


class Fact(NamedTuple):
    """A schema that a value must obey, of which only keywords of single types are left to obey."""

    schema: Any
    scope: Scope


class _OpenChoice(NamedTuple):
    """A keyword that can be obeyed in several ways. schema None: the keyword is a property that the part depends on."""

    keyword: str
    part: Any
    schema: Any
    scope: Scope
    number: int


class Facts:
    """The demands on a value: facts, choices that are open, and which facts a schema applies."""

    __slots__ = ("applied", "are_sure", "choices", "facts", "keywords", "known", "types")

    def __init__(self, other: Facts | None = None) -> None:
        self.facts: list[Fact] = []
        self.known: dict[tuple[int, Scope], int] = {}
        self.applied: dict[int, tuple[int, ...]] = {}
        self.choices: list[_OpenChoice] = []
        self.keywords: set[Any] = set()
        self.types = EVERY_TYPE  # that are allowed
        self.are_sure = True  # what is made of them need not be validated
        if other is not None:
            self.facts += other.facts
            self.known.update(other.known)
            self.applied.update(other.applied)
            self.choices += other.choices
            self.keywords |= other.keywords
            self.types = other.types
            self.are_sure = other.are_sure

    def add(self, schema: Schema, scope: Scope) -> None:
        self.facts.append(Fact(schema, scope))
        self.keywords.update(schema)
        if "type" in schema:
            self.types &= _named_types(schema["type"])
        if NOT_TYPE in schema:
            self.types -= _named_types(schema[NOT_TYPE])
        self.are_sure = self.are_sure and _UNSURE.isdisjoint(schema)

    def each(self, keyword: Any) -> list[Any]:
        """Return what the facts have at a keyword."""
        if keyword not in self.keywords:
            return []
        return [fact.schema[keyword] for fact in self.facts if keyword in fact.schema]

    def within(self, number: int) -> list[Fact]:
        """Return the facts that a fact applies, behind references too, and itself first."""
        found = {number: None}
        pending = [number]
        while pending:
            for inner in self.applied.get(pending.pop(), ()):
                if inner not in found:
                    found[inner] = None
                    pending.append(inner)
        return [self.facts[each] for each in found]


def _named_types(written: Any) -> frozenset[str]:
    if isinstance(written, str):
        return TYPES.get(written, frozenset())
    return frozenset().union(*[TYPES.get(name, frozenset()) for name in written])


class Ways:
    """The ways to obey schemas of one document, in an order that is drawn.

    exact: of `oneOf`, the other alternatives must not hold; else they are taken to exclude one another by themselves.
    """

    def __init__(self, resolver: Resolver, rng: random.Random, exact: bool) -> None:
        self._resolver = resolver
        self._rng = rng
        self._exact = exact

    def to_obey(self, demands: Sequence[Placed], deep: bool) -> Iterable[Facts]:
        """Return the ways to obey all demands. Raises NoValueError if there is none."""
        if len(demands) == 1:
            schema, scope = demands[0]
            if isinstance(schema, Mapping) and "$id" not in schema and _APPLY.isdisjoint(schema):
                facts = Facts()
                facts.add(schema, scope)
                return (facts,)
        return self._alternatives(Facts(), [(*demand, -1) for demand in reversed(demands)], deep)

    def _alternatives(self, facts: Facts, pending: list[_Pending], deep: bool) -> Iterator[Facts]:
        """Yield the ways to obey what is pending beside the facts. Raises NoValueError if there is none."""
        self._apply(facts, pending)
        if not facts.choices or "const" in facts.keywords or "enum" in facts.keywords:  # each value can be validated instead
            yield facts
            return
        choice = facts.choices.pop(0)
        problem: NoValueError | None = None
        found = False
        for option in self._options(choice, facts, deep):
            spend(2 + len(facts.facts) // 16)  # for the copy
            try:
                for each in self._alternatives(Facts(facts), option, deep):
                    found = True
                    yield each
            except NoValueError as error:
                problem = problem or error.alone()
        if not found:
            raise (problem or NoValueError(f"nothing satisfies its {choice.keyword!r}")).alone()

    def _apply(self, facts: Facts, pending: list[_Pending]) -> None:
        """Make facts of what is pending, and of what that applies to the value. Raises NoValueError for a contradiction."""
        while pending:
            schema, scope, by = pending.pop()
            if schema is True:
                continue
            if schema is False:
                raise NoValueError("a schema that is false allows no value")
            if "$id" in schema:
                scope = self._resolver.entered(schema, scope)
            number = facts.known.setdefault((id(schema), scope), len(facts.facts))
            if by >= 0:
                facts.applied[by] = (*facts.applied.get(by, ()), number)
            if number < len(facts.facts):
                continue
            facts.add(schema, scope)
            if _APPLY.isdisjoint(schema):
                continue
            spend(1 + len(facts.facts) // 64)
            if "$dynamicRef" in schema:
                pending.append((*self._resolver.dynamic_target(schema["$dynamicRef"], scope), number))
            if "$ref" in schema:
                pending.append((*self._resolver.target(schema["$ref"], scope), number))
            pending += [(part, scope, number) for part in reversed(schema.get("allOf", ()))]
            facts.choices += [_OpenChoice(key, schema[key], schema, scope, number)
                              for key in ("anyOf", "oneOf", "if", "not") if key in schema]  # fmt: skip
            for key in ("dependentSchemas", "dependencies"):
                facts.choices += [_OpenChoice(name, part, None, scope, number) for name, part in schema.get(key, {}).items()
                                  if not isinstance(part, list)]  # fmt: skip
        if not facts.types:
            raise NoValueError("no type is allowed by all that applies to it")
        if facts.types == TYPES["object"] and len(facts.facts) > 1:
            required = {name: None for names in facts.each("required") for name in names}
            for properties in facts.each("properties") if required else ():
                if (name := next((name for name in required if properties.get(name) is False), None)) is not None:
                    raise NoValueError(f"the property {name!r} is required, and nothing is allowed for it")

    def _options(self, choice: _OpenChoice, facts: Facts, deep: bool) -> Iterator[list[_Pending]]:
        """Yield what each way of a choice adds to what is pending, the likeliest first."""
        _, part, schema, scope, by = choice
        if schema is None:  # a schema that depends on a property
            name = choice.keyword
            present: list[_Pending] = [(part, scope, by), ({"required": [name]}, scope, -1)]
            absent: list[_Pending] = [({"properties": {name: False}}, scope, -1)]
            if any(name in names for names in facts.each("required")):
                yield from (present, [({NOT_TYPE: "object"}, scope, -1)])
            elif not deep and any(name in names for names in facts.each("properties")) and self._rng.random() < 0.5:
                yield from (present, absent)
            else:
                yield from (absent, present)
        elif choice.keyword == "if":
            holds: list[_Pending] = [(schema.get("then", True), scope, by), (part, scope, by)]
            fails: list[_Pending] = [(schema.get("else", True), scope, by), ({"not": part}, scope, -1)]
            yield from (holds, fails) if self._rng.random() < 0.5 else (fails, holds)
        elif choice.keyword == "not":
            negations: Iterable[Placed] = self._negations(part, scope)
            if deep:
                negations = sorted(negations, key=_is_nested)
            yield from ([(negation, place, -1)] for negation, place in negations)
        else:
            for index in self._order(part, scope, deep):
                others = part[:index] + part[index + 1 :] if choice.keyword == "oneOf" and self._exact else []
                yield [*[({"not": other}, scope, -1) for other in others], (part[index], scope, by)]

    def _order(self, options: Sequence[Any], scope: Scope, deep: bool) -> list[int]:
        """Return the places of alternatives: any but null first, as a rule; the shallowest when it is deep already."""
        spend(len(options))
        places = list(range(len(options)))
        self._rng.shuffle(places)
        heights = [self._resolver.height(option, scope) for option in options]
        if deep:
            return sorted(places, key=heights.__getitem__)
        kinds = [self._kinds(option, scope) for option in options]
        numeric = any("number" in kind or "integer" in kind for kind in kinds)
        null_last = self._rng.random() < 0.9

        def rank(place: int) -> int:
            if heights[place] == math.inf:
                return 3
            if kinds[place] == ["null"]:
                return 2 if null_last else 0
            # A number that may also be written as a string: a decimal, say.
            return 1 if numeric and kinds[place] == ["string"] and "enum" not in options[place] else 0

        return sorted(places, key=rank)

    def _kinds(self, schema: Any, scope: Scope) -> list[str]:
        """Return the types of an alternative as far as it, or what it refers to, names them."""
        for _ in range(4):
            if not isinstance(schema, Mapping):
                return []
            if kinds := types_of(schema):
                return kinds
            if "$ref" not in schema:
                break
            schema, scope = self._resolver.target(schema["$ref"], scope)
        return []

    def _negations(self, schema: Any, scope: Scope) -> Iterator[Placed]:
        """Yield the schemas one of which a value obeys that does not obey this one: a keyword is violated in each."""
        if not isinstance(schema, Mapping):
            if schema is False:
                yield True, scope
            return
        if "$id" in schema:
            scope = self._resolver.entered(schema, scope)
        for keyword, demand in schema.items():
            if keyword in _VIOLATIONS:
                yield from ((violation, scope) for violation in _VIOLATIONS[keyword](schema, demand, scope))
            elif keyword in ("$ref", "$dynamicRef"):
                [(target, place)] = self._resolver.referred({keyword: demand}, scope)
                yield {"not": target}, place
        if schema.get("format") in FORMATS:  # last: many validators do not assert formats
            yield {"type": "string", NOT_FORMAT: schema["format"]}, scope


def _is_nested(placed: Placed) -> bool:
    """Return True for a schema of objects or arrays."""
    return isinstance(placed[0], Mapping) and placed[0].get("type") in ("object", "array")


# --- negations ----------------------------------------------------------------------------------------------------------

_Violation = Callable[[Any, Any, Scope], Iterable[Schema]]  # of a keyword: by its schema, what stands at it, and the scope


def _of_type(kind: str, keyword: Any, value: Any) -> list[Schema]:
    return [{"type": kind, keyword: value}]


def _fewer(kind: str, keyword: str) -> _Violation:
    return lambda schema, least, scope: _of_type(kind, keyword, int(least) - 1) if least > 0 else []


def _more(kind: str, keyword: str) -> _Violation:
    return lambda schema, most, scope: _of_type(kind, keyword, int(most) + 1)


def _too_few_or_many(schema: Any, part: Any, scope: Scope) -> Iterator[Schema]:
    least, most = schema.get("minContains", 1), schema.get("maxContains")
    if least > 0:
        yield {"type": "array", "contains": part, "minContains": 0, "maxContains": int(least) - 1}
    if most is not None:
        yield {"type": "array", "contains": part, "minContains": int(most) + 1}


def _wrong_item(place: int, part: Any) -> Schema:
    return {"type": "array", "minItems": place + 1, "prefixItems": [*[True] * place, {"not": part}]}


def _wrong_other(schema: Any, part: Any, scope: Scope) -> list[Schema]:
    """Violate what additionalProperties says: by a property of a name that is not declared."""
    patterns = [{"pattern": pattern} for pattern in schema.get("patternProperties", ())]
    name = {"not": {"anyOf": [{"enum": list(schema.get("properties", ()))}, *patterns]}}
    return _of_type("object", SOME, (name, {"not": part}, scope))


_VIOLATIONS: dict[str, _Violation] = {
    "type": lambda schema, types, scope: [{NOT_TYPE: types}],
    "const": lambda schema, value, scope: [{NOT_VALUES: [value]}],
    "enum": lambda schema, values, scope: [{NOT_VALUES: values}],
    "minimum": lambda schema, bound, scope: _of_type("number", "exclusiveMaximum", bound),
    "maximum": lambda schema, bound, scope: _of_type("number", "exclusiveMinimum", bound),
    "exclusiveMinimum": lambda schema, bound, scope: _of_type("number", "maximum", bound),
    "exclusiveMaximum": lambda schema, bound, scope: _of_type("number", "minimum", bound),
    "multipleOf": lambda schema, step, scope: _of_type("number", NOT_MULTIPLE, step),
    "minLength": _fewer("string", "maxLength"), "maxLength": _more("string", "minLength"),
    "pattern": lambda schema, pattern, scope: _of_type("string", NOT_PATTERN, pattern),
    "minItems": _fewer("array", "maxItems"), "maxItems": _more("array", "minItems"),
    "uniqueItems": lambda schema, unique, scope: _of_type("array", REPEATS, True) if unique else [],
    "contains": _too_few_or_many,
    "items": lambda schema, part, scope: [_wrong_item(len(schema.get("prefixItems", ())), part)],
    "prefixItems": lambda schema, parts, scope: [_wrong_item(place, part) for place, part in enumerate(parts)],
    "unevaluatedItems": lambda schema, part, scope: [_wrong_item(len(schema.get("prefixItems", ())), part)],
    "required": lambda schema, names, scope: [{"type": "object", "properties": {name: False}} for name in names],
    "properties": lambda schema, parts, scope: [
        {"type": "object", "required": [name], "properties": {name: {"not": part}}} for name, part in parts.items()
    ],
    "minProperties": _fewer("object", "maxProperties"), "maxProperties": _more("object", "minProperties"),
    "patternProperties": lambda schema, parts, scope: [
        {"type": "object", SOME: ({"pattern": pattern}, {"not": part}, scope)} for pattern, part in parts.items()
    ],
    "additionalProperties": _wrong_other, "unevaluatedProperties": _wrong_other,
    "propertyNames": lambda schema, part, scope: [{"type": "object", SOME: ({"not": part}, True, scope)}],
    "dependentRequired": lambda schema, demands, scope: [
        {"type": "object", "required": [name], "properties": {each: False}}
        for name, needed in demands.items() for each in needed
    ],
    "dependentSchemas": lambda schema, parts, scope: [
        {"type": "object", "required": [name], "not": part} for name, part in parts.items()
    ],
    "anyOf": lambda schema, parts, scope: [{"allOf": [{"not": part} for part in parts]}],
    "allOf": lambda schema, parts, scope: [{"not": part} for part in parts],
    "oneOf": lambda schema, parts, scope: [
        {"allOf": [{"not": part} for part in parts]}, *[{"allOf": [one, other]} for one, other in combinations(parts, 2)]
    ],
    "not": lambda schema, part, scope: [part],
    "if": lambda schema, part, scope: [
        {"allOf": [part, {"not": schema.get("then", True)}]}, {"allOf": [{"not": part}, {"not": schema.get("else", True)}]}
    ],
}  # fmt: skip
