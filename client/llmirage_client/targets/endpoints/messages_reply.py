"""Replies of the Anthropic Messages API: https://docs.anthropic.com/en/api/messages-streaming."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llmirage_client.targets.reply import ReplyReader, TextModel, dicts, kind_of, stated_error, text_of
from llmirage_client.targets.sse import ChunkModel

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
        if value.get("error"):
            self._fail(stated_error(value, None, "server_error"))
            return
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
        """Counts come in parts: the prompt's with the first event, the reply's with the last."""
        if isinstance(usage, dict):
            self._usage |= {key: value for key, value in usage.items() if value is not None}
            self.usage = chat_usage(self._usage)

    def _read_stop(self, stop: Any) -> None:
        reason = stop.get("stop_reason") if isinstance(stop, dict) else None
        if isinstance(reason, str):
            self.finish_reason = _FINISH_REASONS.get(reason, reason)


def _arguments(written: str) -> Any:
    """A tool's input from its JSON; what was cut off before its end is kept as text."""
    try:
        return json.loads(written) if written else {}
    except ValueError:
        return {"partial_json": written}


def _tool_call(block: Mapping[str, Any]) -> dict[str, Any]:
    """A call in chat's form."""
    arguments = json.dumps(block.get("input") or {}, ensure_ascii=False, separators=(",", ":"))
    return {"id": block.get("id"), "type": "function", "function": {"name": block.get("name"), "arguments": arguments}}


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0


def chat_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """The usage in the words of chat completions: there the prompt's count includes what came from the cache."""
    read, written, new, completion = (_count(usage.get(key)) for key in _COUNTS)
    prompt = new + read + written
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": read},
        "cache_creation_input_tokens": written,
    }
