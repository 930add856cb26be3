"""A model of the user's own, from a YAML file of layer groups."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from llmirage_server.perf.catalogue.dtypes import WEIGHT_DTYPES
from llmirage_server.perf.catalogue.model_entry import ATTENTION, MLP, model_from_entry
from llmirage_server.perf.catalogue.models import ModelSpec
from llmirage_server.perf.catalogue.own_yaml import Key, Line, natural, one_of, read_own, text, truth, whole
from llmirage_server.perf.errors import DeploymentError


def _block(block: type[Any]) -> Key:
    """The keys of a block are the fields of its class; those without a default are needed."""
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
    """Read a model file, whose keys are those of MODEL_KEYS. Raises DeploymentError with every problem, each with file, line
    and key."""
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
