"""What `strict: true` demands of a JSON Schema, in the OpenAI API's words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def strict_problem(schema: Any, context: tuple[str, ...] = ()) -> str | None:
    """What is wrong with a schema under `strict`, None if it is valid: objects are closed, all properties required."""
    if not isinstance(schema, Mapping):
        return None
    where = f"In context={context!r}"
    if not context and schema.get("type") != "object" and "$ref" not in schema:
        return f"schema must be a JSON Schema of 'type: \"object\"', got 'type: \"{schema.get('type')}\"'."
    properties = schema.get("properties")
    if schema.get("type") == "object" or isinstance(properties, Mapping):
        if schema.get("additionalProperties") is not False:
            return f"{where}, 'additionalProperties' is required to be supplied and to be false."
        names = list(properties or ())
        required = schema.get("required")
        known = set(required) if isinstance(required, list) else set()
        missing = [name for name in names if name not in known]
        if names and (not isinstance(required, list) or missing):
            return (
                f"{where}, 'required' is required to be supplied and to be an array including every key in properties. "
                f"Missing '{missing[0]}'."
            )
    for key, inner in _inner(schema):
        if problem := strict_problem(inner, (*context, *key)):
            return problem
    return None


def _inner(schema: Mapping[str, Any]) -> list[tuple[tuple[str, ...], Any]]:
    found: list[tuple[tuple[str, ...], Any]] = []
    for key in ("properties", "$defs", "definitions"):
        if isinstance(schema.get(key), Mapping):
            found += [((key, name), inner) for name, inner in schema[key].items()]
    if isinstance(schema.get("items"), Mapping):
        found.append((("items",), schema["items"]))
    found += [(("anyOf", str(index)), inner) for index, inner in enumerate(schema.get("anyOf") or ())]
    return found
