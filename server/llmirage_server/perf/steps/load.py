"""What one rank's batch asks of the kernels: counts and sums, each worked out once a step."""

from __future__ import annotations

from collections.abc import Sequence

from llmirage_server.perf.kernels.attention import causal_pairs

_QUERY_BLOCK = 128  # a block of queries sees the window of its first query and the diagonal


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
        self._decode: dict[int, tuple[int, int, int]] = {}

    @classmethod
    def summed(cls, chunks: Sequence[tuple[int, int]], decodes: int, context_sum: int, longest: int) -> Load:
        """One whose decoding sequences are known by their number, total context and longest context alone: no windows."""
        load = cls(chunks, ())
        load.decodes = load.decode_tokens = decodes
        load.tokens += decodes
        load.rows += decodes
        load._decode[0] = decodes, context_sum, longest
        return load

    @property
    def sequences(self) -> int:
        """Sequences of the batch, decoding or prefilling."""
        return self.decodes + len(self.chunks)

    def prefill(self, window: int) -> tuple[int, int, int, int]:
        """(pairs, new tokens, context tokens, longest) of PrefillKernel, each query seeing `window` keys (0: all)."""
        if (found := self._prefill.get(window)) is not None:
            return found
        pairs = context = longest = 0
        for new, before in self.chunks:
            pairs += causal_pairs(new, before, window)
            context += min(before, window) if window else before
            longest = max(longest, new + before)
        if window:
            longest = min(longest, window + _QUERY_BLOCK)
        result = self._prefill[window] = pairs, self.new, context, longest
        return result

    def decode(self, window: int) -> tuple[int, int, int]:
        """(sequences, context sum, longest context) of DecodeKernel, contexts clipped to `window` (0: not clipped)."""
        if (found := self._decode.get(window)) is not None:
            return found
        contexts = self.contexts
        longest = max(contexts)
        if not window or longest <= window:
            result = self.decodes, sum(contexts), longest
        elif min(contexts) >= window:
            result = self.decodes, window * self.decodes, window
        else:
            result = self.decodes, sum([min(window, c) for c in contexts]), window
        self._decode[window] = result
        return result
