"""The number format of a checkpoint's weights, from what its config says about quantisation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from llmirage_server.perf.catalogue.hf.fields import Fields

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
    """One format for all layers, or (MIXED_PRECISION) that of the routed experts, else of most layers."""
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
