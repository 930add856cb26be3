"""The events of a streamed reply, in whichever API it is: which of them bring tokens, which end the reply."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llmirage_shared.wire.output import event, named_event

END = b"\n\n"  # of an event
ENDS = re.compile(rb"\r?\n\r?\n")  # also in other servers' streams
OTHER_FORM = (
    AttributeError,
    KeyError,
    TypeError,
    ValueError,
    RecursionError,
)  # what reading objects that are not this server's may raise
_TEXT_KEYS = frozenset(
    ("content", "text", "delta", "reasoning_content", "refusal", "arguments", "input", "thinking", "partial_json")
)
_CHAT_TEXTS = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call", "token_ids")
_LAST_EVENTS = ("response.completed", "response.incomplete", "response.failed", "message_delta", "message_stop")


@dataclass(slots=True, frozen=True)
class StreamEvent:
    """raw: its bytes with the blank line. name: of an event that has one. data: its JSON value, None if it has none.

    brings_tokens: it carries part of what the model writes. ends_reply: it comes after the last token. text: what it adds to
    the visible answer.
    """

    raw: bytes
    name: str = ""
    data: Any = None
    brings_tokens: bool = False
    ends_reply: bool = False
    text: str = ""

    def with_data(self, data: Any) -> bytes:
        """Return the bytes of this event with another value."""
        return named_event(self.name, data) if self.name else event(data)


def read_event(raw: bytes) -> StreamEvent:
    """Read an event; one of another form than this server's (a recorded one, for instance) brings nothing.

    raw: with its blank line.
    """
    head, _, written = raw.partition(b"data:")
    name = head[6:].strip().decode("utf-8", "replace") if head.startswith(b"event:") else ""
    if written.strip() == b"[DONE]":
        return StreamEvent(raw, ends_reply=True)
    try:
        return _read(raw, name, json.loads(written))
    except OTHER_FORM:
        return StreamEvent(raw, name)


def _read(raw: bytes, name: str, data: Any) -> StreamEvent:
    """Read an event with these data. Raises OTHER_FORM."""
    if "choices" in data:
        return _of_chat(raw, data)
    kind = data.get("type", "")
    if kind == "content_block_delta":
        return StreamEvent(raw, name, data, brings_tokens=True, text=data["delta"].get("text", ""))
    if kind.endswith(".delta"):
        said = data["delta"] if kind == "response.output_text.delta" else ""
        return StreamEvent(raw, name, data, brings_tokens=True, text=said)
    if "meta_info" in data:  # SGLang's /generate
        ended = data["meta_info"].get("finish_reason") is not None
        return StreamEvent(raw, name, data, brings_tokens=not ended, ends_reply=ended)
    return StreamEvent(raw, name, data, ends_reply=kind in _LAST_EVENTS)


def _of_chat(raw: bytes, data: Any) -> StreamEvent:
    deltas = [choice.get("delta", choice) for choice in data["choices"]]
    said = "".join([delta.get("content") or delta.get("text") or "" for delta in deltas])
    brings = bool(said) or any(delta.get(key) for delta in deltas for key in _CHAT_TEXTS)
    ends = not data["choices"] or any(choice.get("finish_reason") for choice in data["choices"])
    return StreamEvent(raw, "", data, brings_tokens=brings, ends_reply=ends and not brings, text=said)


def with_text(data: Any, change: Callable[[str], str]) -> Any:
    """Return the same JSON value with the model's first text changed; without one, with its first text of any kind."""
    for keys in (_TEXT_KEYS, None):
        changed, found = _change_first(data, change, keys)
        if found:
            return changed
    return data


def _change_first(data: Any, change: Callable[[str], str], keys: frozenset[str] | None) -> tuple[Any, bool]:
    pairs = list(data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ())
    for key, value in pairs:
        if isinstance(value, str):
            if value and (keys is None or key in keys):
                changed, found = change(value), True
            else:
                continue
        else:
            changed, found = _change_first(value, change, keys)
        if found:
            if isinstance(data, dict):
                return {**data, key: changed}, True
            return [*data[:key], changed, *data[key + 1 :]], True
    return data, False
