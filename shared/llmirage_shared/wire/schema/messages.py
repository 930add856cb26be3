"""The bodies of the Anthropic Messages API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationError

from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.schema.base import MESSAGES_EXTENSIONS, Integer, Number, WireModel, pydantic_error
from llmirage_shared.wire.schema.chat import ToolName


class TextBlock(WireModel):
    type: Literal["text"]
    text: str


class SourceBlock(WireModel):
    type: Literal["image", "document"]
    source: dict[str, Any]


class SearchResultBlock(WireModel):
    type: Literal["search_result"]
    source: str
    title: str
    content: list[TextBlock]


class ToolUseBlock(WireModel):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(WireModel):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[dict[str, Any]] | None = None
    is_error: bool | None = None


class ThinkingBlock(WireModel):
    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(WireModel):
    type: Literal["redacted_thinking"]
    data: str


class ServerToolUseBlock(WireModel):
    """A call that the API has made itself."""

    type: Literal["server_tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class McpToolUseBlock(WireModel):
    type: Literal["mcp_tool_use"]
    id: str
    name: str
    server_name: str
    input: dict[str, Any]


class ServerToolResultBlock(WireModel):
    """What such a call gave."""

    type: Literal[
        "web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result", "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result", "tool_search_tool_result", "mcp_tool_result", "advisor_tool_result",
    ]  # fmt: skip
    tool_use_id: str
    content: str | list[dict[str, Any]] | dict[str, Any] | None = None


class ContainerUploadBlock(WireModel):
    type: Literal["container_upload"]
    file_id: str


Block = Annotated[
    TextBlock | SourceBlock | SearchResultBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedThinkingBlock
    | ServerToolUseBlock | McpToolUseBlock | ServerToolResultBlock | ContainerUploadBlock,
    Field(discriminator="type"),
]  # fmt: skip


class TurnMessage(WireModel):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class MessagesTool(WireModel):
    """A client tool has a name and a schema, the API's own tools a type and mostly a name."""

    type: str | None = None
    name: ToolName | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class MessagesToolChoice(WireModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(WireModel):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Integer | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(WireModel):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(WireModel):
    format: OutputFormat | None = None
    effort: str | None = None


def _extra_input(name: str) -> ApiError:
    return ApiError(f"{name}: Extra inputs are not permitted")


class CountRequest(WireModel):
    """POST /v1/messages/count_tokens."""

    extensions: ClassVar[frozenset[str]] = MESSAGES_EXTENSIONS
    refuse: ClassVar[Callable[[str], ApiError]] = _extra_input
    wrong: ClassVar[Callable[[ValidationError, Any], ApiError]] = pydantic_error

    model: str
    messages: Annotated[list[TurnMessage], Field(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    thread: dict[str, Any] | None = None
    mcp_servers: list[dict[str, Any]] | None = None
    container: str | dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None


class MessagesRequest(CountRequest):
    """POST /v1/messages."""

    max_tokens: Annotated[Integer, Field(ge=1)]
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: Annotated[Number, Field(ge=0, le=1)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    top_k: Annotated[Integer, Field(ge=0)] | None = None
    metadata: dict[str, Any] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    # vLLM's, SGLang's
    ignore_eos: bool | None = None
    min_tokens: Annotated[Integer, Field(ge=0)] | None = None
