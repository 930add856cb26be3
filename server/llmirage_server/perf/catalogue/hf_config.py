"""A model from a Hugging Face config.json for the architectures that the blocks of catalogue/layers.py describe."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmirage_server.perf import DeploymentError
from llmirage_server.perf.catalogue.hf_families import DEFAULTS, FAMILIES, REFUSED, Fields, groups_of
from llmirage_server.perf.catalogue.models import ModelSpec, model_confidence

# ModelOpt's names (TensorRT Model Optimizer)
_MODELOPT = {
    "FP8": "fp8",
    "FP8_PB_WO": "fp8_block",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "NVFP4": "nvfp4",
    "NVFP4_AWQ": "nvfp4",
    "W4A16_NVFP4": "int4",  # weights alone: activations stay bf16, as under int4
    "W4A16_AWQ": "int4",
    "W4A8_AWQ": "int4",
    "INT4_AWQ": "int4",
    "W8A8_SQ_PER_CHANNEL": "int8",
    "INT8_SQ": "int8",
}
_BY_BITS = {4: "int4", 8: "int8"}
_METHODS = ("fp8", "fbgemm_fp8", "mxfp4", "awq", "gptq", "compressed-tensors", "modelopt")


def native_weights(f: Fields, modelopt: Mapping[str, Any] | None = None) -> str:
    """Return a key of WEIGHT_DTYPES: "bf16" where nothing is quantised.

    `modelopt` is the content of the hf_quant_config.json beside the config, if there is one.
    """
    if modelopt is not None:
        inner = modelopt.get("quantization")
        return _modelopt(f, inner if isinstance(inner, dict) else {}, "hf_quant_config.json")
    config = f.mapping("quantization_config")
    if not config:
        return "bf16"
    method = config.get("quant_method")
    if method in ("fp8", "fbgemm_fp8"):
        return "fp8_block" if config.get("weight_block_size") else "fp8"
    if method == "mxfp4":
        return "mxfp4"
    if method in ("awq", "gptq"):
        return _bits(f, config.get("bits", 4))
    if method == "compressed-tensors":
        return _compressed_tensors(f, config)
    if method == "modelopt" or "quant_algo" in config:
        return _modelopt(f, config, "quantization_config")
    f.problem(f"quantization_config: quant_method {method!r} is not known; choices: {', '.join(_METHODS)}")
    return "bf16"


def _bits(f: Fields, bits: Any) -> str:
    if not isinstance(bits, int) or bits not in _BY_BITS:
        f.problem(f"quantization_config: bits {bits!r} is not known; choices: 4, 8")
        return "bf16"
    return _BY_BITS[bits]


def _compressed_tensors(f: Fields, config: Mapping[str, Any]) -> str:
    groups = config.get("config_groups")
    group = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict):
        f.problem("quantization_config: config_groups must hold a group with weights")
        return "bf16"
    bits, kind = weights.get("num_bits"), weights.get("type")
    if kind == "int":
        return _bits(f, bits)
    if (kind, bits) == ("float", 8):
        return "fp8_block" if weights.get("strategy") == "block" else "fp8"
    if (kind, bits) == ("float", 4):
        return "mxfp4" if "mxfp4" in str(config.get("format")) else "nvfp4"
    f.problem(f"quantization_config: weights of {bits!r} bits of type {kind!r} are not known")
    return "bf16"


def _modelopt(f: Fields, config: Mapping[str, Any], where: str) -> str:
    """Return one format for all layers, or (MIXED_PRECISION) that of the routed experts, else of most layers."""
    name = str(config.get("quant_algo"))
    layers = config.get("quantized_layers")
    if name == "MIXED_PRECISION" and isinstance(layers, dict):
        names = {layer: str(entry.get("quant_algo")) for layer, entry in layers.items() if isinstance(entry, dict)}
        experts = {layer: algorithm for layer, algorithm in names.items() if ".experts" in layer}
        counted = Counter((experts or names).values()).most_common(1)
        name = counted[0][0] if counted else name
    if name not in _MODELOPT:
        f.problem(f"{where}: quant_algo {name!r} is not known; choices: {', '.join(_MODELOPT)}")
    return _MODELOPT.get(name, "bf16")


def model_from_config(path: str) -> ModelSpec:
    """Read config.json, or the one in the folder `path`. Raises DeploymentError with everything that is wrong with it."""
    file = Path(path).expanduser()
    if file.is_dir():
        file /= "config.json"
    config = _read(file)
    text = config.get("text_config")
    # what concerns the whole checkpoint may stand beside the text model of a multimodal one
    values = {**config, **text} if isinstance(text, dict) else config
    family = _family(file, config, text)
    f = Fields({**DEFAULTS.get(family, {}), **{key: value for key, value in values.items() if value is not None}})
    hidden, vocab = f.hidden, f.positive("vocab_size")
    max_model_len = f.positive("max_position_embeddings", "max_seq_len")
    groups = groups_of(FAMILIES[family](f))
    beside = file.with_name("hf_quant_config.json")
    model = ModelSpec(
        name=_name(file, config),
        hidden=hidden,
        vocab=vocab,
        max_model_len=max_model_len,
        groups=groups,
        source=str(file),
        tied_embeddings=f.flag("tie_word_embeddings"),
        native_weights=native_weights(f, _read(beside) if beside.is_file() else None),
        mtp_layers=f.count("num_nextn_predict_layers", "mtp_num_hidden_layers"),
        hears=any(config.get(key) for key in ("audio_config", "audio_processor")),  # Qwen2-Audio, Voxtral; Phi-4-multimodal
        confidence=model_confidence(groups, hidden),
    )
    if f.problems:
        raise DeploymentError([f"{file}: {problem}" for problem in f.problems])
    return model


def _read(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DeploymentError(f"{file}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise DeploymentError(f"{file}: not valid JSON: {error}") from None
    if not isinstance(config, dict):
        raise DeploymentError(f"{file}: must hold a JSON object")
    return config


def _family(file: Path, config: dict[str, Any], text: Any) -> str:
    """Return the key of FAMILIES for a config: the type of its text model, or its own."""
    types = [text.get("model_type") if isinstance(text, dict) else None, config.get("model_type")]
    names = [name.removesuffix("_text") for name in types if isinstance(name, str)]
    for name in reversed(names):
        if name in REFUSED:
            raise DeploymentError(f"{file}: model_type {name!r} is known but not supported: {REFUSED[name]}")
    for name in names:
        if name in FAMILIES:
            return name
    found = names[0] if names else None
    raise DeploymentError(f"{file}: model_type {found!r} is not supported; choices: {', '.join(FAMILIES)}")


def _name(file: Path, config: dict[str, Any]) -> str:
    """Return the hub's name if the config kept it, else the folder, or the file where it is not called config.json."""
    name = config.get("_name_or_path")
    if isinstance(name, str) and name.count("/") == 1 and not name.startswith("/"):
        return name
    return file.resolve().parent.name if file.name == "config.json" else file.stem
