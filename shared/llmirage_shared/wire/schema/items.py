"""Items of the Responses API: messages, calls and their outputs, and the items of the API's own tools.

Of the items of hosted tools, ids and states may be left out: clients that keep a conversation themselves drop them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from llmirage_shared.wire.schema.base import OTHER_ITEMS, Effort, Integer, Number, WireModel


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
    filename: str | None = None

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


class StoredItem(WireModel):
    """The fields that every item may have."""

    id: str | None = None
    status: str | None = None


class CallItem(StoredItem):
    call_id: str


class MessageItem(StoredItem):
    """A message; its `type` may be left out."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: ItemContent


class FunctionCallItem(CallItem):
    type: Literal["function_call"]
    name: str
    arguments: str


class CallOutputItem(CallItem):
    type: Literal["function_call_output", "custom_tool_call_output"]
    output: ItemContent


class CustomToolCallItem(CallItem):
    type: Literal["custom_tool_call"]
    name: str
    input: str


class TextOfReasoning(WireModel):
    text: str | None = None


class ReasoningItem(StoredItem):
    type: Literal["reasoning"]
    summary: list[TextOfReasoning] | None = None
    content: list[TextOfReasoning] | None = None
    encrypted_content: str | None = None


class ItemReference(WireModel):
    type: Literal["item_reference"]
    id: str


# --- of the API's own tools ---------------------------------------------------------------------------------------------


class FoundPassage(WireModel):
    file_id: str | None = None
    text: str | None = None
    filename: str | None = None
    score: Number | None = None
    attributes: dict[str, Any] | None = None


class FileSearchCallItem(StoredItem):
    type: Literal["file_search_call"]
    queries: list[str]
    results: list[FoundPassage] | None = None


class SearchAction(WireModel):
    type: Literal["search", "open_page", "find", "find_in_page"]
    query: str | None = None
    queries: list[str] | None = None
    url: str | None = None
    pattern: str | None = None
    sources: list[dict[str, Any]] | None = None


class WebSearchCallItem(StoredItem):
    type: Literal["web_search_call"]
    action: SearchAction | None = None


class ComputerCallItem(CallItem):
    type: Literal["computer_call"]
    action: dict[str, Any] | None = None
    actions: list[dict[str, Any]] | None = None
    pending_safety_checks: list[dict[str, Any]] | None = None


class Screenshot(WireModel):
    type: Literal["computer_screenshot", "input_image"]
    image_url: str | None = None
    file_id: str | None = None


class ComputerOutputItem(CallItem):
    type: Literal["computer_call_output"]
    output: Screenshot
    acknowledged_safety_checks: list[dict[str, Any]] | None = None


class CodeInterpreterCallItem(StoredItem):
    type: Literal["code_interpreter_call"]
    container_id: str | None = None
    code: str | None = None
    outputs: list[dict[str, Any]] | None = None


class ImageCallItem(StoredItem):
    type: Literal["image_generation_call"]
    result: str | None = None


class ExecAction(WireModel):
    type: Literal["exec"]
    command: list[str]
    env: dict[str, str] | None = None
    timeout_ms: Integer | None = None
    user: str | None = None
    working_directory: str | None = None


class LocalShellCallItem(CallItem):
    type: Literal["local_shell_call"]
    action: ExecAction


class LocalShellOutputItem(StoredItem):
    """Its `id` is that of the call; Codex sends a `call_id` instead."""

    type: Literal["local_shell_call_output"]
    call_id: str | None = None
    output: str


class ShellAction(WireModel):
    commands: list[str]
    timeout_ms: Integer | None = None
    max_output_length: Integer | None = None


class ShellCallItem(CallItem):
    type: Literal["shell_call"]
    action: ShellAction


class ShellResult(WireModel):
    stdout: str
    stderr: str
    outcome: dict[str, Any] | None = None


class ShellOutputItem(CallItem):
    type: Literal["shell_call_output"]
    output: str | list[ShellResult]


class PatchOperation(WireModel):
    type: Literal["create_file", "delete_file", "update_file"]
    path: str
    diff: str | None = None


class PatchCallItem(CallItem):
    type: Literal["apply_patch_call"]
    operation: PatchOperation


class PatchOutputItem(CallItem):
    type: Literal["apply_patch_call_output"]
    output: str | None = None


class ListedTool(WireModel):
    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    annotations: dict[str, Any] | None = None


class McpListItem(StoredItem):
    type: Literal["mcp_list_tools"]
    server_label: str
    tools: list[ListedTool]


class McpRequestItem(StoredItem):
    type: Literal["mcp_approval_request"]
    server_label: str
    name: str
    arguments: str


class McpResponseItem(StoredItem):
    type: Literal["mcp_approval_response"]
    approval_request_id: str
    approve: bool
    reason: str | None = None


class McpCallItem(StoredItem):
    type: Literal["mcp_call"]
    server_label: str
    name: str
    arguments: str
    output: str | None = None
    approval_request_id: str | None = None


class CompactionItem(StoredItem):
    type: Literal["compaction"]
    encrypted_content: str


class CompactionTrigger(StoredItem):
    type: Literal["compaction_trigger"]


class ReasoningUpdate(WireModel):
    effort: Effort | None = None


class ConfigurationUpdate(StoredItem):
    """Settings from here on, in place of the request's (openai 3.57, response_configuration_update_item_param.py)."""

    type: Literal["configuration_update"]
    reasoning: ReasoningUpdate | None = None
    text: dict[str, Any] | None = None


class ToolSearchCallItem(StoredItem):
    type: Literal["tool_search_call"]
    call_id: str | None = None
    arguments: Any = None


class ToolSearchOutputItem(StoredItem):
    type: Literal["tool_search_output"]
    call_id: str | None = None
    tools: list[dict[str, Any]]


class MoreToolsItem(StoredItem):
    type: Literal["additional_tools"]
    role: Literal["developer"]
    tools: list[dict[str, Any]]


class ProgramItem(CallItem):
    type: Literal["program"]
    code: str
    fingerprint: str | None = None


class ProgramOutputItem(CallItem):
    type: Literal["program_output"]
    result: str


OtherItem = Annotated[
    FileSearchCallItem | WebSearchCallItem | ComputerCallItem | ComputerOutputItem | CodeInterpreterCallItem | ImageCallItem
    | LocalShellCallItem | LocalShellOutputItem | ShellCallItem | ShellOutputItem | PatchCallItem | PatchOutputItem
    | McpListItem | McpRequestItem | McpResponseItem | McpCallItem | CompactionItem | CompactionTrigger
    | ConfigurationUpdate | ToolSearchCallItem
    | ToolSearchOutputItem | MoreToolsItem | ProgramItem | ProgramOutputItem,
    Field(discriminator="type"),
]  # fmt: skip


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
