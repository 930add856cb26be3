"""Settings of a deployment from the log that vLLM or SGLang wrote at its start.

vLLM: "non-default args: {...}", "Chunked prefill is enabled with max_num_batched_tokens=2048", the limit in use, and "GPU KV
cache size: 620,944 tokens" (before 0.7.3 "# GPU blocks: 1381").
SGLang: "server_args=ServerArgs(model_path='...', tp_size=2, ...)", and of each rank "max_total_num_tokens=1234,
chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=2049, context_len=32768", where the limits are the
ones in use. Both are as in its logs from v0.2 (2024) to v0.5 (2026).
"""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmirage_client.simulator.cluster_settings import ClusterSettings
from llmirage_client.simulator.deployments import model_key
from llmirage_client.targets.engine_settings import sglang_settings, vllm_settings
from llmirage_shared.settings import ConfigError

_VLLM_ARGS = re.compile(r"non-default args: (\{.*\})")
_VLLM_LIMIT = re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d+)")
_VLLM_TOKENS = re.compile(r"GPU KV cache size: ([\d,]+) tokens")
_VLLM_BLOCKS = re.compile(r"# GPU blocks: (\d+)")
_SGLANG_ARGS = re.compile(r"server_args=ServerArgs\((.*)\)")
_SGLANG_ARG = re.compile(r"(\w+)=('[^']*'|-?[\d.]+|True)")
_SGLANG_LIMITS = re.compile(r"\bmax_total_num_tokens=(\d+), (.*)")
_IN_USE = ("max_running_requests", "chunked_prefill_size", "max_prefill_tokens")  # of the limits
_VLLM_BLOCK = 16  # tokens, vLLM's default on NVIDIA GPUs


def engine_log_settings(place: str) -> dict[str, Any]:
    """Return the settings of a cluster that a log names. Raises ConfigError for any other file."""
    try:
        text = Path(place).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError([f"--engine-log {place}: {error.strerror or error}"]) from None
    if (vllm := _VLLM_ARGS.search(text)) or _VLLM_TOKENS.search(text) or _VLLM_BLOCKS.search(text):
        given = _literal(vllm[1]) if vllm else {}
        if limit := _VLLM_LIMIT.search(text):
            given["max_num_batched_tokens"] = int(limit[1])
        model = str(given.get("model") or given.get("model_tag") or "")
        settings = {"engine": "vllm", **vllm_settings(given), **_model(model)}
        block = settings.get("block_size", _VLLM_BLOCK)
        blocks = [int(found) for found in _VLLM_BLOCKS.findall(text)]
        blocks += [int(found.replace(",", "")) // block for found in _VLLM_TOKENS.findall(text)]
    elif sglang := _SGLANG_ARGS.search(text):
        given = {name: _value(value) for name, value in _SGLANG_ARG.findall(sglang[1])}
        if (half := given.get("disaggregation_mode", "null")) != "null":
            raise ConfigError([f"--engine-log {place}: the engine did {half} only: describe both pools in a --cluster FILE"])
        limits = _SGLANG_LIMITS.findall(text)
        if limits and not given.get("enable_dp_attention"):  # else they are those of one rank
            in_use = dict(_SGLANG_ARG.findall(limits[0][1]))
            given |= {name: _value(in_use[name]) for name in _IN_USE if name in in_use}
        settings = {"engine": "sglang", **sglang_settings(given), **_model(str(given.get("model_path") or ""))}
        blocks = [int(found) // settings.get("block_size", 1) for found, _ in limits]
    else:
        raise ConfigError([f"--engine-log {place}: there is no start-up message of vLLM or SGLang in it"])
    if not blocks or settings.get("data_parallel_size", 1) > 1:  # the log then speaks of one rank
        return settings
    return settings | {"num_gpu_blocks_override": blocks[-1]}


def with_log(cluster: ClusterSettings, place: str | None) -> ClusterSettings:
    """Return the cluster with the settings of the log. Raises ConfigError where the two differ."""
    found, given = engine_log_settings(place) if place is not None else {}, cluster.overrides
    differ = [
        f"{ClusterSettings.known()[name].as_option} {given[name]}: the engine's log says {value}"
        for name, value in found.items()
        if name not in ("model", "engine") and given.get(name) not in (None, value)
    ]
    if differ:
        raise ConfigError(differ)
    return replace(cluster, overrides={**found, **given})


def _model(name: str) -> dict[str, str]:
    for known in (name, name.rstrip("/").rpartition("/")[2]):  # a folder is called as its model, often
        with suppress(ConfigError):
            return {"model": model_key(known)}
    return {}


def _literal(text: str) -> dict[str, Any]:
    with suppress(ValueError, SyntaxError):
        value = ast.literal_eval(text)
        return value if isinstance(value, dict) else {}
    return {}


def _value(text: str) -> str | int | float | bool:
    if text == "True":
        return True
    if text.startswith("'"):
        return text[1:-1]
    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        return float(text)
    return text
