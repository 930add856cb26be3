"""Texts of any length that clients choose: short ones are cached, long ones made piece by piece.

A call into C lets no other thread run until it is done. While a thread computes, an event loop gets the interpreter for half
a millisecond at a time, and waits for one such call after each: streams are late by many times what the longest call takes.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, wraps
from typing import TypeVar

PIECE = 1 << 16  # characters or bytes that are copied or decoded at once: some tenths of a millisecond
_LONG = 1 << 19  # characters that "".join copies at once: it takes less time than pieces
_LONGEST = 200  # characters of the texts of a call that is cached, together

T = TypeVar("T")


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


def without_surrogates(text: str) -> str:
    """Return the text with surrogate pairs joined and lone surrogates replaced by U+FFFD, so that it can be UTF-8."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def short_cache(most: int) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """As lru_cache for a function of texts, but long ones are not kept: `most` calls take memory that is known."""

    def decorated(function: Callable[..., T]) -> Callable[..., T]:
        kept = lru_cache(most)(function)

        @wraps(function)
        def call(*texts: str) -> T:
            return kept(*texts) if sum(map(len, texts)) <= _LONGEST else function(*texts)

        return call

    return decorated
