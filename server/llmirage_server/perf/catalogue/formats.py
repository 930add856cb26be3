"""Which parts of a model a quantised checkpoint stores in which format."""

from __future__ import annotations

from typing import NamedTuple

from llmirage_server.perf.catalogue.dtypes import WEIGHT_DTYPES, WeightDtype
from llmirage_server.perf.catalogue.models import ModelSpec

_BF16 = WEIGHT_DTYPES["bf16"]


class Formats(NamedTuple):
    """Formats of the matrices; lm_head, embeddings, routers and norms are bf16 in all of them."""

    attention: WeightDtype  # projections of attention, or of what stands in its place
    mlp: WeightDtype  # dense MLPs and shared experts
    experts: WeightDtype  # routed experts


def formats_of(model: ModelSpec, weights: WeightDtype) -> Formats:
    """Return what published checkpoints of such a model do with a format.

    gpt-oss stores routed experts alone in mxfp4, Kimi-K2-Thinking (latent attention) in int4; nvfp4 checkpoints of DeepSeek
    leave attention in bf16 (nvidia/DeepSeek-R1-FP4, 394 GB, hf_quant_config.json). Elsewhere every matrix is quantised.
    """
    if model.experts and (weights.experts_only or (weights.name == "int4" and model.has_mla)):
        return Formats(_BF16, _BF16, weights)
    if weights.name == "nvfp4" and model.has_mla:
        return Formats(_BF16, weights, weights)
    return Formats(weights, weights, weights)
