"""The command line of a real vLLM, SGLang or TensorRT-LLM server, as settings of an instance."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from llmirage_server.perf import DeploymentError
from llmirage_server.perf.engines.lookup import find_engine
from llmirage_shared.settings import About
from llmirage_shared.yaml_lines import read_plain

# Words that start a server, and whose server it is; a name that follows those in the second line is the model.
_STARTS = {
    "vllm": "vllm",
    "vllm.entrypoints.openai.api_server": "vllm",
    "sglang": "sglang",
    "sglang.launch_server": "sglang",
}
_STARTS |= {"trtllm-serve": "trtllm", "tensorrt_llm.commands.serve": "trtllm"}
_BEFORE = ("python", "python3", "-m", "serve", "exec", "env")

Found = dict[str, Any]
_Read = Callable[[str], Found]


@dataclass
class EngineArgs:
    """settings: by their names here. profile: fields of the engine. ignored: arguments without an effect, as they stand."""

    settings: Found = field(default_factory=dict)
    profile: Found = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def _format(text: str) -> str:
    """Return our name of a format of weights or of the KV cache."""
    plain = text.lower().removeprefix("modelopt_").removeprefix("compressed-tensors_")
    named = {"fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "fp4": "nvfp4", "modelopt": "fp8", "bfloat16": "bf16", "float16": "bf16"}
    return named.get(plain, {"awq": "int4", "gptq": "int4", "awq_marlin": "int4", "w8a8_int8": "int8"}.get(plain, plain))


def _all(of: Mapping[str, Any]) -> _Read:
    return lambda text: dict(of)


def _off(name: str) -> _Read:
    return _all({name: False})


def _one(name: str, read: Callable[[str], Any] = str) -> _Read:
    return lambda text: {name: read(text)}


def _speculative(text: str) -> Found:
    """Return the settings of --speculative-config (vLLM) or speculative_config (TensorRT-LLM)."""
    given = json.loads(text)
    if not isinstance(given, dict):
        raise ValueError("must be a JSON object")
    method = str(given.get("method", given.get("decoding_type", ""))).lower()
    found: Found = {"speculative_method": next((m for m in ("eagle3", "ngram", "mtp") if m in method), "draft_model")}
    drafts = given.get("num_speculative_tokens", given.get("num_nextn_predict_layers", given.get("max_draft_len")))
    if drafts is not None:
        found["num_speculative_tokens"] = int(drafts)
    if found["speculative_method"] == "draft_model" and "model" in given:
        found["draft_model"] = str(given["model"])
    return found


def _compilation(text: str) -> Found:
    given = json.loads(text)
    if not isinstance(given, dict) or not isinstance(fuses := given.get("pass_config", {}), dict):
        raise ValueError("must be a JSON object")
    return {f"profile.{_FUSES}": fuses[key] for key in ("fuse_allreduce_rms", "enable_fi_allreduce_fusion") if key in fuses}


def _algorithm(text: str) -> Found:
    """Return the settings of --speculative-algorithm; EAGLE and NEXTN without a draft model are the model's own layers."""
    return {"speculative_method": {"EAGLE3": "eagle3", "NGRAM": "ngram"}.get(text.upper(), "mtp")}


