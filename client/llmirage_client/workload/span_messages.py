"""Chat messages of spans by OpenTelemetry's gen_ai conventions: parts, tool calls and thoughts as OpenAI's API has them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from llmirage_client.workload.checking import ABSENT, Checker

Message = dict[str, Any]


def input_messages(attributes: Mapping[str, Any], check: Checker, at: str) -> tuple[Message, ...]:
    """The request's messages, system instructions first. Problems go to the checker."""
    field = f"{at}gen_ai.input.messages"
    entries = check.json_of(check.required(attributes, "gen_ai.input.messages", at), field)
    messages = list(_system(attributes.get("gen_ai.system_instructions"), check, f"{at}gen_ai.system_instructions"))
    for i, entry in enumerate(check.items(entries, field, may_be_empty=False) or []):
        message = check.mapping(entry, f"{field}.{i}")
        if message is not None:
            messages += _messages(message, check, f"{field}.{i}")
    return tuple(messages)


def output_text(attributes: Mapping[str, Any]) -> str | None:
    """The text of the reply, where it was recorded."""
    text = attributes.get("gen_ai.output.text")
    if isinstance(text, str):
        return text
    check = Checker(None)
    entries = check.json_of(attributes.get("gen_ai.output.messages"), "")
    if not isinstance(entries, list):
        return None
    texts = [
        message.get("content") for entry in entries if isinstance(entry, dict) for message in _messages(entry, check, "")
    ]
    return "".join(text for text in texts if isinstance(text, str)) or None


def tool_definitions(attributes: Mapping[str, Any], check: Checker, at: str) -> tuple[Message, ...] | None:
    """The tools of the request; a definition without "function" is put into one."""
    field = f"{at}gen_ai.tool.definitions"
    value = attributes.get("gen_ai.tool.definitions")
    entries = None if value is None else check.mappings(check.json_of(value, field), field)
    if not entries:
        return None
    keys = ("name", "description", "parameters")
    return tuple(
        tool
        if isinstance(tool.get("function"), dict)
        else {"type": "function", "function": {key: tool[key] for key in keys if tool.get(key) is not None}}
        for tool in entries
    )


def request_parameters(attributes: Mapping[str, Any], check: Checker, at: str) -> dict[str, Any]:
    """Temperature and stop sequences of the request."""
    extra: dict[str, Any] = {}
    temperature = check.given(attributes, "gen_ai.request.temperature", check.number, at)
    if temperature is not None:
        extra["temperature"] = temperature
    stop = check.given(attributes, "gen_ai.request.stop_sequences", check.texts, at)
    if stop:
        extra["stop"] = list(stop)
    return extra


def _system(value: object, check: Checker, field: str) -> Iterator[Message]:
    if value is None or value == "":
        return
    parts: object = value
    if isinstance(value, str):
        try:
            parts = json.loads(value)
        except (ValueError, RecursionError):
            parts = None
        if not isinstance(parts, list):
            yield {"role": "system", "content": value}
            return
    yield from _messages({"role": "system", "parts": parts}, check, field)


def _messages(message: Mapping[str, Any], check: Checker, at: str) -> Iterator[Message]:
    """The messages that one with parts is: each tool's result is one of its own."""
    role = check.text(check.required(message, "role", f"{at}."), f"{at}.role", may_be_empty=False)
    if role is None:
        return
    if "parts" not in message:
        if "content" not in message and "tool_calls" not in message:
            check.required(message, "content", f"{at}.")
        yield dict(message)
        return
    made = _Made("system" if role == "developer" else role)
    for i, entry in enumerate(check.items(message["parts"], f"{at}.parts") or []):
        part = check.mapping(entry, f"{at}.parts.{i}")
        if part is None:
            continue
        if part.get("type") == "tool_call_response":
            yield from made.flushed()
            result = part["result"] if "result" in part else part.get("response")
            yield {"role": "tool", "tool_call_id": part.get("id"), "content": _as_text(result)}
        else:
            made.add(part, check, f"{at}.parts.{i}")
    yield from made.flushed(may_be_empty=not message["parts"])


class _Made:
    """A message in the making."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[Message] = []

    def add(self, part: Mapping[str, Any], check: Checker, at: str) -> None:
        match part.get("type"):
            case "text":
                self._texts.append(str(part.get("content") or part.get("text") or ""))
            case "thinking" | "reasoning":
                self._thoughts.append(str(part.get("thinking") or part.get("content") or ""))
            case "tool_call":
                function = {"name": part.get("name"), "arguments": _as_text(part.get("arguments"))}
                self._calls.append({"id": part.get("id"), "type": "function", "function": function})
            case other:
                check.fail(f"{at}.type", f"Input should be text, thinking, tool_call or tool_call_response, got {other!r}")

    def flushed(self, may_be_empty: bool = False) -> Iterator[Message]:
        if not (self._texts or self._thoughts or self._calls or may_be_empty):
            return
        message: Message = {"role": self._role, "content": "".join(self._texts)}
        if self._thoughts:
            message["reasoning_content"] = "".join(self._thoughts)
        if self._calls:
            message["tool_calls"] = self._calls
        yield message
        self._texts, self._thoughts, self._calls = [], [], []


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(None if value is ABSENT else value, ensure_ascii=False)
