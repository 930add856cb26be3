"""What a model is: the shape of its layers, and how many weights and KV bytes follow from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only transformer with multi-head or grouped-query attention, dense or mixture of experts."""

    name: str  # full Hugging Face name
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_model_len: int  # tokens: the architecture's own context length
    source: str
    intermediate: int = 0  # width of the gated MLP of a dense layer
    experts: int = 0  # routed experts of an MoE layer; 0: a dense model
    experts_per_token: int = 0
    moe_intermediate: int = 0  # width of one routed expert
    shared_intermediate: int = 0  # width of the expert that every token visits
    first_dense_layers: int = 0  # layers before the first MoE layer
    moe_every: int = 1  # after them, every n-th layer is MoE
    sliding_window: int = 0  # tokens; 0: every layer attends to the whole context
    sliding_layers: int = 0  # how many layers use the window
    tied_embeddings: bool = False  # lm_head is the embedding table
    qk_norm: int = 0  # weights per layer in the norms of queries and keys
    attention_biases: bool = False  # q, k, v and output projections carry biases
    native_weights: str = "bf16"  # format of the published checkpoint
    aliases: tuple[str, ...] = field(default=())

    @property
    def moe_layers(self) -> int:
        """Layers whose MLP is a mixture of experts."""
        return (self.layers - self.first_dense_layers) // self.moe_every if self.experts else 0

    @property
    def dense_layers(self) -> int:
        """Layers whose MLP is dense."""
        return self.layers - self.moe_layers

    @property
    def full_attention_layers(self) -> int:
        """Layers that attend to the whole context."""
        return self.layers - self.sliding_layers

    @property
    def attention_weights(self) -> int:
        """Matrix weights of one attention block: q, k, v and output projections."""
        return self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)

    @property
    def expert_weights(self) -> int:
        """Matrix weights of one routed expert: gate, up and down."""
        return 3 * self.hidden * self.moe_intermediate

    @property
    def embedding_weights(self) -> int:
        """Weights of the embedding table; lm_head has as many unless it is tied."""
        return self.vocab * self.hidden

    @property
    def small_weights(self) -> int:
        """Norms and biases of the whole model, kept in bf16 whatever the format of the matrices."""
        biases = self.head_dim * (self.heads + 2 * self.kv_heads) + self.hidden if self.attention_biases else 0
        return self.layers * (2 * self.hidden + self.qk_norm + biases) + self.hidden

    @property
    def parameters(self) -> int:
        """All weights of the model."""
        return self._parameters(self.experts)

    @property
    def active_parameters(self) -> int:
        """The weights one token meets; the embedding table, read one row a token, counts as model cards count it."""
        return self._parameters(self.experts_per_token)

    def _parameters(self, experts: int) -> int:
        moe = experts * self.expert_weights + 3 * self.hidden * self.shared_intermediate + self.hidden * self.experts
        return (
            self.layers * self.attention_weights
            + self.dense_layers * 3 * self.hidden * self.intermediate
            + self.moe_layers * moe
            + self.embedding_weights * (1 if self.tied_embeddings else 2)
            + self.small_weights
        )

    def kv_bytes_per_layer(self, dtype_bytes: int, tp: int = 1) -> int:
        """KV cache bytes of one token in one layer on one of `tp` ranks."""
        return 2 * kv_heads_per_rank(self.kv_heads, tp) * self.head_dim * dtype_bytes


def kv_heads_per_rank(kv_heads: int, tp: int) -> int:
    """KV heads that one tensor-parallel rank holds; a head is copied when there are more ranks than heads."""
    return max(1, kv_heads // tp)


def model_from_yaml(name: str, entry: dict[str, Any]) -> ModelSpec:
    """Build a spec from its catalogue entry, whose keys are this class's field names."""
    values = dict(entry)
    values["aliases"] = tuple(values.get("aliases", ()))
    return ModelSpec(name=name, **values)
