"""Arguments for a call: valid for the tool's schema, taken from the text by the rules of docs/replies.md."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from llmirage_server.replies.slots import Slot, SlotFiller, trimmed
from llmirage_server.replies.structured.budget import spend
from llmirage_server.replies.structured.schema import Resolver, SchemaError, types_of
from llmirage_server.replies.structured.validity import Validator, validator_for
from llmirage_server.replies.structured.values import value_for
from llmirage_server.replies.text_values import CODE, TextValues
from llmirage_server.replies.tool_request import HIDDEN, MOST_CHARACTERS, PlannedCall, own_name, words_of

_DEEPEST = 3  # levels of objects in objects that are filled
_MOST_SLOTS = 200  # properties filled from the text
_STEPS_OF_A_SLOT = 25  # of planning: each has expressions of its own, compiled when it is looked for
_DECODER = json.JSONDecoder()


def arguments_for(call: PlannedCall, seed: int) -> dict[str, Any]:
    """Arguments of a function. Raises SchemaError where `value_for` does."""
    schema = call.tool.parameters
    if schema is None or schema in ({}, True):
        return {}
    valid = validator_for(schema)
    properties = valid.resolver.outline(schema).get("properties") or {}
    for given in _objects(call.text, call.tool.name):
        if (given.keys() & properties.keys() or not properties) and valid.is_valid(given):
            return given
    slots = _slots(valid)
    values = TextValues(call.text, frozenset(words_of(own_name(call.tool.name))))
    SlotFiller(slots, values, valid).fill(call.rest, call.whole, call.near)
    found: dict[str, Any] = {}
    for slot in slots:
        if (value := slot.argument()) is not None:
            _set(found, slot.path, value[0])
    sampled = any(slot.required and slot.is_list_of_objects for slot in slots)
    if not sampled and valid.is_valid(found):
        return found
    value = value_for(valid, seed)
    if not isinstance(value, dict):
        raise SchemaError("a function's parameters must be of type object")
    return _overlaid(value, slots, valid, prune=True)


def with_quoted(value: dict[str, Any], schema: Any, said: str) -> dict[str, Any]:
    """Return a structured answer with what the user said, free text aside, where it fits; still valid."""
    valid = validator_for(schema)
    slots = _slots(valid)
    SlotFiller(slots, TextValues(said[:MOST_CHARACTERS]), valid).fill()
    return _overlaid(value, slots, valid, prune=False)


def free_input(call: PlannedCall) -> str:
    """Return the input of a custom tool without a grammar: the first code in the text, else the words."""
    code = CODE.search(call.text)
    return (
        (code[1] or code[2] or "").strip() if code else trimmed(call.whole, keep_start=call.whole is not call.rest) or "..."
    )


def _objects(text: str, tool: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a text; of one like {"name": tool, "arguments": {...}} the arguments."""
    at = text.find("{")
    while at >= 0:
        spend()
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            end = at + 1
        else:
            inner = value.get("arguments", value.get("parameters", value.get("input")))
            named = value.get("name", HIDDEN)
            yield inner if isinstance(inner, dict) and (named == tool or HIDDEN in str(named)) else value
        at = text.find("{", end)


def _slots(valid: Validator) -> list[Slot]:
    """Return the properties to fill, also within objects. One that requires nothing is filled like one that requires all."""
    resolver = valid.resolver
    flat = _one_option(resolver.outline(valid.schema), resolver)
    slots = list(islice(_slots_in(flat, resolver, (), not flat.get("required"), True), _MOST_SLOTS))
    spend(len(slots) * _STEPS_OF_A_SLOT)
    return slots


def _slots_in(
    flat: Mapping[str, Any], resolver: Resolver, path: tuple[str, ...], wanted: bool, needed: bool
) -> Iterator[Slot]:
    """wanted: all properties are filled as if they were required. needed: the object itself is required."""
    for name, sub in (flat.get("properties") or {}).items():
        inner = _one_option(resolver.outline(sub), resolver)
        required = needed and name in (flat.get("required") or ())
        if not inner.get("properties"):
            if "const" not in inner:
                slot = Slot((*path, name), inner, required)
                slot.required = required or (wanted and slot.is_list_of_objects)
                slot.wanted = wanted or (required and slot.argument() is None)
                yield slot
        elif len(path) < _DEEPEST:
            yield from _slots_in(inner, resolver, (*path, name), False, required or wanted)


def _one_option(flat: Mapping[str, Any], resolver: Resolver, is_item: bool = False) -> Mapping[str, Any]:
    """Return the schema with the first of its alternatives that is not null, and a list's items without references."""
    options = [resolver.outline(option) for option in flat.get("anyOf") or flat.get("oneOf") or ()]
    if options:
        chosen = next((option for option in options if types_of(option) != ["null"]), {})
        rest = {key: value for key, value in flat.items() if key not in ("anyOf", "oneOf")}
        flat = {**rest, **chosen, "nullable": any(types_of(option) == ["null"] for option in options)}
    items = flat.get("items")
    if is_item or not isinstance(items, Mapping):  # no rule looks at lists within lists, which may have no end
        return flat
    return {**flat, "items": _one_option(resolver.outline(items), resolver, is_item=True)}


def _overlaid(value: dict[str, Any], slots: Sequence[Slot], valid: Validator, *, prune: bool) -> dict[str, Any]:
    """Return the value with what was found. prune: without optional properties for which nothing was."""
    for slot in slots:
        argument = slot.argument() if prune or slot.found is not None else None
        if argument is None and (slot.required or not prune):
            continue
        changed = copy.deepcopy(value)
        if argument is not None:
            _set(changed, slot.path, argument[0])
        else:
            _drop(changed, slot.path)
        if valid.is_valid(changed):
            value = changed
    return value


def _set(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        inner = tree.get(name)
        tree[name] = tree = dict(inner) if isinstance(inner, dict) else {}
    tree[path[-1]] = value


def _drop(tree: Any, path: Sequence[str]) -> None:
    for name in path[:-1]:
        tree = tree.get(name) if isinstance(tree, dict) else None
    if isinstance(tree, dict):
        tree.pop(path[-1], None)
