"""The base of every request body, and JSON's numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, ValidationError

from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.schema.brief import stopping_early
from llmirage_shared.wire.schema.validation import api_error


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
        """The object as it was sent."""
        return self.model_dump(by_alias=True, exclude_unset=True)

    def undocumented_field(self) -> str | None:
        """The path of the first field that neither the API nor any engine documents, else None. Null counts as absent."""
        for name, value in (self.model_extra or {}).items():
            if value is not None and name not in self.extensions:
                return name
        for name in self.closed:
            inner = getattr(self, name)
            if isinstance(inner, WireModel) and inner.model_extra:
                return f"{name}.{next(iter(inner.model_extra))}"
        return None


def _whole(value: Any) -> Any:
    """16.0 is an integer in JSON."""
    return int(value) if type(value) is float and value.is_integer() else value


Integer = Annotated[int, BeforeValidator(_whole)]
Number = float  # strict mode accepts integers, too
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]  # of reasoning
Metadata = Annotated[dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)]


def either(*names: str) -> dict[str, Any]:
    """JSON Schema that requires one of these fields, not null."""
    return {"anyOf": [{"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in names]}
