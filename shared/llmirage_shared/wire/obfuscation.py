"""The `obfuscation` field: random characters that make events of different texts equally long, as the OpenAI API sends it.

Its recorded streams show the lengths: a chat chunk without the field, in characters of JSON, and the delta of a Responses
event, in characters of text, are each followed by as many as are missing to a multiple of 16.
"""

from __future__ import annotations

import re
import string
from random import Random

_STEP = 16
_CHARACTERS = "".join(Random("obfuscation").choices(string.ascii_letters + string.digits, k=_STEP - 1))
_ENDS = tuple(f',"obfuscation":"{_CHARACTERS[:missing]}"}}\n\n'.encode() for missing in range(_STEP))
_FIELD = re.compile(rb',"obfuscation":"\w*"(\}\n\n)')
_END = len(b"\n\n")
_START = len(b"data: ")


def padded(event: bytes) -> bytes:
    """An event without a name, with the field at its end."""
    return padded_end(event, -_START)


def padded_length(head: bytes) -> int:
    """The length of the beginning of an event, modulo the step of lengths."""
    return (len(head.decode()) - _START) % _STEP


def padded_end(end: bytes, length: int) -> bytes:
    """The end of an event with the field. length: characters of its object before this end."""
    length += (len(end) if end.isascii() else len(end.decode())) - _END
    return end[: -1 - _END] + _ENDS[-length % _STEP]


def after_delta(delta: str) -> bytes:
    """The end of an event with a delta: the field, the brace that closes the object, a blank line."""
    return _ENDS[-len(delta) % _STEP]


def delta_padded(event: bytes, delta: str) -> bytes:
    """An event with its delta's padding."""
    return event[: -1 - _END] + after_delta(delta)


def without(event: bytes) -> bytes:
    """An event without the field."""
    return _FIELD.sub(rb"\1", event)
