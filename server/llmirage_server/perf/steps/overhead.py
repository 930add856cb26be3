"""What a serving engine adds to the time of the kernels."""

from __future__ import annotations

from llmirage_server.perf.catalogue.models import ModelSpec
from llmirage_server.perf.engines.engine import Engine
from llmirage_server.perf.parallelism import Parallelism
from llmirage_server.perf.steps.stage import BATCHES, Memo


class EngineOverhead:
    """Of an instance of the model, split so; max_num_seqs: of a rank, for which CUDA graphs were captured."""

    def __init__(self, engine: Engine, model: ModelSpec, parallel: Parallelism, max_num_seqs: int) -> None:
        self._engine = engine
        self.scaled = engine.decode_scale != 1.0 or engine.prefill_scale != 1.0
        self._sync_s = engine.dp_sync_ms * 1e-3 if parallel.dp > 1 else 0.0
        self._launch_s = engine.launch_s(model) / parallel.pp
        self._captured_tokens = engine.captured_tokens(max_num_seqs) * parallel.dp
        self._captured_s = engine.captured_launch_s(model) / parallel.pp
        self._host_parts_s = Memo(engine.host_parts_s, BATCHES)

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
        exposed_s, hidden_s = self._host_parts_s[sequences]
        if new_tokens:
            hidden_s = max(hidden_s, self._captured_s if tokens <= self._captured_tokens else self._launch_s)
        return max(gpu_s, hidden_s) + (exposed_s + self._sync_s)

    def host_s(self, gpu_s: float, sequences: int, new_tokens: int, tokens: int) -> float:
        """What the host adds to such a step."""
        return self.with_host(gpu_s, sequences, new_tokens, tokens) - gpu_s
