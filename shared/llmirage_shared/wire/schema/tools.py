"""Chat's tools, tool choices and response formats."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag

from llmirage_shared.wire.schema.base import WireModel

ToolName = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern="^[a-zA-Z0-9_-]+$")]


class FunctionDefinition(WireModel):
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class GrammarDefinition(WireModel):
    definition: str
    syntax: Literal["lark", "regex"]


class CustomFormat(WireModel):
    type: Literal["text", "grammar"]
    grammar: GrammarDefinition | None = None


class CustomDefinition(WireModel):
    name: ToolName
    description: str | None = None
    format: CustomFormat | None = None


class FunctionTool(WireModel):
    type: Literal["function"]
    function: FunctionDefinition


class CustomTool(WireModel):
    type: Literal["custom"]
    custom: CustomDefinition


ChatTool = Annotated[FunctionTool | CustomTool, Field(discriminator="type")]


class ToolReference(WireModel):
    name: str


class FunctionChoice(WireModel):
    type: Literal["function"]
    function: ToolReference


class CustomChoice(WireModel):
    type: Literal["custom"]
    custom: ToolReference


class AllowedTools(WireModel):
    mode: Literal["auto", "required"]
    tools: list[Annotated[FunctionChoice | CustomChoice, Field(discriminator="type")]]


class AllowedToolsChoice(WireModel):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("word")]
    | Annotated[Annotated[FunctionChoice | CustomChoice | AllowedToolsChoice, Field(discriminator="type")], Tag("named")],
    Discriminator(lambda value: "named" if isinstance(value, dict) else "word"),
]


class JsonSchemaFormat(WireModel):
    name: ToolName
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class PlainResponseFormat(WireModel):
    type: Literal["text", "json_object"]


class JsonSchemaResponseFormat(WireModel):
    type: Literal["json_schema"]
    json_schema: JsonSchemaFormat


ResponseFormat = Annotated[PlainResponseFormat | JsonSchemaResponseFormat, Field(discriminator="type")]
