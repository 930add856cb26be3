"""What a serving engine adds to the time of the kernels."""

from __future__ import annotations

from collections.abc import Sequence

from llmirage_server.perf.engines.engine import Engine
from llmirage_server.perf.parallelism import Parallelism
from llmirage_server.perf.steps.operations import Op, PrefillOp, TokenOp
from llmirage_server.perf.steps.stage import BATCHES, Memo


def _launches(ops: Sequence[TokenOp | PrefillOp]) -> int:
    return sum([op.calls * op.launches for op in ops])


class EngineOverhead:
    """The host's part of an instance whose first stage has these operations.

    max_num_seqs: of a rank, for which CUDA graphs were captured.
    """

    def __init__(self, engine: Engine, ops: Sequence[Op], parallel: Parallelism, max_num_seqs: int) -> None:
        self._engine = engine
        self.scaled = engine.decode_scale != 1.0 or engine.prefill_scale != 1.0
        self._sync_s = engine.dp_sync_ms * 1e-3 if parallel.dp > 1 else 0.0
        between = [op for op in ops if isinstance(op, PrefillOp) or (isinstance(op, TokenOp) and op.count == "new")]
        launched = [op for op in ops if isinstance(op, TokenOp) and op.count not in ("new", "decode_tokens")]
        kernels, attention = _launches(launched), _launches(between)
        self._launch_s = 1e-6 * engine.launch_us * (kernels + attention)
        self._captured_tokens = engine.captured_tokens(max_num_seqs) * parallel.dp
        # a graph before each attention, one at the end
        self._captured_s = 1e-6 * engine.launch_us * (attention + sum([op.calls for op in between]) + 1)
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
