"""Messages to token ids, each segment of a prompt being tokenized once."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llmirage_shared.chat_template import ChatTemplate, Ending, compact_json
from llmirage_shared.tokens import TokenIds, Tokenizer

CACHE_BYTES = 64 << 20
_ENTRY_BYTES = 400  # of a segment, beside its text and its ids: an array, a string and a place in the table


class PromptEncoder:
    """Rendering and tokenizing of prompts; `encode` may be called from several threads at once.

    cache: the segments that it knows.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, cache_bytes: int = CACHE_BYTES) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.cache = self._cache = SegmentCache(cache_bytes)
        self._special = {token: _frozen(np.array([i], dtype=np.int32)) for token, i in tokenizer.special_tokens.items()}
        self._last_split: tuple[str, list[str]] = ("", [])

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        ending: Ending = "reply",
        *,
        answer_schema: Any = None,
    ) -> str:
        """Return the prompt's text.

        ending: see `Ending`.
        answer_schema: the JSON Schema that the answer must fit.

        Each API renders through this method, so a conversation has the same prompt tokens in all of them.
        """
        if answer_schema is not None:
            messages = _with_schema(messages, answer_schema)
        return self.template.render(messages, [_declaration(tool) for tool in tools] if tools else None, ending)

    def encode(self, text: str) -> TokenIds:
        """Return `tokenizer.encode(text)`: int32, shape (tokens,), read-only and maybe shared."""
        special, cache = self._special, self._cache
        arrays: list[TokenIds] = []
        for segment in self._split(text):
            ids = special.get(segment)
            if ids is None:
                ids = cache.get(segment)
                if ids is None:
                    ids = _frozen(self.tokenizer.encode(segment))
                    cache.put(segment, ids)
            arrays.append(ids)
        if len(arrays) == 1:
            return arrays[0]
        return np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int32)

    def uncached_characters(self, text: str) -> int:
        """Return the number of characters `encode` would tokenize now. Call it off the event loop if that is large."""
        special, cache = self._special, self._cache
        return sum(len(segment) for segment in self._split(text) if segment not in special and segment not in cache)

    def remember(self, text: str, ids: TokenIds) -> None:
        """Cache a text with its ids, such as a reply that the next prompt repeats."""
        if self.tokenizer.segment_wise and text not in self._cache and self.tokenizer.segments(text) == [text]:
            self._cache.put(text, _frozen(ids[:]))

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> TokenIds:
        return self.encode(self.render(messages, tools))

    def _split(self, text: str) -> list[str]:
        # `uncached_characters` and `encode` are called for the same text, one after the other.
        last_text, segments = self._last_split
        if last_text is not text:
            segments = self.tokenizer.segments(text)
            self._last_split = (text, segments)
        return segments


class SegmentCache:
    """A map of segment text to ids, of at most `most_bytes`, that evicts the least recently used. Thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._ids: OrderedDict[str, TokenIds] = OrderedDict()
        self._lock = threading.Lock()

    def bytes_kept(self) -> int:
        return self._bytes

    def __contains__(self, segment: str) -> bool:
        return segment in self._ids

    def get(self, segment: str) -> TokenIds | None:
        with self._lock:
            ids = self._ids.get(segment)
            if ids is not None:
                self._ids.move_to_end(segment)
            return ids

    def put(self, segment: str, ids: TokenIds) -> None:
        with self._lock:
            if segment in self._ids or (size := entry_bytes(segment, ids)) > self._most_bytes:
                return
            self._ids[segment] = ids
            self._bytes += size
            while self._bytes > self._most_bytes:
                self._bytes -= entry_bytes(*self._ids.popitem(last=False))


def entry_bytes(segment: str, ids: TokenIds) -> int:
    """Return the bytes of a segment in the cache."""
    return sys.getsizeof(segment) + ids.nbytes + _ENTRY_BYTES


def _frozen(ids: TokenIds) -> TokenIds:
    ids.flags.writeable = False
    return ids


def _declaration(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool in chat's form without parts that mean nothing to a model: nulls, empty descriptions, `strict`."""
    kind = str(tool.get("type"))
    inner = tool.get(kind)
    if not isinstance(inner, Mapping):
        return dict(tool)
    return {"type": kind, kind: {key: value for key, value in inner.items() if key != "strict" and value not in (None, "")}}


def _with_schema(messages: Sequence[Mapping[str, Any]], answer_schema: Any) -> Sequence[Mapping[str, Any]]:
    """Return the messages with the schema before the content of the first one.

    It joins that message, since many models' templates take no second system message, or none. The same first message and
    the same schema give the same text: the turns of a conversation share it as a prefix.
    """
    written = f"# Response format\n\n{compact_json(answer_schema)}\n\n"
    first, *others = messages
    content = first.get("content")
    if isinstance(content, str) or content is None:
        return [{**first, "content": written + (content or "")}, *others]
    return [{**first, "content": [{"type": "text", "text": written}, *content]}, *others]
