"""The check that something is a JSON Schema (draft 2020-12), in the words of python-jsonschema.

The meta-schema is applied by hand here because a schema is checked before every reply that obeys it, and because general
validators follow 64 references for each part of it. Regular expressions must be some; that this server cannot follow one is
found when a value must match it. A schema may be nested up to `MOST_LEVELS` levels of objects and arrays, and its bounds
must be doubles.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from llmirage_server.replies.structured.budget import spend
from llmirage_server.replies.structured.matcher import compiled
from llmirage_server.replies.structured.regex_syntax import NoPatternError, PatternError
from llmirage_server.replies.structured.schema import ONE_SCHEMA, SCHEMA_LIST, SCHEMAS_BY_NAME, SchemaError

MOST_LEVELS = 200  # of objects and arrays within each other
_SHOWN_CHARACTERS = 200  # of a value in a message
_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")

_Path = tuple["_Path", str | int] | None  # the way to a part of a schema: the way to what holds it, and its key there
_Found = tuple[str, tuple[str | int, ...]]


def check_schema(schema: Any) -> None:
    """Raise SchemaError for what is no schema. Of several problems the one nearest to the root is told."""
    problems: list[_Found] = []
    waiting: list[tuple[Any, _Path, int, bool]] = [(schema, None, 1, True)]
    while waiting:
        spend()
        value, path, level, is_schema = waiting.pop()
        if level > MOST_LEVELS:
            raise SchemaError(f"it is nested too deeply: more than {MOST_LEVELS} levels")
        if isinstance(value, Mapping):
            for key, inner in value.items():
                _check_keyword(key, inner, (path, key), level + 1, is_schema, waiting, problems)
        elif is_schema:
            if not isinstance(value, bool):
                problems.append((f"{shown(value)} is not of type 'object', 'boolean'", _keys(path)))
        elif isinstance(value, list):
            spend(len(value))
            waiting += [(inner, path, level + 1, False) for inner in value if isinstance(inner, (dict, list))]
    if problems:
        # As python-jsonschema chooses: the shortest way, and of these the last in the order of names.
        message, keys = max(problems, key=lambda found: (-len(found[1]), list(map(str, found[1]))))
        raise SchemaError(message, ".".join(map(str, keys)))


def _check_keyword(
    key: str,
    value: Any,
    path: _Path,
    level: int,
    is_schema: bool,
    waiting: list[tuple[Any, _Path, int, bool]],
    problems: list[_Found],
) -> None:
    kind = _KEYWORDS.get(key) if is_schema else None
    if kind is None:
        if isinstance(value, (dict, list)):
            waiting.append((value, path, level, False))
        return
    if isinstance(kind, str):
        if kind == "schema":
            waiting.append((value, path, level, True))
        elif kind == "map" and isinstance(value, dict):
            waiting += [(inner, (path, name), level + 1, True) for name, inner in value.items()]
            if key == "patternProperties":
                problems += [(problem, _keys(path)) for name in value if (problem := _pattern_problem(name))]
        elif kind == "list" and isinstance(value, list) and value:
            waiting += [(inner, (path, index), level + 1, True) for index, inner in enumerate(value)]
        else:
            message = "[] should be non-empty" if value == [] and kind == "list" else ""
            message = message or f"{shown(value)} is not of type '{'object' if kind == 'map' else 'array'}'"
            problems.append((message, _keys(path)))
        return
    if problem := kind(value):
        problems.append((problem, _keys(path)))
    elif isinstance(value, (dict, list)):
        waiting.append((value, path, level, False))
        if key in ("dependentRequired", "dependencies") and isinstance(value, dict):
            _check_dependencies(key, value, path, level, waiting, problems)


def _check_dependencies(
    key: str,
    value: Mapping[str, Any],
    path: _Path,
    level: int,
    waiting: list[tuple[Any, _Path, int, bool]],
    problems: list[_Found],
) -> None:
    for name, inner in value.items():
        if key == "dependentRequired":
            if problem := _names_problem(inner):
                problems.append((problem, _keys((path, name))))
        elif isinstance(inner, (dict, bool)):
            waiting.append((inner, (path, name), level + 1, True))
        elif _names_problem(inner):
            problems.append((f"{shown(inner)} is not valid under any of the given schemas", _keys((path, name))))


def shown(value: Any) -> str:
    """Return a value as `repr` writes it, cut if it is long."""
    spend(4)
    written: list[str] = []
    _write(value, written, _SHOWN_CHARACTERS)
    text = "".join(written)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}..."


def _write(value: Any, written: list[str], room: int) -> int:
    """Add what `repr` writes, at least as far as there is room; the rest of the room is returned."""
    if room < 0:
        return room
    if isinstance(value, (dict, list)):
        is_dict = isinstance(value, dict)
        written.append("{" if is_dict else "[")
        room -= 1
        for place, item in enumerate(value):
            start = ", " if place else ""
            written.append(start)
            room = _write(item, written, room - len(start))
            if is_dict:
                written.append(": ")
                room = _write(value[item], written, room - 2)
            if room < 0:
                break
        written.append("}" if is_dict else "]")
        return room - 1
    text = repr(value[: _SHOWN_CHARACTERS + 1] if isinstance(value, str) else value)
    written.append(text)
    return room - len(text)


def _keys(path: _Path) -> tuple[str | int, ...]:
    keys: list[str | int] = []
    while path is not None:
        path, key = path
        keys.append(key)
    return tuple(reversed(keys))


# --- single keywords: each returns what is wrong with a value, "" for nothing --------------------------------------------


def _of_type(kinds: type | tuple[type, ...], name: str) -> Callable[[Any], str]:
    def problem(value: Any) -> str:
        is_one = isinstance(value, kinds) and (kinds is bool or not isinstance(value, bool))
        return "" if is_one else f"{shown(value)} is not of type '{name}'"

    return problem


_string, _boolean = _of_type(str, "string"), _of_type(bool, "boolean")
_array, _object, _any_number = _of_type(list, "array"), _of_type(dict, "object"), _of_type((int, float), "number")


def _number(value: Any) -> str:
    if problem := _any_number(value):
        return problem
    return f"{shown(value)} is too large a number" if abs(value) > sys.float_info.max else ""


def _factor(value: Any) -> str:
    return _number(value) or (f"{shown(value)} is less than or equal to the minimum of 0" if value <= 0 else "")


def _count(value: Any) -> str:
    if isinstance(value, bool) or not (isinstance(value, int) or (isinstance(value, float) and value.is_integer())):
        return f"{shown(value)} is not of type 'integer'"
    return f"{shown(value)} is less than the minimum of 0" if value < 0 else ""


def _pattern_problem(value: Any) -> str:
    if problem := _string(value):
        return problem
    try:
        compiled(value)
    except NoPatternError:
        return f"{shown(value)} is not a 'regex'"
    except PatternError:
        pass  # an expression that this server cannot follow hurts nobody until a value must match it
    return ""


def _names_problem(value: Any) -> str:
    if problem := _array(value):
        return problem
    spend(len(value))
    strange = next((name for name in value if not isinstance(name, str)), None)
    if strange is not None or None in value:
        return _string(strange)
    return f"{shown(value)} has non-unique elements" if len(set(value)) < len(value) else ""


def _types(value: Any) -> str:
    names = [value] if isinstance(value, str) else value
    known = isinstance(names, list) and bool(names) and all(isinstance(name, str) and name in _TYPES for name in names)
    return "" if known and len(set(names)) == len(names) else f"{shown(value)} is not valid under any of the given schemas"


def _anchor(value: Any) -> str:
    fits = isinstance(value, str) and value.isascii() and value[:1].replace("_", "a").isalpha()
    if fits and all(character.isalnum() or character in "-._" for character in value):
        return ""
    return _string(value) or f"{shown(value)} does not match '^[A-Za-z_][-A-Za-z0-9._]*$'"


def _id(value: Any) -> str:
    if problem := _string(value):
        return problem
    return f"{shown(value)} does not match '^[^#]*#?$'" if "#" in value[:-1] else ""


_KEYWORDS: dict[str, str | Callable[[Any], str]] = {
    **dict.fromkeys(ONE_SCHEMA, "schema"), **dict.fromkeys(SCHEMAS_BY_NAME, "map"), **dict.fromkeys(SCHEMA_LIST, "list"),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _number),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minContains", "maxContains", "minProperties",
                     "maxProperties"), _count),
    **dict.fromkeys(("$ref", "$dynamicRef", "$recursiveRef", "$schema", "$comment", "title", "description", "format",
                     "contentEncoding", "contentMediaType"), _string),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), _boolean),
    **dict.fromkeys(("$anchor", "$dynamicAnchor", "$recursiveAnchor"), _anchor),
    **dict.fromkeys(("enum", "examples"), _array),
    **dict.fromkeys(("dependentRequired", "dependencies", "$vocabulary"), _object),
    "$id": _id, "type": _types, "pattern": _pattern_problem, "multipleOf": _factor, "required": _names_problem,
}  # fmt: skip
