"""Where a reply runs into one of the request's stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class StopMatch:
    """tokens: how many are generated, the one that completes the stop string included. pieces: their visible text."""

    stop: str
    tokens: int
    pieces: list[str]


def find_stop(pieces: Sequence[str], stops: Sequence[str], include: bool, min_tokens: int = 0) -> StopMatch | None:
    """The stop string that ends the text first, None when none does.

    The match that is complete at the earliest token wins; among those of one token, the one that begins first. Matches
    complete within the first `min_tokens` tokens do not count. The text ends before the match, or after it with `include`.
    """
    text = "".join(pieces)
    guarded_characters = sum(map(len, pieces[:min_tokens]))
    best: tuple[int, int, int, str] | None = None  # tokens, start, -length, stop
    for stop in stops:
        if not stop:
            continue
        start = text.find(stop, max(0, guarded_characters - len(stop) + 1) if min_tokens else 0)
        if start >= 0:
            match = (_tokens_showing(pieces, start + len(stop)), start, -len(stop), stop)
            best = match if best is None else min(best, match)
    if best is None:
        return None
    tokens, start, _, stop = best
    return StopMatch(stop, tokens, _cut(pieces[:tokens], start + len(stop) if include else start))


def _tokens_showing(pieces: Sequence[str], characters: int) -> int:
    shown = 0
    for count, piece in enumerate(pieces, 1):
        shown += len(piece)
        if shown >= characters:
            return count
    raise ValueError("the text is shorter than that")


def _cut(pieces: Sequence[str], characters: int) -> list[str]:
    """The pieces with everything after so many characters left out; as many pieces as before."""
    cut: list[str] = []
    for piece in pieces:
        cut.append(piece[:characters])
        characters -= len(cut[-1])
    return cut
