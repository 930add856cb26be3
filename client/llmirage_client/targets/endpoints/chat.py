"""Chat completions: POST /chat/completions; and text completions: POST /completions.

For the latter a conversation becomes one prompt by the chat template of the run's tokenizer; a text that stands alone is a
prompt already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from llmirage_client.targets.endpoints.protocol import (
    ChunkModel,
    Endpoint,
    ReplyReader,
    TextModel,
    TurnRequest,
    dicts,
    stated_error,
    text_of,
)
from llmirage_client.targets.wire_json import WireObject
from llmirage_shared.prompt_encoder import ChatTemplate, ChatTemplateError
from llmirage_shared.tokenizer_loader import load

_REASONING_KEYS = ("reasoning_content", "reasoning")
_CALL_TEXT = {"function": "arguments", "custom": "input"}  # what the model writes for each kind of tool call


class ChatReply(ReplyReader):
    """A reply of /chat/completions or /completions. Of several choices the first is kept; arrivals are those of all."""

    def __init__(self) -> None:
        super().__init__()
        self._tool_call_at: dict[Any, dict[str, Any]] = {}

    def _read_chunk(self, stamp_s: float, value: Mapping[str, Any]) -> None:
        if value.get("error"):
            self._fail(stated_error(value, None, "stream_error"))
        else:
            self._read_object(stamp_s, value, "delta")

    def _read_whole(self, stamp_s: float, value: Mapping[str, Any]) -> None:
        self._read_object(stamp_s, value, "message")

    def _text_model(self, chunk: str, value: Mapping[str, Any]) -> TextModel | None:
        key = _only_text_key(value)
        return ChunkModel.of(chunk, key) if key is not None else None

    def _read_object(self, stamp_s: float, value: Mapping[str, Any], part: str) -> None:
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


_OF_TOOLS = ("tool_choice", "parallel_tool_calls")  # this API has no tools: they are words in the prompt


class CompletionsEndpoint(ChatEndpoint):
    """tokenizer: folder or hub name of the one whose template writes prompts; None: the embedded one. Loaded when needed."""

    name = "completions"
    path = "/completions"

    def __init__(self, tokenizer: str | None = None) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def _template(self) -> ChatTemplate:
        return load(self._tokenizer)[1]

    def items(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Return the messages if a text prompt can carry them. Raises ChatTemplateError otherwise."""
        for message in messages:
            kinds = {part.get("type") for part in dicts(message.get("content"))} - {"text"}
            if kinds:
                raise ChatTemplateError(
                    f"a message with a part of type {min(map(str, kinds))!r} cannot be written into a prompt of text: "
                    "use --endpoint-type chat"
                )
        return messages

    def extra(self, extra: Mapping[str, Any]) -> Mapping[str, Any]:
        kept = {key: value for key, value in extra.items() if key not in _OF_TOOLS}
        return {"max_tokens" if key == "max_completion_tokens" else key: value for key, value in kept.items()}

    def body(self, request: TurnRequest) -> dict[str, Any]:
        """Return the request body. Raises TokenizerError and ChatTemplateError."""
        texts = _texts(request.items) if request.alone and not request.tools else []
        if texts:
            return prompt_body(texts[0] if len(texts) == 1 else texts, request)
        return prompt_body(self._template.render(request.items, request.tools), request)


def _texts(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the texts of a single user message and nothing else; several are prompts of their own, as AIPerf has it."""
    if len(messages) != 1 or messages[0].keys() != {"role", "content"} or messages[0]["role"] != "user":
        return []
    content = messages[0]["content"]
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in dicts(content) if isinstance(part.get("text"), str)]


def prompt_body(prompt: str | list[str] | list[int], request: TurnRequest) -> dict[str, Any]:
    """Return the body for a prompt that is written already, or given as token ids."""
    body: dict[str, Any] = {"prompt": prompt, "model": request.model, "stream": request.stream}
    if request.max_tokens is not None:
        body["max_tokens"] = request.max_tokens
    return body
