"""The Anthropic Messages API, POST /messages: request bodies, and replies as JSON or a stream of events."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from llmirage_client.measure.record import is_count
from llmirage_client.targets.endpoints.protocol import (
    ChunkModel,
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
from llmirage_client.targets.wire_json import WireObject, parse

_FINISH_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
# Which key of a delta carries the model's words, and which key of its block they are collected under.
_DELTAS = {"text_delta": ("text", "text"), "thinking_delta": ("thinking", "thinking"),
           "signature_delta": ("signature", "signature"), "input_json_delta": ("partial_json", "input")}  # fmt: skip
_COUNTS = ("cache_read_input_tokens", "cache_creation_input_tokens", "input_tokens", "output_tokens")
_TEXT_KEYS = {"text_delta": "text", "thinking_delta": "thinking"}


class _BlockModel:
    """Deltas of one block; their texts are also kept as that block's."""

    __slots__ = ("_model", "_pieces", "reasoning")

    def __init__(self, model: ChunkModel, pieces: list[str]) -> None:
        self._model = model
        self._pieces = pieces
        self.reasoning = model.reasoning

    def text_of(self, chunk: str) -> str | None:
        piece = self._model.text_of(chunk)
        if piece:
            self._pieces.append(piece)
        return piece


class MessagesReply(ReplyReader):
    """items: one message of the blocks that came, thoughts included, since a turn within a chain of tools needs them."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks: dict[Any, dict[str, Any]] = {}
        self._pieces: dict[Any, dict[str, list[str]]] = {}  # of each block, by key
        self._usage: dict[str, Any] = {}

    def read_stream(self, segments: Any) -> None:
        super().read_stream(segments)
        self._finish_blocks()

    def _text_model(self, chunk: str, value: Mapping[str, Any]) -> TextModel | None:
        delta = value.get("delta")
        key = _TEXT_KEYS.get(kind_of(delta)) if isinstance(delta, dict) else None
        model = ChunkModel.of(chunk, key) if key is not None else None
        return _BlockModel(model, self._pieces[value.get("index")][key]) if model is not None and key is not None else None

    def _read_chunk(self, stamp_s: float, value: Mapping[str, Any]) -> None:
        kind = kind_of(value)
        if kind == "content_block_delta":
            self._read_delta(stamp_s, value.get("index"), value.get("delta"))
        elif kind == "content_block_start" and isinstance(block := value.get("content_block"), dict):
            self._blocks[value.get("index")] = dict(block)
            if kind_of(block) == "tool_use":
                self._note_arrival(stamp_s, True)  # the call's name
        elif kind == "message_start" and isinstance(message := value.get("message"), dict):
            self._read_usage(message.get("usage"))
            self.response_id = message.get("id")
            self.read_model(message)
        elif kind == "message_delta":
            self._read_usage(value.get("usage"))
            self._read_stop(value.get("delta"))
        elif kind == "message_stop":
            self.ended = True
        elif kind == "error" or value.get("error"):
            self._fail(stated_error(value, None, "stream_error"))

    def _read_delta(self, stamp_s: float, index: Any, delta: Any) -> None:
        kind = kind_of(delta) if isinstance(delta, dict) else ""
        if kind not in _DELTAS:
            return
        key, block_key = _DELTAS[kind]
        piece = text_of(delta.get(key))
        self._pieces.setdefault(index, {}).setdefault(block_key, []).append(piece)
        if kind == "text_delta":
            self._text.append(piece)
        elif kind == "thinking_delta":
            self._reasoning.append(piece)
        if kind != "signature_delta" and piece:
            self._note_arrival(stamp_s, kind != "thinking_delta")

    def _finish_blocks(self) -> None:
        for index, pieces in self._pieces.items():
            block = self._blocks.setdefault(index, {"type": "text", "text": ""})
            for key, parts in pieces.items():
                written = "".join(parts)
                block[key] = _arguments(written) if key == "input" else text_of(block.get(key)) + written
        self._take_blocks([self._blocks[index] for index in self._blocks])

    def _read_whole(self, stamp_s: float, value: Mapping[str, Any]) -> None:
        blocks = dicts(value.get("content"))
        self._text.extend(text_of(block.get("text")) for block in blocks if kind_of(block) == "text")
        self._reasoning.extend(text_of(block.get("thinking")) for block in blocks if kind_of(block) == "thinking")
        self._take_blocks(blocks)
        self._read_usage(value.get("usage"))
        self._read_stop(value)
        self.response_id = value.get("id")
        self.read_model(value)
        output = bool(self.text or self._tool_calls)
        self._note_arrival(stamp_s, output, output or bool(self.reasoning))

    def _take_blocks(self, blocks: list[dict[str, Any]]) -> None:
        self._tool_calls = [_tool_call(block) for block in blocks if kind_of(block) == "tool_use"]
        kept = [block for block in blocks if kind_of(block) != "text" or block.get("text")]  # an empty one is refused
        self.items = [{"role": "assistant", "content": kept}] if kept else []

    def _read_usage(self, usage: Any) -> None:
        """Read the counts, which come in parts: the prompt's with the first event, the reply's with the last."""
        if isinstance(usage, dict):
            self._usage |= {key: value for key, value in usage.items() if value is not None}
            self.usage = chat_usage(self._usage)

    def _read_stop(self, stop: Any) -> None:
        reason = stop.get("stop_reason") if isinstance(stop, dict) else None
        if isinstance(reason, str):
            self.finish_reason = _FINISH_REASONS.get(reason, reason)


def _arguments(written: str) -> Any:
    """Return a tool's input from its JSON; what was cut off before its end is kept as text."""
    try:
        return parse(written) if written else {}
    except ValueError:
        return {"partial_json": written}


def _tool_call(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call in chat's form."""
    arguments = json.dumps(block.get("input") or {}, ensure_ascii=False, separators=(",", ":"))
    return {"id": block.get("id"), "type": "function", "function": {"name": block.get("name"), "arguments": arguments}}


def chat_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usage in the words of chat completions: there the prompt's count includes what came from the cache.

    A part of it that is no number of tokens takes the place of the sum.
    """
    read, written, new, completion = (0 if (value := usage.get(key)) is None else value for key in _COUNTS)
    odd = [value for value in (read, written, new) if not is_count(value)]
    prompt = odd[0] if odd else new + read + written
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion if is_count(prompt) and is_count(completion) else None,
        "prompt_tokens_details": {"cached_tokens": read},
        "cache_creation_input_tokens": written,
    }


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
    """Return a part of chat's content as a block.

    What has no counterpart stays as it is, and the API says what it thinks of it.
    """
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
        arguments = parse(written) if written else {}
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
