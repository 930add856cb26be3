"""Names of settings in engines and in this package."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

# Ours by the engine's name; the same where they are equal.
_VLLM = ("pipeline_parallel_size", "data_parallel_size", "tensor_parallel_size", "block_size", "gpu_memory_utilization",
         "max_num_seqs", "max_num_batched_tokens", "max_model_len", "long_prefill_token_threshold",
         "stream_interval", "prefill_schedule_interval", "num_gpu_blocks_override")  # fmt: skip
_SGLANG = {
    "tp_size": "tensor_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "ep_size": "expert_parallel_size",
    "page_size": "block_size",
    "mem_fraction_static": "gpu_memory_utilization",
    "max_running_requests": "max_num_seqs",
    "chunked_prefill_size": "max_num_batched_tokens",
    "context_length": "max_model_len",
    "max_prefill_tokens": "max_prefill_tokens",
    "scheduler_recv_interval": "scheduler_recv_interval",
    "schedule_conservativeness": "schedule_conservativeness",
    "stream_interval": "stream_interval",
    "prefill_decode_interval": "prefill_decode_interval",
}
_FORMATS = {"quantization": "weights", "kv_cache_dtype": "kv_cache_dtype"}
_FORMAT_NAMES = {"fp8": "fp8", "fp8_e4m3": "fp8"}  # others say too little of what a kernel reads
_SGLANG_POLICIES = ("fcfs", "lpm")


def vllm_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return cluster settings for vLLM's arguments, without the model, whose name the caller may have to look up."""
    settings = _numbers(given, {name: name for name in _VLLM}) | _formats(given)
    if given.get("enable_expert_parallel") is True:  # over all GPUs of a stage
        sizes = (settings.get(f"{name}_parallel_size", 1) for name in ("tensor", "data"))
        settings["expert_parallel_size"] = math.prod(sizes)
    settings |= {name: False for name in ("enable_prefix_caching", "enable_chunked_prefill") if given.get(name) is False}
    if given.get("scheduling_policy") == "priority":
        settings["schedule_policy"] = "priority"
    if isinstance(speculative := given.get("speculative_config"), dict):
        settings |= _numbers(speculative, {"num_speculative_tokens": "num_speculative_tokens"})
    return settings


_CACHE_INFO = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_REPR_FIELD = re.compile(r"(\w+)=('[^']*'|[^,\s()]+)")
_OTHER_NAMES = {"cache_dtype": "kv_cache_dtype", "num_gpu_blocks": "num_gpu_blocks_override", "policy": "scheduling_policy"}


def vllm_metric_labels(metrics: str) -> dict[str, Any]:
    """Return the arguments that vLLM's own metrics name, from the text of /metrics."""
    found = _CACHE_INFO.search(metrics)
    return _renamed({name: _value(text) for name, text in _LABEL.findall(found[1])} if found else {})


def vllm_config(config: Any) -> dict[str, Any]:
    """Return the arguments in a vllm_config of /server_info: sections of fields, or its text."""
    if isinstance(config, str):
        return _renamed({name: _value(text.strip("'")) for name, text in _REPR_FIELD.findall(config)})
    sections = [section for section in config.values() if isinstance(section, dict)] if isinstance(config, dict) else []
    return _renamed({name: value for section in sections for name, value in section.items()})


def _renamed(given: dict[str, Any]) -> dict[str, Any]:
    return given | {ours: given[name] for name, ours in _OTHER_NAMES.items() if name in given}


def _value(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text


def sglang_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return cluster settings for fields of SGLang's ServerArgs, without the model.

    Its tp_size counts all GPUs of a replica: with attention data parallelism its dp_size groups share them. Without it,
    dp_size counts replicas.
    """
    settings = _numbers(given, _SGLANG) | _formats(given)
    groups = given.get("dp_size") or 1
    if given.get("enable_dp_attention") is True:
        settings["data_parallel_size"] = groups
        settings["tensor_parallel_size"] = max(1, settings.get("tensor_parallel_size", 1) // groups)
    elif groups > 1:
        settings["instances"] = groups
    if given.get("disable_radix_cache") is True:
        settings["enable_prefix_caching"] = False
    if given.get("disable_overlap_schedule") is True:
        settings["async_scheduling"] = False
    if given.get("enable_mixed_chunk") is True:
        settings["enable_mixed_chunk"] = True
    if (policy := given.get("schedule_policy")) in _SGLANG_POLICIES:
        settings["schedule_policy"] = policy
    if given.get("speculative_algorithm"):  # a chain: a step drafts one token
        settings |= _numbers(given, {"speculative_num_steps": "num_speculative_tokens"})
    return settings


def _numbers(given: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings above 0: engines say -1 and 0 for a setting that is off."""
    return {ours: v for name, ours in names.items() if isinstance(v := given.get(name), int | float) and v > 0}


def _formats(given: Mapping[str, Any]) -> dict[str, Any]:
    return {ours: _FORMAT_NAMES[v] for name, ours in _FORMATS.items() if (v := given.get(name)) in _FORMAT_NAMES}
