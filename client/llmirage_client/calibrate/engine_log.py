"""Settings of a deployment from the log that vLLM or SGLang wrote at its start.

vLLM: "non-default args: {...}", and "GPU KV cache size: 620,944 tokens" (before 0.7.3 "# GPU blocks: 1381").
SGLang: "server_args=ServerArgs(model_path='...', tp_size=2, ...)", and "max_total_num_tokens=1234, ...".
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from llmirage_client.simulator.deployments import model_key
from llmirage_shared.settings import ConfigError

_VLLM_ARGS = re.compile(r"non-default args: (\{.*\})")
_VLLM_TOKENS = re.compile(r"GPU KV cache size: ([\d,]+) tokens")
_VLLM_BLOCKS = re.compile(r"# GPU blocks: (\d+)")
_SGLANG_ARGS = re.compile(r"server_args=ServerArgs\((.*)\)")
_SGLANG_ARG = re.compile(r"(\w+)=('[^']*'|[\d.]+)")
_SGLANG_TOKENS = re.compile(r"max_total_num_tokens=(\d+)")
# Ours by the engine's name; the same where they are equal.
_NAMES = {
    **{name: name for name in ("pipeline_parallel_size", "data_parallel_size", "tensor_parallel_size", "block_size")},
    **{name: name for name in ("gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "max_model_len")},
    "tp_size": "tensor_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "dp_size": "data_parallel_size",
    "page_size": "block_size",
    "mem_fraction_static": "gpu_memory_utilization",
    "max_running_requests": "max_num_seqs",
    "chunked_prefill_size": "max_num_batched_tokens",
    "context_length": "max_model_len",
}
_VLLM_BLOCK = 16  # tokens, vLLM's default on NVIDIA GPUs


def engine_log_settings(place: str) -> dict[str, Any]:
    """The settings of a cluster that a log names. Raises ConfigError for a file that is no start-up log of these engines."""
    try:
        text = Path(place).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError([f"--engine-log {place}: {error.strerror or error}"]) from None
    if (vllm := _VLLM_ARGS.search(text)) or _VLLM_TOKENS.search(text) or _VLLM_BLOCKS.search(text):
        given = _literal(vllm[1]) if vllm else {}
        settings = {"engine": "vllm", **_renamed(given, str(given.get("model") or given.get("model_tag") or ""))}
        block = settings.get("block_size", _VLLM_BLOCK)
        blocks = [int(found) for found in _VLLM_BLOCKS.findall(text)]
        blocks += [int(found.replace(",", "")) // block for found in _VLLM_TOKENS.findall(text)]
    elif sglang := _SGLANG_ARGS.search(text):
        given = {name: _number(value) for name, value in _SGLANG_ARG.findall(sglang[1])}
        if "enable_dp_attention=True" not in sglang[1]:
            given.pop("dp_size", None)  # without it these are replicas: instances of their own
        settings = {"engine": "sglang", **_renamed(given, str(given.get("model_path") or ""))}
        blocks = [int(found) // settings.get("block_size", 1) for found in _SGLANG_TOKENS.findall(text)]
    else:
        raise ConfigError([f"--engine-log {place}: there is no start-up message of vLLM or SGLang in it"])
    if not blocks or settings.get("data_parallel_size", 1) > 1:  # the log then speaks of one rank
        return settings
    return settings | {"num_gpu_blocks_override": blocks[-1]}


def with_log(settings: Mapping[str, Any], place: str | None) -> dict[str, Any]:
    """The settings with those of the log. Raises ConfigError where the two differ."""
    found = engine_log_settings(place) if place is not None else {}
    differ = [
        f"--{name.replace('_', '-')} {settings[name]}: the engine's log says {value}"
        for name, value in found.items()
        if name not in ("model", "engine") and settings.get(name) not in (None, value)
    ]
    if differ:
        raise ConfigError(differ)
    return {**settings, **{name: value for name, value in found.items() if settings.get(name) is None}}


def _renamed(given: Mapping[str, Any], model: str) -> dict[str, Any]:
    settings = {_NAMES[name]: v for name, v in given.items() if name in _NAMES and isinstance(v, int | float) and v > 0}
    for name in (model, model.rstrip("/").rpartition("/")[2]):  # a folder is called as its model, often
        with suppress(ConfigError):
            return {**settings, "model": model_key(name)}
    return settings


def _literal(text: str) -> dict[str, Any]:
    with suppress(ValueError, SyntaxError):
        value = ast.literal_eval(text)
        return value if isinstance(value, dict) else {}
    return {}


def _number(text: str) -> str | int | float:
    if text.startswith("'"):
        return text[1:-1]
    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        return float(text)
    return text
