"""Arguments for a call: valid against the tool's schema, and taken from what the user said where that is to be seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmirage_server.replies.asked import shortened
from llmirage_server.replies.hearing import lower_places, places, proper_names, tickers, words_of
from llmirage_server.replies.listener import PLACE_NAMES, TICKER_NAMES, Hints, Listener
from llmirage_server.replies.structured.schema import Resolver, SchemaError
from llmirage_server.replies.structured.values import validator_for, value_for

_MOST_HEARD = 8000  # characters of a prompt that a structured answer may quote from
_ANYTHING: dict[str, Any] = {"type": "object", "properties": {}}


def arguments_for(
    schema: Any, said: str, seed: int, turn: int = 0, tool: str = "", hints: Hints | None = None
) -> dict[str, Any]:
    """Arguments valid against `schema` (None: no parameters), with what `said` names filled in.

    What may be left out is, where nothing was said of it. turn: the how-many-th call of this tool for the same words:
    several things of a kind are taken one after the other. Raises SchemaError where `value_for` does.
    """
    if schema is None or schema in ({}, True):
        schema = _ANYTHING
    value = value_for(schema, seed)
    if not isinstance(value, dict):
        raise SchemaError("a function's parameters must be of type object")
    return _heard(value, schema, Listener(said, turn, tool, hints or Hints()), prune=True)


def with_heard(value: dict[str, Any], schema: Any, said: str, *, quoting: bool = True) -> dict[str, Any]:
    """The value, with those of its properties that `said` names; still valid.

    quoting: texts may be what the user said, word for word.
    """
    return _heard(value, schema, Listener(shortened(said, _MOST_HEARD), 0, "", Hints(), quoting), prune=False)


def _heard(value: dict[str, Any], schema: Any, listener: Listener, prune: bool) -> dict[str, Any]:
    resolver, valid = Resolver(schema), validator_for(schema)
    flat = resolver.flat(schema)
    required = set(flat.get("required") or ())
    unheard = []
    properties = flat.get("properties") or {}
    order = sorted(properties, key=lambda name: name not in required)  # what must be there hears first
    listener.meet(properties)
    for name in order:
        sub = resolver.flat(properties[name])
        inner = _inner(value.get(name), sub, resolver, listener)
        found = inner if inner is not None else listener.value(name, sub, name in required)
        if found is not None:
            changed = {**value, name: found}
            if valid.is_valid(changed):
                value = changed
                continue
        unheard.append(name)
    return _without(value, unheard, properties, required, valid) if prune else value


def _inner(value: Any, schema: Mapping[str, Any], resolver: Resolver, listener: Listener) -> Any:
    """An object inside, with what it hears; None when it is no object or hears nothing."""
    if not isinstance(value, dict) or "properties" not in schema:
        return None
    changed = dict(value)
    heard = False
    for name, sub in schema["properties"].items():
        found = listener.value(name, resolver.flat(sub), name in (schema.get("required") or ()))
        if found is not None:
            changed[name], heard = found, True
    return changed if heard else None


def _without(
    value: dict[str, Any], unheard: Sequence[str], properties: Mapping[str, Any], required: set[str], valid: Any
) -> dict[str, Any]:
    """The value without what nobody spoke of: left out, null or its default."""
    for name in unheard:
        if name not in value:
            continue
        schema = properties[name] if isinstance(properties[name], Mapping) else {}
        changed = {key: kept for key, kept in value.items() if key != name or name in required}
        if name in required and "default" in schema:
            changed[name] = schema["default"]
        elif name in required and _may_be_null(schema):
            changed[name] = None
        if (changed or not value) and valid.is_valid(changed):
            value = {key: changed[key] for key in value if key in changed}
    return value


def _may_be_null(schema: Mapping[str, Any]) -> bool:
    kinds = schema.get("type")
    return (isinstance(kinds, list) and "null" in kinds) or any(
        isinstance(option, Mapping) and option.get("type") == "null" for option in schema.get("anyOf") or ()
    )


def calls_wanted(schema: Any, said: str) -> int:
    """How many calls of one tool the words ask for: one for each of the places named, where it takes a place."""
    flat = Resolver(schema).flat(schema) if isinstance(schema, Mapping) else {}
    properties = flat.get("properties") or {}
    if sum([bool(words_of(name) & TICKER_NAMES) for name in properties]) == 1:
        return max(1, len(tickers(said)))
    if sum([bool(words_of(name) & PLACE_NAMES) and "array" not in str(sub) for name, sub in properties.items()]) == 1:
        return max(1, len(places(said) or proper_names(said) or lower_places(said)))
    return 1
