"""Server-sent events as bytes: a stream split where its events end, and what an event says."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_DATA_LINE = re.compile(rb"((?:(?!data:)[^\r\n]*[\r\n]+)*data: ?)([^\r\n]*)([\r\n]*)")
_END_OF_EVENT = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class EventSplitter:
    """Collects the bytes of a stream; `rest` is the part of an event that has not ended."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the events that end in these bytes, with the blank lines that end them."""
        searched = max(0, len(self.rest) - 3)
        self.rest += data
        events = []
        start = 0
        for match in _END_OF_EVENT.finditer(self.rest, searched):
            events.append(self.rest[start : match.end()])
            start = match.end()
        self.rest = self.rest[start:]
        return events


def event_parts(event: bytes) -> tuple[bytes, bytes, bytes] | None:
    """Return an event with one line of data: what stands before its data, the data, what follows. None for any other."""
    match = _DATA_LINE.fullmatch(event)
    return None if match is None else (match[1], match[2], match[3])


def event_value(event: bytes) -> dict[str, Any]:
    """Return the JSON object of an event; empty if its data is none."""
    parts = event_parts(event)
    try:
        value = json.loads(parts[1]) if parts is not None else None
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def said(event: Mapping[str, Any]) -> str:
    """Return the text that an event adds to a reply: of the answer, of thoughts, of calls."""
    delta = event.get("delta")
    if isinstance(delta, str):
        return delta  # Responses
    if isinstance(delta, Mapping):
        return _joined(delta, "text", "partial_json", "thinking")  # Messages
    texts = []
    for choice in event.get("choices") or ():  # chat and completions
        if isinstance(choice, Mapping):
            texts.append(_joined(choice, "text"))
            if isinstance(delta := choice.get("delta"), Mapping):
                texts.append(_joined(delta, "reasoning_content", "content", "refusal"))
                calls = [call.get("function") or call.get("custom") for call in delta.get("tool_calls") or ()]
                texts += [_joined(call, "name", "arguments", "input") for call in calls if isinstance(call, Mapping)]
    return "".join(texts)


def _joined(value: Mapping[str, Any], *names: str) -> str:
    return "".join([text for name in names if isinstance(text := value.get(name), str)])
