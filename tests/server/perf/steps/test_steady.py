"""Step times from sums against those of single contexts: equal to the last bit, for every model and GPU they serve."""

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_server.perf.catalogue.dtypes import WEIGHT_DTYPES
from llmirage_server.perf.catalogue.lookup import find_gpu, find_model
from llmirage_server.perf.deployment import Deployment
from llmirage_server.perf.engines.lookup import find_engine
from llmirage_server.perf.steps import stage
from llmirage_server.perf.steps.stage import decode_arguments, decode_load_of
from llmirage_server.perf.steps.step import RooflineStep
from llmirage_server.perf.steps.step_model import StepBatch

MODELS: list[tuple[str, str, dict[str, Any]]] = [
    ("meta-llama/Llama-3.1-8B", "h100_sxm", {}),
    ("meta-llama/Llama-3.1-8B", "l40s", {"engine": "sglang"}),
    ("meta-llama/Llama-3.1-70B", "h100_sxm", {"tp": 4, "weights": "fp8"}),
    ("Qwen/Qwen3-30B-A3B", "h100_sxm", {"engine": "trtllm"}),
    ("deepseek-ai/DeepSeek-V3", "b200_sxm", {"tp": 8, "kv_cache_dtype": "fp8"}),
    ("Qwen/Qwen3-Next-80B-A3B-Instruct", "h200_sxm", {"tp": 2}),
    ("meta-llama/Llama-3.1-8B", "a100_sxm", {"scales": (1.07, 0.83)}),
    ("openai/gpt-oss-20b", "h100_sxm", {}),  # windows of 128
    ("deepseek-ai/DeepSeek-V3.2", "b200_sxm", {"tp": 8}),  # a sparse index shows 2,048
]


@cache
def roofline(model: str, gpu: str, options: tuple[tuple[str, Any], ...]) -> Any:
    known = dict(options)
    if scales := known.pop("scales", None):
        engine = replace(find_engine("vllm"), decode_scale=scales[0], prefill_scale=scales[1])
        return RooflineStep(find_model(model), find_gpu(gpu), engine=engine, weights=WEIGHT_DTYPES["bf16"])
    return Deployment.create(model, gpu, **known).step_model()


def models() -> Iterator[Any]:
    for model, gpu, options in MODELS:
        yield pytest.param(model, gpu, tuple(options.items()), id=f"{model.split('/')[1]}-{gpu}")


class Contexts:
    """DecodeSums of contexts one by one."""

    def __init__(self, contexts: list[int]) -> None:
        self._contexts = contexts
        self.decodes, self.context_sum = len(contexts), sum(contexts)

    def longest(self) -> int:
        return max(self._contexts)

    def shortest(self) -> int:
        return min(self._contexts)

    def clipped(self, window: int, ahead: int, steps: int) -> list[int]:
        return [sum(min(each + ahead + step, window) for each in self._contexts) for step in range(steps)]


def plainly(model: Any, chunks: list[tuple[int, int]], contexts: list[int]) -> float:
    """Seconds of a step, from its contexts one by one."""
    (seconds,) = model.stages_s([StepBatch(chunks, contexts)])
    return float(seconds)


def one_by_one(model: Any, contexts: list[int], start_s: float, steps: int) -> list[float]:
    ends, now = [], start_s
    for step in range(steps):
        now += plainly(model, [], [context + step for context in contexts])
        ends.append(now)
    return ends


@pytest.mark.parametrize(("model", "gpu", "options"), list(models()))
@given(
    contexts=st.lists(st.integers(1, 60_000) | st.integers(1, 3000), min_size=1, max_size=30),
    start_s=st.floats(0, 1e4),
    ahead=st.integers(0, 70),
    steps=st.integers(1, 130),
    chunks=st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 5000)), max_size=3),
)
def test_sums_are_enough(
    model: str,
    gpu: str,
    options: tuple[tuple[str, Any], ...],
    contexts: list[int],
    start_s: float,
    ahead: int,
    steps: int,
    chunks: list[tuple[int, int]],
) -> None:
    step_model = roofline(model, gpu, options)
    sums, batch = step_model.sums, Contexts(contexts)
    assert sums.run([batch], ahead, start_s, steps) == one_by_one(
        step_model, [context + ahead for context in contexts], start_s, steps
    )
    for _ in range(2):  # found, and remembered
        assert sums.step_s(chunks, sums.load(batch)) == plainly(step_model, chunks, contexts)
        assert sums.step_s(chunks, ()) == plainly(step_model, chunks, [])
    assert step_model.step_s(chunks, contexts) == plainly(step_model, chunks, contexts)
    lines = step_model.explain([StepBatch(chunks, contexts)])
    assert sum(line.seconds for line in lines) == pytest.approx(plainly(step_model, chunks, contexts), rel=1e-9)


