"""Threads of the Messages API: a request that continues one sends only its new messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmirage_server.api.state import State
from llmirage_shared.wire.errors import ApiError

_KEPT = ("system", "tools", "tool_choice", "thinking", "output_config", "output_format")


def continued(state: State, body: Mapping[str, Any]) -> dict[str, Any]:
    """The body with the messages and settings of its thread. Raises ApiError for an unknown message."""
    thread, messages = body.get("thread"), body.get("messages")
    if not isinstance(thread, Mapping) or thread.get("type") != "continue" or not isinstance(messages, list):
        return dict(body)
    before = thread.get("previous_message_id")
    record = state.get("thread", before) if isinstance(before, str) else None
    if record is None:
        raise ApiError(f"thread.previous_message_id: no message '{before}' was found.", status=404)
    return {**record["settings"], **body, "messages": [*record["messages"], *messages]}


def remember(state: State, body: Mapping[str, Any], message: Mapping[str, Any]) -> None:
    """Store the messages of a thread, so that a later request can continue it."""
    if isinstance(body.get("thread"), Mapping):
        reply = {"role": "assistant", "content": message["content"]}
        settings = {key: body[key] for key in _KEPT if key in body}
        state.put("thread", message["id"], {"settings": settings, "messages": [*body["messages"], reply]})
