"""Messages and tools of the Messages API in chat's form, and the constraints of the reply.

A request that continues a thread sends only its new messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llmirage_server.anthropic.tools import declared_tools, forced_names
from llmirage_server.replies.reply import Tool, ToolChoice
from llmirage_server.service.constraints import ReplyConstraints, instructions_of, schema_problem
from llmirage_server.state.state import ReadKept, State
from llmirage_shared.wire import errors, schema
from llmirage_shared.wire.chat import chat_history
from llmirage_shared.wire.errors import ApiError

_MOST_THOUGHT = 512  # tokens
_ADAPTIVE_THOUGHT = 128  # of a model that decides by itself: few of an agent's turns need much


def chat_messages(request: schema.messages.CountRequest, strict: bool = True) -> list[dict[str, Any]]:
    """Return the messages in chat's form.

    strict: raises ApiError for a tool use without a result, and a result without a use.
    """
    chat: list[dict[str, Any]] = []
    system = request.system
    if system:
        text = system if isinstance(system, str) else "\n".join(block.text for block in system)
        chat.append({"role": "system", "content": text})
    uses: dict[str, None] = {}
    for index, message in enumerate(request.messages):
        plain = message.plain()
        content = plain["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if strict:
            _check_results(index, blocks, uses)
        uses = {block["id"]: None for block in blocks if block["type"] == "tool_use"}
        chat += _turn(plain["role"], blocks)
    if strict and uses:
        raise _unanswered(len(request.messages) - 1, uses)
    return chat


def chat_length(request: schema.messages.CountRequest, messages: int) -> int:
    """Return the number of `chat_messages` that the system prompt and the first `count` messages become."""
    return bool(request.system) + sum(
        [
            1 if isinstance(message.content, str) else len(_turn(message.role, message.plain()["content"]))
            for message in request.messages[:messages]
        ]
    )


def _check_results(index: int, blocks: Sequence[Mapping[str, Any]], uses: Mapping[str, None]) -> None:
    results = {block["tool_use_id"] for block in blocks if block["type"] == "tool_result"}
    if missing := [use for use in uses if use not in results]:
        raise _unanswered(index - 1, missing)
    for place, block in enumerate(blocks):
        if block["type"] == "tool_result" and (result := block["tool_use_id"]) not in uses:
            raise ApiError(
                f"messages.{index}.content.{place}: unexpected `tool_use_id` found in `tool_result` blocks: {result}. Each "
                "`tool_result` block must have a corresponding `tool_use` block in the previous message."
            )


def _unanswered(index: int, uses: Any) -> ApiError:
    return ApiError(
        f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(uses)}. "
        "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
    )


def _turn(role: str, blocks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the chat messages of one message: a call of the API's own tool ends one, and its result follows."""
    messages: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []

    def end_message() -> None:
        plain = all(part["type"] == "text" for part in parts)
        content = "\n".join(part["text"] for part in parts) if plain else list(parts)
        messages.append({"role": role, "content": content, **({"tool_calls": list(calls)} if calls else {})})
        parts.clear()
        calls.clear()

    for block in blocks:
        kind = block["type"]
        if kind in ("tool_use", "server_tool_use", "mcp_tool_use"):
            written = json.dumps(block["input"], ensure_ascii=False, separators=(",", ":"))
            name = f"{block['server_name']}.{block['name']}" if kind == "mcp_tool_use" else block["name"]
            calls.append({"id": block["id"], "type": "function", "function": {"name": name, "arguments": written}})
        elif kind == "tool_result":
            messages.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": _result(block.get("content"))})
        elif kind.endswith("_tool_result"):
            if parts or calls:
                end_message()
            messages.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": _given(block.get("content"))})
        elif kind == "text":
            parts.append({"type": "text", "text": block["text"]})
        elif kind == "image":
            parts.append({"type": "image_url", "image_url": {"url": _url(block["source"]) or json.dumps(block["source"])}})
        elif kind == "document":
            parts += _document(block)
        elif kind == "container_upload":
            parts.append({"type": "text", "text": f"Uploaded file: {block['file_id']}"})
        elif kind == "search_result":
            parts += [{"type": "text", "text": text} for text in (block["source"], block["title"])]
            parts += [{"type": "text", "text": inner["text"]} for inner in block["content"]]
    if parts or calls or not messages:
        end_message()
    return messages


def named_files(request: schema.messages.CountRequest) -> list[str]:
    """Return the ids of the stored files that the messages name."""
    blocks = [block for message in request.messages if not isinstance(message.content, str) for block in message.content]
    sources = [block.source for block in blocks if isinstance(block, schema.messages.SourceBlock)]
    uploads = [block.file_id for block in blocks if isinstance(block, schema.messages.ContainerUploadBlock)]
    return [*[str(source.get("file_id")) for source in sources if source.get("type") == "file"], *uploads]


def _given(content: Any) -> str:
    """Return the result of one of the API's own tools as text, without the parts that only the API can read."""
    if isinstance(content, str):
        return content
    hidden = ("encrypted_content", "encrypted_stdout")
    blocks = content if isinstance(content, list) else [content or {}]
    shown = [{key: value for key, value in block.items() if key not in hidden} for block in blocks]
    return json.dumps(shown if isinstance(content, list) else shown[0], ensure_ascii=False)


