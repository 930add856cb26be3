"""What can be wrong with a deployment before any arithmetic: names, numbers, formats that the hardware lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from llmirage_server.perf.catalogue.gpus import GpuSpec
from llmirage_server.perf.catalogue.lookup import find_model
from llmirage_server.perf.catalogue.models import ModelSpec
from llmirage_server.perf.engines.engine import Engine
from llmirage_server.perf.errors import DeploymentError
from llmirage_server.perf.speculation import Speculative

_Spec = TypeVar("_Spec")


def look_up(find: Callable[[str], _Spec], setting: str, name: str, problems: list[str]) -> _Spec | None:
    """What `find` finds, or None with its problems added to the list. setting: which one has the name."""
    try:
        return find(name)
    except DeploymentError as error:
        problems.extend(f"{setting}: {problem}" for problem in error.problems)
        return None


def find_draft(speculative: Speculative | None, model: ModelSpec | None, problems: list[str]) -> ModelSpec | None:
    """The draft model or head; None where the model drafts for itself, or nothing on the GPUs does."""
    if speculative is None:
        return None
    if speculative.method == "draft_model":
        if speculative.draft_model is None:
            problems.append("speculation with a draft model needs its name")
            return None
        return look_up(find_model, "draft_model", speculative.draft_model, problems)
    if speculative.method == "eagle3":
        return model.eagle3_head if model is not None else None
    if speculative.method == "ngram":
        return None
    if model is not None and not model.mtp_layers:
        problems.append(f"{model.name} has no multi-token prediction layer to draft with; name a draft model")
    return None


def number_problems(**numbers: int | None) -> Iterator[str]:
    """A sentence for each that is given and below 1."""
    for name, value in numbers.items():
        if value is not None and value < 1:
            yield f"{name} is {value}, but must be at least 1"


def hardware_problems(gpu: GpuSpec, engine: Engine, weights: str, kv_dtype: str) -> Iterator[str]:
    """What the GPU cannot run, as far as it is known."""
    if gpu.vendor != "nvidia" and engine.base == "trtllm":
        yield f"{engine.title} runs on NVIDIA GPUs only, not on {gpu.name}; choices: vllm, sglang"
    if gpu.vendor != "nvidia" and weights == "nvfp4":
        yield f"{gpu.name} has no kernels for nvfp4 weights, a format of NVIDIA's; choices: mxfp4, fp8, int4, bf16"
    if kv_dtype == "fp8" and "fp8" not in gpu.rates:
        yield f"{gpu.name} has no fp8 arithmetic for an fp8 KV cache; choices: bf16"


def moe_backend_problems(backend: str, weights: str, engine: Engine | None, gpu: GpuSpec | None) -> Iterator[str]:
    """Kernels of experts that nobody measured beside the default, or that the GPU cannot run."""
    base = engine.base if engine else ""
    if backend == "marlin":
        fp4 = gpu is not None and gpu.has_fp4
        if engine and (base != "vllm" or not (weights == "mxfp4" or (weights == "nvfp4" and not fp4))):
            yield (
                "moe_backend marlin: measured beside other kernels only under vLLM, for experts in mxfp4, "
                "and in nvfp4 where the GPU does not multiply it"
            )
    elif backend != "auto":
        if engine and (base, weights) != ("trtllm", "nvfp4"):
            yield f"moe_backend {backend}: measured beside other kernels only under TensorRT-LLM, for experts in nvfp4"
        elif backend == "trtllm" and gpu is not None and (gpu.link != "nvlink" or not gpu.has_fp4):
            yield f"moe_backend trtllm: TensorRT-LLM's own kernels of experts are for B200 and its kin, not for {gpu.name}"
