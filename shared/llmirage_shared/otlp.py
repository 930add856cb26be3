"""OTLP/JSON, the form in which OpenTelemetry's data stands in files: what client and server write alike."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from llmirage_shared.wire.output import json_text


def nanoseconds(unix_s: float) -> str:
    """Return a Unix time in seconds as OTLP has it: nanoseconds, to the microsecond, as text."""
    return f"{round(unix_s * 1e6)}000"


def attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return attributes as OTLP has them."""
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def exported_spans(spans: Sequence[Mapping[str, Any]], service: str) -> dict[str, Any]:
    """Return an export of spans. service: the name of what made them."""
    scope = {"scope": {"name": "llmirage"}, "spans": list(spans)}
    return {"resourceSpans": [{"resource": _resource(service), "scopeSpans": [scope]}]}


def exported_metrics(metrics: Sequence[Mapping[str, Any]], service: str) -> dict[str, Any]:
    """Return an export of metrics. service: the name of what made them."""
    scope = {"scope": {"name": "llmirage"}, "metrics": list(metrics)}
    return {"resourceMetrics": [{"resource": _resource(service), "scopeMetrics": [scope]}]}


def _resource(service: str) -> dict[str, Any]:
    return {"attributes": attributes({"service.name": service})}


def _value(value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list() | tuple():
            return {"arrayValue": {"values": [_value(each) for each in value]}}
        case _:
            return {"stringValue": str(value)}


def span_id(name: str, size: int = 8) -> str:
    """Return an id that follows from a name, in hexadecimal: of a span, or of a trace with a size of 16 bytes."""
    return hashlib.blake2b(name.encode("utf-8", "replace"), digest_size=size).hexdigest()


def said_before(messages: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the attributes of the messages of a request, which are in chat's form."""
    system = [message for message in messages if message.get("role") in ("system", "developer")]
    others = [
        {"role": message.get("role"), "parts": message_parts(message)} for message in messages if message not in system
    ]
    found = {"gen_ai.input.messages": json_text(others)}
    if system:
        found["gen_ai.system_instructions"] = json_text([part for message in system for part in message_parts(message)])
    return found


def message_parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of a message of chat."""
    content = message.get("content")
    texts = content if isinstance(content, list) else [] if content in (None, "") else [content]
    said = [part if isinstance(part, str) else part.get("text") if isinstance(part, dict) else None for part in texts]
    if message.get("role") == "tool":
        text = "".join([text for text in said if isinstance(text, str)])
        return [{"type": "tool_call_response", "id": message.get("tool_call_id"), "response": text}]
    parts: list[dict[str, Any]] = []
    if isinstance(thought := message.get("reasoning_content") or message.get("reasoning"), str):
        parts.append({"type": "reasoning", "content": thought})
    parts += [{"type": "text", "content": text} for text in said if isinstance(text, str)]
    for call in message.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            told = {"name": function.get("name"), "arguments": function.get("arguments")}
            parts.append({"type": "tool_call", "id": call.get("id"), **told})
    return parts
