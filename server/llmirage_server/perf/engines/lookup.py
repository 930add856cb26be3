"""Engines by name and version, and files of the user's own."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

from llmirage_server.perf import DeploymentError
from llmirage_server.perf.catalogue.lookup import list_gpus, list_models, plain
from llmirage_server.perf.catalogue.yaml_files import Key, is_yaml_path, one_of, positive, read_own, text, truth, whole
from llmirage_server.perf.engines.engine import Activations, Engine, version_numbers
from llmirage_server.perf.engines.sglang import Sglang
from llmirage_server.perf.engines.trtllm import Trtllm
from llmirage_server.perf.engines.vllm import Vllm

_ENGINES: Mapping[str, Engine] = {engine.name: engine for engine in (Vllm(), Sglang(), Trtllm())}
_TIERS = ("max_num_seqs", "max_num_batched_tokens")


def list_engines() -> list[Engine]:
    """Return every engine of the package."""
    return list(_ENGINES.values())


def find_engine(name: str) -> Engine:
    """Return the engine of that name, or that of a YAML file on disk (`base:` a named one, and what differs).

    A name may end with a version, as in vllm@0.12; without one it is the newest. A name is a path when it ends with .yaml or
    .yml or has a slash. Raises DeploymentError with everything that is wrong.
    """
    if is_yaml_path(name) or "/" in name:
        return _from_file(Path(name).expanduser())
    name, at, version = name.partition("@")
    known = {plain(word): engine for engine in _ENGINES.values() for word in (engine.name, engine.title)}
    if (engine := known.get(plain(name))) is not None:
        return _version(engine, version) if at else engine
    near = difflib.get_close_matches(plain(name), known, n=1)
    hint = f"did you mean {known[near[0]].name}?" if near else f"choices: {', '.join(_ENGINES)}"
    raise DeploymentError(f"unknown engine {name!r}; {hint}")


def _version(engine: Engine, version: str) -> Engine:
    """Return the engine in a version: with the first entry of its `versions` that is not older; else the newest."""
    asked = version_numbers(version)
    if not asked:
        choices = ", ".join(f"{engine.base}@{each}" for each in engine.versions)
        older = f"; older profiles: {choices}" if choices else ""
        raise DeploymentError(
            f"unknown version {version!r} of {engine.title}: give a number, as in {engine.base}@1.2{older}"
        )
    last = next((each for each in engine.versions if asked[: len(version_numbers(each))] <= version_numbers(each)), None)
    differences = engine.versions[last] if last is not None else {}
    about: dict[str, Any] = {"name": f"{engine.base}@{version}", "title": f"{engine.title} {version}", "version": version}
    return replace(engine, **about, **differences)


# --- files -------------------------------------------------------------------------------------------------------------


def _not_negative(value: Any) -> str:
    return "" if (value == 0 and value is not False) or not positive(value) else "must be a number, at least 0"


def _tiers(value: Any) -> str:
    tiers = value if isinstance(value, dict) else {0: value}
    good = 0 in tiers and not any(map(whole, tiers.values()))
    return "" if good else "must be a positive integer, or one for each GPU memory in GiB from 0 on"


def _unknown_base(value: Any) -> str:
    if not isinstance(value, str) or is_yaml_path(value) or "/" in value:
        return f"unknown engine {value!r}; choices: {', '.join(_ENGINES)}"
    try:
        find_engine(value)
    except DeploymentError as error:
        return error.problems[0]
    return ""


_KEYS: Mapping[str, Key] = {
    "base": Key(_unknown_base),
    **dict.fromkeys((each.name for each in fields(Engine)), Key(_not_negative)),  # most are times
    **dict.fromkeys(("name", "title", "version"), Key(text)),
    **dict.fromkeys(_TIERS, Key(_tiers)),
    **dict.fromkeys(("decode_scale", "prefill_scale", "prefill_in_place"), Key(positive)),
    **dict.fromkeys(("async_scheduling", "fuses_norms"), Key(truth)),
    "mxfp4_activations": Key(one_of(*get_args(Activations))),
    "block_size": Key(whole),
    "gpu_memory_utilization": Key(lambda share: positive(share) or ("must be at most 1" if share > 1 else "")),
}


def _from_file(file: Path) -> Engine:
    names = ", ".join(_ENGINES)
    values, _ = read_own(str(file), _KEYS, f"an engine file is a list of `key: value` lines, with `base` one of {names}")
    if "base" not in values:
        raise DeploymentError(f"{file}: base is missing; choices: {names}")
    base = find_engine(values.pop("base"))
    tiers = {name: {0.0: values[name]} for name in _TIERS if isinstance(values.get(name), int)}
    return replace(base, **{"name": file.stem, **values, **tiers})


def gpu_names() -> list[str]:
    """Return the names of GPUs that the command line completes."""
    return [gpu.key for gpu in list_gpus()]


def model_names() -> list[str]:
    """Return the names of models that the command line completes."""
    return [model.name for model in list_models()]


def engine_names() -> list[str]:
    """Return the names of engines that the command line completes."""
    return [engine.name for engine in list_engines()]
