"""What a prompt shows of a request besides its messages: the tools, and the form that the answer must have.

The same for each API, so that a conversation has the same prompt tokens whichever way it comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmirage_shared.chat_template import compact_json


def shown_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tools in chat's form, without what says nothing to a model: nulls, empty descriptions, `strict`."""
    return [_shown(tool) for tool in tools]


def _shown(tool: Mapping[str, Any]) -> dict[str, Any]:
    kind = str(tool.get("type"))
    inner = tool.get(kind)
    if not isinstance(inner, Mapping):
        return dict(tool)
    said = {key: value for key, value in inner.items() if key != "strict" and value is not None and value != ""}
    return {"type": kind, kind: said}


def with_schema(messages: Sequence[Mapping[str, Any]], schema: Any) -> Sequence[Mapping[str, Any]]:
    """The messages with the JSON Schema of the answer before the first one's own words.

    It joins the message that is there, since many models' templates take no other system message, or none. Same first
    message, same schema: the turns of a conversation share it as a prefix.
    """
    written = f"# Response format\n\n{compact_json(schema)}\n\n"
    first, *others = messages
    content = first.get("content")
    if isinstance(content, str) or content is None:
        return [{**first, "content": written + (content or "")}, *others]
    return [{**first, "content": [{"type": "text", "text": written}, *content]}, *others]