def _url(source: Mapping[str, Any]) -> str | None:
    """Return a source with its bytes as a data URL, an address as it is, a stored file by its id; None for others."""
    if source.get("type") == "file":
        return f"file:{source.get('file_id')}"
    if source.get("type") == "base64":
        return f"data:{source.get('media_type')};base64,{source.get('data')}"
    return source["url"] if isinstance(source.get("url"), str) else None


def _document(block: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Its title and context, and its content: texts as they are, anything else as a file."""
    source = block["source"]
    parts = [{"type": "text", "text": block[key]} for key in ("title", "context") if isinstance(block.get(key), str)]
    content = source.get("data") if source.get("type") == "text" else source.get("content")
    if isinstance(content, str):
        return [*parts, {"type": "text", "text": content}]
    if isinstance(content, list):
        blocks = [inner for inner in content if isinstance(inner, Mapping)]
        return [*parts, *[{"type": "text", "text": str(inner.get("text", ""))} for inner in blocks]]
    data = None if source.get("type") == "file" else _url(source)
    file_id = source.get("file_id")
    return [*parts, {"type": "file", "file": {"file_data": data, "file_id": None if file_id is None else str(file_id)}}]


def _result(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(str(block.get("text", "")) for block in content if block.get("type") == "text")


def chat_tools(request: schema.messages.CountRequest) -> list[dict[str, Any]] | None:
    """Return the tools as the prompt shows them: those that must be found first are not there."""
    tools = [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters or {}},
        }
        for tool in declared_tools(request)
        if not tool.found_by
    ]
    return tools or None


def answer_schema(request: schema.messages.CountRequest) -> Any:
    """Return the JSON Schema that the answer must fit, None for text."""
    form = (request.output_config.format if request.output_config else None) or request.output_format
    return form.schema_ if form else None


def messages_constraints(request: schema.messages.MessagesRequest, chat: Sequence[Mapping[str, Any]]) -> ReplyConstraints:
    """Return the constraints of the reply. Raises ApiError for an invalid JSON Schema and for an unknown tool.

    chat: the messages in chat's form.
    """
    tools = declared_tools(request)
    for tool in tools:
        if tool.parameters and (problem := schema_problem(tool.parameters, tool.field)):
            raise errors.invalid_schema(f"tool '{tool.name}'", problem, tool.field, None)
    json_schema = answer_schema(request)
    form = "output_config.format" if request.output_config and request.output_config.format else "output_format"
    if json_schema is not None and (problem := schema_problem(json_schema, f"{form}.schema")):
        raise errors.invalid_schema(form, problem, f"{form}.schema", None)
    return ReplyConstraints(
        reasoning_tokens=_thought_tokens(request),
        tools=tuple(tools),
        tool_choice=_choice(request, tools),
        parallel_tool_calls=not (request.tool_choice and request.tool_choice.disable_parallel_tool_use),
        history=chat_history(chat),
        json_schema=json_schema,
        form_field=f"{form}.schema",
        instructions=instructions_of(chat),
        may_refuse=True,
    )


def _thought_tokens(request: schema.messages.MessagesRequest) -> int:
    """Return the tokens of thought. Raises ApiError for a budget that leaves nothing for the answer."""
    thinking = request.thinking
    if thinking is None or thinking.type == "disabled":
        return 0
    budget = thinking.budget_tokens or _ADAPTIVE_THOUGHT
    if thinking.budget_tokens is not None and budget >= request.max_tokens:
        raise ApiError("`max_tokens` must be greater than `thinking.budget_tokens`.")
    return max(0, min(budget, _MOST_THOUGHT, request.max_tokens * 3 // 4))


def _choice(request: schema.messages.CountRequest, tools: Sequence[Tool]) -> ToolChoice:
    choice = request.tool_choice
    if choice is None or choice.type == "auto":
        return ToolChoice("auto")
    if choice.type == "none":
        return ToolChoice("none")
    if choice.type == "any":
        return ToolChoice("required")
    names = forced_names(choice.name or "", tools, request)
    if not names:
        raise errors.invalid_value("tool_choice", f"Tool '{choice.name}' not found in provided tools.")
    return ToolChoice("required", names)


_KEPT = ("system", "tools", "tool_choice", "thinking", "output_config", "output_format", "mcp_servers")


async def continued(state: State, body: Mapping[str, Any], kept: ReadKept) -> dict[str, Any]:
    """Return the body with the messages and settings of its thread. Raises ApiError for an unknown message."""
    thread, messages = body.get("thread"), body.get("messages")
    if not isinstance(thread, Mapping) or thread.get("type") != "continue" or not isinstance(messages, list):
        return dict(body)
    before = thread.get("previous_message_id")
    record = await kept(state.read("thread", before)) if isinstance(before, str) else None
    if record is None:
        raise ApiError(f"thread.previous_message_id: no message '{before}' was found.", status=404)
    return {**record["settings"], **body, "messages": [*record["messages"], *messages]}


def remember(state: State, body: Mapping[str, Any], message: Mapping[str, Any]) -> None:
    """Store the messages of a thread, so that a later request can continue it."""
    if isinstance(body.get("thread"), Mapping):
        reply = {"role": "assistant", "content": message["content"]}
        settings = {key: body[key] for key in _KEPT if key in body}
        state.put("thread", message["id"], {"settings": settings, "messages": [*body["messages"], reply]})
