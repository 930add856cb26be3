"""The base of every wire model, and numbers as JSON has them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class WireModel(BaseModel):
    """An object of a request. Unknown fields are kept: servers of other makers have their own.

    closed: fields whose objects have no fields but those that are known.
    """

    closed: ClassVar[tuple[str, ...]] = ()

    model_config = ConfigDict(extra="allow", strict=True, hide_input_in_errors=True, protected_namespaces=())


def _whole(value: Any) -> Any:
    """16.0 is an integer in JSON."""
    return int(value) if type(value) is float and value.is_integer() else value


Integer = Annotated[int, BeforeValidator(_whole)]
Number = float  # strict mode takes integers too
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]  # of reasoning
Metadata = Annotated[dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)]


def either(*names: str) -> dict[str, Any]:
    """For a model's JSON Schema: one of these fields must be there, and not null."""
    return {"anyOf": [{"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in names]}
