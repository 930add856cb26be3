"""Arguments for a call: valid against the tool's schema, and taken from what the user said where that is to be seen."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from llmirage_server.replies.structured.schema import Resolver, SchemaError, types_of
from llmirage_server.replies.structured.values import validator_for, value_for


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_ANYTHING: dict[str, Any] = {"type": "object", "properties": {}}
_PLACE_NAMES = _set("city location place town country region address destination origin area where")
_PERSON_NAMES = _set("name fullname person user username player author customer recipient employee patient")
_TEXT_NAMES = _set("query question prompt text message input content request task topic search keyword q body")
_FORMULA_NAMES = _set("expression formula equation calculation math expr")
_QUOTED = re.compile(r"[\"“]([^\"”]+)[\"”]|'([^']{2,})'")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?![\w])")
_PLACE = re.compile(r"\b(?:in|at|from|to|for|near|of)\s+((?:[A-Z][\w'’-]+)(?:[ ,]+(?:[A-Z][\w'’-]+))*)")
_ONE_MORE = re.compile(r"(?:\s*,\s*(?:and\s+)?|\s+and\s+(?:in\s+)?)([A-Z][\w'’-]+(?: [A-Z][\w'’-]+)*)")
_LOWER_PLACE = re.compile(r"\b(?:in|at|near|for)\s+(?!the\b|my\b|an?\b|this\b|that\b|it\b|me\b|today\b)([a-z]{3,})\b")
_STATE = re.compile(r"[A-Z]{2,3}")
_PROPER = re.compile(r"(?<=[a-z,] )([A-Z][\w'’-]+(?: [A-Z][\w'’-]+)*)")
_OPERAND = r"(-?\d+(?:\.\d+)?)"
_OPERATIONS: dict[frozenset[str], re.Pattern[str]] = {
    _set(names): re.compile(
        rf"{_OPERAND}\s*(?:{signs})\s*{_OPERAND}|(?:{verbs})\s+{_OPERAND}\s+(?:and|by|with|to|from)\s+{_OPERAND}",
        re.IGNORECASE,
    )
    for names, signs, verbs in (
        ("add plus sum addition", r"\+|plus", "add|sum(?: of)?"),
        ("subtract minus subtraction difference", r"-|minus", "subtract|difference between"),
        ("multiply times product multiplication", r"[*x×]|times|multiplied by", "multiply|product of"),
        ("divide division quotient", r"[/÷]|divided by|over", "divide"),
    )
}
_SUBJECT = re.compile(
    r"(?:^|[.!?:]\s+)([A-Z][\w'’-]+(?: [A-Z][\w'’-]+)*)(?=,? (?:is|was|has|aged|lives|works|and [A-Z]|\d)|, )", re.MULTILINE
)
_OPENERS = _set(
    "Add Ask Book Call Create Describe Do Does Email Extract Find Generate Get Give Hello Here Hey Hi How Is It Look "
    "Make Message My Parse Please Read Remind Return Schedule Search Send Show Tell That The There This User Was What When "
    "Where Which Who Write"
)
_CALENDAR = _set(
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday January February March April May June July August September "
    "October November December I"
)
_FORMULA = re.compile(r"[-(]*\d[\d\s.,()+*/^x×÷-]*\d\)*")
_SHAPES: dict[str, re.Pattern[str]] = {
    "email": re.compile(r"[\w.+-]+@[\w-]+\.[\w.]*\w"),
    "url": re.compile(r"https?://[^\s\"'<>)]+"),
    "uri": re.compile(r"https?://[^\s\"'<>)]+"),
    "date": re.compile(r"\b\d{4}-\d\d-\d\d\b"),
}


def arguments_for(schema: Any, said: str, seed: int, turn: int = 0, tool: str = "") -> dict[str, Any]:
    """Arguments valid against `schema` (None: no parameters), with what `said` names filled in.

    tool: its name, which may say which of the numbers are its operands.
    turn: the how-many-th call of this tool for the same words: several things of a kind are taken one after the other.
    Raises SchemaError where `value_for` does.
    """
    if schema is None or schema in ({}, True):
        schema = _ANYTHING
    value = value_for(schema, seed)
    if not isinstance(value, dict):
        raise SchemaError("a function's parameters must be of type object")
    return with_heard(value, schema, said, turn, tool)


def with_heard(
    value: dict[str, Any], schema: Any, said: str, turn: int = 0, tool: str = "", *, quoting: bool = True
) -> dict[str, Any]:
    """The value, with those of its properties that `said` names; still valid.

    quoting: texts may be what the user said, word for word.
    """
    resolver, valid = Resolver(schema), validator_for(schema)
    flat = resolver.flat(schema)
    heard = _Heard(said, turn, quoting, operands(tool, said))
    for name, sub in (flat.get("properties") or {}).items():
        if name not in value and name not in (flat.get("required") or ()):
            continue
        found = heard.value(name, resolver.flat(sub))
        if found is not None:
            changed = {**value, name: found}
            if valid.is_valid(changed):
                value = changed
    return value


def calls_wanted(schema: Any, said: str) -> int:
    """How many calls of one tool the words ask for: one for each of the places named, where it takes a place."""
    flat = Resolver(schema).flat(schema) if isinstance(schema, Mapping) else {}
    properties = flat.get("properties") or {}
    if any(_words(name) & _PLACE_NAMES for name in properties):
        return max(1, len(places(said)))
    return 1


def places(said: str) -> list[str]:
    """The places that a text names: "in Paris, London and New York" -> three."""
    found: list[str] = []
    for match in _PLACE.finditer(said):
        for place in re.split(r",\s*", match.group(1).strip(" ,.?!")):
            if found and _STATE.fullmatch(place):  # San Francisco, CA
                found[-1] += f", {place}"
            else:
                found.append(place)
        at = match.end()
        while more := _ONE_MORE.match(said, at):
            found.append(more.group(1))
            at = more.end()
    return list(dict.fromkeys(found))


def operands(tool: str, said: str) -> list[str]:
    """The numbers beside the operation a tool is named after: multiply, "what is 3 * 12 and 1 + 2?" -> 3, 12."""
    for word in _words(tool):
        for known, expression in _OPERATIONS.items():
            if word in known and (match := expression.search(said)) is not None:
                return [number for number in match.groups() if number is not None]
    return []


def people(said: str) -> list[str]:
    """Names of persons, or of what may be one: "John Doe is 30", "look up the user John", "Alice and Bob"."""
    found = []
    for match in _SUBJECT.finditer(said):
        first, _, rest = match.group(1).partition(" ")
        if name := rest if first in _OPENERS else match.group(1):
            found.append(name)
    for match in _PROPER.finditer(said):
        name = match.group(1)
        if name.isupper() or name.split()[0] in _CALENDAR or any(name in place for place in places(said)):
            continue
        found.append(name)
    return list(dict.fromkeys(found))


class _Heard:
    """What a text says, taken piece by piece."""

    def __init__(self, said: str, turn: int, quoting: bool, first_numbers: list[str]) -> None:
        self._said = said
        self._turn = turn
        self._quoting = quoting
        self._numbers = first_numbers or _NUMBER.findall(said)
        self._quoted: list[str] = [a or b for a, b in _QUOTED.findall(said)]

    def value(self, name: str, schema: Mapping[str, Any]) -> Any:
        """A value for this property if the text has one, else None."""
        if "enum" in schema:
            lower = self._said.lower()
            return next((option for option in schema["enum"] if isinstance(option, str) and _mentions(lower, option)), None)
        if "const" in schema:
            return None
        options = [option for key in ("anyOf", "oneOf") for option in schema.get(key, ())]
        for option in options:
            if isinstance(option, Mapping) and (found := self.value(name, option)) is not None:
                return found
        types = types_of(schema)
        if "integer" in types or "number" in types:
            return self._number("number" in types)
        if "string" in types or (not types and not options):
            return self._string(name, schema)
        if "array" in types:
            return self._array(name, schema)
        return None

    def _number(self, fraction: bool) -> float | int | None:
        for index, written in enumerate(self._numbers):
            value = float(written)
            if fraction or value.is_integer():
                del self._numbers[index]
                return int(value) if value.is_integer() else value
        return None

    def _string(self, name: str, schema: Mapping[str, Any]) -> str | None:
        words = _words(name)
        shape = _SHAPES.get(schema.get("format", "")) or next((_SHAPES[w] for w in sorted(words) if w in _SHAPES), None)
        if shape is not None:
            return match.group(0) if (match := shape.search(self._said)) else None
        if words & _PERSON_NAMES and (named := people(self._said)):
            return named[self._turn % len(named)]
        if words & _PLACE_NAMES:
            found: list[str] = places(self._said) or _PROPER.findall(self._said) or _LOWER_PLACE.findall(self._said)
            return found[self._turn % len(found)] if found else None
        if words & _FORMULA_NAMES and (match := _FORMULA.search(self._said)):
            return match.group(0).strip()
        if self._quoted and self._quoting:
            quoted: str = self._quoted.pop(0)
            return quoted
        if self._quoting and words & (_TEXT_NAMES | _FORMULA_NAMES):
            return self._said.strip()
        return None

    def _array(self, name: str, schema: Mapping[str, Any]) -> list[Any] | None:
        items = schema.get("items")
        kinds = types_of(items) if isinstance(items, Mapping) else []
        if "integer" in kinds or "number" in kinds:
            taken = list(iter(lambda: self._number("number" in kinds), None))
            return taken or None
        if "string" in kinds and _words(name) & _PLURAL_PLACES:
            return places(self._said) or None
        return None


_PLURAL_PLACES = frozenset(name + "s" for name in _PLACE_NAMES) | {"cities", "countries"}
_split_words: Callable[[str], list[str]] = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+").findall


def _words(name: str) -> set[str]:
    return {word.lower() for word in _split_words(name)}


def _mentions(lower_text: str, option: str) -> bool:
    return bool(option) and re.search(rf"(?<!\w){re.escape(option.lower())}(?!\w)", lower_text) is not None
