"""What a serving engine adds to the time of the kernels."""

from __future__ import annotations

from llmirage_server.perf.catalogue.engines import EngineProfile
from llmirage_server.perf.steps.stage import BATCHES, Memo


class EngineOverhead:
    """Of an instance with so many attention data-parallel ranks. scaled: whether the profile corrects GPU times."""

    def __init__(self, engine: EngineProfile, ranks: int) -> None:
        self._engine = engine
        self.scaled = engine.decode_scale != 1.0 or engine.prefill_scale != 1.0
        self._sync_s = engine.dp_sync_ms * 1e-3 if ranks > 1 else 0.0
        self._host_parts_s = Memo(engine.host_parts_s, BATCHES)

    def gpu_scale(self, new_tokens: int, decode_tokens: int) -> float:
        """Correction of GPU times, by the tokens of either kind."""
        if not self.scaled:
            return 1.0
        engine = self._engine
        return (engine.prefill_scale * new_tokens + engine.decode_scale * decode_tokens) / (new_tokens + decode_tokens)

    def with_host(self, gpu_s: float, sequences: int) -> float:
        """A step whose first stage takes `gpu_s`, with what the host adds; so many sequences on the rank that has most."""
        seen_s, hidden_s = self._host_parts_s[sequences]
        return gpu_s + (seen_s + (hidden_s - gpu_s if hidden_s > gpu_s else 0.0) + self._sync_s)

    def host_s(self, gpu_s: float, sequences: int) -> float:
        """What the host adds to such a step."""
        seen_s, hidden_s = self._engine.host_parts_s(sequences)
        return seen_s + max(0.0, hidden_s - gpu_s) + self._sync_s
