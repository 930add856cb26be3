"""Turns and tools of the Messages API in the form of chat completions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmirage_server.api.shape import Shape, asked_in_words, schema_problem
from llmirage_server.replies.reply import Tool, ToolChoice
from llmirage_shared.wire import errors
from llmirage_shared.wire.chat import called_before_user, called_since_user, results_since_user, text_before_user
from llmirage_shared.wire.errors import ApiError

if TYPE_CHECKING:
    from llmirage_shared.wire.schema.messages import CountRequest

_ADAPTIVE_THOUGHT = 512  # tokens


def chat_messages(request: CountRequest) -> list[dict[str, Any]]:
    """Raises ApiError where results and uses of tools do not belong together."""
    chat: list[dict[str, Any]] = []
    system = request.system
    if system:
        text = system if isinstance(system, str) else "\n".join(block.text for block in system)
        chat.append({"role": "system", "content": text})
    uses: dict[str, None] = {}
    for index, message in enumerate(request.messages):
        plain = message.model_dump(by_alias=True, exclude_unset=True)
        content = plain["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        _check_results(index, blocks, uses)
        uses = {block["id"]: None for block in blocks if block["type"] == "tool_use"}
        chat += _turn(plain["role"], blocks)
    if uses:
        raise _unanswered(len(request.messages) - 1, uses)
    return chat


def _check_results(index: int, blocks: Sequence[Mapping[str, Any]], uses: Mapping[str, None]) -> None:
    results = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
    if missing := [use for use in uses if use not in results]:
        raise _unanswered(index - 1, missing)
    for result in results:
        if result not in uses:
            raise ApiError(
                f"messages.{index}.content.0: unexpected `tool_use_id` found in `tool_result` blocks: {result}. Each "
                "`tool_result` block must have a corresponding `tool_use` block in the previous message."
            )


def _unanswered(index: int, uses: Any) -> ApiError:
    return ApiError(
        f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(uses)}. "
        "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
    )


def _turn(role: str, blocks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for block in blocks:
        kind = block["type"]
        if kind == "tool_use":
            written = json.dumps(block["input"], ensure_ascii=False, separators=(",", ":"))
            calls.append({"id": block["id"], "type": "function", "function": {"name": block["name"], "arguments": written}})
        elif kind == "tool_result":
            messages.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": _result(block.get("content"))})
        elif kind == "text":
            parts.append({"type": "text", "text": block["text"]})
        elif kind == "image":
            parts.append({"type": "image_url", "image_url": {"url": json.dumps(block["source"])}})
        elif kind == "document":
            parts.append({"type": "file", "file": block["source"]})
    if parts or calls or not messages:
        plain = all(part["type"] == "text" for part in parts)
        content = "\n".join(part["text"] for part in parts) if plain else parts
        message: dict[str, Any] = {"role": role, "content": content}
        if calls:
            message["tool_calls"] = calls
        messages.append(message)
    return messages


def _result(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(str(block.get("text", "")) for block in content if block.get("type") == "text")


def chat_tools(request: CountRequest) -> list[dict[str, Any]] | None:
    """The tools as the prompt shows them."""
    tools = [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema or {}},
        }
        for tool in request.tools or ()
    ]
    return tools or None


def answer_schema(request: CountRequest) -> Any:
    """The JSON Schema that the answer must fit, None for text."""
    form = (request.output_config.format if request.output_config else None) or request.output_format
    return form.schema_ if form else None


def messages_shape(request: CountRequest, chat: Sequence[Mapping[str, Any]], max_tokens: int) -> Shape:
    """The shape of the reply. Raises ApiError for a schema that is none and for a tool that is not there."""
    tools = []
    for index, tool in enumerate(request.tools or ()):
        if tool.input_schema and (problem := schema_problem(tool.input_schema, False)):
            raise errors.invalid_schema(f"tool '{tool.name}'", problem, f"tools.{index}.input_schema", None)
        if tool.type in (None, "custom"):  # the provider's own tools are declared, never called
            tools.append(Tool("function", tool.name, tool.description or "", tool.input_schema))
    schema = answer_schema(request)
    if schema is not None and (problem := schema_problem(schema, False)):
        raise errors.invalid_schema("output_config.format", problem, "output_config.format.schema", None)
    schema, fenced = asked_in_words(schema, None, chat)
    thinking = request.thinking
    thought = 0
    if thinking is not None and thinking.type != "disabled":
        budget = thinking.budget_tokens or _ADAPTIVE_THOUGHT
        if thinking.budget_tokens is not None and budget >= max_tokens:
            raise errors.invalid_value(
                "thinking.budget_tokens", "`max_tokens` must be greater than `thinking.budget_tokens`."
            )
        thought = min(budget, _ADAPTIVE_THOUGHT, max_tokens * 3 // 4)
    return Shape(
        tools=tuple(tools),
        tool_choice=_choice(request, {tool.name for tool in tools}),
        parallel_tool_calls=not (request.tool_choice and request.tool_choice.disable_parallel_tool_use),
        called=called_since_user(chat),
        results=results_since_user(chat),
        called_before=called_before_user(chat),
        text_before=text_before_user(chat),
        json_schema=schema,
        fenced=fenced,
        reasoning_tokens=thought,
        may_refuse=True,
    )


def _choice(request: CountRequest, names: set[str]) -> ToolChoice:
    choice = request.tool_choice
    if choice is None or choice.type == "auto":
        return ToolChoice("auto")
    if choice.type == "none":
        return ToolChoice("none")
    if choice.type == "any":
        return ToolChoice("required")
    if choice.name not in names:
        raise errors.invalid_value("tool_choice", f"Tool '{choice.name}' not found in provided tools.")
    return ToolChoice("required", (str(choice.name),))
