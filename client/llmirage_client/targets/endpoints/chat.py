"""Chat completions: POST /chat/completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmirage_client.targets.endpoints.protocol import Endpoint, TurnRequest
from llmirage_client.targets.reply import ReplyReader, TextModel, dicts, stated_error, text_of
from llmirage_client.targets.sse import ChunkModel
from llmirage_client.targets.wire_json import WireObject

_REASONING_KEYS = ("reasoning_content", "reasoning")
_CALL_TEXT = {"function": "arguments", "custom": "input"}  # what the model writes for each kind of tool call


class ChatReply(ReplyReader):
    """A reply of /chat/completions or /completions. Of several choices the first is kept; arrivals are those of all."""

    def __init__(self) -> None:
        super().__init__()
        self._tool_call_at: dict[Any, dict[str, Any]] = {}

    def _read_chunk(self, stamp_s: float, value: Mapping[str, Any]) -> None:
        self._read_object(stamp_s, value, "delta")

    def _read_whole(self, stamp_s: float, value: Mapping[str, Any]) -> None:
        self._read_object(stamp_s, value, "message")

    def _text_model(self, chunk: str, value: Mapping[str, Any]) -> TextModel | None:
        key = _only_text_key(value)
        return ChunkModel.of(chunk, key) if key is not None else None

    def _read_object(self, stamp_s: float, value: Mapping[str, Any], part: str) -> None:
        if value.get("error"):
            self._fail(stated_error(value, None, "stream_error" if part == "delta" else "server_error"))
            return
        self.read_model(value)
        usage = value.get("usage")
        if isinstance(usage, dict):
            self.usage = usage
        carried = output = False
        for choice in dicts(value.get("choices")):
            inner = choice.get(part)
            if not isinstance(inner, dict):
                inner = {"content": choice.get("text")}
            content = text_of(inner.get("content")) or text_of(inner.get("refusal"))
            reasoning = next((text for key in _REASONING_KEYS if (text := text_of(inner.get(key)))), "")
            calls = dicts(inner.get("tool_calls"))
            legacy = inner.get("function_call")
            if isinstance(legacy, dict):
                calls.append({"index": "function_call", "type": "function", "function": legacy})
            output = output or bool(content or calls)
            carried = carried or bool(content or calls or reasoning)
            if choice.get("index") in (0, None):
                if content:
                    self._text.append(content)
                if reasoning:
                    self._reasoning.append(reasoning)
                for position, call in enumerate(calls):
                    self._merge_tool_call(call, position, part == "message")
                if isinstance(choice.get("finish_reason"), str):
                    self.finish_reason = choice["finish_reason"]
        self._note_arrival(stamp_s, output, carried)

    def _merge_tool_call(self, delta: Mapping[str, Any], position: int, whole: bool) -> None:
        """Read deltas of calls, which share an index and carry the id and name once and the arguments in pieces."""
        index = position if whole else delta.get("index", position)
        call = self._tool_call_at.get(index)
        if call is None:
            call = {"id": f"call_{len(self._tool_calls)}", "type": "function"}
            self._tool_call_at[index] = call
            self._tool_calls.append(call)
        for key, value in delta.items():
            if key in _CALL_TEXT:
                if not isinstance(value, dict):
                    continue
                written = call.setdefault(key, {"name": "", _CALL_TEXT[key]: ""})
                for part in written:
                    written[part] += text_of(value.get(part))
            elif key != "index" and value is not None:
                call[key] = value


class ChatEndpoint(Endpoint):
    """The form that histories have anyway: nothing is translated. Keys of the body come in AIPerf's order."""

    name = "chat"
    path = "/chat/completions"
    new_reply: type[ReplyReader] = ChatReply
    translates = False
    asks_for_usage = True

    def items(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        return messages

    def tools(self, tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        return [WireObject(tool) for tool in tools]

    def extra(self, extra: Mapping[str, Any]) -> Mapping[str, Any]:
        return extra

    def body(self, request: TurnRequest) -> dict[str, Any]:
        body: dict[str, Any] = {"messages": request.items, "model": request.model, "stream": request.stream}
        if request.tools is not None:
            body["tools"] = request.tools
        if request.max_tokens is not None:
            body["max_tokens" if request.legacy_max_tokens else "max_completion_tokens"] = request.max_tokens
        return body


def _only_text_key(value: Mapping[str, Any]) -> str | None:
    """Return the key of the text if the chunk holds the first choice's text and nothing else to read."""
    choices = value.get("choices")
    if value.get("usage") is not None or value.get("error") or not isinstance(choices, list) or len(choices) != 1:
        return None
    choice = choices[0]
    if not isinstance(choice, dict):
        return None
    if choice.get("finish_reason") is not None or choice.get("index") not in (0, None):
        return None
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return "text" if isinstance(choice.get("text"), str) else None
    if delta.get("tool_calls") or delta.get("function_call") or delta.get("refusal"):
        return None
    keys = [key for key in ("content", *_REASONING_KEYS) if delta.get(key) is not None]
    return keys[0] if len(keys) == 1 and isinstance(delta[keys[0]], str) else None
