"""The building blocks of a model: what one layer's attention (or its substitute) and one layer's MLP are.

Every block says how many matrix weights it has and how much it must remember. Sizes are of the whole model, before any
parallelism; `tp` arguments give the share of one tensor-parallel rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

_STATE_BYTES = 4  # recurrent states of linear attention are float32 (`mamba_ssm_dtype` of Qwen3.5 and Nemotron-H)
_CONV_BYTES = 2  # the short convolution's are bf16
_INDEX_SCALE_BYTES = 4  # one float32 scale beside the fp8 key of the sparse index (vLLM's indexer cache)


def heads_per_rank(heads: int, tp: int) -> int:
    """Heads that one rank holds; a head is copied when there are more ranks than heads."""
    return max(1, heads // tp)


class _Block:
    """The part of attention, or of its substitute, that takes no memory."""

    __slots__ = ()

    def cache_bytes(self, dtype_bytes: int, tp: int = 1) -> int:
        """Return the KV cache bytes of one token in one layer on one rank."""
        return 0

    def state_bytes(self, tp: int = 1) -> int:
        """Return the bytes of one sequence, whatever its length, in a layer on a rank: states of heads and convolution."""
        return 0


@dataclass(frozen=True, slots=True)
class SparseIndex:
    """A small attention that picks the `top_k` keys the real one may look at (DeepSeek sparse attention)."""

    heads: int  # 0: the layer looks at the keys that an earlier layer picked, and has no index of its own (GLM-5.2)
    head_dim: int
    top_k: int  # tokens

    @property
    def cache_bytes(self) -> int:
        """Bytes of one token's index key: fp8 with a scale, on every rank."""
        return self.head_dim + _INDEX_SCALE_BYTES if self.heads else 0

    def weights(self, hidden: int, q_width: int) -> int:
        """Matrix weights, copied on every rank: queries from `q_width` columns, one key from the hidden state."""
        return self.heads * self.head_dim * q_width + hidden * self.head_dim if self.heads else 0

    def small_weights(self, hidden: int) -> int:
        """Norm of the key and weights of the heads."""
        return 2 * self.head_dim + hidden * self.heads if self.heads else 0


