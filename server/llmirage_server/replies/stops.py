"""Where a reply runs into one of the request's stop strings or stop tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from llmirage_server.replies.reply import Reply
from llmirage_shared.tokens import Tokenizer


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


def stopped_at_token(reply: Reply, stop_ids: Sequence[int], include: bool, min_tokens: int = 0) -> Reply:
    """The reply up to the first of these tokens after `min_tokens` others. It shows nothing, unless `include` is set."""
    wanted = frozenset(stop_ids)
    for place, token in enumerate(reply.ids.tolist()):
        if token in wanted and place >= min_tokens:
            break
    else:
        return reply
    pieces = list(reply.pieces[: place + 1])
    if not include:
        pieces[place] = ""
    parts = tuple(replace(part, end=min(part.end, place + 1)) for part in reply.parts if part.start <= place)
    return Reply(reply.ids[: place + 1], pieces, "stop", token, parts)


def with_end_shown(reply: Reply, tokenizer: Tokenizer) -> Reply:
    """The reply with the token that ends its turn as text, where the model ended it by itself."""
    end_id = tokenizer.end_id
    if reply.stop_reason is not None or reply.ids[-1] != end_id:
        return reply
    spelled = next((token for token, known in tokenizer.special_tokens.items() if known == end_id), "")
    parts = reply.parts
    if parts and parts[-1].kind == "text":
        parts = (*parts[:-1], replace(parts[-1], end=len(reply.ids)))
    return replace(reply, pieces=[*reply.pieces[:-1], spelled], parts=parts)
