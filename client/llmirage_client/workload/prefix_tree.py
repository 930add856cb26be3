"""A cache of prompts that never forgets: how much of a new prompt begins as an earlier one did."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_TOKEN_BYTES = 4


def as_segment(ids: npt.NDArray[np.int32]) -> bytes:
    """Token ids as a segment: bytes that sort as the ids do."""
    return ids.astype(np.uint32).astype(">u4").tobytes()


def tokens_of(segment: bytes) -> int:
    return len(segment) // _TOKEN_BYTES


class PrefixTree:
    """Prompts cut into segments at the same places: whole segments are found by hash, the one that differs by neighbours."""

    __slots__ = ("_children", "_sorted")

    def __init__(self) -> None:
        self._children: dict[bytes, PrefixTree] = {}
        self._sorted: list[bytes] = []

    def match(self, segments: Sequence[bytes]) -> int:
        """Tokens at the beginning that some prompt put in before begins with too."""
        node, matched = self, 0
        for segment in segments:
            child = node._children.get(segment)
            if child is None:
                return matched + node._common(segment)
            matched += tokens_of(segment)
            node = child
        return matched

    def put(self, segments: Sequence[bytes]) -> None:
        node = self
        for segment in segments:
            child = node._children.get(segment)
            if child is None:
                child = node._children[segment] = PrefixTree()
                node._sorted.insert(bisect_left(node._sorted, segment), segment)
            node = child

    def _common(self, segment: bytes) -> int:
        """The most tokens that it begins with as a child does: in sorted order one of its neighbours has them."""
        place = bisect_left(self._sorted, segment)
        return max((_common(segment, other) for other in self._sorted[max(place - 1, 0) : place + 1]), default=0)


def _common(one: bytes, other: bytes) -> int:
    length = min(len(one), len(other))
    differ = np.frombuffer(one[:length], dtype=np.uint32) != np.frombuffer(other[:length], dtype=np.uint32)
    return int(differ.argmax()) if differ.any() else length // _TOKEN_BYTES
