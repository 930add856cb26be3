"""What one rank's batch asks of the kernels, in counts and sums."""

from __future__ import annotations

from collections.abc import Sequence

from llmirage_server.perf.kernels.attention import causal_pairs

_QUERY_BLOCK = 128  # a block of queries sees the window of its first query and the diagonal
MEAN_TOKENS = 16  # resolution of decode attention: a page of the mean context
LONGEST_TOKENS = 64  # and four pages of the longest one, which matters less
_MEAN_MIDDLE, _LONGEST_MIDDLE = (MEAN_TOKENS - 1) / 2, (LONGEST_TOKENS - 1) / 2

Chunks = tuple[tuple[int, int], ...]
"""(new tokens, context tokens) of each prompt chunk."""

DecodeLoad = tuple[int, ...]
"""Decoding sequences as attention sees them: how many, the page of their mean context, the page of the longest one.

Where a context is shorter than a window, every window adds two numbers, the narrowest first: the sum of all contexts clipped
to it, and the longest. Without decoding sequences it is ().
"""

DecodeArguments = tuple[int, float, float]
"""(sequences, context sum, longest context) of DecodeKernel."""


def decode_load(sequences: int, context_sum: int, longest: int, clipped: tuple[int, ...] = ()) -> DecodeLoad:
    """Of at least one sequence, from sums over the contexts. clipped: what the windows add."""
    pages = sequences, context_sum // sequences // MEAN_TOKENS, longest // LONGEST_TOKENS
    return pages + clipped if clipped else pages


def decode_load_of(contexts: Sequence[int], windows: Sequence[int]) -> DecodeLoad:
    """The same from the contexts themselves. windows: of the model's decode attention, the narrowest first."""
    if not contexts:
        return ()
    clipped: list[int] = []
    longest = max(contexts)
    if windows and min(contexts) < windows[-1]:
        for window in windows:
            clipped += sum([min(window, context) for context in contexts]), min(longest, window)
    return decode_load(len(contexts), sum(contexts), longest, tuple(clipped))


def decode_arguments(load: DecodeLoad, windows: Sequence[int]) -> dict[int, DecodeArguments]:
    """For each window, and for 0, which is none.

    Decode attention without a window is timed page by page, as kernels read a KV cache: every step whose mean and longest
    context are in the same pages takes the same time, so that it can be remembered. Both count as the middle of the tokens
    of their page (0 to 15 and 0 to 63): a sequence that grows through it is charged neither too much nor too little.
    A window clips each context by itself.
    """
    sequences = load[0]
    total = sequences * (MEAN_TOKENS * load[1] + _MEAN_MIDDLE)
    arguments: dict[int, DecodeArguments] = {0: (sequences, total, LONGEST_TOKENS * load[2] + _LONGEST_MIDDLE)}
    if windows:
        clipped = load[3:]
        for i, window in enumerate(windows):
            sums = (clipped[2 * i], clipped[2 * i + 1]) if clipped else (window * sequences, window)
            arguments[window] = sequences, *sums
    return arguments


def prompt_sums(chunks: Sequence[tuple[int, int]], window: int) -> tuple[int, int, int, int]:
    """(pairs, new tokens, context tokens, longest) of PrefillKernel, each query seeing `window` keys (0: all)."""
    pairs = new = context = longest = 0
    for added, before in chunks:
        new += added
        pairs += causal_pairs(added, before, window)
        context += before if not window or before < window else window
        if added + before > longest:
            longest = added + before
    if window:
        longest = min(longest, window + _QUERY_BLOCK)
    return pairs, new, context, longest


class RankCounts:
    """Counts of one rank's batch. `queries` are the tokens that every decoding sequence adds."""

    __slots__ = ("chunks", "context", "decode_tokens", "decodes", "new", "rows", "sequences", "tokens")

    def __init__(self, chunks: Chunks, decodes: int, queries: int = 1) -> None:
        self.chunks = chunks
        self.decodes = decodes
        self.decode_tokens = decodes * queries
        self.new = sum([chunk[0] for chunk in chunks])
        self.context = sum([chunk[1] for chunk in chunks])
        self.tokens = self.new + self.decode_tokens
        self.rows = self.decode_tokens + len(chunks)  # every chunk's last token goes through lm_head too, as in vLLM
        self.sequences = decodes + len(chunks)
