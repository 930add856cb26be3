"""Layers of a model from the keys of its config.json: blocks that most families share, and a function for each family."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
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


_LETTERS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}


def nemotron_h_layers(f: Fields) -> list[Layer]:
    """Each layer one of Mamba-2, attention, mixture or MLP, named by `layers_block_type` or the letters of a pattern."""
    blocks: dict[str, Layer] = {}
    layers: list[Layer] = []
    for kind in _kinds(f):
        if kind not in blocks:
            blocks[kind] = _block(f, kind)
        layers.append(blocks[kind])
    return layers or [(None, None)]


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


def dense_layers(f: Fields, *, norms: Norms = "none", biases: bool | None = None, slides: str = "upper") -> list[Layer]:
    """Llama and all that resembles it: attention and a gated MLP. `slides`: see `_slides`."""
    n, mlp = f.layers, dense(f)
    return [(gqa(f, window, norms=norms, biases=biases), mlp) for window in windows(f, n, _slides(f, n, slides))]


def _slides(f: Fields, n: int, rule: str) -> list[bool]:
    """Return if each layer has the window, where `layer_types` does not say so.

    All, every second one, all but each n-th (Gemma 3), or those from `max_window_layers` on (Qwen).
    """
    if rule == "all":
        return [True] * n
    if rule == "even":
        return [i % 2 == 0 for i in range(n)]
    if rule == "pattern":
        pattern = f.positive("sliding_window_pattern", "_sliding_window_pattern", default=6)
        return [(i + 1) % pattern != 0 for i in range(n)]
    first = f.count("max_window_layers") if f.get("max_window_layers") is not None else n
    return [i >= first for i in range(n)]


def mixture_layers(f: Fields, slides: str) -> list[Layer]:
    """Mixtral and gpt-oss: every layer a mixture, its experts as wide as `intermediate_size`. `slides`: see `_slides`."""
    n, mlp = f.layers, moe(f, "intermediate_size")
    return [(gqa(f, window), mlp) for window in windows(f, n, _slides(f, n, slides))]


def qwen_moe_layers(f: Fields, *, norms: Norms = "head", biases: bool | None = None) -> list[Layer]:
    """Qwen2 and Qwen3 mixtures: some layers may stay dense, an expert may be shared."""
    n = f.layers
    mixture = moe(f, shared_width=f.count("shared_expert_intermediate_size"), shared_gate=True)
    mlps = [mixture if is_moe_layer(f, i, n) else dense(f) for i in range(n)]
    attention = [gqa(f, w, norms=norms, biases=biases) for w in windows(f, n, _slides(f, n, "upper"))]
    return list(zip(attention, mlps, strict=True))


def qwen_hybrid_layers(f: Fields) -> list[Layer]:
    """Qwen3-Next and Qwen3.5: gated delta nets, full attention with an output gate in every fourth layer."""
    n = f.layers
    kinds = f.per_layer("layer_types", n)
    interval = f.positive("full_attention_interval", default=4)
    full = [kind == "full_attention" for kind in kinds] if kinds else [(i + 1) % interval == 0 for i in range(n)]
    mixed = f.get("num_experts") is not None
    mixture = moe(f, shared_width=f.count("shared_expert_intermediate_size"), shared_gate=True) if mixed else None
    attention = gqa(f, norms="head", output_gate=f.flag("attn_output_gate", True))
    linear = gated_delta(f)
    return [(attention if full[i] else linear, mixture if mixture and is_moe_layer(f, i, n) else dense(f)) for i in range(n)]


def deepseek_layers(f: Fields) -> list[Layer]:
    """Latent attention; dense layers first, then mixtures with shared experts.

    DeepSeek-V3.2 and GLM-5 have a sparse index, which newer GLM compute in some layers only (`indexer_types`).
    """
    n, mixture = f.layers, deepseek_moe(f)
    kinds = f.per_layer("indexer_types", n) or ["full"] * n
    mlps = [mixture if is_moe_layer(f, i, n) else dense(f) for i in range(n)]
    return [(mla(f, own_index=kind == "full"), mlp) for kind, mlp in zip(kinds, mlps, strict=True)]


def glm_moe_layers(f: Fields) -> list[Layer]:
    """GLM-4.5 to 4.7: DeepSeek's mixtures under grouped-query attention."""
    n, mixture, attention = f.layers, deepseek_moe(f), gqa(f, norms="head" if f.flag("use_qk_norm") else "none")
    return [(attention, mixture if is_moe_layer(f, i, n) else dense(f)) for i in range(n)]


def minimax_layers(f: Fields) -> list[Layer]:
    """MiniMax-M2: norms over all heads at once."""
    n, mixture = f.layers, moe(f, "intermediate_size", f.count("shared_intermediate_size"))
    if any(kind != 1 for kind in f.per_layer("attn_type_list", n) or ()):
        f.problem("attn_type_list with lightning attention (0) is not supported")
    return [(gqa(f, norms="all" if f.flag("use_qk_norm", True) else "none"), mixture)] * n


def minimax_m3_layers(f: Fields) -> list[Layer]:
    """MiniMax-M3: most layers attend to the blocks of keys that a small index picks."""
    n, sparse = f.layers, Fields(f.mapping("sparse_attention_config"))
    picked = [False] * n
    if sparse.flag("use_sparse_attention"):
        picked = [bool(x) for x in sparse.per_layer("sparse_attention_freq", n) or [True] * n]
    index = None
    if any(picked):
        top_k = sparse.positive("sparse_topk_blocks") * sparse.positive("sparse_block_size")
        index = SparseIndex(sparse.positive("sparse_num_index_heads"), sparse.positive("sparse_index_dim"), top_k)
    for problem in sparse.problems:
        f.problem(f"sparse_attention_config: {problem}")
    shared = f.count("n_shared_experts") * f.count("shared_intermediate_size")
    width = "moe_intermediate_size" if f.get("moe_intermediate_size") else "intermediate_size"
    mixture, mlp = moe(f, width, shared), dense(f, "dense_intermediate_size")
    return [
        (gqa(f, norms="head", index=index if picked[i] else None), mixture if is_moe_layer(f, i, n) else mlp)
        for i in range(n)
    ]


