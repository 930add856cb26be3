"""JSON with long texts or spaces, read piece by piece: a decoder lets no other thread run until it is done."""

from __future__ import annotations

import codecs
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from llmirage_shared.wire import errors

PIECE_BYTES = 1 << 15
MOST_TEXT_BYTES = 40 << 20  # of memory for the texts of a body: OpenAI's longest text with an emoji takes as many
_NOT_PLAIN = bytes([*range(32), ord("\\")])  # control characters, which are errors, and what begins an escape
_CONTINUING, _FOUR_BYTES = bytes(range(0x80, 0xC0)), bytes(range(0xF0, 0xF8))  # in UTF-8
_MOST_DIGITS = 4300  # Python's limit of an integer

Decode = Callable[[str], Any]


def decoded(body: bytes, decoder: Callable[[bytes], Decode], most_bytes: float = math.inf) -> Any:
    """Return the value that a JSON text stands for.

    Texts that lie in several pieces of it are decoded apart from the rest, pieces of space are left out.

    decoder: what decodes the rest, which it is shown before. most_bytes: of memory for the texts.
    Raises ValueError and RecursionError as a decoder does, and ApiError (413) for more memory.
    """
    places = list(_long_stretches(body)) if len(body) > PIECE_BYTES else []
    if 4 * len(body) > most_bytes:
        gaps = zip([0, *[end for _, end, _ in places]], [*[start for start, _, _ in places], len(body)], strict=True)
        taken = _memory(body, gaps) + sum([_memory(body, [(start, end)]) for start, end, _ in places])
        if taken > max(most_bytes, len(body)):
            raise errors.texts_too_large(most_bytes, taken)
    if not places:
        return decoder(body)(body.decode("utf-8-sig"))
    sign = os.urandom(8).hex()  # no text of a request begins so
    named: dict[str, tuple[int, int]] = {}
    rest: list[bytes] = []
    done = 0
    for start, end, instead in places:
        if not instead:
            name = f"{sign}{len(named):06}"
            named[name] = start, end
        rest += [body[done:start], instead or name.encode()]
        done = end
    short = b"".join([*rest, body[done:]])
    try:
        value = decoder(short)(short.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        place = error.pos
        for start, end, instead in places:
            place += end - start - (len(instead) or len(sign) + 6) if start < place else 0
        raise ValueError(f"{error.msg} near character {place}") from None
    texts = {name: _text(body, start, end) for name, (start, end) in named.items()}
    return changed(value, lambda text: texts.get(text, text)) if texts else value


def changed(value: Any, change: Callable[[str], str]) -> Any:
    """Return the JSON value with other texts, names of fields among them."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [changed(item, change) for item in value]
    if isinstance(value, dict):
        return {change(key): changed(item, change) for key, item in value.items()}
    return value


def _long_stretches(body: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Find the beginnings and ends of texts that lie in more than one piece, without quotes, and of pieces of one value.

    What a decoder reads instead is empty for a text, which may not end, a space for spaces, and an error for a long number.
    """
    in_text = escaped = False  # escaped: the piece begins with the character after a backslash
    begun = 0
    for start in range(0, len(body), PIECE_BYTES):
        first = start + escaped
        piece = _without_escaped(body[first : start + PIECE_BYTES])
        escaped = piece.endswith(b"\\")
        quotes = piece.count(b'"')
        if in_text and quotes:
            yield begun, first + piece.find(b'"'), b""
        elif not (in_text or quotes or 0 < len(rest := piece.strip()) <= _MOST_DIGITS or _has_structure(piece)):
            yield start, start + len(piece), b"?" if rest else b" "
        in_text ^= quotes % 2 == 1
        if in_text and quotes:
            begun = first + piece.rfind(b'"') + 1
    if in_text:
        yield begun, len(body), b""


def _has_structure(piece: bytes) -> bool:
    return len(piece.translate(None, b",:[]{}")) < len(piece)


def _memory(body: bytes, places: Iterable[tuple[int, int]]) -> int:
    """Return the bytes that one text of these places takes at most: all its characters as many as the widest."""
    characters, width = 0, 1
    for begin, end in places:
        for start in range(begin, end, PIECE_BYTES):
            piece = body[start : min(start + PIECE_BYTES, end)]
            characters += len(piece.translate(None, _CONTINUING))
            if b"\\ud" in piece or b"\\uD" in piece or len(piece.translate(None, _FOUR_BYTES)) < len(piece):
                width = 4
            elif not piece.isascii() or b"\\u" in piece:
                width = max(width, 2)
    return characters * width


def _is_plain(piece: bytes) -> bool:
    """Tell whether the piece of a text stands for itself, a byte for a character."""
    return piece.isascii() and len(piece.translate(None, _NOT_PLAIN)) == len(piece)


def _without_escaped(piece: bytes) -> bytes:
    """Replace escaped backslashes and quotes; the length stays."""
    return piece.replace(b"\\\\", b"__").replace(b'\\"', b"__") if b"\\" in piece else piece


def _text(body: bytes, start: int, end: int) -> str:
    """Return the text between two quotes. Raises ValueError."""
    if all(_is_plain(body[place : min(place + PIECE_BYTES, end)]) for place in range(start, end, PIECE_BYTES)):
        return str(memoryview(body)[start:end], "ascii")  # parts and what they are joined to would take twice as much
    utf8 = codecs.getincrementaldecoder("utf-8")()
    parts: list[str] = []
    while start < end:
        stop = _whole_escapes(body, start, end)
        piece = utf8.decode(body[start:stop], stop == end)
        try:
            parts.append(json.loads(f'"{piece}"'))
        except json.JSONDecodeError as error:
            raise ValueError(f"{error.msg} near character {start + error.pos}") from None
        start = stop
    return "".join(parts)


def _whole_escapes(body: bytes, start: int, end: int) -> int:
    """Return a place at which a piece of a text can end: not within an escaped character."""
    stop = start + PIECE_BYTES
    if stop >= end:
        return end
    piece = _without_escaped(body[start:stop])
    backslash = piece.rfind(b"\\", len(piece) - 5)
    if backslash < 0:
        return stop
    length = 6 if body[start + backslash + 1 : start + backslash + 2] == b"u" else 2
    return start + backslash if backslash + length > len(piece) else stop
