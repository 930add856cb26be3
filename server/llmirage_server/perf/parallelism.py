"""Splits of a model over the GPUs of an instance, and a sentence for each that does not work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from llmirage_server.perf.catalogue.gpus import GpuSpec
from llmirage_server.perf.catalogue.layers import Attention, Dense, GatedDelta, Gqa, LayerGroup, Mamba2, Mla, Moe
from llmirage_server.perf.catalogue.models import ModelSpec

_SCALE_BLOCK = 128  # weights that share a scale in fp8_block checkpoints, in each direction
NODE_GPUS = 8  # of the largest nodes
# Fields of attention that tensor parallelism divides: heads, and what several heads share, with their names.
_HEADS: Mapping[type[Attention], tuple[str, str, str, str]] = {
    Gqa: ("heads", "attention", "kv_heads", "KV heads"),
    Mla: ("heads", "attention", "", ""),
    GatedDelta: ("value_heads", "value", "key_heads", "key heads"),
    Mamba2: ("heads", "state-space", "groups", "state groups"),
}


@dataclass(frozen=True, slots=True)
class Parallelism:
    """An instance of tp * pp * dp GPUs: pp pipeline stages, each of dp attention data-parallel ranks of tp GPUs.

    The experts of a stage are spread over its tp * dp GPUs: over ep groups whole, and each expert sliced over the rest.
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.dp

    @property
    def stage_gpus(self) -> int:
        """GPUs of one pipeline stage: the group that shares the experts."""
        return self.tp * self.dp

    @property
    def moe_tp(self) -> int:
        """Slices of one expert."""
        return self.stage_gpus // self.ep

    @property
    def is_wide(self) -> bool:
        """If attention data-parallel ranks of several nodes share whole experts: wide expert parallelism.

        Nobody gathers all tokens then; vLLM and SGLang are told to use DeepEP.
        """
        return self.dp > 1 and self.ep == self.stage_gpus > NODE_GPUS

    def crosses_nodes(self, stage: int, gpu: GpuSpec) -> bool:
        """Return if the hand-over from this stage to the next leaves a domain of GPUs joined by the fast link."""
        first, last = stage * self.stage_gpus, (stage + 2) * self.stage_gpus - 1
        return first // gpu.link_gpus != last // gpu.link_gpus

    def describe(self) -> str:
        """Return the sizes above 1, as in "tp 4, ep 4"; "" on one GPU."""
        return ", ".join(f"{name} {size}" for name in ("tp", "pp", "dp", "ep") if (size := getattr(self, name)) > 1)


ONE_GPU = Parallelism()


def split_layers(model: ModelSpec, stages: int) -> list[tuple[LayerGroup, ...]]:
    """Return the layers of each pipeline stage, as groups.

    Counts are those of vLLM's `get_pp_indices`: equal, and what is left over goes to the stages before the last, one each
    from the back, since the last has lm_head. Groups that lead the model come first, the others are mixed evenly.
    """
    order = _layer_order(model.groups)
    counts = [len(order) // stages] * stages
    for i in range(len(order) % stages):
        counts[-2 - i] += 1
    result, start = [], 0
    for count in counts:
        layers = order[start : start + count]
        result.append(tuple(replace(model.groups[g], count=layers.count(g)) for g in sorted(set(layers))))
        start += count
    return result


def _layer_order(groups: tuple[LayerGroup, ...]) -> list[int]:
    """For each layer from the first to the last, the index of its group."""
    leading = [g for g, group in enumerate(groups) if group.leading for _ in range(group.count)]
    mixed = [((i + 0.5) / group.count, g) for g, group in enumerate(groups) if not group.leading for i in range(group.count)]
    return leading + [g for _, g in sorted(mixed)]


def parallelism_problems(model: ModelSpec, parallel: Parallelism, weights: str = "") -> Iterator[str]:
    """Yield what is wrong with splitting `model` so, its experts' weights in that format; nothing when it works."""
    for group in model.groups:
        yield from _attention_problems(model, group, parallel.tp)
    for width in sorted({group.mlp.width for group in model.groups if isinstance(group.mlp, Dense)}):
        if width % parallel.tp:
            yield f"tp {parallel.tp} does not divide the MLP width {width} of {model.name}"
    if parallel.pp > model.layers:
        yield f"pp {parallel.pp} is more than the {model.layers} layers of {model.name}"
    if model.moe:
        yield from _expert_problems(model, model.moe, parallel, weights)
    elif parallel.ep > 1:
        yield f"ep {parallel.ep} needs a mixture of experts, but {model.name} is dense; use ep 1"
    if parallel.dp > 1 and not model.moe:
        yield (
            f"dp {parallel.dp} needs a mixture of experts: attention data parallelism shares experts, and {model.name} is "
            f"dense; run {parallel.dp} instances instead"
        )


def _attention_problems(model: ModelSpec, group: LayerGroup, tp: int) -> Iterator[str]:
    if group.attention is None:
        return
    of_heads, kind, of_shared, name = _HEADS[type(group.attention)]
    heads, shared = getattr(group.attention, of_heads), getattr(group.attention, of_shared, 1)
    if heads % tp:
        yield f"tp {tp} does not divide the {heads} {kind} heads of {model.name}"
    elif shared % tp and tp % shared:
        yield f"tp {tp} and the {shared} {name} of {model.name} do not divide each other"


def _expert_problems(model: ModelSpec, moe: Moe, parallel: Parallelism, weights: str) -> Iterator[str]:
    ep, gpus = parallel.ep, parallel.stage_gpus
    over = f"tp {parallel.tp}" if parallel.dp == 1 else f"tp {parallel.tp} x dp {parallel.dp} = {gpus}"
    if ep > moe.experts:
        yield f"ep {ep} is more than the {moe.experts} experts of {model.name}"
    elif gpus % ep:
        more = f"; use tp {ep} ep {ep}" if parallel.dp == 1 else ""
        yield f"ep {ep} does not divide {over}: experts are spread over the GPUs of a pipeline stage{more}"
    elif moe.width % parallel.moe_tp:
        yield f"{over} with ep {ep} does not divide the expert width {moe.width} of {model.name}"
    elif weights == "fp8_block" and moe.width // parallel.moe_tp % _SCALE_BLOCK:
        yield (
            f"{over} with ep {ep} leaves {moe.width // parallel.moe_tp} columns of an expert of {model.name}, but fp8_block "
            f"scales come in blocks of {_SCALE_BLOCK}; raise ep"
        )
    if moe.shared_width % parallel.tp:
        yield f"tp {parallel.tp} does not divide the shared expert's width {moe.shared_width} of {model.name}"
