"""JSON of requests, written at the price of what is new in them, and of replies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

# Made once: json.dumps makes an encoder for every call that asks for other than its defaults.
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_ASCII_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


class WireObject(dict[str, Any]):
    """A JSON object that bodies repeat, such as a message of a history: it is encoded once. Not to be changed afterwards."""

    __slots__ = ("_encoded",)
    _encoded: bytes

    def encoded(self) -> bytes:
        """Return the JSON bytes. Raises ValueError or TypeError for values that JSON lacks."""
        try:
            return self._encoded
        except AttributeError:
            self._encoded = encode(self)
            return self._encoded

    def forget(self) -> None:
        """Free the encoding."""
        with suppress(AttributeError):
            del self._encoded


def parse(text: str | bytes) -> Any:
    """Return the value of JSON text. Raises ValueError, also for values nested deeper than Python reads."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("the JSON is nested too deep") from None


def encode(value: Any) -> bytes:
    """Return compact JSON in UTF-8; lone surrogates, which UTF-8 cannot carry, as escapes.

    Raises ValueError, also for values nested deeper than Python writes, or TypeError.
    """
    try:
        return _ENCODER.encode(value).encode()
    except UnicodeEncodeError:
        return _ASCII_ENCODER.encode(value).encode()
    except RecursionError:
        raise ValueError("a value is nested too deep") from None


def encode_body(body: Mapping[str, Any]) -> bytes:
    """Return the body as `encode` would have it; lists of WireObjects are put together from what was encoded before."""
    if not any(_is_cached(value) for value in body.values()):
        return encode(body)
    pieces: list[bytes] = []
    plain: dict[str, Any] = {}
    for key, value in body.items():
        if _is_cached(value):
            if plain:
                pieces.append(encode(plain)[1:-1])
                plain = {}
            items = [item.encoded() if isinstance(item, WireObject) else encode(item) for item in value]
            pieces.append(b"%b:[%b]" % (encode(key), b",".join(items)))
        else:
            plain[key] = value
    if plain:
        pieces.append(encode(plain)[1:-1])
    return b"{%b}" % b",".join(pieces)


def _is_cached(value: Any) -> bool:
    return type(value) is list and bool(value) and isinstance(value[0], WireObject)
