"""What one rank's batch asks of the kernels: counts and sums, each worked out once a step."""

from __future__ import annotations

from collections.abc import Sequence

from llmirage_server.perf.kernels.attention import causal_pairs

_QUERY_BLOCK = 128  # a block of queries sees the window of its first query and the diagonal
MEAN_TOKENS = 16  # resolution of decode attention: a page of the mean context
LONGEST_TOKENS = 64  # and four pages of the longest one, which matters less


def in_pages(decodes: int, mean_page: int, longest_page: int) -> tuple[int, float, float]:
    """(sequences, context sum, longest context) of DecodeKernel, from the pages of the mean and of the longest context.

    Decode attention without a window is timed page by page, as kernels read a KV cache: every step whose mean and longest
    context are in the same pages takes the same time, so that it can be remembered. Both count as the middle of the tokens
    of their page (0 to 15 and 0 to 63): a sequence that grows through it is charged neither too much nor too little.
    """
    mean = MEAN_TOKENS * mean_page + (MEAN_TOKENS - 1) / 2
    return decodes, decodes * mean, LONGEST_TOKENS * longest_page + (LONGEST_TOKENS - 1) / 2


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


class Load:
    """Counts of one batch. `queries` are the tokens that every decoding sequence adds."""

    __slots__ = ("_decode", "_prefill", "chunks", "context", "contexts", "decode_tokens", "decodes", "new", "rows", "tokens")

    def __init__(self, chunks: Sequence[tuple[int, int]], contexts: Sequence[int], queries: int = 1) -> None:
        self.chunks = chunks
        self.contexts = contexts
        self.decodes = len(contexts)
        self.decode_tokens = self.decodes * queries
        self.new = sum([chunk[0] for chunk in chunks]) if chunks else 0
        self.context = sum([chunk[1] for chunk in chunks]) if chunks else 0
        self.tokens = self.new + self.decode_tokens
        self.rows = self.decode_tokens + len(chunks)  # every chunk's last token goes through lm_head too, as in vLLM
        self._prefill: dict[int, tuple[int, int, int, int]] = {}
        self._decode: dict[int, tuple[int, float, float]] = {}

    @property
    def sequences(self) -> int:
        """Sequences of the batch, decoding or prefilling."""
        return self.decodes + len(self.chunks)

    def prefill(self, window: int) -> tuple[int, int, int, int]:
        """`prompt_sums` of the chunks."""
        if (found := self._prefill.get(window)) is None:
            found = self._prefill[window] = prompt_sums(self.chunks, window)
        return found

    def decode(self, window: int) -> tuple[int, float, float]:
        """(sequences, context sum, longest context) of DecodeKernel, contexts clipped to `window` (0: `in_pages`)."""
        if (found := self._decode.get(window)) is not None:
            return found
        contexts = self.contexts
        longest = max(contexts)
        result: tuple[int, float, float]
        if not window:
            result = in_pages(self.decodes, sum(contexts) // self.decodes // MEAN_TOKENS, longest // LONGEST_TOKENS)
        elif longest <= window:
            result = self.decodes, sum(contexts), longest
        elif min(contexts) >= window:
            result = self.decodes, window * self.decodes, window
        else:
            result = self.decodes, sum([min(window, c) for c in contexts]), window
        self._decode[window] = result
        return result
