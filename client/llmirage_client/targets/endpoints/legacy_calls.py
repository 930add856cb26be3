"""Tool calls and results of chat messages, those of the older form with one unnamed `function_call` included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmirage_client.targets.reply import dicts


def tool_calls_of(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The calls an assistant message makes; an old one gets its function's name as its id."""
    calls: list[Mapping[str, Any]] = [*dicts(message.get("tool_calls"))]
    old = message.get("function_call")
    if isinstance(old, Mapping):
        calls.append({"id": f"call_{old.get('name')}", "type": "function", "function": old})
    return calls


def tool_result_id(message: Mapping[str, Any]) -> str:
    """Which call a message of the role tool, or of the older function, answers."""
    return str(message.get("tool_call_id") or f"call_{message.get('name')}")
