"""One forward pass of a real architecture, as the sum of its kernels.

Every token of a step, prompt or generated, goes through the same GEMMs; prompt chunks share one attention kernel and
decoding sequences another; one row for each decode and each chunk goes through lm_head and the sampler. With tensor
parallelism every GPU does 1 / tp of each layer and two all-reduces join the parts. With expert parallelism each GPU holds
experts / ep whole experts and the busiest one sets the pace.

Not modelled: rotary embedding, KV cache writes and the norms of queries and keys (fused or below 1 %); communication that
overlaps with compute; experts that tokens favour (routing is uniform); attention kernels that slow down when chunks and
decodes share one launch (seen on RTX cards: 1.4 to 2 times); GPUs that lower their clock under load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from llmirage_server.perf import kernels_v1 as kernels
from llmirage_server.perf.dtypes import WEIGHT_DTYPES, WeightDtype
from llmirage_server.perf.gpus import GpuSpec
from llmirage_server.perf.layers import Gqa, heads_per_rank
from llmirage_server.perf.models import ModelSpec

# What scheduling and input preparation add that the engine does not hide behind the GPU. Published vLLM 0.15 runs on H100
# ask for 0.3 ms a step on top of kernel times, closed-loop vLLM runs for 4 us a sequence; engines differ by a millisecond.
HOST_STEP_S = 0.3e-3
HOST_SEQUENCE_S = 4e-6


# name, calls in a step, seconds of one call as a function of the step's tokens
_TokenOperation = tuple[str, int, Callable[[float], float]]


@dataclass(frozen=True, slots=True)
class OperationTime:
    """One line of a step's explanation."""

    name: str
    calls: int  # times per step, e.g. once a layer
    seconds: float  # all calls together


