"""One row a conversation: how long it took, when its answer came, and how much of its context the server had cached."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmirage_client.measure.arrays import Floats, Ints, ratio
from llmirage_client.measure.columns import Columns


@dataclass(slots=True, frozen=True)
class Conversations:
    """Arrays of one length, one entry a conversation with at least one request that succeeded, in order of first start.

    Times are in seconds of cluster time, counted over the turns that succeeded; NaN where a figure has no basis.
    number: as in Columns.conversation. whole: it came to its last turn, and none of its requests failed or was cancelled.
    latency_s: first start to last content. ttfat_s: first start to the first content of the last turn.
    decode_tokens_per_s: mean over turns of (tokens - 1) / (latency - TTFT); of replies that came in one piece there is none.
    cache_hit: cached tokens, part of all prompt tokens. eligible_cache_hit: cached tokens, part of those that the server had
        seen: the prompt and reply of the turn before. Both are at most 1.
    """

    number: Ints
    turns: Ints
    whole: np.typing.NDArray[np.bool_]
    start_s: Floats
    latency_s: Floats
    first_turn_ttft_s: Floats
    ttfat_s: Floats
    decode_tokens_per_s: Floats
    cache_hit: Floats
    eligible_cache_hit: Floats

    def those(self, chosen: Ints | np.typing.NDArray[np.bool_]) -> Conversations:
        """The conversations with these places, or where this is true."""
        return Conversations(*(getattr(self, name)[chosen] for name in Conversations.__slots__))


def conversations(
    columns: Columns, prompt: Floats, completion: Floats, cached: Floats, speed: float = 1.0, *, to_last_byte: bool = False
) -> Conversations:
    """prompt, completion, cached: tokens of each row, NaN where unknown; a turn whose count of cached tokens is unknown is
    left out of both hit rates. to_last_byte: a request ends with its last byte (evalscope) and not with its last content.
    """
    ends_s = columns.end_s if to_last_byte else columns.last_s
    rows = np.lexsort((columns.turn_index, columns.conversation))
    rows = rows[columns.ok[rows] & ~np.isnan(ends_s[rows])]
    number = columns.conversation[rows]
    starts = np.flatnonzero(np.diff(number, prepend=-1)) if rows.size else np.empty(0, dtype=np.int64)
    turns = np.diff(starts, append=rows.size)
    failed = np.isin(number[starts], columns.conversation[~columns.ok])
    begin, end = columns.start_s[rows], ends_s[rows]
    # A reply in one piece has no first token of its own: all of it came at once.
    ttft = np.where(columns.streamed[rows], columns.first_s[rows], end) - begin
    lasts = starts + turns - 1

    def total(values: Floats) -> Floats:
        """Sum over each conversation; NaN counts as nothing."""
        sums: Floats = np.add.reduceat(np.nan_to_num(values), starts) if rows.size else np.empty(0)
        return sums

    decode_s = (end - begin - ttft) * speed
    further = completion[rows] - 1
    several = columns.last_s[rows] > columns.first_s[rows]  # packets: one alone says nothing of how fast it was decoded
    per_s = np.divide(further, decode_s, out=np.full(rows.size, np.nan), where=several & (decode_s > 0) & (further > 0))
    known = ~np.isnan(cached[rows]) & ~np.isnan(prompt[rows])
    hits = np.where(known, np.minimum(cached[rows], prompt[rows]), np.nan)
    seen = prompt + completion
    before = columns.continues[rows]
    eligible = np.where(known & (before >= 0), seen[before], np.nan)
    result = Conversations(
        number=number[starts],
        turns=turns,
        whole=~failed & np.isin(number[starts], columns.conversation[columns.final]),
        start_s=begin[starts],
        latency_s=(end[lasts] - begin[starts]) * speed,
        first_turn_ttft_s=ttft[starts] * speed,
        ttfat_s=(begin[lasts] + ttft[lasts] - begin[starts]) * speed,
        decode_tokens_per_s=ratio(total(per_s), total((~np.isnan(per_s)).astype(np.float64))),
        cache_hit=ratio(total(hits), total(np.where(known, prompt[rows], np.nan))),
        eligible_cache_hit=ratio(total(np.minimum(hits, eligible)), total(eligible)),
    )
    return result.those(np.argsort(result.start_s, kind="stable"))
