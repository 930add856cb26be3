"""Keywords of JSON Schema that look at the value alone, not at its parts: each check returns what is wrong, "" for nothing.

The messages are those of python-jsonschema.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from datetime import date
from fractions import Fraction
from typing import Any, NamedTuple

from llmirage_server.replies.structured.budget import spend, spend_characters
from llmirage_server.replies.structured.matcher import compiled
from llmirage_server.replies.structured.regex_syntax import NoPatternError, PatternError
from llmirage_server.replies.structured.schema import equal
from llmirage_server.replies.structured.schema_check import shown


def kind_of(value: Any) -> str:
    """Return the JSON type of a value; an integer is a number."""
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
    if isinstance(value, (Mapping, list)):
        found = any(equal(each, value) for each in demand)
    else:
        spend(len(demand) // 16)
        found = any(each == value and isinstance(each, bool) == isinstance(value, bool) for each in demand)
    return "" if found else f"{shown(value)} is not one of {shown(demand)}"


def _const(demand: Any, value: Any) -> str:
    return "" if equal(demand, value) else f"{shown(demand)} was expected"


def is_multiple(value: float, step: float) -> bool:
    """Return True for a multiple of what JSON writes, or of what python-jsonschema takes for one."""
    return is_quotient_whole(value, step) or (isinstance(step, float) and not (exact(value) / exact(step)).denominator - 1)


def exact(value: float) -> Fraction:
    """Return a number as JSON writes it: 0.01 is a hundredth."""
    return Fraction(repr(value)) if isinstance(value, float) else Fraction(value)


def is_quotient_whole(value: float, step: float) -> bool:
    """Return True for a multiple, as python-jsonschema computes it: of floats, by their quotient."""
    try:
        quotient = value / step if isinstance(step, float) else value % step
        return int(quotient) == quotient if isinstance(step, float) else not quotient
    except (OverflowError, ValueError):
        return (Fraction(value) / Fraction(step)).denominator == 1


def _multiple(demand: Any, value: Any) -> str:
    return "" if is_multiple(value, demand) else f"{shown(value)} is not a multiple of {demand}"


def _pattern(demand: Any, value: Any) -> str:
    return "" if compiled(demand).has(value) else f"{shown(value)} does not match {demand!r}"


def _unique(demand: Any, value: Any) -> str:
    if not demand:
        return ""
    seen = set()
    for each in value:
        key = lookup_key(each)
        if key in seen:
            return f"{shown(value)} has non-unique elements"
        seen.add(key)
    return ""


def lookup_key(value: Any) -> Any:
    """Return something to look a JSON value up by, equal for equal values: of a scalar, itself and False."""
    spend()
    if isinstance(value, Mapping):
        return frozenset([(name, lookup_key(inner)) for name, inner in value.items()])
    if isinstance(value, list):
        return ("list", *[lookup_key(inner) for inner in value])
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
    return "" if has_format(demand, value) else f"{shown(value)} is not a {demand!r}"


class StringFormat(NamedTuple):
    """A format of strings. matched: an expression that such texts match; written: one of texts that are certainly of it.

    check: what an expression cannot say.
    """

    matched: str
    written: str
    check: Callable[[str], object] | None = None


def has_format(form: str, value: str) -> bool:
    """Return True if a string is of a format, or the format is not known."""
    known = FORMATS.get(form)
    if known is None:
        return True
    if known.matched and not compiled(known.matched).has(value):
        return False
    if known.check is None:
        return True
    spend_characters(len(value))
    try:
        known.check(value)
    except ValueError:
        return False
    return True


_DATE = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
_SIMPLE_DATE = r"(19|20)\d{2}-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])"
_TIME = r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)"
_DURATION = r"P(?!$)(\d+W|(\d+D|\d+M(\d+D)?|\d+Y(\d+M(\d+D)?)?)?(T(\d+S|\d+M(\d+S)?|\d+H(\d+M(\d+S)?)?))?)"
_LABEL = r"(?!(?![Xx][Nn]--)..--)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*"
_SIMPLE_HOST = r"[a-z0-9]{1,8}(\.[a-z]{2,8})*"
_ATOM = r"[\w!#$%&'*+/=?^`{|}~-]+(\.[\w!#$%&'*+/=?^`{|}~-]+)*"
_POINTER = r"(/([^~/]|~[01])*)*"


def _uri(more: str, relative: bool) -> str:
    """Return an expression of URIs (RFC 3986), with more characters in IRIs."""
    character = rf"([\w.~!$&'()*+,;=:@-{more}]|%[0-9A-Fa-f]{{2}})".replace("@-", "@\\-")
    host = rf"(\[[0-9A-Fa-f:.]+\]|([\w.~!$&'()*+,;={more}\-]|%[0-9A-Fa-f]{{2}})*)"
    authority = rf"//(([\w.~!$&'()*+,;=:{more}\-]|%[0-9A-Fa-f]{{2}})*@)?{host}(:\d*)?(/{character}*)*"
    end = rf"(\?({character}|[/?])*)?(#({character}|[/?])*)?"
    absolute = rf"[A-Za-z][A-Za-z\d+.-]*:({authority}|/?({character}+(/{character}*)*)?)"
    segment = character.replace(":", "", 1)
    others = rf"|{authority}|/({character}+(/{character}*)*)?|({segment}+(/{character}*)*)?" if relative else ""
    return rf"^({absolute}{others}){end}$"


_OTHER_CHARACTERS = r"\u00a0-\ud7ff\uf900-\ufdcf\ufdf0-\uffef\u{10000}-\u{1fffd}"
_SIMPLE_PATH = r"(/[a-z0-9]+)*"
_SIMPLE_URI = rf"^[a-z]+://{_SIMPLE_HOST}{_SIMPLE_PATH}$"
_URI = StringFormat(_uri("", False), _SIMPLE_URI)
_EMAIL = StringFormat(
    rf"^{_ATOM}@({_LABEL}(\.{_LABEL})*|\[[0-9A-Fa-f.:IPv]+\])$|^\"[^\"\\]*\"@", rf"^[a-z0-9]+(\.[a-z0-9]+)*@{_SIMPLE_HOST}$"
)
_BASE64 = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_UUID = r"^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$"
_IPV4_BYTE = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_TEMPLATE = (
    r"^([^\x00-\x20\"%<>\\^`{|}\x7f]|%[0-9A-Fa-f]{2}|"
    r"\{[+#./;?&=,!@|]?VAR(,VAR)*\})*$".replace("VAR", r"(\w|%[0-9A-Fa-f]{2})+(\.(\w|%[0-9A-Fa-f]{2})+)*(:[1-9]\d{0,3}|\*)?")
)


def _check_leap_second(time: str) -> None:
    """Raise ValueError for a second 60 at another time than the end of a day in UTC."""
    if time[6:8] == "60":
        zone = time[-6:] if time[-1] not in "zZ" else "+00:00"
        offset = int(zone[:3]) * 60 + int(zone[0] + zone[4:])
        if (int(time[:2]) * 60 + int(time[3:5]) - offset) % 1440 != 1439:
            raise ValueError("no leap second")


def _check_moment(moment: str) -> None:
    """Raise ValueError for a day that a month does not have, and for a wrong leap second."""
    date.fromisoformat(moment[:10])
    _check_leap_second(moment[11:])


def _check_pattern(value: str) -> None:
    """Raise ValueError for what is no regular expression."""
    try:
        compiled(value)
    except NoPatternError:
        raise
    except PatternError:
        pass  # it is one, of a kind that this server cannot follow


def _same(expression: str) -> StringFormat:
    return StringFormat(expression, expression)


FORMATS: dict[str, StringFormat] = {
    "date": StringFormat(f"^{_DATE}$", f"^{_SIMPLE_DATE}$", date.fromisoformat),
    "time": StringFormat(f"^{_TIME}$", r"^(0\d|1\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?Z$", _check_leap_second),
    "date-time": StringFormat(f"^{_DATE}[Tt]{_TIME}$", rf"^{_SIMPLE_DATE}T(0\d|1\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?Z$",
                        _check_moment),
    "duration": StringFormat(f"^{_DURATION}$", r"^P([1-9]\d*D|T[1-9]\d*[HMS])$"),
    "email": _EMAIL, "idn-email": StringFormat("@", _EMAIL.written),
    "hostname": StringFormat(f"^{_HOST}$", f"^{_SIMPLE_HOST}$"), "idn-hostname": StringFormat("", f"^{_SIMPLE_HOST}$"),
    "ipv4": _same(rf"^{_IPV4_BYTE}(\.{_IPV4_BYTE}){{3}}$"),
    "ipv6": StringFormat("^[0-9A-Fa-f:.]+$", "^(([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}|::[0-9a-f]{0,4})$", ipaddress.IPv6Address),
    "uri": _URI, "url": _URI, "iri": StringFormat(_uri(_OTHER_CHARACTERS, False), _SIMPLE_URI),
    "uri-reference": StringFormat(_uri("", True), rf"^{_SIMPLE_PATH}$"),
    "iri-reference": StringFormat(_uri(_OTHER_CHARACTERS, True), rf"^{_SIMPLE_PATH}$"),
    "uri-template": StringFormat(_TEMPLATE, rf"^{_SIMPLE_PATH}$"),
    "uuid": _same(_UUID),
    "json-pointer": StringFormat(f"^{_POINTER}$", rf"^{_SIMPLE_PATH}$"),
    "relative-json-pointer": StringFormat(rf"^(0|[1-9]\d*)(#|{_POINTER})$", rf"^(0|[1-9]\d*){_SIMPLE_PATH}$"),
    "regex": StringFormat("", "^[a-z]*$", _check_pattern),
    "byte": _same(_BASE64), "base64": _same(_BASE64),
}  # fmt: skip


def _least(few: str) -> Callable[[Any, Any], str]:
    return lambda demand, value: (
        "" if len(value) >= demand else f"{shown(value)} {'should be non-empty' if demand == 1 else few}"
    )


def _most(many: str) -> Callable[[Any, Any], str]:
    return lambda demand, value: (
        "" if len(value) <= demand else f"{shown(value)} {'is expected to be empty' if demand == 0 else many}"
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
    "minLength": _least("is too short"), "maxLength": _most("is too long"),
    "pattern": _pattern, "format": _format,
}  # fmt: skip
_ARRAY: dict[str, Check] = {
    "minItems": _least("is too short"), "maxItems": _most("is too long"),
    "uniqueItems": _unique,
}  # fmt: skip
_OBJECT: dict[str, Check] = {
    "minProperties": _least("does not have enough properties"),
    "maxProperties": _most("has too many properties"), "required": _required,
    "dependentRequired": _dependent_required,
}  # fmt: skip
CHECKS: dict[str, dict[str, Check]] = {  # by the type of the value, by keyword
    "string": {**_ANY, **_STRING}, "number": {**_ANY, **_NUMBER}, "array": {**_ANY, **_ARRAY},
    "object": {**_ANY, **_OBJECT}, "boolean": _ANY, "null": _ANY,
}  # fmt: skip
