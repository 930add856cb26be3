"""Where the memory of one GPU goes, and how many tokens of KV cache are left."""

from __future__ import annotations

from dataclasses import dataclass

from llmirage_server.perf.dtypes import WeightDtype
from llmirage_server.perf.gpus import GIB
from llmirage_server.perf.models import ModelSpec, kv_heads_per_rank

# CUDA context, the driver's own share, captured graphs and communicators: what is missing after the weights and the
# activations below where it was measured. vLLM 0.19 with Llama 3.1 8B in bf16 on an RTX 4090 (24,564 MiB, utilization 0.9,
# 2,048 batched tokens, 256 sequences) had room for 41,408 tokens of KV cache.
RESERVE_BYTES = int(1.4 * GIB)


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Bytes are those of one GPU; `kv_tokens` is what the whole instance can hold."""

    gpu_bytes: int
    utilization: float
    weights_bytes: int
    activation_bytes: int
    reserve_bytes: int
    window_bytes: int  # KV of the sliding-window layers for every sequence that may run; they forget what is older
    kv_bytes_per_token: int  # of the layers that keep the whole context

    @property
    def usable_bytes(self) -> int:
        """What the engine may use."""
        return int(self.gpu_bytes * self.utilization)

    @property
    def kv_bytes(self) -> int:
        """What is left for the KV cache; negative when the weights do not fit."""
        return self.usable_bytes - self.weights_bytes - self.activation_bytes - self.reserve_bytes - self.window_bytes

    @property
    def kv_tokens(self) -> int:
        """Tokens of KV cache: every rank holds its share of each token, so one rank's room is the instance's."""
        return max(0, self.kv_bytes // self.kv_bytes_per_token)

    def describe(self) -> str:
        """The sum, a line each, in GiB."""
        lines = [
            (self.usable_bytes, f"usable: {self.utilization:.2f} x {self.gpu_bytes / GIB:.1f} GiB"),
            (-self.weights_bytes, "weights"),
            (-self.activation_bytes, "activations at their peak"),
            (-self.reserve_bytes, "CUDA context, graphs, communicators"),
            (-self.window_bytes, "KV of sliding-window layers"),
            (self.kv_bytes, f"KV cache: {self.kv_tokens:,} tokens of {self.kv_bytes_per_token / 1024:g} KiB"),
        ]
        return "\n".join(f"{size / GIB:8.1f} GiB  {what}" for size, what in lines if size)


def weights_bytes_per_rank(model: ModelSpec, weights: WeightDtype, tp: int) -> int:
    """Bytes of weights on one of `tp` ranks.

    Matrices are sharded (whole experts over ep ranks, slices over the others: the same bytes), a KV head is copied when
    there are more ranks than heads, embedding and lm_head are sharded by vocabulary and stay bf16, the router and the norms
    are copied in bf16.
    """
    linear = 2.0 if weights.experts_only and model.experts else weights.weight_bytes
    heads, kv_heads = model.heads // tp, kv_heads_per_rank(model.kv_heads, tp)
    attention = model.layers * model.hidden * model.head_dim * 2 * (heads + kv_heads) * linear
    dense = model.dense_layers * 3 * model.hidden * model.intermediate / tp * linear
    shared = model.moe_layers * 3 * model.hidden * model.shared_intermediate / tp * linear
    experts = model.moe_layers * model.experts * model.expert_weights / tp * weights.weight_bytes
    router = model.moe_layers * model.hidden * model.experts * 2
    embeddings = model.embedding_weights * (1 if model.tied_embeddings else 2) / tp * 2
    return int(attention + dense + shared + experts + router + embeddings + model.small_weights * 2)


def activation_bytes_per_rank(model: ModelSpec, tp: int, ep: int, max_num_batched_tokens: int, max_num_seqs: int) -> int:
    """Largest set of activations alive at once in a full step, in bf16: what the engine's profiling run finds.

    Residual and hidden states live through the step; beside them, one at a time, the attention block's (q, k, v, output),
    an MLP's (gate, up, product), the experts' (per token and chosen expert: gate and up or output, and the product) or the
    logits of every sequence (bf16 and the sampler's float32 copy).
    """
    t, hidden = max_num_batched_tokens, model.hidden
    attention = t * (2 * model.heads // tp + 2 * kv_heads_per_rank(model.kv_heads, tp)) * model.head_dim
    phases = [attention]
    if model.dense_layers:
        phases.append(t * 3 * model.intermediate // tp)
    if model.moe_layers:
        intermediate = model.moe_intermediate * ep // tp
        pairs = t * model.experts_per_token
        phases.append(pairs * (max(2 * intermediate, hidden) + intermediate) + t * 3 * model.shared_intermediate // tp)
    logits = min(max_num_seqs, t) * model.vocab * (2 + 4)
    return max(2 * t * 2 * hidden + 2 * max(phases), logits)
