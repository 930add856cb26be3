"""The bodies of the Responses API and of conversations."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from llmirage_shared.wire.schema.base import Effort, Integer, Metadata, Number, WireModel
from llmirage_shared.wire.schema.extensions import RESPONSES_EXTENSIONS
from llmirage_shared.wire.schema.tools import ToolName
from llmirage_shared.wire.schema.validation import OTHER_ITEMS


class TextItemPart(WireModel):
    type: Literal["input_text", "text", "output_text", "summary_text", "reasoning_text"]
    text: str


class InputImage(WireModel):
    type: Literal["input_image"]
    image_url: str | None = None
    file_id: str | None = None
    detail: Literal["auto", "low", "high", "original"] | None = None

    @model_validator(mode="after")
    def _has_source(self) -> InputImage:
        if self.image_url is None and self.file_id is None:
            raise ValueError("expected one of 'image_url' or 'file_id'.")
        return self


class InputFile(WireModel):
    type: Literal["input_file"]
    file_id: str | None = None
    file_data: str | None = None
    file_url: str | None = None

    @model_validator(mode="after")
    def _has_source(self) -> InputFile:
        if self.file_id is None and self.file_data is None and self.file_url is None:
            raise ValueError("expected one of 'file_id', 'file_data' or 'file_url'.")
        return self


class InputAudioPart(WireModel):
    type: Literal["input_audio"]
    input_audio: dict[str, Any]


class RefusalText(WireModel):
    type: Literal["refusal"]
    refusal: str


ItemPart = Annotated[TextItemPart | InputImage | InputFile | InputAudioPart | RefusalText, Field(discriminator="type")]
ItemContent = str | list[ItemPart]


class MessageItem(WireModel):
    """A message; its `type` may be left out."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: ItemContent


class FunctionCallItem(WireModel):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class CallOutputItem(WireModel):
    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: ItemContent


class CustomToolCallItem(WireModel):
    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    input: str


class ReasoningItem(WireModel):
    type: Literal["reasoning"]
    summary: list[dict[str, Any]] | None = None
    content: list[dict[str, Any]] | None = None
    encrypted_content: str | None = None


class ItemReference(WireModel):
    type: Literal["item_reference"]
    id: str


class OtherItem(WireModel):
    """Items of hosted tools, stored and shown to the model as they are."""

    type: Annotated[str, Field(json_schema_extra={"enum": list(OTHER_ITEMS)})]


def _item_tag(value: Any) -> Any:
    if not isinstance(value, dict):
        return "message"
    kind = value.get("type")
    if kind is None and "role" in value:
        return "message"
    if kind in ("function_call_output", "custom_tool_call_output"):
        return "call_output"
    return "other" if kind in OTHER_ITEMS else kind


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[CallOutputItem, Tag("call_output")]
    | Annotated[CustomToolCallItem, Tag("custom_tool_call")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[ItemReference, Tag("item_reference")]
    | Annotated[OtherItem, Tag("other")],
    Discriminator(_item_tag, custom_error_type="unknown_item", custom_error_message="unknown item type"),
]


class ResponseFunctionTool(WireModel):
    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseCustomTool(WireModel):
    type: Literal["custom"]
    name: ToolName
    description: str | None = None
    format: dict[str, Any] | None = None


class HostedTool(WireModel):
    """Declared and accepted; never called by itself."""

    type: Literal[
        "web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11", "file_search",
        "code_interpreter", "computer", "computer_use_preview", "image_generation", "mcp", "local_shell", "shell",
        "apply_patch", "namespace", "tool_search", "programmatic_tool_calling",
    ]  # fmt: skip


def _tool_tag(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    return kind if kind in ("function", "custom") else "hosted"


ResponseTool = Annotated[
    Annotated[ResponseFunctionTool, Tag("function")]
    | Annotated[ResponseCustomTool, Tag("custom")]
    | Annotated[HostedTool, Tag("hosted")],
    Discriminator(_tool_tag),
]


class Reasoning(WireModel):
    effort: Effort | None = None
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
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    prompt: dict[str, Any] | None = None


class ResponseRequest(InputFields):
    """POST /v1/responses."""

    closed: ClassVar[tuple[str, ...]] = (*InputFields.closed, "stream_options")

    background: bool | None = None
    include: list[Included] | None = None
    max_output_tokens: Annotated[Integer, Field(ge=1)] | None = None
    max_tool_calls: Annotated[Integer, Field(ge=1)] | None = None
    metadata: Metadata | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
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
    seed: Integer | None = None  # not OpenAI's; vLLM's
    ignore_eos: bool | None = None
    min_tokens: Annotated[Integer, Field(ge=0)] | None = None


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
