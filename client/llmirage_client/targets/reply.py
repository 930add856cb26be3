"""What a reply says: text, reasoning, tool calls, usage, and when each part of it came.

Understands the bodies of /chat/completions and /completions, streamed or whole. Where a reply has several choices, the
first is the one that is kept; arrivals are those of all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llmirage_client.measure.record import RequestError
from llmirage_client.targets.chunk import ESCAPED_BYTE, ChunkModel
from llmirage_client.targets.sse import split_events

_REASONING_KEYS = ("reasoning_content", "reasoning")


class Reply:
    """A reply being put together. error: the first thing that was wrong; what was understood is kept all the same."""

    def __init__(self) -> None:
        self.token_s: list[float] = []
        self.first_output_s: float | None = None
        self.finish_reason: str | None = None
        self.usage: Mapping[str, Any] | None = None
        self.ended = False  # the stream's [DONE] came
        self.error: RequestError | None = None
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._tool_calls: list[dict[str, Any]] = []
        self._tool_call_at: dict[Any, dict[str, Any]] = {}

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    def message(self) -> dict[str, Any] | None:
        """The assistant message for the history. Reasoning is left out of it, unless there is nothing else."""
        content = self.text or (None if self._tool_calls else self.reasoning)
        if self._tool_calls:
            return {"role": "assistant", "content": content, "tool_calls": self._tool_calls}
        return {"role": "assistant", "content": content} if content else None

    def read_stream(self, segments: Sequence[tuple[float, bytes]]) -> None:
        """Take in an event stream as it arrived."""
        events = split_events(segments)
        model: ChunkModel | None = None
        token_s, text, reasoning = self.token_s, self._text, self._reasoning
        for stamp_s, chunk in zip(events.stamps_s, events.data, strict=True):
            piece = model.text_of(chunk) if model is not None else None
            if piece is None:
                model = self._read_event(stamp_s, chunk) or model
            elif piece:
                token_s.append(stamp_s)
                if model is not None and model.reasoning:
                    reasoning.append(piece)
                else:
                    text.append(piece)
                    if self.first_output_s is None:
                        self.first_output_s = stamp_s
        if events.rest is not None and _is_complete(events.rest):
            self._read_event(segments[-1][0], events.rest)

    def read_body(self, stamp_s: float, body: bytes) -> None:
        """Take in a reply that came whole. Raises ValueError when it is not a JSON object."""
        value = json.loads(body)
        if not isinstance(value, dict):
            raise ValueError("not a JSON object")
        self._read_object(stamp_s, value, "message")

    def _read_event(self, stamp_s: float, chunk: str) -> ChunkModel | None:
        """Take in one event by parsing it. Returns a model for those that follow, if it carried text and nothing else."""
        if chunk == "[DONE]":
            self.ended = True
            return None
        try:
            value = json.loads(chunk)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict) or ESCAPED_BYTE.search(chunk):
            if chunk.strip():
                excerpt = chunk[:80].encode("utf-8", "surrogateescape").decode("utf-8", "replace")
                text = f"an event of the stream is not a JSON object: {excerpt!r}"
                self._fail(RequestError(None, "malformed_stream", text))
            return None
        self._read_object(stamp_s, value, "delta")
        key = _only_text_key(value)
        return ChunkModel.of(chunk, key) if key is not None else None

    def _fail(self, error: RequestError) -> None:
        if self.error is None:
            self.error = error

    def _read_object(self, stamp_s: float, value: Mapping[str, Any], part: str) -> None:
        if value.get("error"):
            self._fail(stated_error(value, None, "stream_error" if part == "delta" else "server_error"))
            return
        usage = value.get("usage")
        if isinstance(usage, dict):
            self.usage = usage
        carried = output = False
        for choice in _dicts(value.get("choices")):
            inner = choice.get(part)
            if not isinstance(inner, dict):
                inner = {"content": choice.get("text")}
            content = _text_of(inner.get("content")) or _text_of(inner.get("refusal"))
            reasoning = next((text for key in _REASONING_KEYS if (text := _text_of(inner.get(key)))), "")
            calls = _dicts(inner.get("tool_calls"))
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
        if carried:
            self.token_s.append(stamp_s)
        if output and self.first_output_s is None:
            self.first_output_s = stamp_s

    def _merge_tool_call(self, delta: Mapping[str, Any], position: int, whole: bool) -> None:
        """Deltas of one call share its index; they carry the id and name once and the arguments in pieces."""
        index = position if whole else delta.get("index", position)
        call = self._tool_call_at.get(index)
        if call is None:
            call = {"id": f"call_{len(self._tool_calls)}", "type": "function"}
            self._tool_call_at[index] = call
            self._tool_calls.append(call)
        for key, value in delta.items():
            if key == "function" and isinstance(value, dict):
                function = call.setdefault("function", {"name": "", "arguments": ""})
                function["name"] += _text_of(value.get("name"))
                function["arguments"] += _text_of(value.get("arguments"))
            elif key != "index" and value is not None:
                call[key] = value


def stated_error(value: Any, status: int | None, kind: str) -> RequestError:
    """The error an endpoint reports in a JSON body, in the forms of OpenAI, vLLM, FastAPI and plain gateways."""
    found = value
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(key):
            found = found[key]
    text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
    error = value.get("error") if isinstance(value, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    if status is None and isinstance(code, int):
        status = code
    return RequestError(status, kind, text)


def _is_complete(chunk: str) -> bool:
    """Whether the data of a stream's last event, whose blank line is missing, is all there: some servers leave it out."""
    try:
        return chunk == "[DONE]" or isinstance(json.loads(chunk), dict)
    except (ValueError, RecursionError):
        return False


def _only_text_key(value: Mapping[str, Any]) -> str | None:
    """The key of the chunk's text when the chunk is the first choice's text and nothing else that would have to be read."""
    choices = value.get("choices")
    if value.get("usage") is not None or value.get("error") or not isinstance(choices, list) or len(choices) != 1:
        return None
    choice = choices[0]
    if choice.get("finish_reason") is not None or choice.get("index") not in (0, None):
        return None
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return "text" if isinstance(choice.get("text"), str) else None
    if delta.get("tool_calls") or delta.get("function_call") or delta.get("refusal"):
        return None
    keys = [key for key in ("content", *_REASONING_KEYS) if delta.get(key) is not None]
    return keys[0] if len(keys) == 1 and isinstance(delta[keys[0]], str) else None


def _text_of(value: Any) -> str:
    """The text of a content field: a string, or a list of parts."""
    if isinstance(value, str):
        return value
    return "".join(_text_of(part.get("text")) for part in _dicts(value))


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
