"""Where the memory of one GPU goes, and how many tokens of KV cache are left."""

from __future__ import annotations

from dataclasses import dataclass

from llmirage_server.perf.dtypes import WeightDtype
from llmirage_server.perf.gpus import GIB
from llmirage_server.perf.layers import Dense, Gqa, LayerGroup, Mla, Moe
from llmirage_server.perf.models import ModelSpec

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
    total = 2.0 * (model.embedding_weights * (1 if model.tied_embeddings else 2) / tp + model.hidden)
    for group in model.groups:
        total += group.count * _layer_bytes(group, model.hidden, linear, weights.weight_bytes, tp)
    return int(total)


def _layer_bytes(group: LayerGroup, hidden: int, linear: float, expert: float, tp: int) -> float:
    """Bytes of one layer's weights on one rank, given those of one matrix weight and of one expert weight."""
    total = 0.0
    if group.attention is not None:
        total += group.attention.weights(hidden, tp) * linear + 2 * (group.attention.small_weights(hidden) + hidden)
    if isinstance(group.mlp, Dense):
        total += group.mlp.weights(hidden) / tp * linear + 2 * hidden
    elif isinstance(group.mlp, Moe):
        total += group.mlp.shared_weights(hidden) / tp * linear + 2 * (group.mlp.router_weights(hidden) + hidden)
        total += group.mlp.experts * group.mlp.expert_weights(hidden) / tp * expert
    return total


def activation_bytes_per_rank(model: ModelSpec, tp: int, ep: int, max_num_batched_tokens: int, max_num_seqs: int) -> int:
    """Largest set of activations alive at once in a full step, in bf16: what the engine's profiling run finds.

    Residual and hidden states live through the step; beside them, one at a time, the attention block's (q, k, v, output),
    an MLP's (gate, up, product), the experts' (per token and chosen expert: gate and up or output, and the product) or the
    logits of every sequence (bf16 and the sampler's float32 copy).
    """
    t, hidden = max_num_batched_tokens, model.hidden
    phases = [0]
    for group in model.groups:
        attention, mlp = group.attention, group.mlp
        if isinstance(attention, Gqa):
            phases.append(t * (attention.qkv_width(tp) + attention.heads // tp * attention.v_dim))
        elif isinstance(attention, Mla):
            phases.append(t * (attention.heads // tp * (2 * attention.qk_dim + 2 * attention.v_dim) + attention.latent))
        elif attention is not None:
            phases.append(t * 2 * attention.in_width(tp))
        if isinstance(mlp, Dense):
            phases.append(t * 3 * mlp.width // tp)
        elif isinstance(mlp, Moe):
            width = mlp.width * ep // tp
            phases.append(t * mlp.per_token * (max(2 * width, hidden) + width) + t * 3 * mlp.shared_width // tp)
    logits = min(max_num_seqs, t) * model.vocab * (2 + 4)
    return max(2 * t * 2 * hidden + 2 * max(phases), logits)
