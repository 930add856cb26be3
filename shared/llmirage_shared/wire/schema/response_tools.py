"""Tools and tool choices of the Responses API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from llmirage_shared.wire.schema.base import Integer, WireModel
from llmirage_shared.wire.schema.tools import ToolName

Options = dict[str, Any]


class ResponseFunctionTool(WireModel):
    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class PlainTextFormat(WireModel):
    type: Literal["text"]


class GrammarFormat(WireModel):
    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: str


class ResponseCustomTool(WireModel):
    type: Literal["custom"]
    name: ToolName
    description: str | None = None
    format: Annotated[PlainTextFormat | GrammarFormat, Field(discriminator="type")] | None = None


NamespacedTool = Annotated[ResponseFunctionTool | ResponseCustomTool, Field(discriminator="type")]


class WebSearchTool(WireModel):
    type: Literal["web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"]
    filters: Options | None = None
    user_location: Options | None = None
    search_context_size: Literal["low", "medium", "high"] | None = None


class FileSearchTool(WireModel):
    type: Literal["file_search"]
    vector_store_ids: list[str] | None = None
    max_num_results: Annotated[Integer, Field(ge=1, le=50)] | None = None
    ranking_options: Options | None = None
    filters: Options | None = None


class CodeInterpreterTool(WireModel):
    type: Literal["code_interpreter"]
    container: str | Options | None = None


class ComputerTool(WireModel):
    type: Literal["computer", "computer_use_preview"]
    environment: str | None = None
    display_width: Integer | None = None
    display_height: Integer | None = None


class ImageTool(WireModel):
    type: Literal["image_generation"]
    model: str | None = None
    partial_images: Annotated[Integer, Field(ge=0, le=3)] | None = None
    input_image_mask: Options | None = None


class ToolFilter(WireModel):
    tool_names: list[str] | None = None
    read_only: bool | None = None


class ApprovalRules(WireModel):
    always: ToolFilter | None = None
    never: ToolFilter | None = None


class McpTool(WireModel):
    type: Literal["mcp"]
    server_label: str
    server_url: str | None = None
    connector_id: str | None = None
    server_description: str | None = None
    authorization: str | None = None
    headers: Options | None = None
    allowed_tools: list[str] | ToolFilter | None = None
    require_approval: Literal["always", "never"] | ApprovalRules | None = None


class ShellTool(WireModel):
    type: Literal["shell", "local_shell", "apply_patch", "programmatic_tool_calling"]
    environment: Options | None = None


class NamespaceTool(WireModel):
    type: Literal["namespace"]
    name: str
    description: str | None = None
    tools: list[NamespacedTool]


class ToolSearchTool(WireModel):
    type: Literal["tool_search"]
    execution: Literal["server", "client"] | None = None
    description: str | None = None
    parameters: Options | None = None


ResponseTool = Annotated[
    ResponseFunctionTool | ResponseCustomTool | WebSearchTool | FileSearchTool | CodeInterpreterTool | ComputerTool
    | ImageTool | McpTool | ShellTool | NamespaceTool | ToolSearchTool,
    Field(discriminator="type"),
]  # fmt: skip


class ResponseToolReference(WireModel):
    """One tool of those declared: a function, a custom tool, one of an MCP server, or the type of another."""

    type: str
    name: str | None = None
    server_label: str | None = None


class ResponseAllowedTools(WireModel):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[ResponseToolReference]


def _choice_tag(value: Any) -> str:
    if not isinstance(value, dict):
        return "word"
    return "allowed" if value.get("type") == "allowed_tools" else "named"


ResponseToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("word")]
    | Annotated[ResponseAllowedTools, Tag("allowed")]
    | Annotated[ResponseToolReference, Tag("named")],
    Discriminator(_choice_tag),
]
