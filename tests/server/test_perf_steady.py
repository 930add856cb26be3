"""Step times from sums against those of single contexts: equal to the last bit, for every model and GPU they serve."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmirage_server.perf.deployment import Deployment
from llmirage_server.perf.step_model import StepBatch

MODELS: list[tuple[str, str, dict[str, Any]]] = [
    ("meta-llama/Llama-3.1-8B", "h100_sxm", {}),
    ("meta-llama/Llama-3.1-8B", "l40s", {"engine": "sglang"}),
    ("meta-llama/Llama-3.1-70B", "h100_sxm", {"tp": 4, "weights": "fp8"}),
    ("Qwen/Qwen3-30B-A3B", "h100_sxm", {"engine": "trtllm"}),
    ("deepseek-ai/DeepSeek-V3", "b200_sxm", {"tp": 8, "kv_cache_dtype": "fp8"}),
    ("Qwen/Qwen3-Next-80B-A3B-Instruct", "h200_sxm", {"tp": 2}),
]


@cache
def roofline(model: str, gpu: str, options: tuple[tuple[str, Any], ...]) -> Any:
    return Deployment.create(model, gpu, **dict(options)).step_model()


def models() -> Iterator[Any]:
    for model, gpu, options in MODELS:
        yield pytest.param(model, gpu, tuple(options.items()), id=f"{model.split('/')[1]}-{gpu}")


def one_by_one(model: Any, contexts: list[int], start_s: float, steps: int) -> list[float]:
    ends, now = [], start_s
    for step in range(steps):
        now += model.stages_s([StepBatch([], [context + step for context in contexts])])[0]
        ends.append(now)
    return ends


@pytest.mark.parametrize(("model", "gpu", "options"), list(models()))
@settings(max_examples=25, deadline=None)
@given(
    contexts=st.lists(st.integers(1, 60_000), min_size=1, max_size=30),
    start_s=st.floats(0, 1e4),
    steps=st.integers(1, 130),
    share=st.floats(0, 1.2),
    chunks=st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 5000)), max_size=3),
)
def test_sums_are_enough(
    model: str,
    gpu: str,
    options: tuple[tuple[str, Any], ...],
    contexts: list[int],
    start_s: float,
    steps: int,
    share: float,
    chunks: list[tuple[int, int]],
) -> None:
    step_model = roofline(model, gpu, options)
    steady, size, total, longest = step_model.steady, len(contexts), sum(contexts), max(contexts)
    assert steady is not None
    wanted = one_by_one(step_model, contexts, start_s, steps)
    found: list[float] = []
    steady.run(found, size, total, longest, start_s, steps, math.inf)
    assert found == wanted
    until_s = start_s + share * (wanted[-1] - start_s)
    cut: list[float] = []
    steady.run(cut, size, total, longest, start_s, steps, until_s)
    needed = next((place for place, end_s in enumerate(wanted) if end_s >= until_s), steps - 1)
    assert cut == wanted[: needed + 1]
    if chunks:
        assert steady.step_s(chunks, size, total, longest) == step_model.stages_s([StepBatch(chunks, contexts)])[0]
        assert steady.step_s(chunks, 0, 0, 0) == step_model.stages_s([StepBatch(chunks, [])])[0]


def test_what_sums_do_not_tell_has_none() -> None:
    assert roofline("openai/gpt-oss-20b", "h100_sxm", ()).steady is None  # sliding windows
    assert roofline("meta-llama/Llama-3.1-8B", "h100_sxm", (("pp", 2),)).steady is None


@pytest.mark.parametrize(("model", "gpu", "options"), list(models()))
def test_steps_only_get_longer(model: str, gpu: str, options: tuple[tuple[str, Any], ...]) -> None:
    """What lets a simulation say how early a run of steps can end."""
    steady = roofline(model, gpu, options).steady
    for decodes in (1, 7, 64, 256):
        ends = [0.0]
        steady.run(ends, decodes, 300 * decodes, 500, 0.0, 3000, math.inf)
        gaps = [after - before for before, after in pairwise(ends)]
        assert all(after >= before * (1 - 1e-9) for before, after in pairwise(gaps))
