"""The base of every request body, JSON's numbers, and validation that stops at the first wrong item."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, ValidationError
from pydantic_core import PydanticKnownError, core_schema

from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.schema.validation import api_error

_AT_ONCE = 256  # items of an object that are validated together: as many errors are made of wrong ones


def stopping_early(schema: Any) -> Any:
    """Return a model's schema whose arrays end at the first wrong item, and whose objects soon after it.

    A body of a million wrong items must not take seconds.
    """
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
    """Return a validator that works piece by piece. most: items that the object may have."""

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


class WireModel(BaseModel):
    """An object in a request body. Undeclared fields are kept: other servers accept fields of their own.

    closed: fields whose objects accept declared fields only.
    extensions: undeclared fields that are documented by serving engines or other providers.
    refuse: the error for any other undeclared field, by its path.
    """

    closed: ClassVar[tuple[str, ...]] = ()
    extensions: ClassVar[frozenset[str]] = frozenset()
    refuse: ClassVar[Callable[[str], ApiError]] = errors.unknown_parameter

    model_config = ConfigDict(extra="allow", strict=True, hide_input_in_errors=True, protected_namespaces=())

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return stopping_early(handler(source))

    @classmethod
    def check(cls, body: Mapping[str, Any], documented_only: bool = False) -> Self:
        """Validate a body. Raises ApiError for the first wrong field; with `documented_only` for undocumented ones, too."""
        try:
            request = cls.model_validate(body)
        except ValidationError as error:
            raise api_error(error, body) from None
        if documented_only and (name := request.undocumented_field()) is not None:
            raise cls.refuse(name)
        return request

    def plain(self) -> dict[str, Any]:
        """Return the object as it was sent."""
        return self.model_dump(by_alias=True, exclude_unset=True)

    def undocumented_field(self) -> str | None:
        """Return the path of the first field that neither the API nor any engine documents. Null counts as absent."""
        for name, value in (self.model_extra or {}).items():
            if value is not None and name not in self.extensions:
                return name
        for name in self.closed:
            inner = getattr(self, name)
            if isinstance(inner, WireModel) and inner.model_extra:
                return f"{name}.{next(iter(inner.model_extra))}"
        return None


def _whole(value: Any) -> Any:
    """Return a float without a fraction as an integer: 16.0 is an integer in JSON."""
    return int(value) if type(value) is float and value.is_integer() else value


Integer = Annotated[int, BeforeValidator(_whole)]
Number = float  # strict mode accepts integers, too
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]  # of reasoning
Metadata = Annotated[dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)]


def either(*names: str) -> dict[str, Any]:
    """Return a JSON Schema that requires one of these fields, not null."""
    return {"anyOf": [{"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in names]}
