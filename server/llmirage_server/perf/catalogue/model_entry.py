"""A model from its entry in a YAML file: the catalogue's or the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
from llmirage_server.perf.catalogue.models import ModelSpec
from llmirage_server.perf.confidence import model_confidence

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