_FUSES = "fuses_norms"
_WITH_KV = {"kv_cache_dtype": _one("kv_cache_dtype", _format), "quantization": _one("weights", _format)}
# By engine: what arguments mean whose names or values are not ours. `profile.x` is a field of the engine; `_x` is worked out
# from several arguments (_joined).
_MEANING: Mapping[str, Mapping[str, _Read]] = {
    "vllm": _WITH_KV
    | {
        "enable_expert_parallel": _all({"_experts": True}),
        "no_enable_prefix_caching": _off("enable_prefix_caching"),
        "speculative_config": _speculative,
        "compilation_config": _compilation,
    },
    "sglang": _WITH_KV
    | {
        "model_path": _one("model"),
        "disable_radix_cache": _off("enable_prefix_caching"),
        "disable_overlap_schedule": _off("async_scheduling"),
        "enable_dp_attention": _all({"_attention": True}),
        "enable_flashinfer_allreduce_fusion": _all({f"profile.{_FUSES}": True}),
        "chunked_prefill_size": lambda text: (
            {"enable_chunked_prefill": False} if int(text) < 0 else {"max_num_batched_tokens": int(text)}
        ),
        "speculative_algorithm": _algorithm,
        "speculative_algo": _algorithm,
        "speculative_draft_model_path": _all({}),
    },
    "trtllm": {
        "kv_cache_dtype": _one("kv_cache_dtype", _format),
        "kv_cache_free_gpu_memory_fraction": _one("gpu_memory_utilization", float),
        "enable_attention_dp": _all({"_attention": True}),
        "moe_config.backend": lambda text: {"moe_backend": text.lower()} if text.upper() in ("CUTLASS", "TRTLLM") else {},
        "kv_cache_config.dtype": _one("kv_cache_dtype", _format),
        "kv_cache_config.free_gpu_memory_fraction": _one("gpu_memory_utilization", float),
        "kv_cache_config.enable_block_reuse": _one("enable_prefix_caching", lambda text: text.lower() != "false"),
        "disable_overlap_scheduler": _off("async_scheduling"),
        "speculative_config": _speculative,
    },
}
_ENVIRONMENT: Mapping[str, Found] = {
    "VLLM_MXFP4_USE_MARLIN": {"moe_backend": "marlin"},
    "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8": {"profile.mxfp4_activations": "fp8"},
}
_LISTS = ("lora_modules", "lora_paths")  # several values follow
_FILES = ("extra_llm_api_options", "config")  # of TensorRT-LLM: further arguments, in YAML


def read_engine_args(text: str, engine: str | None, known: Mapping[str, About]) -> EngineArgs:
    """Return what a command line sets. engine: whose it is, where it does not begin with the command. known: settings."""
    found = EngineArgs()
    try:
        words = shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        found.problems.append(f"cannot be read: {error}")
        return found
    environment, words = _environment(words)
    named, words = _command(words, found)
    try:
        base = named or find_engine(engine or "vllm").base
        if named and engine is not None and find_engine(engine).base != named:
            found.problems.append(f"is a command of {named}, but the engine is {engine}")
    except DeploymentError as error:
        found.problems += error.problems
        return found
    if named and engine is None:
        found.settings["engine"] = named
    for variable, text in environment:
        if variable in _ENVIRONMENT and text not in ("0", "", "false"):
            _take(found, _ENVIRONMENT[variable])
        else:
            found.ignored.append(f"{variable}={text}")
    ours = {other: name for name, about in known.items() for other in (name, *about.other_names)}
    for argument, value, shown in _arguments(words, found):
        _understand(found, argument, value, shown, _MEANING[base], ours, known)
    _joined(found, base)
    return found


