"""The text of a stream's chunks without parsing each as JSON.

Consecutive chunks of a reply differ in one string: the piece of text. Once a chunk was parsed, those that share all bytes
before and behind that string are sliced; whatever differs in any other way is parsed, and may become the next model.
"""

from __future__ import annotations

import re
from json.decoder import scanstring  # type: ignore[attr-defined]

# An unescaped "key": in JSON text. Inside a string value both quotes would be escaped, so only a real key matches.
_KEYS = {
    key: re.compile(rf'(?<!\\)"{key}"[ \t\r\n]*:[ \t\r\n]*"')
    for key in ("content", "text", "reasoning_content", "reasoning", "thinking")
}

# A byte that was not UTF-8, as split_events hands it on.
ESCAPED_BYTE = re.compile("[\udc80-\udcff]")


class ChunkModel:
    """The constant bytes around the text of a chunk. `key` is the JSON key that holds the text."""

    __slots__ = ("_after", "_before", "_before_length", "reasoning")

    def __init__(self, before: str, after: str, reasoning: bool) -> None:
        self._before = before
        self._before_length = len(before)
        self._after = after
        self.reasoning = reasoning

    @classmethod
    def of(cls, chunk: str, key: str) -> ChunkModel | None:
        """The model of a valid chunk whose text is under `key`; None where that key is not there exactly once."""
        found = list(_KEYS[key].finditer(chunk))
        if len(found) != 1:
            return None
        before = found[0].end()
        _, after = scanstring(chunk, before)
        return cls(chunk[:before], chunk[after - 1 :], key.startswith("reasoning") or key == "thinking")

    def text_of(self, chunk: str) -> str | None:
        """The text of a chunk that differs from the model in nothing else; None when it differs."""
        if not chunk.startswith(self._before):
            return None
        try:
            text, end = scanstring(chunk, self._before_length)
        except ValueError:
            return None
        return text if chunk[end - 1 :] == self._after and (chunk.isascii() or not ESCAPED_BYTE.search(text)) else None
