"""Event streams: from timed pieces of bytes to timed events, and the text of chunks without parsing each as JSON.

The framing is that of https://html.spec.whatwg.org/multipage/server-sent-events.html section 9.2.6, with the `event`, `id`
and `retry` fields ignored. A whole stream is split at once, after it has ended: per event that costs a fraction of reading
lines as they come.

Consecutive chunks of a reply differ in one string: the piece of text. Once a chunk was parsed, those that share all bytes
before and behind that string are sliced; whatever differs in any other way is parsed, and may become the next model.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import NamedTuple

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LINE_END = re.compile(r"\r\n|\n|\r")
# Atomic groups, so that one CRLF is never taken for two line ends.
_BLANK_LINE = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")


class Events(NamedTuple):
    """stamps_s[i]: arrival of the last byte of the i-th event (its blank line); data[i]: its data lines joined by LF.

    rest: the data of a last event whose blank line never came, or None; the standard says to drop it.
    Bytes that are not UTF-8 appear as lone surrogates (surrogateescape).
    """

    stamps_s: list[float]
    data: list[str]
    rest: str | None


def split_events(segments: Sequence[tuple[float, bytes]]) -> Events:
    """Return the events of a stream that arrived as segments of (time, bytes), in order; segments may cut it anywhere."""
    stream = b"".join([piece for _, piece in segments])
    start = len(_BYTE_ORDER_MARK) if stream.startswith(_BYTE_ORDER_MARK) else 0
    blank = b"\r\n\r\n" if b"\r" in stream else b"\n\n"
    # The plain case, which is nearly all traffic: every event is one data line. A split, and hardly anything per event.
    if stream.startswith(b"data: ", start) and stream.endswith(blank):
        between = blank + b"data: "
        pieces = stream[start + len(b"data: ") : -len(blank)].split(between)
        joined = b"".join(pieces)
        if b"\n" not in joined and b"\r" not in joined:
            ends = accumulate([len(piece) + len(between) for piece in pieces], initial=start)
            next(ends)
            data = [piece.decode("utf-8", "surrogateescape") for piece in pieces]
            return Events(_stamps(segments, list(ends)), data, None)
    named = _split_named(stream, start, segments) if blank == b"\n\n" else None
    return _split_any(stream, start, segments) if named is None else named


def _split_named(stream: bytes, start: int, segments: Sequence[tuple[float, bytes]]) -> Events | None:
    """Return the other plain case: every event is a line with its name and one data line.

    None where any is something else.
    """
    if not stream.startswith(b"event: ", start) or not stream.endswith(b"\n\n"):
        return None
    pieces = stream[start:-2].split(b"\n\n")
    data: list[str] = []
    for piece in pieces:
        name, found, value = piece.partition(b"\ndata: ")
        if not found or b"\n" in value or b"\n" in name or not name.startswith(b"event: "):
            return None
        data.append(value.decode("utf-8", "surrogateescape"))
    ends = accumulate([len(piece) + 2 for piece in pieces], initial=start)
    next(ends)
    return Events(_stamps(segments, list(ends)), data, None)


def _split_any(stream: bytes, start: int, segments: Sequence[tuple[float, bytes]]) -> Events:
    """Split every other stream: comments, pings, several lines an event, mixed line ends, a stream cut short."""
    ends, data = [], []
    for match in _BLANK_LINE.finditer(stream, start):
        joined = _data_of(stream[start : match.start()])
        start = match.end()
        if joined is not None:
            ends.append(start)
            data.append(joined)
    return Events(_stamps(segments, ends), data, _data_of(stream[start:]))


def _stamps(segments: Sequence[tuple[float, bytes]], ends: list[int]) -> list[float]:
    """Return when the byte before each position of `ends` arrived."""
    times = [time_s for time_s, _ in segments]
    segment_ends = list(accumulate([len(piece) for _, piece in segments]))
    if ends == segment_ends:  # one event a segment
        return times
    return [times[bisect_left(segment_ends, end)] for end in ends]


def _data_of(block: bytes) -> str | None:
    """Return the data lines of one event, joined; None where there is none: comments, pings, an `event:` line alone."""
    lines = []
    for line in _LINE_END.split(block.decode("utf-8", "surrogateescape")):
        name, _, value = line.partition(":")
        if name == "data":
            lines.append(value.removeprefix(" "))
    return "\n".join(lines) if lines else None


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
        """Return the model of a valid chunk whose text is under `key`; None where that key is not there exactly once."""
        found = list(_KEYS[key].finditer(chunk))
        if len(found) != 1:
            return None
        before = found[0].end()
        _, after = scanstring(chunk, before)
        return cls(chunk[:before], chunk[after - 1 :], key.startswith("reasoning") or key == "thinking")

    def text_of(self, chunk: str) -> str | None:
        """Return the text of a chunk that differs from the model in nothing else; None when it differs."""
        if not chunk.startswith(self._before):
            return None
        try:
            text, end = scanstring(chunk, self._before_length)
        except ValueError:
            return None
        return text if chunk[end - 1 :] == self._after and (chunk.isascii() or not ESCAPED_BYTE.search(text)) else None
