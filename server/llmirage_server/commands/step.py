"""`llmirage step`: its options. The work is done by step_report.py."""

# ruff: noqa: RUF009  what `under` makes is dataclasses.field with a fixed form of metadata

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass
from typing import Literal

from llmirage_shared.command_line import OPTIONS, command, json_option, options
from llmirage_shared.settings import at_call, under

Pairs = tuple[tuple[int, int], ...]
_MOST_TOKENS = 10_000_000
_option = under(OPTIONS)


def _pairs(form: str, least: tuple[int, int]) -> Callable[[Iterable[str]], Pairs]:
    """Return a function that reads texts of the form A@B, whole numbers of at least these. It raises ValueError."""

    def read(text: str) -> tuple[int, int]:
        found = re.fullmatch(r"(\d+)@(\d+)", text.strip().replace("_", "").replace(",", ""))
        if found is None:
            raise ValueError(f"{text!r} is not of the form {form}, two whole numbers")
        first, second = int(found[1]), int(found[2])
        for number, smallest in zip((first, second), least, strict=True):
            if not smallest <= number <= _MOST_TOKENS:
                raise ValueError(f"{text!r}: {number:,} is not between {smallest} and {_MOST_TOKENS:,}")
        return first, second

    return lambda texts: tuple(read(text) for text in texts)


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """Settings of a deployment, and the batch of one forward pass of it."""

    model: str = _option(
        MISSING,
        "Model: a name from `llmirage catalog models`, a YAML file, or a Hugging Face config.json.",
        names=at_call("llmirage_server.perf.engines.lookup:model_names"),
    )
    gpu: str | None = _option(
        None,
        "GPU: a name from `llmirage catalog gpus`, or a YAML file.",
        unset="h100_sxm",
        names=at_call("llmirage_server.perf.engines.lookup:gpu_names"),
    )
    engine: str | None = _option(
        None,
        "Serving engine: vllm, sglang, trtllm, an older version (vllm@0.12), or a YAML file.",
        unset="vllm",
        names=at_call("llmirage_server.perf.engines.lookup:engine_names"),
    )
    tp: int | None = _option(
        None,
        "Tensor parallelism: GPUs that share each layer.",
        aliases=("tensor_parallel_size",),
        unset="1",
        least=1,
    )
    pp: int = _option(
        1,
        "Pipeline parallelism: stages that the layers are split into.",
        aliases=("pipeline_parallel_size",),
        least=1,
    )
    dp: int = _option(
        1, "Attention data parallelism: ranks, each with the given batch.", aliases=("data_parallel_size",), least=1
    )
    ep: int = _option(
        1,
        "Expert parallelism: ranks over which whole experts are distributed.",
        aliases=("expert_parallel_size",),
        least=1,
    )
    weights: str | None = _option(
        None,
        "Weight format: auto (as the model is published), bf16, fp8, fp8_block, int8, int4 (awq, gptq), mxfp4 or nvfp4.",
        metavar="FORMAT",
        unset="auto",
    )
    moe_backend: Literal["auto", "marlin", "cutlass", "trtllm"] | None = _option(
        None, "Kernels of experts, where several were measured, as in `llmirage catalog settings`.", unset="auto"
    )
    kv_cache_dtype: str = _option(
        "auto",
        "KV cache format: auto (bf16; TensorRT-LLM: fp8 with fp8 or nvfp4 weights), bf16 or fp8.",
        short="kv",
        metavar="FORMAT",
    )
    decode: Pairs = _option(
        (),
        "N decoding sequences, each with CONTEXT tokens of context; may be repeated.",
        metavar="N@CONTEXT",
        read=_pairs("N@CONTEXT", (1, 1)),
    )
    prefill: Pairs = _option(
        (),
        "A prompt chunk of TOKENS new tokens after CONTEXT computed ones; may be repeated.",
        metavar="TOKENS@CONTEXT",
        read=_pairs("TOKENS@CONTEXT", (1, 0)),
    )
    peer_to_peer: bool | None = _option(
        None,
        "Whether GPUs copy to each other directly, or through the host's memory.",
        unset="as the catalogue has the GPU",
    )
    num_speculative_tokens: int | None = _option(
        None,
        "Draft tokens per decoding sequence.",
        hidden=("speculate", "speculative_num_steps", "max_draft_len"),
        least=1,
    )
    draft_model: str | None = _option(None, "The draft model.", unset="the model's own multi-token prediction layer")
    max_num_seqs: int | None = _option(
        None, "Most sequences running at once; sizes the memory budget.", unset="the engine's", least=1
    )
    max_num_batched_tokens: int | None = _option(
        None, "Most tokens of a step; sizes the memory budget.", unset="the engine's", least=1
    )
    gpu_memory_utilization: float | None = _option(
        None,
        "Share of GPU memory that may be used, by the engine's own definition.",
        metavar="SHARE",
        unset="the engine's",
    )
    perf_model: Literal["roofline", "silicon"] = _option(
        "roofline", "Source of step times: the built-in roofline model, or measured tables (extra `silicon`)."
    )


_ELSEWHERE = {
    "--batch": "use --decode N@CONTEXT",
    "--batch-size": "use --decode N@CONTEXT",
    "--context": "use --decode N@CONTEXT",
    "--context-length": "use --decode N@CONTEXT",
    "--input-len": "use --prefill TOKENS@CONTEXT",
    "--isl": "use --prefill TOKENS@CONTEXT",
    "--quantization": "use --weights FORMAT",
}

step = command(
    "step",
    "llmirage_server.commands.step_report:step",
    [*options(StepSettings), json_option("Print JSON.")],
    """Show the time of every operation of one forward pass, what bounds it, and the roofline limit.

    Times and amounts are those of one GPU. With --dp every attention rank has this batch.
    """,
    elsewhere=_ELSEWHERE,
    examples=(
        "llmirage step --model Qwen/Qwen3-32B --tp 2 --weights fp8 --decode 64@4096 --prefill 2048@0",
        "llmirage step --model Qwen/Qwen3-32B --gpu h200_sxm --decode 256@8192 --json",
    ),
)
