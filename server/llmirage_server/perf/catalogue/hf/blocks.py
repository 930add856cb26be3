"""Blocks of a layer from the keys of a config.json that most families of models share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

from llmirage_server.perf.catalogue.layers import Attention, Dense, GatedDelta, Gqa, LayerGroup, Mla, Mlp, Moe, SparseIndex

MOST_LAYERS = 10_000


class Fields:
    """The keys of one config. Every accessor returns something usable; `problems` says what was not in the file."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self.problems: list[str] = []

    def get(self, name: str) -> Any:
        return self._values.get(name)

    def problem(self, text: str) -> None:
        """Note what is wrong, once."""
        if text not in self.problems:
            self.problems.append(text)

    def positive(self, *names: str, default: int | None = None) -> int:
        """Return the first of these keys that is there: a positive integer. 1 stands in for a bad one."""
        value = next((v for name in names if (v := self.get(name)) is not None), default)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        self.problem(f"{' or '.join(names)} must be a positive integer")
        return 1

    def count(self, *names: str) -> int:
        """Return the first of these keys that is there: an integer of 0 or more; 0 where there is none."""
        value = next((v for name in names if (v := self.get(name)) is not None), 0)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        self.problem(f"{' or '.join(names)} must be an integer of 0 or more")
        return 0

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a true or false key; `default` where there is none."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            self.problem(f"{name} must be true or false")
        return value if isinstance(value, bool) else default

    def mapping(self, name: str) -> Mapping[str, Any]:
        """Return an object; an empty one where there is none."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            self.problem(f"{name} must be an object")
        return value if isinstance(value, dict) else {}

    def per_layer(self, name: str, layers: int) -> list[Any] | None:
        """Return a list with one value a layer, None where there is none. Lists may go on with prediction (MTP) layers."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < layers:
            self.problem(f"{name} must be a list of {layers} values, one for each layer")
            return None
        return value[:layers]

    def indices(self, name: str) -> frozenset[int] | None:
        """Return a list of numbers of layers, None where there is none."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(i, int) for i in value):
            self.problem(f"{name} must be a list of numbers of layers")
            return None
        return frozenset(value)

    @property
    def layers(self) -> int:
        layers = self.positive("num_hidden_layers")
        if layers > MOST_LAYERS:
            self.problem(f"num_hidden_layers must be at most {MOST_LAYERS:,}")
            return 1
        return layers

    @property
    def hidden(self) -> int:
        return self.positive("hidden_size")


Layer = tuple[Attention | None, Mlp | None]
Norms = Literal["none", "head", "all"]  # of queries and keys: none, one as wide as a head, one over all heads at once


def groups_of(layers: list[Layer]) -> tuple[LayerGroup, ...]:
    """Count equal layers. Those the model begins with are `leading` if none like them follow later."""
    counts = Counter(layers)
    first = layers[0]
    leads = len(counts) > 1 and layers[: counts[first]] == [first] * counts[first]
    return tuple(LayerGroup(count, *layer, leading=leads and layer == first) for layer, count in counts.items())


def gqa(
    f: Fields,
    window: int = 0,
    *,
    heads: int = 0,
    kv_heads: int = 0,
    head_dim: int = 0,
    v_head_dim: int = 0,
    norms: Norms = "none",
    biases: bool | None = None,
    output_gate: bool = False,
    index: SparseIndex | None = None,
) -> Gqa:
    """Return grouped-query attention of the usual keys; given sizes win. `biases` None: as `attention_bias` says."""
    heads = heads or f.positive("num_attention_heads")
    kv_heads = kv_heads or f.positive("num_key_value_heads", default=heads)
    head_dim = head_dim or f.positive("head_dim", default=max(1, f.hidden // heads))
    if heads % kv_heads:
        f.problem(f"num_attention_heads {heads} must be a multiple of num_key_value_heads {kv_heads}")
    return Gqa(
        heads,
        kv_heads,
        head_dim,
        v_head_dim=0 if v_head_dim == head_dim else v_head_dim,
        window=window,
        biases=f.flag("attention_bias") if biases is None else biases,
        qk_norm={"none": 0, "head": 2, "all": heads + kv_heads}[norms] * head_dim,
        output_gate=output_gate,
        index=index,
    )


def mla(f: Fields, *, own_index: bool = True) -> Mla:
    """Return multi-head latent attention of DeepSeek's keys, with its sparse index where the config has one."""
    index = None
    if f.get("index_topk") is not None:
        heads = f.positive("index_n_heads") if own_index else 0
        index = SparseIndex(heads, f.positive("index_head_dim"), f.positive("index_topk"))
    return Mla(
        heads=f.positive("num_attention_heads"),
        q_rank=f.count("q_lora_rank"),
        kv_rank=f.positive("kv_lora_rank"),
        nope_dim=f.positive("qk_nope_head_dim"),
        rope_dim=f.positive("qk_rope_head_dim"),
        v_dim=f.positive("v_head_dim"),
        index=index,
    )


