"""The deployment that the runs of a calibration measured, by their own files and the engine's log."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmirage_client.calibrate.measured_run import MeasuredRun
from llmirage_client.simulator.cluster_settings import SIMULATED, ClusterSettings
from llmirage_client.simulator.deployments import gpu_key, model_key
from llmirage_client.simulator.engine import ClusterConfig, plan_of
from llmirage_client.targets.engine_settings import sglang_settings, vllm_settings
from llmirage_shared.settings import ConfigError

_KEYS: Mapping[str, Callable[[str], str]] = {"model": model_key, "gpu": gpu_key}


def with_measured(cluster: ClusterSettings, runs: Sequence[MeasuredRun]) -> ClusterSettings:
    """Return the cluster with the settings of the deployment that all runs measured, where the user gave none.

    Raises ConfigError when nothing says model or GPU: a calibration to a default would be one to another deployment.
    """
    if cluster.cluster_file is not None:
        return cluster
    several = [run.place for run in runs if len(run.deployment) > 1]
    if several:
        raise ConfigError([f"{several[0]} measured a cluster of several pools: give its --cluster FILE"])
    filled = dict(cluster.overrides)
    for name in dict.fromkeys(name for run in runs for pool in run.deployment for name in pool):
        if name not in filled and name in SIMULATED and len(found := _measured(runs, name)) == 1:
            filled[name] = found.pop()
    missing = [name for name in _KEYS if name not in filled]
    if missing:
        flags = " and ".join(f"--{name}" for name in missing)
        words = " and ".join("GPU" if name == "gpu" else name for name in missing)
        raise ConfigError([f"the runs do not say which {words} was measured: give {flags}, or --cluster FILE"])
    accepted = ("acceptance_rate", "acceptance_length", "acceptance_rates")
    if (drafts := filled.get("num_speculative_tokens")) and not any(name in filled for name in accepted):
        raise ConfigError([f"the engine drafted {drafts} tokens a step: give --acceptance-rate, which no file says"])
    return replace(cluster, overrides=filled)


def mismatches(config: ClusterConfig, runs: Sequence[MeasuredRun]) -> list[str]:
    """Return one sentence for each setting in which a run measured another deployment than the cluster.

    Raises ConfigError.
    """
    cluster = [pool.described for pool in plan_of(config)]
    known = ClusterSettings.known()
    found = []
    for run in runs:
        for name in cluster[0]:
            there = sorted({str(pool[name]) for pool in cluster})
            measured = sorted(str(value) for value in _measured([run], name))
            if measured and measured != there:
                flag = known[name].as_option if name in known else name
                found.append(
                    f"{run.place} measured {_words(name, measured)}, and the cluster to be calibrated has "
                    f"{_words(name, there)}: give the {flag} that was measured, or its --cluster FILE"
                )
    return found


def unchecked(config: ClusterConfig, runs: Sequence[MeasuredRun]) -> list[str]:
    """Return a note for each run on the settings of the cluster that it does not tell. Raises ConfigError."""
    names = [name for name in plan_of(config)[0].described if name != "instances"]
    notes = []
    for run in runs:
        silent = [name for name in names if not any(name in pool for pool in run.deployment)]
        if silent:
            notes.append(
                f"{run.place} does not tell {', '.join(silent)}: whether these are the cluster's could not be checked"
            )
    return notes


def unknown_names(runs: Sequence[MeasuredRun]) -> list[str]:
    """Return notes on models whose name in a run says nothing, so that they could not be compared."""
    return [
        f"{run.place} calls its model {pool['model']}, which the catalogue does not know: whether it is the "
        "cluster's model could not be checked"
        for run in runs
        for pool in run.deployment
        if "model" in pool and _key(pool, "model") is None
    ]


def _words(name: str, values: Sequence[str]) -> str:
    text = ", ".join(values)
    return text if name in _KEYS else f"{name} {text}"


def _measured(runs: Sequence[MeasuredRun], name: str) -> set[Any]:
    return {key for run in runs for pool in run.deployment if (key := _key(pool, name)) is not None}


def _key(pool: Mapping[str, Any], name: str) -> Any:
    """Return the catalogue's key for a value of the run; None if the run or the catalogue lacks it."""
    if name not in _KEYS:
        return pool.get(name)
    try:
        return _KEYS[name](pool[name]) if name in pool else None
    except ConfigError:
        return None


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
