"""Layers of a model from the keys of its config.json: blocks that most families share, and a function for each family."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from llmirage_server.perf.catalogue.layers import (
    Attention,
    Dense,
    GatedDelta,
    Gqa,
    LayerGroup,
    Mamba2,
    Mla,
    Mlp,
    Moe,
    SparseIndex,
)

MOST_LAYERS = 10_000


class Fields:
    """The keys of one config. Every accessor returns something usable; `problems` says what was not in the file."""

    def __init__(self, values: Mapping[str, Any], problems: list[str] | None = None, where: str = "") -> None:
        self._values = values
        self.problems: list[str] = [] if problems is None else problems
        self._where = where

    def inner(self, name: str) -> Fields:
        """Return the keys of an object within the config; what is wrong with them is among the problems here."""
        return Fields(self.mapping(name), self.problems, f"{name}: ")

    def get(self, name: str) -> Any:
        return self._values.get(name)

    def problem(self, text: str) -> None:
        """Note what is wrong, once."""
        if (text := self._where + text) not in self.problems:
            self.problems.append(text)

    def positive(self, *names: str, default: int | None = None) -> int:
        """Return the first of these keys that is there: a positive integer. 1 stands in for a bad one."""
        return self._integer(names, default, 1, "a positive integer")

    def count(self, *names: str) -> int:
        """Return the first of these keys that is there: an integer of 0 or more; 0 where there is none."""
        return self._integer(names, 0, 0, "an integer of 0 or more")

    def _integer(self, names: Sequence[str], default: int | None, least: int, what: str) -> int:
        value = next((v for name in names if (v := self.get(name)) is not None), default)
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return value
        self.problem(f"{' or '.join(names)} must be {what}")
        return least

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
    """Return grouped-query attention of the usual keys; given sizes win. `biases` None: as `attention_bias` says.

    norms: unless `use_qk_norm` is false.
    """
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
        qk_norm={"none": 0, "head": 2, "all": heads + kv_heads}[norms] * head_dim * f.flag("use_qk_norm", True),
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


def qwen_moe(f: Fields) -> Moe:
    """Return a mixture with one shared expert, which has a gate."""
    return moe(f, shared_width=f.count("shared_expert_intermediate_size"), shared_gate=True)


def with_mlps(
    f: Fields, attention: Sequence[Attention], mixture: Moe | None = None, width: str = "intermediate_size"
) -> list[Layer]:
    """Return layers: beside each attention the mixture, where `is_moe_layer` has it, or an MLP whose width that key is."""
    n = len(attention)
    return [(block, mixture if mixture and is_moe_layer(f, i, n) else dense(f, width)) for i, block in enumerate(attention)]


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


def windows(f: Fields, rule: str) -> list[int]:
    """Return the window of each layer in tokens, 0: the whole context.

    rule: where `layer_types` does not say which layers have it: all, every second one ("even"), all but each n-th
    ("pattern", Gemma 3), none, or those from `max_window_layers` on ("upper", Qwen).
    """
    n, window = f.layers, f.count("sliding_window")
    if not window or window >= f.positive("max_position_embeddings") or not f.flag("use_sliding_window", True):
        return [0] * n
    if (kinds := f.per_layer("layer_types", n)) is not None:
        return [window if kind == "sliding_attention" else 0 for kind in kinds]
    first = f.count("max_window_layers") if rule == "upper" and f.get("max_window_layers") is not None else n
    slides = {"all": [True] * n, "even": [i % 2 == 0 for i in range(n)]}.get(rule, [i >= first for i in range(n)])
    if rule == "pattern":
        slides = all_but_each(f.positive("sliding_window_pattern", "_sliding_window_pattern", default=6), n)
    return [window if s else 0 for s in slides]


def all_but_each(nth: int, layers: int) -> list[bool]:
    """Return false for each n-th layer, true for the others."""
    return [i % nth != 0 for i in range(1, layers + 1)]


_LETTERS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}


def nemotron_h_layers(f: Fields) -> list[Layer]:
    """Each layer one of Mamba-2, attention, mixture or MLP, named by `layers_block_type` or the letters of a pattern."""
    kinds = _kinds(f)
    blocks = {kind: _block(f, kind) for kind in dict.fromkeys(kinds)}
    return [blocks[kind] for kind in kinds] or [(None, None)]


def _kinds(f: Fields) -> list[str]:
    kinds = f.get("layers_block_type")
    if kinds is None:
        pattern = f.get("hybrid_override_pattern")
        kinds = [_LETTERS.get(letter, letter) for letter in pattern] if isinstance(pattern, str) else None
    if not isinstance(kinds, list) or not 0 < len(kinds) <= MOST_LAYERS:
        f.problem("layers_block_type or hybrid_override_pattern must name the kind of each layer")
        return []
    return [str(kind) for kind in kinds]


def _block(f: Fields, kind: str) -> Layer:
    if kind == "mamba":
        mamba = Mamba2(
            heads=f.positive("mamba_num_heads"),
            head_dim=f.positive("mamba_head_dim"),
            groups=f.positive("n_groups"),
            state=f.positive("ssm_state_size"),
            conv_kernel=f.positive("conv_kernel"),
        )
        return mamba, None
    if kind == "attention":
        return gqa(f, head_dim=f.positive("head_dim", "attention_head_dim")), None
    if kind == "moe":
        return None, moe(
            f, shared_width=f.count("moe_shared_expert_intermediate_size"), gated=False, latent=f.count("moe_latent_size")
        )
    if kind == "mlp":
        return None, Dense(f.positive("intermediate_size"), gated=False)
    f.problem(f"layer of kind {kind!r} is not known; choices: {', '.join(_LETTERS.values())}")
    return None, None


def nemotron_nas_layers(f: Fields) -> list[Layer]:
    """Llama layers whose attention or MLP was thinned out or dropped: `block_configs`, one entry a layer."""
    n = f.layers
    entries = f.per_layer("block_configs", n)
    if entries is None:
        f.problem("block_configs must be a list with one entry for each layer")
        return [(None, None)]
    heads = f.positive("num_attention_heads")
    layers: list[Layer] = []
    for i, entry in enumerate(entries):
        parts = entry if isinstance(entry, dict) else {}
        attention, ffn = (part if isinstance(part := parts.get(name), dict) else {} for name in ("attention", "ffn"))
        if attention.get("replace_with_linear") or ffn.get("replace_with_linear") or attention.get("window_length"):
            f.problem(f"block_configs[{i}]: linear replacements and windows are not supported")
        mlp = None if ffn.get("no_op") else Dense(_ffn_width(f, i, ffn))
        layers.append((None if attention.get("no_op") else gqa(f, kv_heads=_kv_heads(f, i, attention, heads)), mlp))
    return layers


def _kv_heads(f: Fields, i: int, attention: Mapping[str, Any], heads: int) -> int:
    group = attention.get("n_heads_in_group")
    if not isinstance(group, int) or group < 1 or heads % group:
        f.problem(f"block_configs[{i}]: n_heads_in_group must divide the {heads} heads")
        return 1
    return heads // group


def _ffn_width(f: Fields, i: int, ffn: Mapping[str, Any]) -> int:
    """Two thirds of `ffn_mult` times the hidden size, rounded up to 256 (the model's own code, DeciLM)."""
    multiple = ffn.get("ffn_mult")
    if not isinstance(multiple, int | float) or multiple <= 0:
        f.problem(f"block_configs[{i}]: ffn_mult must be a positive number")
        return 1
    return -(-int(2 * multiple * f.hidden / 3) // 256) * 256


def gqa_layers(
    f: Fields,
    *,
    norms: Norms = "none",
    biases: bool | None = None,
    slides: str = "upper",
    mixture: Callable[[Fields], Moe] | None = None,
) -> list[Layer]:
    """Llama and all that resembles it, dense or mixtures. `slides`: the rule of `windows`."""
    attention = [gqa(f, window, norms=norms, biases=biases) for window in windows(f, slides)]
    return with_mlps(f, attention, mixture(f) if mixture else None)


def qwen_hybrid_layers(f: Fields) -> list[Layer]:
    """Qwen3-Next and Qwen3.5: gated delta nets, full attention with an output gate in every fourth layer."""
    n = f.layers
    kinds = f.per_layer("layer_types", n)
    interval = f.positive("full_attention_interval", default=4)
    linear = [kind != "full_attention" for kind in kinds] if kinds else all_but_each(interval, n)
    delta, full = gated_delta(f), gqa(f, norms="head", output_gate=f.flag("attn_output_gate", True))
    return with_mlps(
        f, [delta if is_linear else full for is_linear in linear], qwen_moe(f) if f.get("num_experts") else None
    )


def deepseek_layers(f: Fields) -> list[Layer]:
    """Latent attention; dense layers first, then mixtures with shared experts.

    DeepSeek-V3.2 and GLM-5 have a sparse index, which newer GLM compute in some layers only (`indexer_types`).
    """
    kinds = f.per_layer("indexer_types", f.layers) or ["full"] * f.layers
    return with_mlps(f, [mla(f, own_index=kind == "full") for kind in kinds], deepseek_moe(f))


def minimax_layers(f: Fields) -> list[Layer]:
    """MiniMax-M2: norms over all heads at once."""
    if any(kind != 1 for kind in f.per_layer("attn_type_list", f.layers) or ()):
        f.problem("attn_type_list with lightning attention (0) is not supported")
    mixture = moe(f, "intermediate_size", f.count("shared_intermediate_size"))
    return [(gqa(f, norms="all"), mixture)] * f.layers


def minimax_m3_layers(f: Fields) -> list[Layer]:
    """MiniMax-M3: most layers attend to the blocks of keys that a small index picks."""
    n, sparse = f.layers, f.inner("sparse_attention_config")
    picked = [False] * n
    if sparse.flag("use_sparse_attention"):
        picked = [bool(x) for x in sparse.per_layer("sparse_attention_freq", n) or [True] * n]
    index = None
    if any(picked):
        top_k = sparse.positive("sparse_topk_blocks") * sparse.positive("sparse_block_size")
        index = SparseIndex(sparse.positive("sparse_num_index_heads"), sparse.positive("sparse_index_dim"), top_k)
    shared = f.count("n_shared_experts") * f.count("shared_intermediate_size")
    width = "moe_intermediate_size" if f.get("moe_intermediate_size") else "intermediate_size"
    attention = [gqa(f, norms="head", index=index if has_index else None) for has_index in picked]
    return with_mlps(f, attention, moe(f, width, shared), "dense_intermediate_size")


def llama4_layers(f: Fields) -> list[Layer]:
    """Llama 4: three of four layers attend within chunks of the context (described as a window: at most twice the keys).

    There is a shared expert beside the routed one, and in Maverick every second layer is dense.
    """
    n = f.layers
    chunk = f.count("attention_chunk_size")
    listed = f.per_layer("no_rope_layers", n)  # 1: with rotary embedding and chunks
    interval = f.positive("no_rope_layer_interval", default=4)
    local = [bool(x) for x in listed] if listed else all_but_each(interval, n)
    chosen = f.indices("moe_layers")
    step = f.positive("interleave_moe_layer_step", default=1)
    mixed = [i in chosen if chosen is not None else (i + 1) % step == 0 for i in range(n)]
    mixture = moe(f, "intermediate_size", f.positive("intermediate_size"))
    return [(gqa(f, chunk if local[i] else 0), mixture if mixed[i] else dense(f, "intermediate_size_mlp")) for i in range(n)]


def gemma4_layers(f: Fields) -> list[Layer]:
    """Gemma 4: full attention has heads of its own size; the dense MLP runs beside the mixture in every layer."""
    if f.count("hidden_size_per_layer_input") or f.count("num_kv_shared_layers"):
        f.problem("per-layer embeddings and shared KV (hidden_size_per_layer_input, num_kv_shared_layers) are not supported")
    kv_heads = f.positive("num_global_key_value_heads", "num_key_value_heads")
    full = gqa(f, norms="head", kv_heads=kv_heads, head_dim=f.positive("global_head_dim", "head_dim"))
    mlp = moe(f, shared_width=f.positive("intermediate_size")) if f.flag("enable_moe_block") else dense(f)
    return [(gqa(f, window, norms="head") if window else full, mlp) for window in windows(f, "pattern")]


def mimo_v2_layers(f: Fields) -> list[Layer]:
    """MiMo-V2: sliding layers with KV heads of their own; `hybrid_layer_pattern` 1 slides."""
    pattern = f.per_layer("hybrid_layer_pattern", f.layers) or [0] * f.layers
    full = gqa(f, v_head_dim=f.positive("v_head_dim"))
    local = gqa(
        f,
        f.positive("sliding_window"),
        heads=f.positive("swa_num_attention_heads"),
        kv_heads=f.positive("swa_num_key_value_heads"),
        head_dim=f.positive("swa_head_dim"),
        v_head_dim=f.positive("swa_v_head_dim"),
    )
    return with_mlps(f, [local if slides else full for slides in pattern], deepseek_moe(f))


def step3_layers(f: Fields) -> list[Layer]:
    """Step-3.5 and 3.7: sliding layers with query heads of their own, dense layers first."""
    other = f.inner("attention_other_setting")
    kv_heads = f.positive("num_attention_groups", "num_key_value_heads")
    full = gqa(f, kv_heads=kv_heads, norms="head")
    heads = other.positive("num_attention_heads", default=full.heads)
    local_kv = other.positive("num_attention_groups", default=kv_heads)
    attention = [
        gqa(f, window, heads=heads, kv_heads=local_kv, norms="head") if window else full for window in windows(f, "none")
    ]
    mixture = moe(f, shared_width=f.count("share_expert_dim"))
    if not isinstance(listed := f.get("moe_layers_enum"), str):
        return with_mlps(f, attention, mixture)
    chosen = {int(i) for i in listed.split(",") if i.strip().isdigit()}
    return [(block, mixture if i in chosen else dense(f)) for i, block in enumerate(attention)]


# By model_type of the text model, without "_text" at its end.
FAMILIES: dict[str, Callable[[Fields], list[Layer]]] = {
    **dict.fromkeys(("llama", "granite", "smollm3", "glm4", "seed_oss", "mimo"), gqa_layers),
    **dict.fromkeys(("mistral", "phi3"), partial(gqa_layers, slides="all")),
    **dict.fromkeys(("qwen2", "qwen2_vl", "qwen2_5_vl"), partial(gqa_layers, biases=True)),
    **dict.fromkeys(("qwen3", "qwen3_vl"), partial(gqa_layers, norms="head")),
    "gemma2": partial(gqa_layers, slides="even"),
    "gemma3": partial(gqa_layers, norms="head", slides="pattern"),
    "gemma4": gemma4_layers,
    "mixtral": partial(gqa_layers, slides="all", mixture=partial(moe, width="intermediate_size")),
    "gpt_oss": partial(gqa_layers, slides="even", mixture=partial(moe, width="intermediate_size")),
    "qwen2_moe": partial(gqa_layers, biases=True, mixture=qwen_moe),
    **dict.fromkeys(("qwen3_moe", "qwen3_vl_moe"), partial(gqa_layers, norms="head", mixture=qwen_moe)),
    **dict.fromkeys(("qwen3_next", "qwen3_5", "qwen3_5_moe"), qwen_hybrid_layers),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_k25", "glm_moe_dsa"), deepseek_layers),
    "glm4_moe": partial(gqa_layers, norms="head", mixture=deepseek_moe),
    "minimax_m2": minimax_layers,
    **dict.fromkeys(("minimax_m3", "minimax_m3_vl"), minimax_m3_layers),
    "llama4": llama4_layers,
    "mimo_v2_flash": mimo_v2_layers,
    **dict.fromkeys(("step3p5", "step3p7"), step3_layers),
    "nemotron_h": nemotron_h_layers,
    "nemotron-nas": nemotron_nas_layers,
}

# What a config may leave out because the family's class in transformers (4.57) has it as its default.
DEFAULTS: dict[str, dict[str, object]] = {
    "gemma2": {"tie_word_embeddings": True, "sliding_window": 4096},
    "gemma3": {
        "tie_word_embeddings": True,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
    },
    "gemma4": {"tie_word_embeddings": True},
    "glm4_moe": {"use_qk_norm": False},
}

# Known to people, not described by the blocks of perf/layers.py.
REFUSED: dict[str, str] = {
    "deepseek_v4": "its attention compresses the context (compress_ratios)",
    "deepseek_ref": "its attention compresses the context (compress_ratios)",
    "kimi_k3": "Kimi delta attention and residuals between blocks",
    "kimi_linear": "Kimi delta attention",
    "minimax_text_01": "lightning attention",
    "mllama": "cross-attention to images in some layers",
    "gemma3n": "per-layer embeddings and shared KV",
}