def _environment(words: Sequence[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Split off the variables before a command, and after `env` or `export`."""
    variables, i = [], 0
    while i < len(words) and (words[i] in ("env", "export") or (words[i].split("=")[0].isidentifier() and "=" in words[i])):
        if "=" in words[i]:
            name, _, value = words[i].partition("=")
            variables.append((name, value))
        i += 1
    return variables, list(words[i:])


def _command(words: Sequence[str], found: EngineArgs) -> tuple[str, list[str]]:
    """Return whose server is started, "" where only arguments are given, and the arguments; the model may come first."""
    named, i = "", 0
    while i < len(words) and (words[i] in _BEFORE or words[i] in _STARTS):
        named = _STARTS.get(words[i], named)
        i += 1
    if named and i < len(words) and not words[i].startswith("-"):
        found.settings["model"] = words[i]
        i += 1
    return named, list(words[i:])


def _arguments(words: Sequence[str], found: EngineArgs) -> Iterator[tuple[str, str | None, str]]:
    """Yield each argument by its name with underscores, its value (None of one that stands alone), and both as given.

    Files of further arguments are opened.
    """
    i = 0
    while i < len(words):
        word = words[i]
        i += 1
        if not word.startswith("-"):
            found.ignored.append(word)
            continue
        name, equals, value = word.lstrip("-").partition("=")
        given = value if equals else None
        if name.replace("-", "_") in _LISTS:
            several = list(itertools.takewhile(lambda each: not each.startswith("-"), words[i:]))
            i += len(several)
            several += [given] if given else []
            yield name.replace("-", "_"), json.dumps(several), " ".join([word, *several])
            continue
        if given is None and i < len(words) and (not words[i].startswith("-") or words[i][1:2].isdigit()):
            given = words[i]
            i += 1
        name = name.replace("-", "_")
        if name in _FILES and given is not None:
            yield from _file(given, found)
        else:
            yield name, given, word if equals or given is None else f"{word} {given}"


def _file(path: str, found: EngineArgs) -> Iterator[tuple[str, str | None, str]]:
    """Yield the keys of a YAML file, those of its sections with the section's name before them."""
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
        tree = read_plain(text)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        found.problems.append(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}")
        return
    for key, value in tree.items() if isinstance(tree, dict) else ():
        if isinstance(value, dict) and key != "speculative_config":
            pairs = [(f"{key}.{inner}", _plain(of)) for inner, of in value.items()]
        else:
            pairs = [(str(key), _plain(value))]
        yield from ((name, text, f"{name}: {text}") for name, text in pairs)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def _understand(
    found: EngineArgs,
    name: str,
    value: str | None,
    shown: str,
    meaning: Mapping[str, _Read],
    ours: Mapping[str, str],
    known: Mapping[str, About],
) -> None:
    """Take one argument, or note that it has no effect. A flag that is switched off by `false` counts as not given."""
    try:
        if name in meaning:
            if value is not None and value.lower() == "false" and meaning[name]("") == meaning[name]("false"):
                return
            taken = meaning[name]("" if value is None else value)
        elif (setting := ours.get(name) or ours.get(name.removeprefix("no_"))) is not None:
            about = known[setting]
            if bool in about.kinds and (value is None or value.lower() in ("true", "false")):
                taken = {setting: value != "false" if name in ours else False}
            else:
                taken = {setting: about.parse("" if value is None else value)}
        else:
            found.ignored.append(shown)
            return
    except (ValueError, TypeError, AttributeError) as error:
        found.problems.append(f"{shown}: {error}")
        return
    for setting, of in taken.items():
        problems = list(known[setting].problems(of)) if setting in known else []
        found.problems += [f"{shown}: {setting} {problem}" for problem in problems]
        if not problems:
            _take(found, {setting: of})


def _take(found: EngineArgs, taken: Found) -> None:
    for name, value in taken.items():
        if name.startswith("profile."):
            found.profile[name.removeprefix("profile.")] = value
        else:
            found.settings[name] = value


def _joined(found: EngineArgs, engine: str) -> None:
    """Work out what several arguments say together: ranks of attention, and who holds whole experts."""
    settings = found.settings
    tp = settings.get("tensor_parallel_size", 1)
    if settings.pop("_experts", False):
        settings["expert_parallel_size"] = tp * settings.get("data_parallel_size", 1)
    attention = settings.pop("_attention", False)
    if engine != "vllm" and attention:  # the ranks are among those of tensor parallelism, not beside them
        dp = tp if engine == "trtllm" else settings.get("data_parallel_size", 1)
        if tp % dp:
            found.problems.append(f"--dp {dp} does not divide --tp {tp}")
            return
        settings |= {"tensor_parallel_size": tp // dp, "data_parallel_size": dp}
    elif engine == "sglang" and settings.get("data_parallel_size", 1) > 1:  # whole copies behind one address
        settings["instances"] = settings.pop("data_parallel_size")
