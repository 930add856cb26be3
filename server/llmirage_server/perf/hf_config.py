"""A model from a Hugging Face config.json on disk, for architectures that ModelSpec describes exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from llmirage_server.perf.errors import DeploymentError
from llmirage_server.perf.models import ModelSpec, model_from_yaml

# model_type -> which keys hold the mixture of experts: (experts, expert width); None: dense
_FAMILIES: dict[str, tuple[str, str] | None] = {
    "llama": None,
    "mistral": None,
    "qwen2": None,
    "qwen3": None,
    "mixtral": ("num_local_experts", "intermediate_size"),
    "qwen3_moe": ("num_experts", "moe_intermediate_size"),
    "gpt_oss": ("num_local_experts", "intermediate_size"),
    "minimax_m2": ("num_local_experts", "intermediate_size"),
}
_NEEDED = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)
# Checkpoint formats by quantization_config.quant_method; what is not here is taken as bf16.
_NATIVE_WEIGHTS = {"fp8": "fp8", "mxfp4": "mxfp4", "awq": "int4", "gptq": "int4"}


def is_config_path(name: str) -> bool:
    """Whether a model's name is a path: it starts with '.', '/' or '~', or ends with '.json'."""
    return name.startswith((".", "/", "~")) or name.endswith(".json")


def model_from_config(path: str) -> ModelSpec:
    """Read config.json, or the one in the folder `path`. Raises DeploymentError with everything that is wrong with it."""
    file = Path(path).expanduser()
    if file.is_dir():
        file /= "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DeploymentError([f"{file}: cannot be read: {error.strerror}"]) from None
    except ValueError as error:
        raise DeploymentError([f"{file}: not valid JSON: {error}"]) from None
    family = config.get("model_type") if isinstance(config, dict) else None
    if family not in _FAMILIES:
        raise DeploymentError([f"{file}: model_type {family!r} is not supported; choices: {', '.join(_FAMILIES)}"])
    mixture = _FAMILIES[family]
    needed = (*_NEEDED, *mixture, "num_experts_per_tok") if mixture else _NEEDED
    if problems := [
        f"{file}: {key} must be a positive integer" for key in dict.fromkeys(needed) if not _positive(config.get(key))
    ]:
        raise DeploymentError(problems)
    return _spec(file, config, mixture)


def _positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _spec(file: Path, config: dict[str, Any], mixture: tuple[str, str] | None) -> ModelSpec:
    family, layers, heads = config["model_type"], config["num_hidden_layers"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    kv_heads = config.get("num_key_value_heads") or heads
    dense_first = config.get("mlp_only_layers") or []
    if dense_first != list(range(len(dense_first))):
        raise DeploymentError([f"{file}: mlp_only_layers {dense_first} is not supported: dense layers must come first"])
    window, window_layers = _window(config, layers)
    shape: dict[str, Any] = {}
    if mixture:
        experts, width = mixture
        shape = {
            "experts": config[experts],
            "experts_per_token": config["num_experts_per_tok"],
            "moe_intermediate": config[width],
            "first_dense_layers": len(dense_first),
            "moe_every": config.get("decoder_sparse_step") or 1,
        }
    if not mixture or dense_first or shape["moe_every"] > 1:
        shape["intermediate"] = config["intermediate_size"]
    name = config.get("_name_or_path") or file.resolve().parent.name
    fields = dict(
        layers=layers,
        hidden=config["hidden_size"],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=config["vocab_size"],
        max_model_len=config["max_position_embeddings"],
        source=str(file),
        sliding_window=window,
        sliding_layers=window_layers,
        tied_embeddings=bool(config.get("tie_word_embeddings")),
        qk_norm={"qwen3": 2, "qwen3_moe": 2, "minimax_m2": heads + kv_heads}.get(family, 0) * head_dim,
        attention_biases=bool(config.get("attention_bias")) or family in ("qwen2", "gpt_oss"),
        native_weights=_NATIVE_WEIGHTS.get(str((config.get("quantization_config") or {}).get("quant_method")), "bf16"),
        **shape,
    )
    return model_from_yaml(name, fields)


def _window(config: dict[str, Any], layers: int) -> tuple[int, int]:
    """Window in tokens and how many layers have it."""
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    if not window:
        return 0, 0
    types = config.get("layer_types")
    count = types.count("sliding_attention") if types else layers - int(config.get("max_window_layers", 0))
    return (window, count) if count else (0, 0)
