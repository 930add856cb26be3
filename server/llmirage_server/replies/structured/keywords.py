"""Keywords of JSON Schema that look at the value alone, not at its parts: each check returns what is wrong, "" for nothing.

The messages are those of python-jsonschema.
"""

from __future__ import annotations

import ipaddress
import uuid
from collections.abc import Callable, Mapping
from datetime import date
from fractions import Fraction
from typing import Any

from llmirage_server.replies.structured.budget import spend, spend_characters
from llmirage_server.replies.structured.matcher import PatternError, compiled
from llmirage_server.replies.structured.schema import equal
from llmirage_server.replies.structured.schema_check import shown


def kind_of(value: Any) -> str:
    """The JSON type of a value; an integer is a number."""
    if isinstance(value, str):
        return "string"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "number"
    if value is None:
        return "null"
    return "object" if isinstance(value, Mapping) else "array"


def _type(demand: Any, value: Any) -> str:
    kind = kind_of(value)
    whole = kind == "number" and (isinstance(value, int) or value.is_integer())
    names = [demand] if isinstance(demand, str) else demand
    if any(name == kind or (name == "integer" and whole) for name in names):
        return ""
    return f"{shown(value)} is not of type {', '.join(map(repr, names))}"


def _enum(demand: Any, value: Any) -> str:
    return "" if any(equal(each, value) for each in demand) else f"{shown(value)} is not one of {shown(demand)}"


def _const(demand: Any, value: Any) -> str:
    return "" if equal(demand, value) else f"{shown(demand)} was expected"


def _multiple(demand: Any, value: Any) -> str:
    try:
        quotient = value / demand if isinstance(demand, float) else value % demand
        failed = int(quotient) != quotient if isinstance(demand, float) else bool(quotient)
    except (OverflowError, ValueError):
        failed = (Fraction(value) / Fraction(demand)).denominator != 1
    return f"{shown(value)} is not a multiple of {demand}" if failed else ""


def _pattern(demand: Any, value: Any) -> str:
    return "" if compiled(demand).search(value) else f"{shown(value)} does not match {demand!r}"


def _unique(demand: Any, value: Any) -> str:
    if not demand:
        return ""
    seen = set()
    for each in value:
        key = _key(each)
        if key in seen:
            return f"{shown(value)} has non-unique elements"
        seen.add(key)
    return ""


def _key(value: Any) -> Any:
    """Something to look a JSON value up by, equal for equal values."""
    spend()
    if isinstance(value, Mapping):
        return frozenset([(name, _key(inner)) for name, inner in value.items()])
    if isinstance(value, list):
        return tuple([_key(inner) for inner in value])
    return (value, isinstance(value, bool))


def _required(demand: Any, value: Any) -> str:
    spend(len(demand) // 4)
    return next((f"{name!r} is a required property" for name in demand if name not in value), "")


def _dependent_required(demand: Any, value: Any) -> str:
    for name, needed in demand.items():
        spend(1 + len(needed) // 4)
        if name in value and (missing := next((each for each in needed if each not in value), None)) is not None:
            return f"{missing!r} is a dependency of {name!r}"
    return ""


def _format(demand: Any, value: Any) -> str:
    check = _FORMATS.get(demand)
    return "" if check is None or check(value) else f"{shown(value)} is not a {demand!r}"


def _parsed(parse: Callable[[str], Any], value: str) -> bool:
    spend_characters(len(value))
    try:
        parse(value)
    except ValueError:
        return False
    return True


def _is_date(value: str) -> bool:
    return len(value) == 10 and value.isascii() and value[4] == value[7] == "-" and _parsed(date.fromisoformat, value)


def _is_uuid(value: str) -> bool:
    return len(value) == 36 and all(value[place] == "-" for place in (8, 13, 18, 23)) and _parsed(uuid.UUID, value)


def _is_pattern(value: str) -> bool:
    try:
        compiled(value)
    except PatternError:
        return False
    return True


_FORMATS: dict[str, Callable[[str], bool]] = {
    "date": _is_date, "uuid": _is_uuid, "regex": _is_pattern,
    "email": lambda value: "@" in value, "idn-email": lambda value: "@" in value,
    "ipv4": lambda value: _parsed(ipaddress.IPv4Address, value),
    "ipv6": lambda value: "%" not in value and _parsed(ipaddress.IPv6Address, value),
}  # fmt: skip


def _least(measure: Callable[[Any], Any], one: str, few: str) -> Callable[[Any, Any], str]:
    return lambda demand, value: "" if measure(value) >= demand else f"{shown(value)} {one if demand == 1 else few}"


def _most(measure: Callable[[Any], Any], many: str) -> Callable[[Any, Any], str]:
    return lambda demand, value: (
        "" if measure(value) <= demand else f"{shown(value)} {'is expected to be empty' if demand == 0 else many}"
    )


Check = Callable[[Any, Any], str]
_ANY: dict[str, Check] = {"type": _type, "enum": _enum, "const": _const}
_NUMBER: dict[str, Check] = {
    "minimum": lambda demand, value: "" if value >= demand else f"{shown(value)} is less than the minimum of {demand}",
    "maximum": lambda demand, value: "" if value <= demand else f"{shown(value)} is greater than the maximum of {demand}",
    "exclusiveMinimum": lambda demand, value: (
        "" if value > demand else f"{shown(value)} is less than or equal to the minimum of {demand}"
    ),
    "exclusiveMaximum": lambda demand, value: (
        "" if value < demand else f"{shown(value)} is greater than or equal to the maximum of {demand}"
    ),
    "multipleOf": _multiple,
}
_STRING: dict[str, Check] = {
    "minLength": _least(len, "should be non-empty", "is too short"), "maxLength": _most(len, "is too long"),
    "pattern": _pattern, "format": _format,
}  # fmt: skip
_ARRAY: dict[str, Check] = {
    "minItems": _least(len, "should be non-empty", "is too short"), "maxItems": _most(len, "is too long"),
    "uniqueItems": _unique,
}  # fmt: skip
_OBJECT: dict[str, Check] = {
    "minProperties": _least(len, "should be non-empty", "does not have enough properties"),
    "maxProperties": _most(len, "has too many properties"), "required": _required,
    "dependentRequired": _dependent_required,
}  # fmt: skip
CHECKS: dict[str, dict[str, Check]] = {  # by the type of the value, by keyword
    "string": {**_ANY, **_STRING}, "number": {**_ANY, **_NUMBER}, "array": {**_ANY, **_ARRAY},
    "object": {**_ANY, **_OBJECT}, "boolean": _ANY, "null": _ANY,
}  # fmt: skip
