"""A model from its entry in a YAML file: the catalogue's, or the user's own file of layer groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from llmirage_server.perf.catalogue.dtypes import WEIGHT_DTYPES
from llmirage_server.perf.catalogue.layers import (
    Attention,
    Dense,
    GatedDelta,
    Gqa,
    LayerGroup,
    Mamba2,
    Mla,
    Mlp,
    Moe,
    SparseIndex,
)
from llmirage_server.perf.catalogue.models import ModelSpec, model_confidence
from llmirage_server.perf.catalogue.yaml_files import Key, Line, natural, one_of, read_own, text, truth, whole
from llmirage_server.perf.errors import DeploymentError

ATTENTION: dict[str, type[Attention]] = {"gqa": Gqa, "mla": Mla, "gated_delta": GatedDelta, "mamba2": Mamba2}
MLP: dict[str, type[Mlp]] = {"dense": Dense, "moe": Moe}

_FIELDS = (
    "hidden", "vocab", "max_model_len", "tied_embeddings", "native_weights", "mtp_layers", "vision_weights", "hears",
    "notes",
)  # fmt: skip


def model_from_entry(name: str, entry: Mapping[str, Any], source: str, aliases: tuple[str, ...] = ()) -> ModelSpec:
    """Build a spec from an entry whose keys data/models.yaml explains, and which has been checked."""
    groups = tuple(_group(group) for group in entry["groups"])
    return ModelSpec(
        name=name,
        groups=groups,
        source=source,
        aliases=aliases,
        confidence=model_confidence(groups, entry["hidden"]),
        **{key: entry[key] for key in _FIELDS if key in entry},
    )


def _group(entry: Mapping[str, Any]) -> LayerGroup:
    attention: Attention | None = None
    mlp: Mlp | None = None
    for key, sizes in entry.items():
        if key in ATTENTION:
            index = {"index": SparseIndex(**sizes["index"])} if "index" in sizes else {}
            attention = ATTENTION[key](**{**sizes, **index})
        elif key in MLP:
            mlp = MLP[key](**sizes)
    return LayerGroup(entry["count"], attention, mlp, entry.get("leading", False))


def _block(block: type[Any]) -> Key:
    """Return the keys of a block: the fields of its class, of which those without a default are needed."""
    return Key(keys={field.name: _field(field) for field in fields(block)})


def _field(field: Field[Any]) -> Key:
    if field.name == "index":
        return Key(keys=_INDEX)
    if field.type == "bool":
        return Key(truth)
    may_be_none = field.name == "q_rank" or field.default == 0
    return Key(natural if may_be_none else whole, required=field.default is MISSING)


_INDEX = {"heads": Key(natural, required=True), "head_dim": Key(whole, required=True), "top_k": Key(whole, required=True)}
GROUP_KEYS: dict[str, Key] = {
    "count": Key(whole, required=True),
    "leading": Key(truth),
    **{kind: _block(block) for kind, block in (ATTENTION | MLP).items()},
}
MODEL_KEYS: dict[str, Key] = {
    "name": Key(text),
    "hidden": Key(whole, required=True),
    "vocab": Key(whole, required=True),
    "max_model_len": Key(whole, required=True),
    "groups": Key(items=GROUP_KEYS, required=True),
    "tied_embeddings": Key(truth),
    "native_weights": Key(one_of(*WEIGHT_DTYPES)),
    "mtp_layers": Key(natural),
    "vision_weights": Key(natural),
    "hears": Key(truth),
    "notes": Key(text),
    "source": Key(text),
}


def model_from_file(path: str) -> ModelSpec:
    """Read a model file, whose keys are those of MODEL_KEYS.

    Raises DeploymentError with every problem, each with file, line and key.
    """
    about = "a model file is a list of `key: value` lines, such as `hidden: 4096`"
    entry, lines = read_own(path, MODEL_KEYS, about)
    problems: list[str] = []
    for i, group in enumerate(entry["groups"]):
        problems += [f"{lines[way]}: {problem}" for way, problem in _group_problems(i, group)]
    if problems:
        raise DeploymentError(problems)
    return model_from_entry(entry.get("name", Path(path).stem), entry, entry.get("source", path))


def _group_problems(i: int, group: dict[str, Any]) -> list[tuple[Line, str]]:
    found: list[tuple[Line, str]] = []
    here = f"groups[{i}]"
    attention, mlp = [kind for kind in group if kind in ATTENTION], [kind for kind in group if kind in MLP]
    for kinds, among in ((attention, ATTENTION), (mlp, MLP)):
        if len(kinds) > 1:
            found.append((("groups", i), f"{here}: has {' and '.join(kinds)}, but may have one of {', '.join(among)}"))
    if not attention and not mlp:
        found.append((("groups", i), f"{here}: needs one of {', '.join([*ATTENTION, *MLP])}"))
    gqa, moe = group.get("gqa"), group.get("moe")
    if gqa and gqa["heads"] % gqa["kv_heads"]:
        problem = f"{here}.gqa.kv_heads: {gqa['kv_heads']} does not divide the {gqa['heads']} heads"
        found.append((("groups", i, "gqa", "kv_heads"), problem))
    if moe and moe["per_token"] > moe["experts"]:
        problem = f"{here}.moe.per_token: {moe['per_token']} is more than the {moe['experts']} experts"
        found.append((("groups", i, "moe", "per_token"), problem))
    return found
