"""The Anthropic Messages API: POST /messages. What it is asked; messages_reply.py reads what it says."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from llmirage_client.targets.endpoints.messages_reply import MessagesReply
from llmirage_client.targets.endpoints.protocol import Endpoint, TurnRequest
from llmirage_client.targets.reply import text_of, tool_calls_of, tool_result_id
from llmirage_client.targets.wire_json import WireObject

DEFAULT_MAX_TOKENS = 16_384  # the API requires one; this is AIPerf's
_SYSTEM = ("system", "developer")
_RESULTS = ("tool", "function")
_DATA_URL = re.compile(r"data:(?P<type>[\w/+.-]+);base64,(?P<data>.*)", re.DOTALL)
_RENAMED = {"max_completion_tokens": "max_tokens"}
# Usage always comes, and only llmirage takes the others: elsewhere a run of exact lengths has the limits alone.
_LEFT_OUT = ("stream_options", "min_tokens", "ignore_eos")
_TOOL_CHOICES = {"auto": "auto", "required": "any", "none": "none"}


class MessagesEndpoint(Endpoint):
    """System messages are a field of their own, tool calls and results are blocks; results of one turn are one message."""

    name = "messages"
    path = "/messages"
    new_reply = MessagesReply
    exact_kinds = ("llmirage",)
    key_header = "x-api-key"
    headers: Mapping[str, str] = {"anthropic-version": "2023-06-01"}

    def items(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        items: list[dict[str, Any]] = []
        results: list[dict[str, Any]] = []
        for message in messages:
            if message.get("role") in _RESULTS:
                if not results:
                    items.append({"role": "user", "content": results})
                results.append(_result(message))
            else:
                results = []
                items.append(_turn(message))
        return [WireObject(item) for item in items]

    def tools(self, tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        return [WireObject(_tool(tool)) for tool in tools]

    def extra(self, extra: Mapping[str, Any]) -> Mapping[str, Any]:
        translated: dict[str, Any] = {}
        output: dict[str, Any] = {}
        choice: dict[str, Any] = {}
        for key, value in extra.items():
            if key == "stop":
                translated["stop_sequences"] = [value] if isinstance(value, str) else value
            elif key == "user":
                translated["metadata"] = {"user_id": value}
            elif key == "tool_choice":
                choice |= _tool_choice(value)
            elif key == "parallel_tool_calls":
                choice |= {} if value else {"type": choice.get("type", "auto"), "disable_parallel_tool_use": True}
            elif key == "response_format":
                output |= _format(value)
            elif key == "reasoning_effort":
                output["effort"] = value
            elif key not in _LEFT_OUT:
                translated[_RENAMED.get(key, key)] = value
        own = {"tool_choice": choice, "output_config": output}
        return translated | {key: value for key, value in own.items() if value}

    def body(self, request: TurnRequest) -> dict[str, Any]:
        body: dict[str, Any] = {}
        system = [item["content"] for item in request.items if item.get("role") == "system"]
        if system:
            body["system"] = system[0] if len(system) == 1 else [block for content in system for block in _blocks(content)]
        body["messages"] = [item for item in request.items if item.get("role") != "system"]
        body |= {"model": request.model, "stream": request.stream}
        if request.tools is not None:
            body["tools"] = request.tools
        body["max_tokens"] = request.max_tokens or DEFAULT_MAX_TOKENS
        return body


def _turn(message: Mapping[str, Any]) -> dict[str, Any]:
    role = message.get("role")
    content = message.get("content") or message.get("refusal") or ""
    if isinstance(content, list):
        content = [_block(part) for part in content]
    calls = [_call(call) for call in tool_calls_of(message)]
    if calls:
        content = [*_blocks(content), *calls]
    return {"role": "system" if role in _SYSTEM else role, "content": content}


def _blocks(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return list(content)


def _block(part: Any) -> Any:
    """A part of chat's content as a block. What has no counterpart stays as it is, and the API says what it thinks of it."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "image_url":
        image = part.get("image_url")
        return {"type": "image", "source": _source(image.get("url") if isinstance(image, Mapping) else image)}
    if kind == "file" and isinstance(file := part.get("file"), Mapping) and file.get("file_data"):
        return {"type": "document", "source": _source(file["file_data"])}
    return part


def _source(url: Any) -> dict[str, Any]:
    found = _DATA_URL.fullmatch(str(url))
    if found is None:
        return {"type": "url", "url": url}
    return {"type": "base64", "media_type": found["type"], "data": found["data"]}


def _result(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    content = [_block(part) for part in content] if isinstance(content, list) else content or ""
    return {"type": "tool_result", "tool_use_id": tool_result_id(message), "content": content}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function") or call.get("custom") or {}
    written = text_of(function.get("arguments")) or text_of(function.get("input"))
    try:
        arguments = json.loads(written) if written else {}
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        arguments = {"input": written}  # an object is required
    return {"type": "tool_use", "id": call.get("id"), "name": function.get("name"), "input": arguments}


def _tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = tool.get(str(tool.get("type")))
    if not isinstance(inner, Mapping):
        return tool
    described = {"description": inner["description"]} if inner.get("description") else {}
    schema = inner.get("parameters") or {"type": "object", "properties": {}}
    return {"name": inner.get("name"), **described, "input_schema": schema}


def _tool_choice(choice: Any) -> dict[str, Any]:
    if isinstance(choice, str):
        return {"type": _TOOL_CHOICES.get(choice, choice)}
    if isinstance(choice, Mapping) and isinstance(inner := choice.get(str(choice.get("type"))), Mapping):
        return {"type": "tool", "name": inner.get("name")}
    return dict(choice) if isinstance(choice, Mapping) else {}


def _format(value: Any) -> dict[str, Any]:
    schema = value.get("json_schema") if isinstance(value, Mapping) else None
    if isinstance(schema, Mapping):
        return {"format": {"type": "json_schema", "schema": schema.get("schema")}}
    return {}