@dataclass(frozen=True, slots=True)
class Gqa(_Block):
    """Multi-head, grouped-query or multi-query attention with a KV cache."""

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int = 0  # 0: as head_dim
    window: int = 0  # tokens; 0: the whole context
    biases: bool = False  # q, k, v and output projections carry biases
    qk_norm: int = 0  # weights in the norms of queries and keys
    output_gate: bool = False  # the q projection makes a gate for the output too, so it is twice as wide
    index: SparseIndex | None = None

    @property
    def v_dim(self) -> int:
        return self.v_head_dim or self.head_dim

    def qkv_width(self, tp: int) -> int:
        """Output columns of the q, k, v (and gate) projection on one rank."""
        q = self.heads // tp * self.head_dim * (2 if self.output_gate else 1)
        return q + heads_per_rank(self.kv_heads, tp) * (self.head_dim + self.v_dim)

    def weights(self, hidden: int, tp: int = 1) -> int:
        """Matrix weights on one rank: q, k, v (and gate), output; the index."""
        indexer = self.index.weights(hidden, hidden) if self.index else 0
        return hidden * (self.qkv_width(tp) + self.heads // tp * self.v_dim) + indexer

    def small_weights(self, hidden: int) -> int:
        biases = self.heads * self.head_dim + self.kv_heads * (self.head_dim + self.v_dim) + hidden if self.biases else 0
        return self.qk_norm + biases + (self.index.small_weights(hidden) if self.index else 0)

    def cache_bytes(self, dtype_bytes: int, tp: int = 1) -> int:
        cached = heads_per_rank(self.kv_heads, tp) * (self.head_dim + self.v_dim) * dtype_bytes
        return cached + (self.index.cache_bytes if self.index else 0)


@dataclass(frozen=True, slots=True)
class Mla(_Block):
    """Multi-head latent attention (DeepSeek): one compressed key/value of `kv_rank + rope_dim` values per token."""

    heads: int
    q_rank: int  # 0: queries are not compressed
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    index: SparseIndex | None = None

    @property
    def qk_dim(self) -> int:
        """Width of an expanded query or key."""
        return self.nope_dim + self.rope_dim

    @property
    def latent(self) -> int:
        """Cached values of one token."""
        return self.kv_rank + self.rope_dim

    def weights(self, hidden: int, tp: int = 1) -> int:
        """Matrix weights on one rank: what comes before the heads (and the index) is copied, the heads are sharded."""
        heads = self.heads // tp
        q = self.q_rank * (hidden + heads * self.qk_dim) if self.q_rank else hidden * heads * self.qk_dim
        kv = hidden * self.latent + self.kv_rank * heads * (self.nope_dim + self.v_dim)
        indexer = self.index.weights(hidden, self.q_rank or hidden) if self.index else 0
        return q + kv + indexer + heads * self.v_dim * hidden

    def small_weights(self, hidden: int) -> int:
        """Norms of the compressed queries and keys; the index's norm and head weights."""
        return self.q_rank + self.kv_rank + (self.index.small_weights(hidden) if self.index else 0)

    def cache_bytes(self, dtype_bytes: int, tp: int = 1) -> int:
        """KV cache bytes of one token in one layer on one rank: the latent is copied on every rank."""
        return self.latent * dtype_bytes + (self.index.cache_bytes if self.index else 0)


class RecurrentWidths(NamedTuple):
    """Values of one token on one rank, and of the state of one sequence."""

    shared: int  # of several heads: queries, and as many keys; B, and as many of C
    out: int  # of the heads, and of their output
    gates: int  # beta and decay, or time steps
    state: int


class _Recurrent(_Block):
    """Linear attention: a state of fixed size per sequence instead of a KV cache."""

    __slots__ = ()
    conv_kernel: int

    def widths(self, tp: int) -> RecurrentWidths:
        raise NotImplementedError

    def conv_width(self, tp: int) -> int:
        """Return the channels of the convolution on one rank."""
        return 2 * self.widths(tp).shared + self.widths(tp).out

    def in_width(self, tp: int) -> int:
        """Return the columns of the input projections on one rank: those of the convolution, a gate of the output, gates."""
        return self.conv_width(tp) + self.widths(tp).out + self.widths(tp).gates

    def weights(self, hidden: int, tp: int = 1) -> int:
        return hidden * (self.in_width(tp) + self.widths(tp).out)

    def state_bytes(self, tp: int = 1) -> int:
        return self.widths(tp).state * _STATE_BYTES + self.conv_width(tp) * (self.conv_kernel - 1) * _CONV_BYTES


@dataclass(frozen=True, slots=True)
class GatedDelta(_Recurrent):
    """Gated delta net (Qwen3-Next, Qwen3.5): linear attention with a matrix state per value head."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int = 4

    def widths(self, tp: int) -> RecurrentWidths:
        heads, shared = self.value_heads // tp, heads_per_rank(self.key_heads, tp) * self.key_dim
        return RecurrentWidths(shared, heads * self.value_dim, 2 * heads, heads * self.key_dim * self.value_dim)

    def small_weights(self, hidden: int) -> int:
        """Convolution, decay, its bias, and the norm of the output."""
        return self.conv_width(1) * self.conv_kernel + 2 * self.value_heads + self.value_dim


@dataclass(frozen=True, slots=True)
class Mamba2(_Recurrent):
    """Mamba-2 state space layer (Nemotron-H)."""

    heads: int
    head_dim: int
    groups: int
    state: int
    conv_kernel: int = 4

    def widths(self, tp: int) -> RecurrentWidths:
        heads, shared = self.heads // tp, heads_per_rank(self.groups, tp) * self.state
        return RecurrentWidths(shared, heads * self.head_dim, heads, heads * self.head_dim * self.state)

    def small_weights(self, hidden: int) -> int:
        """Convolution with its bias, A, D, bias of the time steps, and the norm of the output."""
        return self.conv_width(1) * (self.conv_kernel + 1) + 3 * self.heads + self.heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Dense:
    """An MLP: gate, up and down matrices, or up and down alone when it is not gated."""

    width: int
    gated: bool = True

    def weights(self, hidden: int) -> int:
        return (3 if self.gated else 2) * hidden * self.width


@dataclass(frozen=True, slots=True)
class Moe:
    """A mixture of experts, with an optional shared expert that every token visits."""

    experts: int
    per_token: int
    width: int  # of one routed expert
    shared_width: int = 0
    shared_gate: bool = False  # the shared expert's output is weighed by a gate of its own (Qwen2-MoE and after)
    gated: bool = True
    latent: int = 0  # routed experts work in a space of this width, between two projections (Nemotron-3 Super); 0: hidden

    def expert_weights(self, hidden: int) -> int:
        return Dense(self.width, self.gated).weights(self.latent or hidden)

    def shared_weights(self, hidden: int) -> int:
        """Matrix weights that every token meets: the shared expert, and the projections to and from the latent space."""
        return Dense(self.shared_width, self.gated).weights(hidden) + 2 * hidden * self.latent

    def router_weights(self, hidden: int) -> int:
        """Weights of the router, bf16 whatever the format of the matrices."""
        return hidden * self.experts


Attention = Gqa | Mla | GatedDelta | Mamba2
Mlp = Dense | Moe


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """`count` equal layers. None: the layer has no such part (Nemotron-H layers are one of the two)."""

    count: int
    attention: Attention | None
    mlp: Mlp | None
    leading: bool = False  # they are the first layers of the model; other groups are taken as evenly mixed
