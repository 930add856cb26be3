"""The GPUs and models of the package, found by name, alias or near miss; read from YAML once, when first asked."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from llmirage_server.perf.errors import DeploymentError
from llmirage_server.perf.gpus import FITTED, Constants, GpuSpec, gpu_from_yaml, median_constants
from llmirage_server.perf.hf_config import is_config_path, model_from_config
from llmirage_server.perf.models import ModelSpec, model_from_yaml

# The C parser is ten times faster and start-up time counts; PyYAML is not always built with it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_VENDORS = ("nvidia", "amd", "google")  # drivers put them before the name, people do not


def list_gpus() -> list[GpuSpec]:
    """Return every GPU of the catalogue, those with constants of their own first."""
    return [_gpu(key) for key in _gpu_data()["gpus"]]


def list_models() -> list[ModelSpec]:
    """Return every model of the catalogue."""
    return [_model(name) for name in _model_data()["models"]]


def find_gpu(name: str) -> GpuSpec:
    """Return the GPU of that name or alias; case, spaces, '-' and '_' do not matter. Raises DeploymentError."""
    keys = _gpu_names()
    plain = _plain(name)
    key = keys.get(plain) or next(
        (keys.get(plain.removeprefix(vendor)) for vendor in _VENDORS if plain.startswith(vendor)), None
    )
    if key is None:
        raise DeploymentError([f"unknown GPU {name!r}; {_near(_plain(name), keys) or _choices(_gpu_data()['gpus'])}"])
    return _gpu(key)


def find_model(name: str) -> ModelSpec:
    """Return the model of that name, with or without its organisation, in any case, or that of a config.json on disk.

    Raises DeploymentError.
    """
    if is_config_path(name):
        return model_from_config(name)
    names = _model_names()
    full = names.get(name.strip().casefold())
    if full is None:
        hint = _near(name.strip().casefold(), names) or _choices(_model_data()["models"])
        raise DeploymentError([f"unknown model {name!r}; {hint}"])
    if full in (missing := _model_data()["unsupported"]):
        raise DeploymentError([f"{full} is known but not supported: the performance model does not cover {missing[full]}"])
    return _model(full)


def _plain(name: str) -> str:
    return "".join(c for c in name.casefold() if c.isalnum())


def _near(name: str, names: dict[str, str]) -> str:
    """ "did you mean ..." with up to three entries that contain `name` or are spelled like it; "" when there is none."""
    near = [n for n in names if len(name) > 2 and name in n] + difflib.get_close_matches(name, names, n=6, cutoff=0.6)
    choices = list(dict.fromkeys(names[n] for n in near))[:3]
    return f"did you mean {' or '.join(choices)}?" if choices else ""


def _choices(names: Iterable[str]) -> str:
    return f"choices: {', '.join(names)}"


def _read(file: str) -> dict[str, Any]:
    text = Path(__file__).with_name("data").joinpath(file).read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.load(text, Loader=_Loader)
    return data


@cache
def _gpu_data() -> dict[str, Any]:
    return _read("gpus.yaml")


@cache
def _model_data() -> dict[str, Any]:
    return _read("models.yaml")


@cache
def _gpu_names() -> dict[str, str]:
    """Every plain name of every GPU -> its key."""
    return {_plain(n): key for key, e in _gpu_data()["gpus"].items() for n in (key, e["name"], *e.get("aliases", ()))}


@cache
def _model_names() -> dict[str, str]:
    """Every lower-case name, full and short, of every model (supported or not) -> its full name."""
    data = _model_data()
    entries: Iterable[tuple[str, tuple[str, ...]]] = (
        *((full, tuple(e.get("aliases", ()))) for full, e in data["models"].items()),
        *((full, ()) for full in data["unsupported"]),
    )
    names: dict[str, str] = {}
    for full, aliases in entries:
        for n in (full, *aliases):
            names.setdefault(n.casefold(), full)
            names.setdefault(n.casefold().rpartition("/")[2], full)
    return names


@cache
def _model(full: str) -> ModelSpec:
    return model_from_yaml(full, _model_data()["models"][full])


@cache
def _gpu(key: str) -> GpuSpec:
    data = _gpu_data()
    entry = data["gpus"][key]
    measured = data["constants_source"].strip()
    if "constants" in entry:
        return gpu_from_yaml(key, entry, Constants(*entry["constants"]), FITTED, measured)
    confidence = f"transferred: {entry['transferred']}"
    if "constants_of" in entry:
        twin = _gpu(entry["constants_of"])
        constants = twin.constants if twin.link_kind == entry["link"] else _with_link(twin.constants, entry["link"])
        return gpu_from_yaml(key, entry, constants, confidence, f"those of {twin.name}: {measured}")
    return gpu_from_yaml(
        key, entry, _transferred(entry["link"]), confidence, f"medians over GPUs whose constants were {measured}"
    )


def _transferred(link: str) -> Constants:
    """Constants for a GPU without measurements: medians over the fitted GPUs, all of them for a PCIe card, those of data
    centres (NVLink) for others; what describes the link comes from the GPUs with the same kind of link."""
    if link == "pcie":
        return _with_link(median_constants([c for _, c in _fitted()]), link)
    return median_constants([c for kind, c in _fitted() if kind != "pcie"])


def _with_link(constants: Constants, link: str) -> Constants:
    """The same constants, but those of the link taken from the fitted GPUs with this kind of link."""
    same = median_constants([c for kind, c in _fitted() if kind == link])
    return replace(constants, link=same.link, allreduce_floor_us=same.allreduce_floor_us)


def _fitted() -> list[tuple[str, Constants]]:
    """Kind of link and constants of each GPU with measurements."""
    return [(e["link"], Constants(*e["constants"])) for e in _gpu_data()["gpus"].values() if "constants" in e]