def gated_delta(f: Fields) -> GatedDelta:
    """Return a gated delta net of Qwen's keys."""
    return GatedDelta(
        key_heads=f.positive("linear_num_key_heads"),
        value_heads=f.positive("linear_num_value_heads"),
        key_dim=f.positive("linear_key_head_dim"),
        value_dim=f.positive("linear_value_head_dim"),
        conv_kernel=f.positive("linear_conv_kernel_dim"),
    )


def dense(f: Fields, key: str = "intermediate_size") -> Dense:
    """Return a gated MLP."""
    return Dense(f.positive(key))


def moe(
    f: Fields,
    width: str = "moe_intermediate_size",
    shared_width: int = 0,
    *,
    shared_gate: bool = False,
    gated: bool = True,
    latent: int = 0,
) -> Moe:
    """Return a mixture of experts, under any of the names that families give its keys."""
    experts = f.positive("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
    per_token = f.positive("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_top_k")
    if per_token > experts:
        f.problem(f"num_experts_per_tok {per_token} is more than the {experts} experts")
    shared_gate = shared_gate and shared_width > 0
    return Moe(experts, per_token, f.positive(width), shared_width, shared_gate, gated, latent)


def deepseek_moe(f: Fields) -> Moe:
    """Return a mixture whose shared experts are as wide as the routed ones."""
    return moe(f, shared_width=f.count("n_shared_experts") * f.positive("moe_intermediate_size"))


def is_moe_layer(f: Fields, i: int, layers: int) -> bool:
    """Return if layer `i` is a mixture in DeepSeek's and Qwen's keys: from a first layer on, every n-th, or as listed."""
    if (kinds := f.per_layer("mlp_layer_types", layers)) is not None:
        return bool(kinds[i] == "sparse")
    frequency = f.get("moe_layer_freq")
    if isinstance(frequency, list):
        listed = f.per_layer("moe_layer_freq", layers)
        return bool(listed and listed[i])
    if i < f.count("first_k_dense_replace") or i in (f.indices("mlp_only_layers") or ()):
        return False
    if f.get("decoder_sparse_step") is not None:
        return (i + 1) % f.positive("decoder_sparse_step") == 0
    return i % f.positive("moe_layer_freq", default=1) == 0


def windows(f: Fields, layers: int, slides: list[bool]) -> list[int]:
    """Return the window of each layer in tokens, 0: the whole context. `slides`: the rule where `layer_types` is missing."""
    window = f.count("sliding_window")
    if not window or window >= f.positive("max_position_embeddings") or not f.flag("use_sliding_window", True):
        return [0] * layers
    if (kinds := f.per_layer("layer_types", layers)) is not None:
        slides = [kind == "sliding_attention" for kind in kinds]
    return [window if s else 0 for s in slides]
