"""Nemotron: layers that are one block each (Nemotron-H), and layers of different shapes found by search (Nemotron NAS)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmirage_server.perf.catalogue.hf.blocks import Layer, gqa, moe
from llmirage_server.perf.catalogue.hf.fields import MOST_LAYERS, Fields
from llmirage_server.perf.catalogue.layers import Dense, Mamba2

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
