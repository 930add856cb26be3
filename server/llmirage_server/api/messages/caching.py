"""Prompt caching of the Messages API: which tokens of a prompt a request asks to keep, and the usage that says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_MINUTES, _HOUR = "5m", "1h"


@dataclass(slots=True, frozen=True)
class CacheBreakpoint:
    """The last `cache_control` of a request. messages: how many of them it covers; ttl: for how long."""

    messages: int
    ttl: str


def cache_breakpoint(body: Mapping[str, Any]) -> CacheBreakpoint | None:
    """The last one of a checked body, None without any. A prompt is its tools, its system prompt and its messages."""
    messages = body["messages"]
    if (ttl := _ttl(body)) is not None:  # the API places it itself: at the end
        return CacheBreakpoint(len(messages), ttl)
    for index in range(len(messages), 0, -1):
        content = messages[index - 1]["content"]
        if (ttl := _last_ttl(content if isinstance(content, list) else ())) is not None:
            return CacheBreakpoint(index, ttl)
    system = body.get("system")
    ttl = _last_ttl(system if isinstance(system, list) else ()) or _last_ttl(body.get("tools") or ())
    return None if ttl is None else CacheBreakpoint(0, ttl)


def _last_ttl(blocks: Sequence[Mapping[str, Any]]) -> str | None:
    return next((ttl for block in reversed(blocks) if (ttl := _ttl(block)) is not None), None)


def _ttl(block: Mapping[str, Any]) -> str | None:
    control = block.get("cache_control")
    return str(control.get("ttl") or _MINUTES) if isinstance(control, Mapping) else None


@dataclass(slots=True, frozen=True)
class KeptPrompt:
    """How many tokens of a prompt are before its last breakpoint, and for how long they are kept."""

    tokens: int
    ttl: str


NOTHING_KEPT = KeptPrompt(0, _MINUTES)


def messages_usage(usage: Mapping[str, Any], kept: KeptPrompt) -> dict[str, Any]:
    """Chat's usage object in the form of the Messages API."""
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    created = max(0, min(kept.tokens, usage["prompt_tokens"]) - cached)
    hour = created if kept.ttl == _HOUR else 0
    return {
        "input_tokens": max(0, usage["prompt_tokens"] - cached - created),
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": cached,
        "cache_creation": {"ephemeral_5m_input_tokens": created - hour, "ephemeral_1h_input_tokens": hour},
        "output_tokens": usage["completion_tokens"],
        "service_tier": "standard",
    }
