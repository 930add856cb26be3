"""Which splits of a model over GPUs work, and a sentence for each that does not."""

from __future__ import annotations

from llmirage_server.perf.gpus import GpuSpec
from llmirage_server.perf.models import ModelSpec


def parallelism_problems(model: ModelSpec, gpu: GpuSpec, tp: int, ep: int) -> list[str]:
    """Return what is wrong with running `model` on `tp` GPUs, experts over `ep` of them; empty when it works."""
    problems = []
    if model.heads % tp:
        problems.append(f"tp {tp} does not divide the {model.heads} attention heads of {model.name}")
    elif model.kv_heads % tp and tp % model.kv_heads:
        problems.append(f"tp {tp} and the {model.kv_heads} KV heads of {model.name} do not divide each other")
    if model.dense and model.dense.width % tp:
        problems.append(f"tp {tp} does not divide the MLP width {model.dense.width} of {model.name}")
    if tp > gpu.link_gpus:
        problems.append(
            f"tp {tp} is more than the {gpu.link_gpus} {gpu.name} that one {gpu.link_kind} domain joins; "
            "run more instances instead"
        )
    if ep > 1 and not model.experts:
        problems.append(f"ep {ep} needs a mixture of experts, but {model.name} is dense; use ep 1")
    elif ep > 1 and model.experts % ep:
        problems.append(f"ep {ep} does not divide the {model.experts} experts of {model.name}")
    elif ep > 1 and tp % ep:
        problems.append(
            f"ep {ep} does not divide tp {tp}: experts are spread over the tensor-parallel GPUs of an instance; "
            f"use tp {ep} ep {ep}"
        )
    elif model.moe and model.moe.width * ep % tp:
        problems.append(f"tp {tp} with ep {ep} does not divide the expert width {model.moe.width} of {model.name}")
    return problems
