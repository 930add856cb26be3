"""What a file in a prompt costs: the tokens of its text, or an estimate of them.

A text file is read. A PDF counts by its pages, another file by its bytes: to read these takes a parser that hostile input
has to be kept from. A file that is not there (an unknown id, an address) is one token: nothing is fetched.
"""

from __future__ import annotations

import binascii
import contextlib
import re
from collections.abc import Mapping
from typing import Any

# docs.claude.com, "PDF support": a page takes 1,500 to 3,000 tokens of text, by how dense it is.
PAGE_TOKENS = 1_500
PAGE_BYTES = 50_000  # of a PDF that hides its pages in compressed objects
MOST_PAGES = 1_000
_BYTES_PER_TOKEN = 4  # of any other file
_MOST_TOKENS = MOST_PAGES * PAGE_TOKENS
_PAGE = re.compile(rb"/Type\s{0,8}/Page[^s]")
_PAGE_BYTES = 32  # that it matches at most
_PIECE = 1 << 20  # of what is decoded or searched at once: some milliseconds
_TEXT_START_BYTES = 4096  # of a file, in which no text has a zero byte


def read_file(part: Mapping[str, Any]) -> str | int:
    """The text of a content part `file` or `input_file`; of one whose text is not read, how many tokens it has."""
    data = _data(part)
    if data is None:
        return 1
    if data.startswith(b"%PDF-"):
        pages = _pages(data) or -(-len(data) // PAGE_BYTES)
        return PAGE_TOKENS * min(pages, MOST_PAGES)
    if b"\0" not in data[:_TEXT_START_BYTES]:
        with contextlib.suppress(UnicodeDecodeError):
            return data.decode("utf-8-sig")
    return min(_MOST_TOKENS, max(1, len(data) // _BYTES_PER_TOKEN))


def _pages(data: bytes) -> int:
    """How many pages a PDF names, as far as they count."""
    found = 0
    for start in range(0, len(data), _PIECE):
        found += sum(
            1 for match in _PAGE.finditer(data, start, start + _PIECE + _PAGE_BYTES) if match.start() < start + _PIECE
        )
        if found >= MOST_PAGES:
            break
    return found


def _data(part: Mapping[str, Any]) -> bytes | None:
    """The bytes in the request, of a data URL or of base64 alone, or those that are stored for it."""
    inner = part.get("file")
    given = (inner if isinstance(inner, Mapping) else part).get("file_data")
    if isinstance(given, bytes):
        return given
    if not isinstance(given, str) or not given:
        return None
    return decoded(given, given.find(",") + 1 if given.startswith("data:") else 0)


def decoded(encoded: str, start: int = 0) -> bytes | None:
    """The bytes that are encoded as base64 from a place on, None if they are not.

    They are read piece by piece: no other thread runs in the meantime.
    """
    pieces: list[bytes] = []
    rest = ""
    try:
        for place in range(start, len(encoded), _PIECE):
            given = rest + "".join(encoded[place : place + _PIECE].split())
            whole = len(given) & ~3
            pieces.append(binascii.a2b_base64(given[:whole]))
            rest = given[whole:]
        pieces.append(binascii.a2b_base64(rest))
    except ValueError:
        return None
    return b"".join(pieces)
