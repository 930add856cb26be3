"""The building blocks of a model: what one layer's attention (or its substitute) and one layer's MLP are.

Every block says how many matrix weights it has and how much it must remember. Sizes are of the whole model, before any
parallelism; `tp` arguments give the share of one tensor-parallel rank.
"""

from __future__ import annotations

from dataclasses import dataclass


def heads_per_rank(heads: int, tp: int) -> int:
    """Heads that one rank holds; a head is copied when there are more ranks than heads."""
    return max(1, heads // tp)


@dataclass(frozen=True, slots=True)
class SparseIndex:
    """A small attention that picks the `top_k` keys the real one may look at (DeepSeek sparse attention)."""

    heads: int
    head_dim: int
    top_k: int  # tokens


@dataclass(frozen=True, slots=True)
class Gqa:
    """Multi-head, grouped-query or multi-query attention with a KV cache."""

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int = 0  # 0: as head_dim
    window: int = 0  # tokens; 0: the whole context
    biases: bool = False  # q, k, v and output projections carry biases
    qk_norm: int = 0  # weights in the norms of queries and keys
    output_gate: bool = False  # the q projection makes a gate for the output too, so it is twice as wide

    @property
    def v_dim(self) -> int:
        return self.v_head_dim or self.head_dim


@dataclass(frozen=True, slots=True)
class Mla:
    """Multi-head latent attention (DeepSeek): one compressed key/value of `kv_rank + rope_dim` values per token."""

    heads: int
    q_rank: int  # 0: queries are not compressed
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    index: SparseIndex | None = None


@dataclass(frozen=True, slots=True)
class GatedDelta:
    """Gated delta net (Qwen3-Next, Qwen3.5): linear attention with a matrix state per value head."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int = 4


@dataclass(frozen=True, slots=True)
class Mamba2:
    """Mamba-2 state space layer (Nemotron-H)."""

    heads: int
    head_dim: int
    groups: int
    state: int
    conv_kernel: int = 4


@dataclass(frozen=True, slots=True)
class Dense:
    """An MLP: gate, up and down matrices, or up and down alone when it is not gated."""

    width: int
    gated: bool = True


@dataclass(frozen=True, slots=True)
class Moe:
    """A mixture of experts, with an optional shared expert that every token visits."""

    experts: int
    per_token: int
    width: int  # of one routed expert
    shared_width: int = 0
    gated: bool = True


Attention = Gqa | Mla | GatedDelta | Mamba2
Mlp = Dense | Moe


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """`count` equal layers. None: the layer has no such part (Nemotron-H layers are one of the two)."""

    count: int
    attention: Attention | None
    mlp: Mlp | None
