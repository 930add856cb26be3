"""JSON Schema, read for writing: references resolved, `allOf` merged, and how deep a value must at least be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from llmirage_server.replies.structured.budget import spend

Schema = Mapping[str, Any]
MOST_MERGES = 64  # references and `allOf` parts followed for one value


class SchemaError(ValueError):
    """The schema cannot be followed; `path` says where."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class Resolver:
    """Follows the references of one schema document."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._heights: dict[int, tuple[Any, float]] = {}  # by id, with the schema, so that no other one gets its id

    def flat(self, schema: Any) -> Schema:
        """The schema without `$ref` and `allOf`: what they say is merged into it. `False` becomes {"not": {}}."""
        merges = 0
        while isinstance(schema, Mapping) and ("$ref" in schema or "$dynamicRef" in schema or "allOf" in schema):
            merges += 1
            spend()
            if merges > MOST_MERGES:
                raise SchemaError("its references never come to an end")
            rest = {key: value for key, value in schema.items() if key not in ("$ref", "$dynamicRef", "allOf")}
            parts = [self.target(schema[key]) for key in ("$ref", "$dynamicRef") if key in schema]
            parts += schema.get("allOf", ())
            schema = rest
            for part in parts:
                schema = merged(schema, part)
        if schema is True:
            return {}
        if schema is False:
            return {"not": {}}
        if not isinstance(schema, Mapping):
            raise SchemaError(f"a schema must be an object or a boolean, not {schema!r}")
        return schema

    def target(self, reference: str) -> Any:
        """What a `$ref` into this document points to. Raises SchemaError."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise SchemaError(f"the reference {reference!r} does not point into this schema")
        if reference == "#":
            return self._root
        if not reference.startswith("#/"):
            return self._anchor(reference[1:])
        found = self._root
        spend(reference.count("/"))
        for part in reference[2:].split("/"):
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and key.isdigit() and int(key) < len(found):
                found = found[int(key)]
            elif isinstance(found, Mapping) and key in found:
                found = found[key]
            else:
                raise SchemaError(f"the reference {reference!r} points to nothing")
        return found

    def _anchor(self, name: str) -> Any:
        stack = [self._root]
        while stack:
            at = stack.pop()
            spend()
            if isinstance(at, Mapping):
                if name in (at.get("$anchor"), at.get("$dynamicAnchor")):
                    return at
                stack.extend(at.values())
            elif isinstance(at, list):
                stack.extend(at)
        raise SchemaError(f"the reference '#{name}' points to nothing")

    def height(self, schema: Any) -> float:
        """Levels of objects and arrays that a value needs at least; inf while it only contains itself."""
        key = id(schema)
        if (known := self._heights.get(key)) is not None:
            return known[1]
        spend()
        self._heights[key] = (schema, math.inf)  # what contains itself is not finite that way
        height = self._height(self.flat(schema))
        if height == math.inf:
            del self._heights[key]  # it may have been infinite only because an outer one was being measured
        else:
            self._heights[key] = (schema, height)
        return height

    def _height(self, schema: Schema) -> float:
        heights = [0.0]
        choices = [schema[key] for key in ("anyOf", "oneOf") if schema.get(key)]
        heights += [min(self.height(option) for option in options) for options in choices]
        if "enum" in schema or "const" in schema:
            return max(heights)
        types = types_of(schema)
        if types and not set(types) <= {"object", "array"}:
            return max(heights)
        within = []
        properties = schema.get("properties") or {}
        within += [self.height(properties[name]) for name in schema.get("required") or () if name in properties]
        if types == ["array"] and schema.get("minItems", 0) > 0:
            within += [self.height(item) for item in schema.get("prefixItems", ())]
            if isinstance(schema.get("items"), Mapping):
                within.append(self.height(schema["items"]))
        return max(*heights, 1 + max(within)) if within else max(heights)


def equal(left: Any, right: Any) -> bool:
    """Whether two JSON values are the same: 1 and 1.0 are, 1 and true are not."""
    spend()
    if left is right:
        return True
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return len(left) == len(right) and all(key in right and equal(value, right[key]) for key, value in left.items())
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    return bool(left == right) and isinstance(left, bool) == isinstance(right, bool)


def types_of(schema: Schema) -> list[str]:
    """The types a schema allows, as written or as its other keywords suggest; [] when it says nothing."""
    written = schema.get("type")
    if isinstance(written, str):
        return [written]
    if isinstance(written, list):
        return [name for name in written if isinstance(name, str)]
    for name, keywords in _SUGGEST.items():
        if any(keyword in schema for keyword in keywords):
            return [name]
    return []


_SUGGEST = {
    "object": ("properties", "required", "additionalProperties", "patternProperties", "minProperties", "propertyNames"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}


def merged(left: Any, right: Any) -> Any:
    """A schema that asks for what both ask for, as far as one schema can say it."""
    if left is False or right is False:
        return False
    if left is True:
        return right
    if right is True:
        return left
    spend(1 + (len(left) + len(right)) // 4)
    result: dict[str, Any] = dict(left)
    for key, value in right.items():
        if key not in result:
            result[key] = value
        elif not equal(result[key], value):
            # Of two demands that cannot be merged the second one wins: the user of the schema validates the result.
            result[key] = _MERGE[key](result, key, value) if key in _MERGE else value
    return result


def _merge_types(schema: dict[str, Any], key: str, value: Any) -> Any:
    left = [schema[key]] if isinstance(schema[key], str) else schema[key]
    right = [value] if isinstance(value, str) else value
    spend(len(left) + len(right))
    both = [name for name in left if name in right or (name == "integer" and "number" in right)]
    both += [name for name in right if name == "integer" and "number" in left and name not in both]
    return both[0] if len(both) == 1 else both


def _merge_properties(schema: dict[str, Any], key: str, value: Any) -> Any:
    spend((len(schema[key]) + len(value)) // 4)
    return {**schema[key], **{name: merged(schema[key].get(name, True), sub) for name, sub in value.items()}}


def _merge_schemas(schema: dict[str, Any], key: str, value: Any) -> Any:
    return {"allOf": [schema[key], value]}


def _merge_alternatives(schema: dict[str, Any], key: str, value: Any) -> Any:
    spend(len(schema[key]) * len(value))
    return [{"allOf": [one, other]} for one in schema[key] for other in value]


def _merge_enums(schema: dict[str, Any], key: str, value: Any) -> Any:
    return [item for item in schema[key] if any(equal(item, other) for other in value)]


_MERGE: dict[str, Any] = {
    "type": _merge_types,
    "properties": _merge_properties,
    "patternProperties": _merge_properties,
    "required": lambda schema, key, value: list(dict.fromkeys([*schema[key], *value])),
    "enum": _merge_enums,
    "items": _merge_schemas,
    "additionalProperties": _merge_schemas,
    "propertyNames": _merge_schemas,
    "not": lambda schema, key, value: {"anyOf": [schema[key], value]},
    "anyOf": _merge_alternatives,
    "oneOf": _merge_alternatives,
    **{key: lambda schema, key, value: max(schema[key], value) for key in (
        "minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties", "minContains")},
    **{key: lambda schema, key, value: min(schema[key], value) for key in (
        "maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties", "maxContains")},
}  # fmt: skip
