"""Tokens that go out together: of one speculative step, or of a stream in intervals (`stream_interval`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Protocol

from llmirage_server.cluster.request import Request
from llmirage_server.replies.reply import Part


class TokenWriter(Protocol):
    def tokens(self, start: int, end: int) -> bytes: ...


def chunks_due(writer: TokenWriter, request: Request, sent: int) -> tuple[bytes, int]:
    """What goes out now of a request's tokens from `sent` on, and how many have gone out then."""
    if request.stream is None:
        return writer.tokens(sent, request.produced), request.produced
    ends = [sent, *request.stream.ends(sent, request.produced, request.output_tokens)]
    return b"".join([writer.tokens(start, end) for start, end in pairwise(ends)]), ends[-1]


def said_together(parts: Sequence[Part], start: int, end: int, joined: bool) -> Iterable[range]:
    """The tokens of each event that speaks: one, or if they are joined all from `start` to `end` of one part."""
    if not joined:
        return [range(place, place + 1) for place in range(start, end)]
    edges = {edge for part in parts for edge in (part.start, part.end) if start < edge < end}
    return [range(*pair) for pair in pairwise(sorted({start, end, *edges}))]
