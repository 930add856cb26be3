"""Arguments for a call: valid against the tool's schema, and taken from what the user said where that is to be seen."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from llmirage_server.replies.hearing import (
    ends_of_route,
    lower_places,
    numbers,
    operands,
    people,
    places,
    proper_names,
    word_set,
    words_of,
)
from llmirage_server.replies.structured import strings
from llmirage_server.replies.structured.schema import Resolver, SchemaError, types_of
from llmirage_server.replies.structured.values import validator_for, value_for

_ANYTHING: dict[str, Any] = {"type": "object", "properties": {}}
_PLACE_NAMES = word_set("city location place town country region address destination origin departure arrival area where")
_PERSON_NAMES = word_set("name fullname person user username player author customer recipient employee patient")
_TEXT_NAMES = word_set("query question prompt text message input content request task topic search keyword q body")
_STARTS = word_set("origin departure source start from")
_ENDS = word_set("destination arrival target end to")
_ADDRESSEES = word_set("to cc recipient recipients")
_GROUPS = word_set("participants attendees people persons guests members invitees")
_FILE_NAMES = word_set("path file filename filepath")
_FILE = re.compile(r"[\w./~-]*\w\.[A-Za-z]\w{0,5}\b|[\w.~-]*/[\w./~-]+")
_FORMULA_NAMES = word_set("expression formula equation calculation math expr")
_QUOTED = re.compile(r"[\"“]([^\"”]+)[\"”]|(?<!\w)'([^']{2,})'(?!\w)")
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
    if sum([bool(words_of(name) & _PLACE_NAMES) for name in properties]) == 1:
        return max(1, len(places(said)))
    return 1


class _Heard:
    """What a text says, taken piece by piece."""

    def __init__(self, said: str, turn: int, quoting: bool, first_numbers: list[str]) -> None:
        self._said = said
        self._turn = turn
        self._quoting = quoting
        self._numbers = first_numbers or numbers(said)
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
        words = words_of(name)
        shape = _SHAPES.get(schema.get("format", "")) or next((_SHAPES[w] for w in sorted(words) if w in _SHAPES), None)
        if shape is None and words & _ADDRESSEES and (match := _SHAPES["email"].search(self._said)):
            return match.group(0)
        if shape is None and "format" in schema:
            return None
        if shape is not None:
            return match.group(0) if (match := shape.search(self._said)) else None
        if words & _PERSON_NAMES and (named := people(self._said)):
            return named[self._turn % len(named)]
        if words & _PLACE_NAMES:
            start, end = ends_of_route(self._said)
            if words & _STARTS and start:
                return start
            if words & _ENDS and end:
                return end
            found = places(self._said) or proper_names(self._said) or lower_places(self._said)
            return found[self._turn % len(found)] if found else None
        if words & _FILE_NAMES and (match := _FILE.search(self._said)):
            return match.group(0)
        if words & _FORMULA_NAMES and (match := _FORMULA.search(self._said)):
            return match.group(0).strip()
        if self._quoted and self._quoting:
            quoted: str = self._quoted.pop(0)
            return quoted
        if self._quoting and words & (_TEXT_NAMES | _FORMULA_NAMES):
            return self._said.strip()
        if self._quoting and not strings.is_known(name) and (named := proper_names(self._said)):
            return named[-1]
        return None

    def _array(self, name: str, schema: Mapping[str, Any]) -> list[Any] | None:
        items = schema.get("items")
        kinds = types_of(items) if isinstance(items, Mapping) else []
        if "integer" in kinds or "number" in kinds:
            taken = list(iter(lambda: self._number("number" in kinds), None))
            return taken or None
        if "string" in kinds and words_of(name) & _PLURAL_PLACES:
            return places(self._said) or None
        if "string" in kinds and words_of(name) & _GROUPS:
            return people(self._said) or None
        return None


_PLURAL_PLACES = frozenset(name + "s" for name in _PLACE_NAMES) | {"cities", "countries"}


def _mentions(lower_text: str, option: str) -> bool:
    return bool(option) and re.search(rf"(?<!\w){re.escape(option.lower())}(?!\w)", lower_text) is not None
