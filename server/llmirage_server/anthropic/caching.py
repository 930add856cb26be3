"""Prompt caching of the Messages API: which tokens of a prompt a request asks to keep, and the usage that says so.

The rules of docs/dialects.md, from Anthropic's guide: only what stands before a `cache_control` is written, if it is long
enough for the model, and a later request reads it where it begins with the same tokens and has a `cache_control` not far
behind. Engines have no such rules: they read what their radix tree has.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmirage_shared.tokens import TokenIds, prefix_hashes
from llmirage_shared.wire.errors import ApiError

_MINUTES, _HOUR = "5m", "1h"
_SECONDS = {_MINUTES: 300.0, _HOUR: 3600.0}
_MOST_BREAKPOINTS = 4
_LOOKBACK = 20  # blocks before a breakpoint in which it finds what was written
_REMEMBERED = 16_384  # prefixes
# The fewest tokens that are cached, by models' names; the first that matches holds.
_FEWEST = (
    (re.compile(r"(?:opus|fable|mythos)-5\b"), 512),
    (re.compile(r"opus-4[-.][567]\b|haiku-4[-.]5\b|mythos-preview"), 4096),
    (re.compile(r"claude-3(?:[-.]5)?-haiku|haiku-3"), 2048),
)
_FEWEST_OF_OTHERS = 1024


def fewest_tokens(model: str) -> int:
    """Return the length from which a model of Anthropic's caches a prompt."""
    return next((tokens for name, tokens in _FEWEST if name.search(model)), _FEWEST_OF_OTHERS)


@dataclass(slots=True, frozen=True)
class CacheBreakpoint:
    """A `cache_control`. messages, blocks: how many of the request's it covers; ttl: for how long."""

    messages: int
    blocks: int
    ttl: str


def cache_breakpoints(body: Mapping[str, Any], most: int | None = _MOST_BREAKPOINTS) -> list[CacheBreakpoint]:
    """Return those of a checked body, in order. A prompt is its tools, its system prompt and its messages.

    Raises ApiError for more than `most`.
    """
    messages, system = body["messages"], body.get("system")
    found: list[CacheBreakpoint] = []
    blocks = 0
    for block in [*(body.get("tools") or ()), *(system if isinstance(system, list) else [system] if system else ())]:
        blocks += 1
        found += _breakpoint(block, 0, blocks)
    for index, message in enumerate(messages, 1):
        content = message["content"]
        for block in content if isinstance(content, list) else (content,):
            blocks += 1
            found += _breakpoint(block, index, blocks)
    found += _breakpoint(body, len(messages), blocks)  # the API places it itself: at the end
    if most is not None and len(found) > most:
        raise ApiError(f"A maximum of {most} blocks with cache_control may be provided. Found {len(found)}.")
    return found


def _breakpoint(block: Any, messages: int, blocks: int) -> Iterator[CacheBreakpoint]:
    control = block.get("cache_control") if isinstance(block, Mapping) else None
    if isinstance(control, Mapping):
        yield CacheBreakpoint(messages, blocks, str(control.get("ttl") or _MINUTES))


@dataclass(slots=True, frozen=True)
class KeptPrefix:
    """The tokens of a prompt before a breakpoint, how many blocks they are, and for how long they are kept."""

    tokens: int
    blocks: int
    ttl: str


@dataclass(slots=True, frozen=True)
class KeptPrompt:
    """The kept parts of a prompt in order, and the lengths of its prefixes that were written before, the longest first.

    written: None where the API is an engine's: what its radix tree has is read.
    """

    prefixes: Sequence[KeptPrefix] = ()
    written: Sequence[int] | None = None
    page_tokens: int = 1  # the radix tree keeps whole pages


class WrittenPrompts:
    """The prefixes of prompts that were written, until they expire. Times are the cluster's."""

    def __init__(self) -> None:
        # By model, tokens and digest: blocks, when it expires.
        self._entries: OrderedDict[tuple[str, int, int], tuple[int, float]] = OrderedDict()

    def read_and_write(self, model: str, ids: TokenIds, prefixes: Sequence[KeptPrefix], now_s: float) -> list[int]:
        """Return the lengths that the prefixes find written, the longest first, and write them all.

        What is read lives on for its time. ids: int32, shape (tokens,); prefixes: in order.
        """
        if not prefixes:
            return []
        hashes = prefix_hashes(ids[: prefixes[-1].tokens])
        found: list[int] = []
        for key, (blocks, expires_s) in list(self._entries.items()):
            of_model, tokens, digest = key
            if of_model != model or tokens > len(hashes) or hashes[tokens - 1] != digest:
                continue
            near = [prefix for prefix in prefixes if tokens <= prefix.tokens and 0 <= prefix.blocks - blocks <= _LOOKBACK]
            if near and not expires_s < now_s:
                found.append(tokens)
                self._keep(key, blocks, max(expires_s, now_s + _SECONDS.get(near[0].ttl, _SECONDS[_MINUTES])))
        for prefix in prefixes:
            key = model, prefix.tokens, int(hashes[prefix.tokens - 1])
            self._keep(key, prefix.blocks, now_s + _SECONDS.get(prefix.ttl, _SECONDS[_MINUTES]))
        return sorted(found, reverse=True)

    def _keep(self, key: tuple[str, int, int], blocks: int, expires_s: float) -> None:
        known = self._entries.pop(key, None)
        self._entries[key] = blocks, expires_s if known is None else max(expires_s, known[1])
        if len(self._entries) > _REMEMBERED:
            self._entries.popitem(last=False)


def messages_usage(usage: Mapping[str, Any], kept: KeptPrompt) -> dict[str, Any]:
    """Return chat's usage object, with what the cluster found cached, in the form of the Messages API."""
    read = usage["prompt_tokens_details"]["cached_tokens"]
    if kept.written is not None:  # the cluster may have dropped it since
        read = next((tokens for tokens in kept.written if tokens - read <= kept.page_tokens), 0)
    last = min(kept.prefixes[-1].tokens, usage["prompt_tokens"]) if kept.prefixes else 0
    hours = [prefix.tokens for prefix in kept.prefixes if prefix.ttl == _HOUR]
    created = max(0, last - read)
    hour = max(0, min(hours[-1], last) - read) if hours else 0
    return {
        "input_tokens": max(0, usage["prompt_tokens"] - read - created),
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": read,
        "cache_creation": {"ephemeral_5m_input_tokens": created - hour, "ephemeral_1h_input_tokens": hour},
        "output_tokens": usage["completion_tokens"],
        "service_tier": "standard",
    }
