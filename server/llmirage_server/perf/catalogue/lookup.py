"""The GPUs and models of the package and of the user, found by name, alias, near miss or path."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from llmirage_server.perf import DeploymentError
from llmirage_server.perf.catalogue.gpus import FITTED, GpuSpec, gpu_from_entry, gpu_from_file, transferred
from llmirage_server.perf.catalogue.models import ModelSpec, model_from_entry, model_from_file
from llmirage_server.perf.catalogue.yaml_files import DataFile, data_file, is_yaml_path

_VENDORS = ("nvidia", "amd", "google")  # drivers put them before the name, people do not


def list_gpus() -> list[GpuSpec]:
    """Return every GPU of the catalogue, those that were measured first."""
    return [_gpu(key) for key in _gpus().names]


def common_gpu_sources() -> dict[str, str]:
    """Return the sources of figures that come from one place for all GPUs: `price_source` and `node_link_source`."""
    sources: dict[str, str] = _gpus().head()
    return sources


def list_models() -> list[ModelSpec]:
    """Return every model of the catalogue."""
    return [_model(name) for name in _models().names]


def model_names() -> list[tuple[str, ...]]:
    """Return the names of each model of the catalogue, the full one first, then aliases and checkpoints; reads no model."""
    file = _models()
    return [(full, *file.aliases(full), *file.checkpoints(full)) for full in file.names]


def find_gpu(name: str) -> GpuSpec:
    """Return the GPU of that name or alias, as people, drivers (nvidia-smi) or clouds call it, or that of a YAML file.

    Case, spaces, '-' and '_' do not matter. Raises DeploymentError.
    """
    if is_yaml_path(name):
        return gpu_from_file(name, find_gpu, _gpus().entry)
    keys = _gpu_names()
    full = plain(name)
    shorter = (full.removeprefix(vendor) for vendor in _VENDORS)
    key = next((keys[n] for n in (full, *shorter) if n in keys), None)
    if key is None:
        hint = _near(name, keys) or f"choices: {', '.join(_gpus().names)}, or a YAML file"
        raise DeploymentError(f"unknown GPU {name!r}; {hint}")
    return _gpu(key)


def find_model(name: str) -> ModelSpec:
    """Return the model of that name, with or without its organisation, in any case, or that of a config.json or YAML file.

    A checkpoint in another weight format is the same model with those `native_weights`. Raises DeploymentError.
    """
    if is_yaml_path(name):
        return model_from_file(name)
    if name.startswith((".", "/", "~")) or name.endswith(".json"):
        from llmirage_server.perf.catalogue.hf_config import model_from_config

        return model_from_config(name)
    if name in _models().names:
        return _model(name)
    names = _model_names()  # takes milliseconds
    full = names.get(name.strip().casefold())
    if full is None:
        hint = (
            _near(name, names) or "`llmirage catalog models` lists those that are; a config.json or a YAML file is one, too"
        )
        raise DeploymentError(f"unknown model {name!r}; {hint}")
    if full in (missing := refused_models()):
        raise DeploymentError(f"{full} is known but not supported: the performance model does not cover {missing[full]}")
    return _model(full) if full in _models().names else _checkpoint(full)


@cache
def refused_models() -> dict[str, str]:
    """Models that are known, and what keeps each of them out of the catalogue."""
    refused: dict[str, str] = _models().head()["unsupported"]
    return refused


def _gpus() -> DataFile:
    return data_file("gpus.yaml", "gpus")


def _models() -> DataFile:
    return data_file("models.yaml", "models")


def plain(name: str) -> str:
    """Return a name without what people write in different ways: case, spaces, '-' and '_'."""
    return "".join(c for c in name.casefold() if c.isalnum())


def _near(name: str, names: Mapping[str, str]) -> str:
    """Return "did you mean ..." with up to three entries; "" when none is near.

    Near are, in this order: entries whose own name holds `name`, those with another name that does, and those with a name
    that is spelled like it.
    """
    wanted = plain(name)
    known = {plain(n): entry for n, entry in names.items()}
    near = [entry for entry in dict.fromkeys(names.values()) if wanted in plain(entry)] if len(wanted) > 2 else []
    near += [entry for n, entry in known.items() if len(wanted) > 2 and wanted in n]
    near += [known[n] for n in difflib.get_close_matches(wanted, known, n=6, cutoff=0.6)]
    choices = list(dict.fromkeys(near))[:3]
    return f"did you mean {' or '.join(choices)}?" if choices else ""


@cache
def _gpu_names() -> dict[str, str]:
    """Every plain name of every GPU -> its key."""
    return {plain(n): key for key in _gpus().names for n in (key, *_gpus().aliases(key))}


@cache
def _model_names() -> dict[str, str]:
    """Every lower-case name, full and short, of every model (supported or not) and checkpoint -> its full name."""
    file = _models()
    names: dict[str, str] = {}
    pairs = [(n, full) for full in file.names for n in (full, *file.aliases(full))]
    pairs += [(checkpoint, checkpoint) for full in file.names for checkpoint in file.checkpoints(full)]
    pairs += [(full, full) for full in refused_models()]
    for n, full in pairs:
        names.setdefault(n.casefold(), full)
    for n, full in pairs:
        names.setdefault(n.casefold().rpartition("/")[2], full)
    return names


@cache
def _model(full: str) -> ModelSpec:
    file = _models()
    entry = file.entry(full)
    return model_from_entry(full, entry, entry["source"], tuple(entry.get("aliases", ())))


@cache
def _checkpoint(name: str) -> ModelSpec:
    """Return a model as it was published in another weight format."""
    file = _models()
    full, weights = next((full, of[name]) for full in file.names if name in (of := file.checkpoints(full)))
    return replace(_model(full), native_weights=weights)


@cache
def _gpu(key: str) -> GpuSpec:
    entry = _gpus().entry(key)
    fitted = entry.get("constants_of") == key
    return gpu_from_entry(key, entry, FITTED if fitted else transferred(entry["transferred"], entry["within_percent"]))