def llama4_layers(f: Fields) -> list[Layer]:
    """Llama 4: three of four layers attend within chunks of the context (described as a window: at most twice the keys).

    There is a shared expert beside the routed one, and in Maverick every second layer is dense.
    """
    n = f.layers
    chunk = f.count("attention_chunk_size")
    listed = f.per_layer("no_rope_layers", n)  # 1: with rotary embedding and chunks
    interval = f.positive("no_rope_layer_interval", default=4)
    local = [bool(x) for x in listed] if listed else [(i + 1) % interval != 0 for i in range(n)]
    step = f.positive("interleave_moe_layer_step", default=1)
    chosen = f.indices("moe_layers")
    mixed = [i in chosen if chosen is not None else (i + 1) % step == 0 for i in range(n)]
    mixture = moe(f, "intermediate_size", f.positive("intermediate_size"))
    return [(gqa(f, chunk if local[i] else 0), mixture if mixed[i] else dense(f, "intermediate_size_mlp")) for i in range(n)]


def gemma4_layers(f: Fields) -> list[Layer]:
    """Gemma 4: full attention has heads of its own size; the dense MLP runs beside the mixture in every layer."""
    n = f.layers
    if f.count("hidden_size_per_layer_input") or f.count("num_kv_shared_layers"):
        f.problem("per-layer embeddings and shared KV (hidden_size_per_layer_input, num_kv_shared_layers) are not supported")
    local = windows(f, n, _slides(f, n, "pattern"))
    kv_heads = f.positive("num_global_key_value_heads", "num_key_value_heads")
    full = gqa(f, norms="head", kv_heads=kv_heads, head_dim=f.positive("global_head_dim", "head_dim"))
    mlp = moe(f, shared_width=f.positive("intermediate_size")) if f.flag("enable_moe_block") else dense(f)
    return [(gqa(f, window, norms="head") if window else full, mlp) for window in local]


def mimo_v2_layers(f: Fields) -> list[Layer]:
    """MiMo-V2: sliding layers with KV heads of their own; `hybrid_layer_pattern` 1 slides."""
    n = f.layers
    pattern = f.per_layer("hybrid_layer_pattern", n) or [0] * n
    full = gqa(f, v_head_dim=f.positive("v_head_dim"))
    local = gqa(
        f,
        f.positive("sliding_window"),
        heads=f.positive("swa_num_attention_heads"),
        kv_heads=f.positive("swa_num_key_value_heads"),
        head_dim=f.positive("swa_head_dim"),
        v_head_dim=f.positive("swa_v_head_dim"),
    )
    mixture = deepseek_moe(f)
    return [(local if pattern[i] else full, mixture if is_moe_layer(f, i, n) else dense(f)) for i in range(n)]


def step3_layers(f: Fields) -> list[Layer]:
    """Step-3.5 and 3.7: sliding layers with query heads of their own, dense layers first."""
    n = f.layers
    other = Fields(f.mapping("attention_other_setting"))
    kv_heads = f.positive("num_attention_groups", "num_key_value_heads")
    full = gqa(f, kv_heads=kv_heads, norms="head")
    heads = other.positive("num_attention_heads", default=full.heads)
    local_kv = other.positive("num_attention_groups", default=kv_heads)
    mixture = moe(f, shared_width=f.count("share_expert_dim"))
    listed = f.get("moe_layers_enum")
    chosen = {int(i) for i in listed.split(",") if i.strip().isdigit()} if isinstance(listed, str) else None
    layers: list[Layer] = []
    for i, window in enumerate(windows(f, n, [False] * n)):
        mixed = i in chosen if chosen is not None else is_moe_layer(f, i, n)
        attention = gqa(f, window, heads=heads, kv_heads=local_kv, norms="head") if window else full
        layers.append((attention, mixture if mixed else dense(f)))
    for problem in other.problems:
        f.problem(f"attention_other_setting: {problem}")
    return layers


# By model_type of the text model, without "_text" at its end.
FAMILIES: dict[str, Callable[[Fields], list[Layer]]] = {
    **dict.fromkeys(("llama", "granite", "smollm3", "glm4", "seed_oss", "mimo"), dense_layers),
    **dict.fromkeys(("mistral", "phi3"), partial(dense_layers, slides="all")),
    **dict.fromkeys(("qwen2", "qwen2_vl", "qwen2_5_vl"), partial(dense_layers, biases=True)),
    **dict.fromkeys(("qwen3", "qwen3_vl"), partial(dense_layers, norms="head")),
    "gemma2": partial(dense_layers, slides="even"),
    "gemma3": partial(dense_layers, norms="head", slides="pattern"),
    "gemma4": gemma4_layers,
    "mixtral": partial(mixture_layers, slides="all"),
    "qwen2_moe": partial(qwen_moe_layers, norms="none", biases=True),
    **dict.fromkeys(("qwen3_moe", "qwen3_vl_moe"), qwen_moe_layers),
    **dict.fromkeys(("qwen3_next", "qwen3_5", "qwen3_5_moe"), qwen_hybrid_layers),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "kimi_k25", "glm_moe_dsa"), deepseek_layers),
    "glm4_moe": glm_moe_layers,
    "gpt_oss": partial(mixture_layers, slides="even"),
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
