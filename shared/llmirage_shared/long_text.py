"""Long texts, made piece by piece: a call into C lets no other thread run until it is done.

While a thread computes, an event loop gets the interpreter for half a millisecond at a time, and waits for one such call
after each: streams are late by many times what the longest call takes.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

PIECE = 1 << 16  # characters or bytes that are copied or decoded at once: some tenths of a millisecond
_LONG = 1 << 19  # characters that "".join copies at once: it takes less time than pieces


def joined(parts: Sequence[str]) -> str:
    """Return the parts in one text, as "".join does."""
    if sum(map(len, parts)) < _LONG:
        return "".join(parts)
    return gathered(part[start : start + PIECE] for part in parts for start in range(0, len(part), PIECE))


def gathered(pieces: Iterable[str]) -> str:
    """Return short pieces in one text. CPython lengthens a text that nobody else has in its place."""
    text = ""
    for piece in pieces:
        text += piece
    return text


def utf8_text(data: bytes) -> str:
    """Return the text of bytes in UTF-8, with or without a signature. Raises UnicodeDecodeError."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    ends = range(PIECE, len(data) + PIECE, PIECE)
    return gathered(decoder.decode(data[end - PIECE : end], end >= len(data)) for end in ends)
