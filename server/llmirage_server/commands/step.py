"""`llmirage step`: its options. The work is done by step_report.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import MISSING
from typing import Literal

from llmirage_shared.command_line import OPTIONS, command, options
from llmirage_shared.settings import setting, switch

Pairs = tuple[tuple[int, int], ...]
_MOST_TOKENS = 10_000_000


def _pairs(form: str, least: tuple[int, int]) -> Callable[[Iterable[str]], Pairs]:
    """A function that reads texts of the form A@B, two whole numbers of at least so much. It raises ValueError."""

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


class StepSettings:
    """A deployment, and the batch of one forward pass of it."""

    model: str = setting(MISSING, OPTIONS, "A name of `llmirage catalog models`, or a config.json or YAML file.")
    gpu: str = setting(MISSING, OPTIONS, "A name of `llmirage catalog gpus`, or a YAML file.")
    engine: str = setting("vllm", OPTIONS, "vllm, sglang, trtllm, or a YAML file.")
    tp: int = setting(1, OPTIONS, "GPUs that share each layer.", aliases=("tensor_parallel_size",), least=1)
    pp: int = setting(1, OPTIONS, "Pipeline stages.", aliases=("pipeline_parallel_size",), least=1)
    dp: int = setting(1, OPTIONS, "Attention data-parallel ranks.", aliases=("data_parallel_size",), least=1)
    ep: int = setting(1, OPTIONS, "Ranks of whole experts.", aliases=("expert_parallel_size",), least=1)
    weights: str = setting(
        "auto",
        OPTIONS,
        "auto (as the model is published), bf16, fp8, fp8_block, int8, int4 (awq, gptq), mxfp4 or nvfp4.",
        metavar="FORMAT",
    )
    kv_cache_dtype: str = setting("auto", OPTIONS, "auto, bf16 or fp8.", short="kv", metavar="FORMAT")
    decode: Pairs = setting(
        (),
        OPTIONS,
        "N sequences that decode, each with so many tokens of context; may be repeated.",
        metavar="N@CONTEXT",
        read=_pairs("N@CONTEXT", (1, 1)),
    )
    prefill: Pairs = setting(
        (),
        OPTIONS,
        "A prompt chunk of new tokens after so many computed ones; may be repeated.",
        metavar="TOKENS@CONTEXT",
        read=_pairs("TOKENS@CONTEXT", (1, 0)),
    )
    speculate: int | None = setting(None, OPTIONS, "Tokens drafted for each decoding sequence.", metavar="K", least=1)
    draft_model: str | None = setting(
        None, OPTIONS, "The model that drafts.", unset="the model's own multi-token prediction layer"
    )
    max_num_seqs: int | None = setting(
        None, OPTIONS, "Most sequences at once, for the memory budget.", unset="the engine's", least=1
    )
    max_num_batched_tokens: int | None = setting(
        None, OPTIONS, "Most tokens of a step, for the memory budget.", unset="the engine's", least=1
    )
    gpu_memory_utilization: float | None = setting(
        None, OPTIONS, "Share of the GPU's memory, as the engine counts it.", metavar="SHARE", unset="the engine's"
    )
    perf_model: Literal["roofline", "silicon"] = setting(
        "roofline", OPTIONS, "The built-in roofline, or the measured tables of the extra `silicon`."
    )
    json: bool = switch(OPTIONS, "Print JSON.")


step = command(
    "step",
    "llmirage_server.commands.step_report:step",
    options(StepSettings),
    """Explain one forward pass: the time of every operation, what bounds it, and the speed of light beside it.

    \b
    llmirage step --model Qwen/Qwen3-32B --gpu h100_sxm --tp 2 --weights fp8 --kv fp8 --decode 64@4096 --prefill 2048@0

    With --dp every attention rank gets this batch. Times and amounts are those of one GPU.
    """,
)
