"""A model: the shape of its layers, its weights, KV bytes and formats, how far it was measured; files of the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from llmirage_server.perf import DeploymentError
from llmirage_server.perf.catalogue.dtypes import BF16, WEIGHT_DTYPES, WeightDtype
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
from llmirage_server.perf.catalogue.yaml_files import Key, Line, natural, one_of, read_own, text, truth, whole


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only language model: groups of equal layers between an embedding table and lm_head."""

    name: str  # full Hugging Face name
    hidden: int
    vocab: int
    max_model_len: int  # tokens: the architecture's own context length
    groups: tuple[LayerGroup, ...]
    source: str
    tied_embeddings: bool = False  # lm_head is the embedding table
    native_weights: str = "bf16"  # format of the published checkpoint
    mtp_layers: int = 0  # multi-token prediction layers that the checkpoint brings along
    vision_weights: int = 0  # of an encoder of images that engines load beside the language model; it takes no time
    hears: bool = False  # takes sounds as input; their encoder takes neither time nor memory
    aliases: tuple[str, ...] = ()
    confidence: str = ""
    notes: str = ""

    @property
    def layers(self) -> int:
        return sum(group.count for group in self.groups)

    @property
    def linear_layers(self) -> int:
        """Layers that keep a recurrent state instead of a KV cache."""
        return sum(group.count for group in self.groups if group.attention and group.attention.state_bytes())

    @property
    def moe(self) -> Moe | None:
        """The mixture of experts, None in a dense model."""
        return next((group.mlp for group in self.groups if isinstance(group.mlp, Moe)), None)

    @property
    def experts(self) -> int:
        """Routed experts of an MoE layer; 0: a dense model."""
        return self.moe.experts if self.moe else 0

    @property
    def has_mla(self) -> bool:
        return any(isinstance(group.attention, Mla) for group in self.groups)

    @property
    def embedding_weights(self) -> int:
        """Weights of the embedding table; lm_head has as many unless it is tied."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All weights of the model, without multi-token prediction layers."""
        return self._parameters(active=False)

    @property
    def active_parameters(self) -> int:
        """The weights one token meets; the embedding table, read one row a token, counts as model cards count it."""
        return self._parameters(active=True)

    def _parameters(self, active: bool) -> int:
        layers = sum(group.count * layer_weights(group, self.hidden, active) for group in self.groups)
        return layers + self.embedding_weights * (1 if self.tied_embeddings else 2) + self.hidden

    @property
    def draft(self) -> ModelSpec:
        """The model's own multi-token prediction layer as a model: like its last kind of layer."""
        last = next(group for group in reversed(self.groups) if not group.leading or len(self.groups) == 1)
        return replace(self, groups=(LayerGroup(1, last.attention, last.mlp),), mtp_layers=0)

    @property
    def eagle3_head(self) -> ModelSpec:
        """An EAGLE-3 head for the model: one dense layer of its width, and a vocabulary of 32,000 tokens.

        As published ones are: attention like the model's, or heads of 128 where that is latent; an MLP like the model's
        dense ones, or else 6 times as wide as the hidden state (nvidia/gpt-oss-120b-Eagle3).
        """
        kinds = [group.attention for group in self.groups if group.attention is not None]
        whole = [kind for kind in kinds if isinstance(kind, Mla) or (isinstance(kind, Gqa) and not kind.window)]
        main = (whole or kinds or [None])[0]
        shape = (main.heads, main.kv_heads, main.head_dim) if isinstance(main, Gqa) else (self.hidden // 128, 8, 128)
        dense = next((group.mlp for group in self.groups if isinstance(group.mlp, Dense)), Dense(6 * self.hidden))
        name, groups = f"EAGLE-3 head of {self.name}", (LayerGroup(1, Gqa(*shape), dense),)
        return replace(self, name=name, groups=groups, vocab=32_000, tied_embeddings=False, mtp_layers=0)

    @property
    def forgetful(self) -> tuple[LayerGroup, ...]:
        """Groups that keep a window of the context.

        Where every group slides none counts: what an instance holds is told in tokens, which would mean nothing.
        """
        kept = any(group.attention.cache_bytes(1) for group in self.groups if group.attention and not _window(group))
        return tuple(group for group in self.groups if _window(group)) if kept else ()

    def kv_bytes_per_token(self, kv_dtype_bytes: int, tp: int = 1, whole_windows: bool = False) -> int:
        """KV cache bytes of one token on one of `tp` ranks, in all layers that keep the whole context.

        whole_windows: those of sliding windows do, too.
        """
        forgetful = () if whole_windows else self.forgetful
        return sum(cache_bytes(group, kv_dtype_bytes, tp) for group in self.groups if group not in forgetful)

    def window_bytes_per_sequence(self, kv_dtype_bytes: int, tp: int = 1) -> int:
        """KV cache bytes on one of `tp` ranks that a sequence longer than every window holds in the sliding layers."""
        return sum(cache_bytes(group, kv_dtype_bytes, tp) * _window(group) for group in self.forgetful)

    def state_bytes_per_sequence(self, tp: int = 1) -> int:
        """Bytes on one of `tp` ranks that a sequence holds in linear-attention and state-space layers."""
        return sum(group.count * group.attention.state_bytes(tp) for group in self.groups if group.attention)


def layer_weights(group: LayerGroup, hidden: int, active: bool = False) -> int:
    """All weights of one layer of a group, or those that one token meets."""
    total = 0
    if group.attention is not None:
        total += group.attention.weights(hidden) + group.attention.small_weights(hidden) + hidden
    if isinstance(group.mlp, Dense):
        total += group.mlp.weights(hidden) + hidden
    elif isinstance(group.mlp, Moe):
        experts = group.mlp.per_token if active else group.mlp.experts
        total += experts * group.mlp.expert_weights(hidden) + group.mlp.shared_weights(hidden)
        total += group.mlp.router_weights(hidden) + hidden
    return total


def cache_bytes(group: LayerGroup, kv_dtype_bytes: int, tp: int = 1) -> int:
    """KV cache bytes of one token in all layers of a group on one rank."""
    return group.count * group.attention.cache_bytes(kv_dtype_bytes, tp) if group.attention else 0


def _window(group: LayerGroup) -> int:
    return group.attention.window if isinstance(group.attention, Gqa) else 0


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
        return Formats(BF16, BF16, weights)
    if weights.name == "nvfp4" and model.has_mla:
        return Formats(BF16, weights, weights)
    return Formats(weights, weights, weights)


FITTED_MODEL = "fitted: all of its kernels were measured, in these shapes or between them"

# Mixtures among the measured kernels: hidden size, width, experts per token, experts (aiconfigurator-core 0.12.0).
_MEASURED_MOE = frozenset({
    (2048, 512, 8, 256), (2048, 768, 8, 128), (2880, 2880, 4, 32), (2880, 2880, 4, 128), (3072, 1536, 8, 256),
    (4096, 1536, 8, 128), (4096, 14336, 2, 8), (5120, 8192, 1, 128), (6144, 2560, 8, 160), (7168, 2048, 8, 256),
    (7168, 2048, 8, 384),
})  # fmt: skip
_MEASURED_HEADS = (64, 128)
_MEASURED_WINDOWS = (0, 128)  # tokens


def model_confidence(groups: tuple[LayerGroup, ...], hidden: int) -> str:
    """Return FITTED_MODEL, or "transferred: " and what was not measured."""
    reasons: dict[str, None] = {}
    for group in groups:
        attention, mlp = group.attention, group.mlp
        if isinstance(attention, Mamba2):
            reasons["no state space layer was measured"] = None
        if isinstance(attention, Gqa | Mla) and attention.index:
            reasons["no sparse attention was measured"] = None
        if isinstance(attention, Gqa) and attention.head_dim not in _MEASURED_HEADS:
            reasons[f"attention heads of {attention.head_dim} were not measured"] = None
        if isinstance(attention, Gqa) and attention.window not in _MEASURED_WINDOWS:
            reasons[f"windows of {attention.window:,} tokens were not measured"] = None
        if isinstance(mlp, Moe) and (mlp.latent or hidden, mlp.width, mlp.per_token, mlp.experts) not in _MEASURED_MOE:
            reasons["experts of this shape were not measured (20 to 40 % on held-out shapes)"] = None
    return f"transferred: {'; '.join(reasons)}" if reasons else FITTED_MODEL


# --- entries and files ---------------------------------------------------------------------------------------------------

ATTENTION: dict[str, type[Attention]] = {"gqa": Gqa, "mla": Mla, "gated_delta": GatedDelta, "mamba2": Mamba2}
MLP: dict[str, type[Mlp]] = {"dense": Dense, "moe": Moe}


def model_from_entry(name: str, entry: Mapping[str, Any], source: str, aliases: tuple[str, ...] = ()) -> ModelSpec:
    """Build a spec from an entry whose keys data/models.yaml explains, and which has been checked."""
    groups = tuple(_group(group) for group in entry["groups"])
    return ModelSpec(
        name=name,
        groups=groups,
        source=source,
        aliases=aliases,
        confidence=model_confidence(groups, entry["hidden"]),
        **{key: entry[key] for key in MODEL_KEYS if key in entry and key not in ("name", "groups", "source")},
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