@given(
    ranks=st.lists(st.lists(st.integers(1, 5000), max_size=5), min_size=2, max_size=2).filter(any),
    chunks=st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 5000)), max_size=2),
    steps=st.integers(1, 130),
)
def test_the_slowest_rank_sets_the_pace(ranks: list[list[int]], chunks: list[tuple[int, int]], steps: int) -> None:
    step_model = roofline("openai/gpt-oss-20b", "h100_sxm", (("dp", 2),))
    sums, wanted, now = step_model.sums, list[float](), 1.0
    found = sums.run([Contexts(contexts) for contexts in ranks if contexts], 0, now, steps)
    for step in range(steps):
        (seconds,) = step_model.stages_s([StepBatch((), [context + step for context in contexts]) for contexts in ranks])
        now += seconds
        wanted.append(now)
    assert found == wanted
    loads = [sums.load(Contexts(contexts)) if contexts else () for contexts in ranks]
    (seconds,) = step_model.stages_s([StepBatch(chunks, ranks[0]), StepBatch((), ranks[1])])
    assert sums.ranks_s([(tuple(chunks), loads[0]), ((), loads[1])]) == seconds
    lines = step_model.explain([StepBatch(chunks, ranks[0]), StepBatch((), ranks[1])])
    assert sum(line.seconds for line in lines) <= seconds * (1 + 1e-9)


def test_attention_counts_whole_pages_at_their_middle() -> None:
    # the mean of 95 tokens on 2 sequences is 47, in the page of 32 to 47; the longest, 63, in the first four of 0 to 63
    assert arguments([32, 63])[0] == (2, 2 * (32 + 7.5), 31.5)
    # a token more for each, and both are in the next one
    assert arguments([33, 64])[0] == (2, 2 * (48 + 7.5), 64 + 31.5)
    # windows clip each context by itself
    assert arguments([33, 64], 50)[50] == (2, 33 + 50, 50)
    assert arguments([33, 64], 64)[64] == (2, 33 + 64, 64)
    assert arguments([33, 64], 20)[20] == (2, 20 + 20, 20)


def test_pages_count_as_much_as_their_tokens_one_by_one() -> None:
    for sequences in (1, 7):
        counted = [arguments([context] * sequences)[0] for context in range(128, 192)]
        assert sum(total for _, total, _ in counted) == sum(context * sequences for context in range(128, 192))
        assert sum(longest for _, _, longest in counted) == sum(range(128, 192))


def arguments(contexts: list[int], *windows: int) -> dict[int, tuple[int, float, float]]:
    return decode_arguments(decode_load_of(contexts, windows), windows)


def test_what_is_remembered_is_bounded() -> None:
    asked: list[int] = []

    def square(number: int) -> int:
        asked.append(number)
        return number * number

    known = stage.Memo(square, 10)
    assert [known[number] for number in [*range(25), *range(20, 25)]] == [n * n for n in [*range(25), *range(20, 25)]]
    assert asked == list(range(25))
    assert 0 < len(known) <= 10


def test_what_sums_do_not_tell_has_none() -> None:
    assert roofline("meta-llama/Llama-3.1-8B", "h100_sxm", (("pp", 2),)).sums is None


@pytest.mark.parametrize(("model", "gpu", "options"), list(models()))
def test_steps_only_get_longer(model: str, gpu: str, options: tuple[tuple[str, Any], ...]) -> None:
    """What lets a simulation say how early a run of steps can end."""
    sums = roofline(model, gpu, options).sums
    for decodes in (1, 7, 64, 256):
        ends = [0.0, *sums.run([Contexts([500, *[300] * (decodes - 1)])], 0, 0.0, 3000)]
        gaps = [after - before for before, after in pairwise(ends)]
        assert all(after >= before * (1 - 1e-9) for before, after in pairwise(gaps))


def test_what_is_remembered_of_steps_stays_small() -> None:
    """A live server sees some hundred loads a second that it never sees again."""
    steps = Deployment.create("meta-llama/Llama-3.1-8B", "h100_sxm").step_model()
    tracemalloc.start()
    try:
        for decodes in range(1, 101):
            for context in range(200, 40_200, 400):
                steps.step_s([], [context] * decodes)
                steps.step_s([(256, 0)], [context] * decodes)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 8e6
