"""Request bodies that need more than to be parsed: compressed ones, and strings with half of a surrogate pair."""

from __future__ import annotations

import zlib
from typing import Any

from llmirage_shared.wire import errors


def decompressed(body: bytes, encoding: bytes, most_bytes: int) -> bytes:
    """Raises ApiError for an unknown encoding, and for a body that is not encoded so or is too large."""
    if encoding in (b"", b"identity"):
        return body
    if encoding not in (b"gzip", b"deflate"):
        raise errors.unsupported_content_encoding(encoding.decode("latin-1"))
    decompressor = zlib.decompressobj(zlib.MAX_WBITS | 32)  # of either kind
    try:
        plain = decompressor.decompress(body, most_bytes + 1)
    except zlib.error:
        raise errors.bad_json("the body is not what its content-encoding says") from None
    if len(plain) > most_bytes:
        raise errors.body_too_large(most_bytes)
    return plain


def without_lone_surrogates(value: Any) -> Any:
    """The JSON value with U+FFFD in place of surrogates that stand alone, which UTF-8 cannot write."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [without_lone_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {without_lone_surrogates(key): without_lone_surrogates(item) for key, item in value.items()}
    return value
