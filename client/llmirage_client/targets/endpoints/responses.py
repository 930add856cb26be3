"""The Responses API, POST /responses: request bodies, and replies as JSON or a stream of events."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

from llmirage_client.measure.record import RequestError
from llmirage_client.targets.endpoints.protocol import (
    ESCAPED_BYTE,
    Endpoint,
    ReplyReader,
    TextModel,
    TurnRequest,
    dicts,
    kind_of,
    stated_error,
    text_of,
    tool_calls_of,
    tool_result_id,
)
from llmirage_client.targets.wire_json import WireObject

_OUTPUT_DELTAS = {"response.output_text.delta", "response.refusal.delta"}
_REASONING_DELTAS = {"response.reasoning_text.delta", "response.reasoning_summary_text.delta"}
_CALL_DELTAS = {"response.function_call_arguments.delta", "response.custom_tool_call_input.delta"}
_LAST_EVENTS = {"response.completed", "response.incomplete", "response.failed"}
_CALLS = {"function_call": ("function", "arguments"), "custom_tool_call": ("custom", "input")}

_DELTA = '"delta":"'


class DeltaModel:
    """Events that start like one that was parsed, with the same type. They are numbered, so that the rest always differs."""

    __slots__ = ("_before", "reasoning")

    def __init__(self, before: str, reasoning: bool) -> None:
        self._before = before
        self.reasoning = reasoning

    def text_of(self, chunk: str) -> str | None:
        """Return the text of the event's delta; None for an event of another kind, and where it is not plain to see."""
        if not chunk.startswith(self._before):
            return None
        # Without a backslash before it this is a key: within a string its quotes would be escaped.
        found = chunk.find(_DELTA, len(self._before))
        if found < 0 or chunk[found - 1] == "\\" or chunk.find(_DELTA, found + 1) >= 0:
            return None
        try:
            text, _ = scanstring(chunk, found + len(_DELTA))
        except ValueError:
            return None
        whole = chunk[-1] == "}" and (chunk.isascii() or not ESCAPED_BYTE.search(chunk))
        return text if whole else None


class ResponsesReply(ReplyReader):
    """items: the output as it came, for the input of the next turn."""

    def __init__(self) -> None:
        super().__init__()
        self._output: list[dict[str, Any]] = []

    def _text_model(self, chunk: str, value: Mapping[str, Any]) -> TextModel | None:
        kind = kind_of(value)
        if kind not in _OUTPUT_DELTAS and kind not in _REASONING_DELTAS:
            return None
        start = re.match(rf'\{{[ ]*"type"[ ]*:[ ]*"{re.escape(kind)}"', chunk)
        return DeltaModel(start[0], kind in _REASONING_DELTAS) if start else None

    def _read_chunk(self, stamp_s: float, value: Mapping[str, Any]) -> None:
        kind = kind_of(value)
        delta = value.get("delta")
        if kind in _OUTPUT_DELTAS and isinstance(delta, str):
            self._text.append(delta)
            self._note_arrival(stamp_s, bool(delta), bool(delta))
        elif kind in _REASONING_DELTAS and isinstance(delta, str):
            self._reasoning.append(delta)
            self._note_arrival(stamp_s, False, bool(delta))
        elif kind in _CALL_DELTAS:
            self._note_arrival(stamp_s, bool(delta), bool(delta))
        elif kind == "response.output_item.added":
            item = value.get("item")
            if isinstance(item, dict) and kind_of(item) in _CALLS:
                self._note_arrival(stamp_s, True)  # the call's name
        elif kind == "response.output_item.done":
            if isinstance(item := value.get("item"), dict):
                self._output.append(item)
                self.items = self._output
        elif kind in _LAST_EVENTS:
            self.ended = True
            response = value.get("response")
            self._read_response(response if isinstance(response, dict) else {})
        elif kind == "error" or value.get("error"):
            self._fail(stated_error(value, None, "stream_error"))
        elif kind == "response.created" and isinstance(response := value.get("response"), dict):
            self.response_id = response.get("id")

    def _read_whole(self, stamp_s: float, value: Mapping[str, Any]) -> None:
        self._read_response(value)
        for item in dicts(value.get("output")):
            self._read_texts(item)
        output = bool(self._text or self._tool_calls)
        self._note_arrival(stamp_s, output, output or bool(self._reasoning))

    def _read_texts(self, item: Mapping[str, Any]) -> None:
        if kind_of(item) == "message":
            self._text.extend(
                text_of(part.get("text")) or text_of(part.get("refusal")) for part in dicts(item.get("content"))
            )
        elif kind_of(item) == "reasoning":
            self._reasoning.append(text_of(item.get("content")) or text_of(item.get("summary")))

    def _read_response(self, response: Mapping[str, Any]) -> None:
        """Read a whole response: the last event's, or the body."""
        if isinstance(response.get("id"), str):
            self.response_id = response["id"]
        self.read_model(response)
        if isinstance(usage := response.get("usage"), dict):
            self.usage = chat_usage(usage)
        output = dicts(response.get("output"))
        known = {item.get("id") for item in output}  # servers were seen to leave items out, here or of the events
        self._output = output + [item for item in self._output if item.get("id") not in known]
        self.items = self._output
        self._tool_calls = [_tool_call(item) for item in self._output if kind_of(item) in _CALLS]
        status = response.get("status")
        if status == "failed":
            self._fail(stated_error(response, None, "server_error"))
        elif status == "incomplete":
            details = response.get("incomplete_details")
            reason = details.get("reason") if isinstance(details, dict) else None
            self.finish_reason = "length" if reason == "max_output_tokens" else reason
        elif status in ("queued", "in_progress", "cancelled"):
            self._fail(RequestError(None, "server_error", f"the response is {status}"))
        else:
            self.finish_reason = "tool_calls" if self._tool_calls else "stop"


def _tool_call(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call in chat's form."""
    kind, written = _CALLS[kind_of(item)]
    call = {"name": item.get("name"), written: item.get(written)}
    return {"id": item.get("call_id"), "type": kind, kind: call}


def chat_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usage in the words of chat completions."""
    renamed = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens"}
    renamed |= {f"{key}_details": f"{name}_details" for key, name in renamed.items()}
    return {renamed.get(key, key): value for key, value in usage.items()}


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
    """Return a chat message as items; an item of this API, which has a type, stays as it is."""
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
    """Return a message's content: text stays a string, parts get this API's types."""
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
    """Return a tool flat, which chat nests under its type."""
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
