"""Event streams: from timed pieces of bytes to timed events.

The framing is the one of https://html.spec.whatwg.org/multipage/server-sent-events.html section 9.2.6, with the `id` and
`retry` fields ignored. A whole stream is split at once, after it has ended: per event that costs a fraction of parsing lines
as they come.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\n|\r")
# Atomic groups, so that one CRLF is never taken for two line ends.
_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")


class Events(NamedTuple):
    """stamps_s[i]: arrival of the last byte of the i-th event (its blank line); data[i]: its data lines joined by LF.

    rest: the data of a last event whose blank line never came, or None; the standard says to drop it.
    """

    stamps_s: list[float]
    data: list[bytes]
    rest: bytes | None


def split_events(segments: Sequence[tuple[float, bytes]]) -> Events:
    """The events of a stream that arrived as segments of (time, bytes), in order; segments may cut it anywhere."""
    stream = b"".join([piece for _, piece in segments])
    start = len(_BYTE_ORDER_MARK) if stream.startswith(_BYTE_ORDER_MARK) else 0
    blocks, ends = _split_blocks(stream, start)
    unfinished = blocks.pop()
    stamps_s: list[float] = []
    data: list[bytes] = []
    segment, segment_end = -1, 0
    stamp_s = 0.0
    for block, end in zip(blocks, ends, strict=True):
        while segment_end < end:
            segment += 1
            stamp_s, piece = segments[segment]
            segment_end += len(piece)
        if block.startswith(b"data: ") and b"\n" not in block and b"\r" not in block:
            stamps_s.append(stamp_s)
            data.append(block[6:])
        else:
            joined = _data_of(block)
            if joined is not None:
                stamps_s.append(stamp_s)
                data.append(joined)
    return Events(stamps_s, data, _data_of(unfinished))


def _split_blocks(stream: bytes, start: int) -> tuple[list[bytes], list[int]]:
    """The stretches between blank lines, the unfinished last one too, and where each finished one ends, blank line included."""
    returns = stream.count(b"\r")
    if not returns:
        separator = b"\n\n"
    elif returns == stream.count(b"\n") == stream.count(b"\r\n"):
        separator = b"\r\n\r\n"
    else:  # mixed line ends: rare
        blocks, ends = [], []
        for match in _BLANK_LINE.finditer(stream, start):
            blocks.append(stream[start : match.start()])
            start = match.end()
            ends.append(start)
        return [*blocks, stream[start:]], ends
    blocks = (stream[start:] if start else stream).split(separator)
    width = len(separator)
    ends = list(accumulate([len(block) + width for block in blocks[:-1]], initial=start))
    return blocks, ends[1:]


def _data_of(block: bytes) -> bytes | None:
    """The data lines of one event, joined; None where there is none: comments, pings, an `event:` line alone."""
    lines = []
    for line in _LINE_END.split(block):
        name, _, value = line.partition(b":")
        if name == b"data":
            lines.append(value.removeprefix(b" "))
    return b"\n".join(lines) if lines else None