class RooflineStep:
    """StepModel of one instance of a model on `tp` GPUs, its experts spread over `ep` groups of them.

    `weights` must already be in the form the GPU runs it (WeightDtype.on). Thread-safe: nothing changes after construction.
    """

    def __init__(self, model: ModelSpec, gpu: GpuSpec, *, tp: int, ep: int, weights: WeightDtype, kv_bytes: int) -> None:
        attention = model.main_attention
        assert isinstance(attention, Gqa)
        heads, kv_heads, d, hidden = model.heads // tp, heads_per_rank(model.kv_heads, tp), attention.head_dim, model.hidden
        window_layers = model.window_layers
        full_layers = model.layers - window_layers
        bf16 = WEIGHT_DTYPES["bf16"]
        linear = bf16 if weights.experts_only and model.experts else weights
        layers = model.layers
        by_token: list[_TokenOperation] = [
            ("qkv projection", layers, kernels.gemm(gpu, linear, (heads + 2 * kv_heads) * d, hidden)),
            ("output projection", layers, kernels.gemm(gpu, linear, hidden, heads * d)),
            # read and write of the activations and of the residual, bf16
            ("norms", 2 * layers + 1, kernels.elementwise(gpu, 8.0 * hidden)),
        ]
        if model.dense:
            by_token += self._mlp("mlp", model.dense_layers, gpu, linear, hidden, model.dense.width // tp)
        if model.moe:
            moe = model.moe_layers
            by_token += [
                ("router", moe, kernels.gemm(gpu, bf16, model.experts, hidden)),
                (
                    "experts",
                    moe,
                    kernels.mixture_of_experts(
                        gpu, weights, hidden, model.moe.width * ep // tp, model.experts, model.experts_per_token, ep
                    ),
                ),
            ]
            if model.moe.shared_width:
                by_token += self._mlp("shared expert", moe, gpu, linear, hidden, model.moe.shared_width // tp)
        if tp > 1:
            by_token.append(("all-reduce", 2 * layers, kernels.all_reduce(gpu, tp, 2.0 * hidden)))
        self._by_token = [(calls, time) for _, calls, time in by_token]
        self._operations = [
            *((name, calls) for name, calls, _ in by_token),
            ("lm_head", 1),
            ("sampling", 1),
            ("host", 1),
            ("prefill attention", full_layers),
            ("prefill attention, sliding window", window_layers),
            ("decode attention", full_layers),
            ("decode attention, sliding window", window_layers),
        ]
        self._full_layers = full_layers
        windows = [g.attention.window for g in model.groups if isinstance(g.attention, Gqa)]
        self._window_layers, self._window = window_layers, max(windows)
        self._prefill = kernels.prefill_attention(gpu, heads, kv_heads, d, kv_bytes)
        self._decode = kernels.decode_attention(gpu, heads, kv_heads, d, kv_bytes)
        # bf16 logits in, a float32 copy out and in again
        self._sampling = kernels.elementwise(gpu, 10.0 * model.vocab)
        self._lm_head = kernels.gemm(gpu, bf16, -(-model.vocab // tp), hidden)

    @staticmethod
    def _mlp(
        name: str, layers: int, gpu: GpuSpec, dtype: WeightDtype, hidden: int, intermediate: int
    ) -> list[_TokenOperation]:
        return [
            (f"{name} gate and up", layers, kernels.gemm(gpu, dtype, 2 * intermediate, hidden)),
            (f"{name} activation", layers, kernels.elementwise(gpu, 6.0 * intermediate)),
            (f"{name} down", layers, kernels.gemm(gpu, dtype, hidden, intermediate)),
        ]

    def step_s(self, prefill: Sequence[tuple[int, int]], decode_contexts: Sequence[int]) -> float:
        """Seconds of one forward pass; see StepModel."""
        return sum(self._seconds(prefill, decode_contexts))

    def breakdown(self, prefill: Sequence[tuple[int, int]], decode_contexts: Sequence[int]) -> list[OperationTime]:
        """The same step, operation by operation, longest first; the seconds add up to `step_s`."""
        seconds = self._seconds(prefill, decode_contexts)
        times = [OperationTime(*operation, s) for operation, s in zip(self._operations, seconds, strict=False) if s]
        return sorted(times, key=lambda time: -time.seconds)

    def _seconds(self, prefill: Sequence[tuple[int, int]], decode_contexts: Sequence[int]) -> list[float]:
        """Seconds of each of `_operations`, in their order; empty for an empty step."""
        decodes = len(decode_contexts)
        new = sum([chunk[0] for chunk in prefill]) if prefill else 0
        tokens = new + decodes
        if not tokens:
            return []
        rows = decodes + len(prefill)  # every chunk's last token goes through lm_head too, as in vLLM
        seconds = [calls * time(tokens) for calls, time in self._by_token]
        seconds.append(self._lm_head(rows))
        seconds.append(self._sampling(rows))
        seconds.append(HOST_STEP_S + HOST_SEQUENCE_S * rows)
        seconds += self._prefill_seconds(prefill, new) if new else (0.0, 0.0)
        seconds += self._decode_seconds(decode_contexts, decodes) if decodes else (0.0, 0.0)
        return seconds

    def _prefill_seconds(self, prefill: Sequence[tuple[int, int]], new: int) -> tuple[float, float]:
        pairs = context = longest = 0
        for n, c in prefill:
            pairs += kernels.causal_pairs(n, c)
            context += c
            longest = max(longest, n + c)
        full = self._full_layers * self._prefill(pairs, new, context, longest)
        if not self._window_layers:
            return full, 0.0
        window = self._window
        pairs = sum(kernels.causal_pairs(n, c, window) for n, c in prefill)
        context = sum(min(c, window) for _, c in prefill)
        # a block of queries sees the window of its first query and the diagonal
        return full, self._window_layers * self._prefill(pairs, new, context, min(longest, window + 128))

    def _decode_seconds(self, contexts: Sequence[int], decodes: int) -> tuple[float, float]:
        longest = max(contexts)
        full = self._full_layers * self._decode(decodes, sum(contexts), longest)
        if not self._window_layers:
            return full, 0.0
        window = self._window
        seen = window * decodes if min(contexts) >= window else sum([min(window, c) for c in contexts])
        return full, self._window_layers * self._decode(decodes, seen, min(longest, window))
