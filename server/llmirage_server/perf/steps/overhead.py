"""What a serving engine adds to the time of the kernels."""

from __future__ import annotations

from llmirage_server.perf.catalogue.engines import EngineProfile
from llmirage_server.perf.parallelism import Parallelism
from llmirage_server.perf.steps.stage import BATCHES, Memo


class EngineOverhead:
    """Of an instance whose stage launches its layers in `launching_s`, split so.

    captured_tokens: the most of one rank that graphs were captured for. scaled: whether the profile corrects GPU times.
    """

    def __init__(self, engine: EngineProfile, launching_s: float, parallel: Parallelism, captured_tokens: int) -> None:
        self._engine = engine
        self._pipeline = parallel.pp
        self.scaled = engine.decode_scale != 1.0 or engine.prefill_scale != 1.0
        self._sync_s = engine.dp_sync_ms * 1e-3 if parallel.dp > 1 else 0.0
        self._eager_s = launching_s
        self._captured_tokens = captured_tokens * parallel.dp
        self._captured_s = launching_s * engine.captured_share
        self._host_parts_s = Memo(self._find_host_parts, BATCHES)

    def gpu_scale(self, new_tokens: int, decode_tokens: int) -> float:
        """Correction of GPU times, by the tokens of either kind."""
        if not self.scaled:
            return 1.0
        engine = self._engine
        return (engine.prefill_scale * new_tokens + engine.decode_scale * decode_tokens) / (new_tokens + decode_tokens)

    def with_host(self, gpu_s: float, sequences: int, new_tokens: int, tokens: int) -> float:
        """A step whose first stage takes `gpu_s`, with what the host adds; so many sequences on the rank that has most.

        new_tokens: of prompts, which go through layer by layer, without a graph of the whole step. tokens: of all ranks.
        """
        seen_s, hidden_s, handling_s = self._host_parts_s[sequences]
        if new_tokens:
            hidden_s = max(hidden_s, self._captured_s if tokens <= self._captured_tokens else self._eager_s)
        waits_s = handling_s / self._pipeline if self._pipeline > 1 else 0.0
        return max(gpu_s + waits_s, hidden_s + handling_s) + (seen_s + self._sync_s)

    def host_s(self, gpu_s: float, sequences: int, new_tokens: int, tokens: int) -> float:
        """What the host adds to such a step."""
        return self.with_host(gpu_s, sequences, new_tokens, tokens) - gpu_s

    def _find_host_parts(self, sequences: int) -> tuple[float, float, float]:
        """The host's times with so many sequences in a step: what it adds, what it needs, and for all requests that run.

        The steps of a pipeline have about as many sequences each.
        """
        return *self._engine.host_parts_s(sequences), self._engine.handling_s(sequences, self._pipeline)
