"""What a file in a prompt costs: the tokens of its text, or an estimate of them.

A text file is read. A PDF counts by its pages, another file by its bytes: to read these takes a parser that hostile input
has to be kept from. A file that is not in the request (an id, an address) is one token: nothing is fetched.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

# docs.claude.com, "PDF support": a page takes 1,500 to 3,000 tokens of text, by how dense it is.
PAGE_TOKENS = 1_500
PAGE_BYTES = 50_000  # of a PDF that hides its pages in compressed objects
MOST_PAGES = 1_000
_BYTES_PER_TOKEN = 4  # of any other file
_MOST_TOKENS = MOST_PAGES * PAGE_TOKENS
_PAGE = re.compile(rb"/Type\s*/Page[^s]")
_TEXT_START_BYTES = 4096  # of a file, in which no text has a zero byte


def file_text(part: Mapping[str, Any]) -> str | None:
    """The text of a content part `file` or `input_file` that holds a text file; None for any other."""
    data = _data(part)
    if data is None or data.startswith(b"%PDF-") or b"\0" in data[:_TEXT_START_BYTES]:
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def file_tokens(part: Mapping[str, Any]) -> int:
    """The tokens of a content part `file` or `input_file` whose text is not read."""
    data = _data(part)
    if data is None:
        return 1
    if data.startswith(b"%PDF-"):
        pages = len(_PAGE.findall(data)) or -(-len(data) // PAGE_BYTES)
        return PAGE_TOKENS * min(pages, MOST_PAGES)
    return min(_MOST_TOKENS, max(1, len(data) // _BYTES_PER_TOKEN))


def _data(part: Mapping[str, Any]) -> bytes | None:
    """The bytes in the request, of a data URL or of base64 alone."""
    inner = part.get("file")
    given = (inner if isinstance(inner, Mapping) else part).get("file_data")
    if not isinstance(given, str) or not given:
        return None
    encoded = given.partition(",")[2] if given.startswith("data:") else given
    try:
        return base64.b64decode(encoded, validate=False)
    except (binascii.Error, ValueError):
        return None
