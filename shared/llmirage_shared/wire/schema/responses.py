"""The bodies of the Responses API and of conversations."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from llmirage_shared.wire.schema.base import (
    RESPONSES_EXTENSIONS,
    CacheOptions,
    CacheRetention,
    Effort,
    Integer,
    Metadata,
    Moderation,
    Number,
    SafetyIdentifier,
    WireModel,
)
from llmirage_shared.wire.schema.chat import StructuredOutputs, ToolName
from llmirage_shared.wire.schema.items import InputItem

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


class Reasoning(WireModel):
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    effort: Effort | None = None
    mode: str | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class PlainFormat(WireModel):
    type: Literal["text", "json_object"]


class SchemaFormat(WireModel):
    type: Literal["json_schema"]
    name: ToolName
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None
    description: str | None = None


class TextOptions(WireModel):
    format: Annotated[PlainFormat | SchemaFormat, Field(discriminator="type")] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ConversationReference(WireModel):
    id: str


class PromptReference(WireModel):
    """A prompt template of the account; only its owner knows its text."""

    id: str
    version: str | None = None
    variables: dict[str, Any] | None = None


class ResponseStreamOptions(WireModel):
    include_obfuscation: bool | None = None


Included = Literal[
    "file_search_call.results", "web_search_call.results", "web_search_call.action.sources", "message.input_image.image_url",
    "computer_call_output.output.image_url", "code_interpreter_call.outputs", "reasoning.encrypted_content",
    "message.output_text.logprobs",
]  # fmt: skip


class InputFields(WireModel):
    """The fields that make the prompt."""

    closed: ClassVar[tuple[str, ...]] = ("reasoning", "text")
    extensions: ClassVar[frozenset[str]] = RESPONSES_EXTENSIONS

    model: str | None = None
    input: str | list[InputItem] | None = None
    instructions: str | list[InputItem] | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationReference | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    prompt: PromptReference | None = None

    @property
    def compacts(self) -> bool:
        """True if the input ends with a compaction item."""
        return isinstance(self.input, list) and bool(self.input) and self.input[-1].type == "compaction_trigger"

    @cached_property
    def plain_tools(self) -> list[dict[str, Any]]:
        """Tools as they were sent. Do not change them."""
        return [tool.plain() for tool in self.tools or ()]


class ContextEdit(WireModel):
    """A compaction of a prompt of more tokens."""

    type: Literal["compaction"]
    compact_threshold: Annotated[Integer, Field(ge=1000)] | None = None


class ResponseRequest(InputFields):
    """POST /v1/responses."""

    closed: ClassVar[tuple[str, ...]] = (*InputFields.closed, "stream_options")

    background: bool | None = None
    context_management: list[ContextEdit] | None = None
    include: list[Included] | None = None
    max_output_tokens: Annotated[Integer, Field(ge=1)] | None = None
    max_tool_calls: Annotated[Integer, Field(ge=1)] | None = None
    metadata: Metadata | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: CacheRetention | None = None
    prompt_cache_options: CacheOptions | None = None
    safety_identifier: SafetyIdentifier | None = None
    moderation: Moderation | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    temperature: Annotated[Number, Field(ge=0, le=2)] | None = None
    top_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    top_logprobs: Annotated[Integer, Field(ge=0, le=20)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    user: str | None = None
    seed: Integer | None = None  # not OpenAI's; vLLM's, as those that follow
    structured_outputs: StructuredOutputs | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[Integer, Field(ge=0)] | None = None

    @property
    def compact_threshold(self) -> float:
        """Prompt tokens above which the conversation is compacted."""
        return min((edit.compact_threshold or math.inf for edit in self.context_management or ()), default=math.inf)


class ConversationCreate(WireModel):
    """POST /v1/conversations."""

    items: Annotated[list[InputItem], Field(max_length=20)] | None = None
    metadata: Metadata | None = None


class ConversationUpdate(WireModel):
    """POST /v1/conversations/{id}."""

    metadata: Metadata


class ItemsCreate(WireModel):
    """POST /v1/conversations/{id}/items."""

    items: Annotated[list[InputItem], Field(max_length=20)]
