"""The Responses API: POST /responses. What it is asked; responses_reply.py reads what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmirage_client.targets.endpoints.protocol import Endpoint, TurnRequest
from llmirage_client.targets.endpoints.responses_reply import ResponsesReply
from llmirage_client.targets.reply import tool_calls_of, tool_result_id
from llmirage_client.targets.wire_json import WireObject

# Parameters with another name here than in chat completions.
_RENAMED = {"max_tokens": "max_output_tokens", "max_completion_tokens": "max_output_tokens"}


class ResponsesEndpoint(Endpoint):
    """Messages become input items: a tool call and its result are items of their own."""

    name = "responses"
    path = "/responses"
    new_reply = ResponsesReply
    least_max_tokens = 16

    def items(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        return [WireObject(item) for message in messages for item in _items(message)]

    def tools(self, tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        return [WireObject(_tool(tool)) for tool in tools]

    def extra(self, extra: Mapping[str, Any]) -> Mapping[str, Any]:
        translated: dict[str, Any] = {}
        text: dict[str, Any] = {}
        for key, value in extra.items():
            if key == "response_format":
                text["format"] = _format(value)
            elif key == "verbosity":
                text["verbosity"] = value
            elif key == "reasoning_effort":
                translated["reasoning"] = {"effort": value}
            elif key == "tool_choice":
                translated[key] = _tool_choice(value)
            elif key == "stream_options":
                pass  # it could only ask for the usage, which always comes
            else:
                translated[_RENAMED.get(key, key)] = value
        return translated | ({"text": text} if text else {})

    def body(self, request: TurnRequest) -> dict[str, Any]:
        body: dict[str, Any] = {"input": request.items, "model": request.model, "stream": request.stream}
        if request.previous_response_id is not None:
            body["previous_response_id"] = request.previous_response_id
        if request.conversation_id is not None:
            body["conversation"] = request.conversation_id
        if request.tools is not None:
            body["tools"] = request.tools
        if request.max_tokens is not None:
            body["max_output_tokens"] = request.max_tokens
        return body


def _items(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a chat message is as items; an item of this API, which has a type, stays as it is."""
    role = message.get("role")
    if role is None or "type" in message:
        return [dict(message)]
    if role in ("tool", "function"):
        output = _content(message.get("content"), "input_text")
        return [{"type": "function_call_output", "call_id": tool_result_id(message), "output": output}]
    items: list[dict[str, Any]] = []
    calls = tool_calls_of(message)
    content = message.get("content") or message.get("refusal")
    if content or not calls:
        parts = _content(content, "output_text" if role == "assistant" else "input_text")
        items.append({"role": role, "content": parts})
    items.extend(_call_item(call) for call in calls)
    return items


def _call_item(call: Mapping[str, Any]) -> dict[str, Any]:
    if custom := call.get("custom"):
        named = {"name": custom.get("name"), "input": custom.get("input")}
        return {"type": "custom_tool_call", "call_id": call.get("id"), **named}
    function = call.get("function") or {}
    named = {"name": function.get("name"), "arguments": function.get("arguments")}
    return {"type": "function_call", "call_id": call.get("id"), **named}


def _content(content: Any, text_type: str) -> Any:
    """A message's content: text stays a string, parts get this API's types."""
    if isinstance(content, list):
        return [_part(part, text_type) for part in content]
    return "" if content is None else content


def _part(part: Any, text_type: str) -> Any:
    if not isinstance(part, Mapping):
        return {"type": text_type, "text": str(part)}
    kind = part.get("type")
    if kind == "text":
        return {**part, "type": text_type}
    if kind == "image_url":
        image = part.get("image_url")
        image = image if isinstance(image, Mapping) else {"url": image}
        detail = {"detail": image["detail"]} if image.get("detail") else {}
        return {"type": "input_image", "image_url": image.get("url"), **detail}
    if kind == "file" and isinstance(part.get("file"), Mapping):
        return {"type": "input_file", **part["file"]}
    return part


def _tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Chat nests what a tool is under its type; here it lies flat."""
    inner = tool.get(str(tool.get("type")))
    if not isinstance(inner, Mapping):
        return tool
    flat = {"type": tool["type"], **inner}
    grammar = inner.get("format", {}).get("grammar") if isinstance(inner.get("format"), Mapping) else None
    if isinstance(grammar, Mapping):
        flat["format"] = {"type": "grammar", **grammar}
    return flat


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, Mapping) and isinstance(inner := choice.get(str(choice.get("type"))), Mapping):
        return {"type": choice["type"], **inner}
    return choice


def _format(value: Any) -> Any:
    if isinstance(value, Mapping) and isinstance(schema := value.get("json_schema"), Mapping):
        return {"type": "json_schema", **schema}
    return value
