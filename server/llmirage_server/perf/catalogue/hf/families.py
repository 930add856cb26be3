"""Layers of a model, family by family: one function for each way of writing a config."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from llmirage_server.perf.catalogue.hf.blocks import (
    MOST_LAYERS,
    Fields,
    Layer,
    Norms,
    deepseek_moe,
    dense,
    gated_delta,
    gqa,
    is_moe_layer,
    mla,
    moe,
    windows,
)
from llmirage_server.perf.catalogue.layers import Dense, Mamba2, SparseIndex

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
