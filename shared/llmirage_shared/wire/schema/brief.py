"""Validation that stops at the first wrong item: a body of a million wrong ones must not take seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic_core import PydanticKnownError, core_schema

_AT_ONCE = 256  # items of an object that are validated together: as many errors are made of wrong ones


def stopping_early(schema: Any) -> Any:
    """A model's schema whose arrays end at the first wrong item, and whose objects soon after it."""
    return {**schema, **{key: _early(value) for key, value in schema.items()}}


def _early(schema: Any) -> Any:
    if isinstance(schema, list | tuple):
        return type(schema)([_early(value) for value in schema])
    if not isinstance(schema, dict) or schema.get("type") == "model":  # another model's is its own
        return schema
    inner = {key: _early(value) for key, value in schema.items()}
    if schema.get("type") == "list":
        return inner | {"fail_fast": True}
    if schema.get("type") == "dict" and "values_schema" in schema:
        most = inner.pop("max_length", None)
        return core_schema.no_info_wrap_validator_function(_piecewise(most), inner)
    return inner


def _piecewise(most: int | None) -> Callable[[Any, Callable[[Any], Any]], Any]:
    """most: items that the object may have."""

    def validate(value: Any, handler: Callable[[Any], Any]) -> Any:
        if not isinstance(value, dict):
            return handler(value)
        if most is not None and len(value) > most:
            length = {"field_type": "Dictionary", "max_length": most, "actual_length": len(value)}
            raise PydanticKnownError("too_long", length)
        if len(value) <= _AT_ONCE:
            return handler(value)
        items = list(value.items())
        validated: dict[Any, Any] = {}
        for start in range(0, len(items), _AT_ONCE):
            validated |= handler(dict(items[start : start + _AT_ONCE]))
        return validated

    return validate
