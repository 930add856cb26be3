"""evalscope's custom_multi_turn and share_gpt: what the users say; empty texts stand where the assistant's were."""

from __future__ import annotations

from typing import Any

from llmirage_client.workload.session import Workload
from llmirage_client.workload.writers.writer import Writer, Written, line

_NO_LIMIT = 10_000_000


def write_custom(workload: Workload) -> Written:
    """Roles other than the user's need the option any_role; long openings need a limit of their own."""
    rows = []
    any_role = False
    for name in workload.roots:
        messages: list[Any] = []
        for turn in workload.sessions[name].turns:
            messages += [dict(message) for message in turn.messages]
            any_role = any_role or any(message.get("role") != "user" for message in turn.messages)
            messages.append({"role": "assistant", "content": ""})
        rows.append(line(messages[:-1]))
    options: dict[str, Any] = {"any_role": True} if any_role else {}
    return Written(b"".join(rows), options | _limit(workload))


def write_share_gpt(workload: Workload) -> Written:
    rows = []
    for name in workload.roots:
        turns = workload.sessions[name].turns
        said = [turn.messages[-1].get("content") if turn.messages else None for turn in turns]
        rows.append(line({"conversation": [{"human": text, "assistant": ""} for text in said]}))
    return Written(b"".join(rows), _limit(workload))


def _limit(workload: Workload) -> dict[str, Any]:
    """The formats leave out conversations whose first user message is long, by default of more than 131,072 characters."""
    opening = [
        len(message["content"])
        for name in workload.roots
        for turn in workload.sessions[name].turns[:1]
        for message in turn.messages
        if message.get("role") == "user" and isinstance(message.get("content"), str)
    ]
    return {"max_prompt_length": _NO_LIMIT} if max(opening, default=0) > 131_072 else {}


CUSTOM = Writer("custom_multi_turn", frozenset(("accumulate", "isolated")), write_custom)
SHARE_GPT = Writer("share_gpt", frozenset(("accumulate", "isolated")), write_share_gpt)
