"""Properties of whole steps of real architectures on catalogue GPUs."""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_server.perf.catalogue.dtypes import WEIGHT_DTYPES
from llmirage_server.perf.catalogue.gpus import GpuSpec
from llmirage_server.perf.catalogue.lookup import find_gpu, find_model
from llmirage_server.perf.deployment import Deployment
from llmirage_server.perf.engines.lookup import find_engine
from llmirage_server.perf.parallelism import Parallelism
from llmirage_server.perf.steps.stage import LONGEST_TOKENS
from llmirage_server.perf.steps.step import RooflineStep
from llmirage_server.perf.steps.step_model import GroupStepModel, StepBatch, StepModel

Which = tuple[str, str, str, str, tuple[int, int, int, int]]  # model, GPU, engine, weights, (tp, pp, ep, dp)

DEPLOYMENTS: tuple[Which, ...] = (
    ("Qwen3-30B-A3B", "h100", "vllm", "fp8", (1, 1, 1, 1)),
    ("Llama-3.1-8B", "l40s", "vllm", "bf16", (2, 1, 1, 1)),
    ("Llama-3.1-70B", "mi300x", "sglang", "fp8", (4, 2, 1, 1)),
    ("gpt-oss-120b", "b200", "vllm", "mxfp4", (1, 1, 1, 1)),
    ("Qwen3-235B-A22B", "gb200", "trtllm", "nvfp4", (8, 1, 4, 1)),
    ("Mixtral-8x7B", "a100", "vllm", "int4", (4, 1, 2, 1)),
    ("DeepSeek-V3", "h200", "sglang", "fp8_block", (1, 1, 8, 8)),
    ("DeepSeek-V3.2", "b200", "trtllm", "fp8_block", (8, 1, 1, 1)),
    ("Qwen3.5-35B-A3B", "h200", "vllm", "bf16", (2, 1, 1, 1)),
    ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "rtx_pro_6000", "vllm", "bf16", (1, 1, 1, 1)),
)

chunks = st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 20_000)), max_size=4)
contexts = st.lists(st.integers(1, 40_000), max_size=40)
deployments = st.sampled_from(DEPLOYMENTS)


@cache
def step(model: str, gpu: str, engine: str, weights: str, split: tuple[int, int, int, int]) -> RooflineStep:
    tp, pp, ep, dp = split
    return Deployment.create(model, gpu, engine=engine, weights=weights, tp=tp, pp=pp, ep=ep, dp=dp).roofline


def on_tp(model: str, gpu: str, tp: int, weights: str, ep: int = 1) -> RooflineStep:
    return step(model, gpu, "vllm", weights, (tp, 1, ep, 1))


def test_an_empty_step_takes_no_time() -> None:
    model: StepModel = step(*DEPLOYMENTS[0])
    assert model.step_s([], []) == 0.0
    assert step(*DEPLOYMENTS[0]).explain([StepBatch([], [])]) == []


@given(deployments, chunks, contexts)
def test_the_breakdown_adds_up_to_the_step(which: Which, prefill: list[tuple[int, int]], decode: list[int]) -> None:
    operations = step(*which).explain([StepBatch(prefill, decode)])
    assert sum(o.seconds for o in operations) == pytest.approx(step(*which).step_s(prefill, decode), rel=1e-12)
    assert all(o.seconds > 0 and o.calls > 0 for o in operations)
    assert [o.seconds for o in operations] == sorted((o.seconds for o in operations), reverse=True)


@given(deployments, chunks, st.lists(st.integers(65, 40_000), max_size=40), st.integers(1, 40_000))
def test_a_sequence_never_speeds_up(which: Which, prefill: list[tuple[int, int]], decode: list[int], context: int) -> None:
    """Beyond the resolution of attention: a short one may move the mean context of all into the page before."""
    s = step(*which)
    assert s.step_s(prefill, [*decode, context]) > s.step_s(prefill, [c - LONGEST_TOKENS for c in decode])


@given(deployments, chunks, contexts, st.integers(1, 3000), st.integers(0, 20_000))
def test_a_chunk_never_speeds_up(
    which: Which, prefill: list[tuple[int, int]], decode: list[int], new: int, context: int
) -> None:
    s = step(*which)
    assert s.step_s([*prefill, (new, context)], decode) > s.step_s(prefill, decode)


@given(deployments, st.lists(st.integers(1, 40_000), min_size=1, max_size=40), st.integers(1, 10_000), st.data())
def test_more_context_is_never_faster(which: Which, decode: list[int], more: int, data: st.DataObject) -> None:
    s, i = step(*which), data.draw(st.integers(0, len(decode) - 1))
    longer = [*decode[:i], decode[i] + more, *decode[i + 1 :]]
    assert s.step_s([], longer) >= s.step_s([], decode)
    assert s.step_s([(100, decode[i] + more)], []) >= s.step_s([(100, decode[i])], [])


@given(
    deployments,
    st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 20_000)), min_size=1, max_size=4),
    st.lists(st.integers(1, 40_000), min_size=1, max_size=40),
)
def test_a_mixed_step_takes_as_long_as_each_part_but_less_than_both_apart(
    which: Which, prefill: list[tuple[int, int]], decode: list[int]
) -> None:
    s = step(*which)
    mixed, alone = s.step_s(prefill, decode), (s.step_s(prefill, []), s.step_s([], decode))
    assert max(alone) <= mixed
    # but for the attention of decodes, which some engines launch together with that of prompts, and more slowly, and for the
    # host's launches of more tokens than its graphs have
    slowed_s = _seconds(s, prefill, decode) - _seconds(s, prefill, []) - _seconds(s, [], decode)
    assert mixed - slowed_s < sum(alone)


def _seconds(s: RooflineStep, prefill: list[tuple[int, int]], decode: list[int]) -> float:
    explained = s.explain([StepBatch(prefill, decode)])
    return sum(o.seconds for o in explained if o.name == "host" or o.name.startswith("decode attention"))


@given(deployments, chunks, contexts)
def test_order_of_sequences_does_not_matter(which: Which, prefill: list[tuple[int, int]], decode: list[int]) -> None:
    s = step(*which)
    assert s.step_s(prefill[::-1], decode[::-1]) == s.step_s(prefill, decode)


@given(deployments, st.lists(st.tuples(chunks, contexts), max_size=8))
def test_stages_add_up_to_the_explained_step(which: Which, ranks: list[tuple[list[tuple[int, int]], list[int]]]) -> None:
    s: GroupStepModel = step(*which)
    batches = [StepBatch(*batch) for batch in ranks[: s.ranks]]
    times = s.stages_s(batches)
    assert len(times) == s.stages == which[4][1]
    assert sum(o.seconds for o in step(*which).explain(batches)) == pytest.approx(sum(times), rel=1e-12, abs=0)
    if len(batches) == 1:
        assert sum(times) == pytest.approx(s.step_s(*batches[0]), rel=1e-12)


@given(deployments, chunks, contexts)
def test_an_idle_rank_costs_nothing_and_a_busy_one_is_never_faster_than_none(
    which: Which, prefill: list[tuple[int, int]], decode: list[int]
) -> None:
    s = step(*which)
    batch = StepBatch(prefill, decode)
    one = sum(s.stages_s([batch]))
    if s.ranks > 1:
        assert sum(s.stages_s([batch, StepBatch()])) == one
        assert sum(s.stages_s([batch, batch])) >= one


@given(
    st.sampled_from(["Qwen3-32B", "Qwen3-30B-A3B", "DeepSeek-V3", "Qwen3.5-35B-A3B", "gpt-oss-20b"]),
    st.floats(1.0, 4.0),
    chunks,
    contexts,
)
def test_bandwidth_never_slows(model: str, factor: float, prefill: list[tuple[int, int]], decode: list[int]) -> None:
    gpu = find_gpu("h100")
    faster = replace(
        gpu, bandwidth_bytes_per_s=factor * gpu.bandwidth_bytes_per_s, link_bytes_per_s=factor * gpu.link_bytes_per_s
    )
    slow_s, fast_s = (_on(model, g).step_s(prefill, decode) for g in (gpu, faster))
    assert fast_s <= slow_s * (1 + 1e-12)


def _on(model: str, gpu: GpuSpec) -> RooflineStep:
    parallel = Parallelism(tp=2)
    return RooflineStep(find_model(model), gpu, engine=find_engine("vllm"), weights=WEIGHT_DTYPES["fp8"], parallel=parallel)


def test_faster_memory_makes_a_step_faster() -> None:
    gpu = find_gpu("h100")
    faster = replace(gpu, bandwidth_bytes_per_s=2 * gpu.bandwidth_bytes_per_s)
    slow_s, fast_s = (_on("Qwen3-30B-A3B", g).step_s([(4096, 0)], [2000] * 32) for g in (gpu, faster))
    assert fast_s < slow_s


@pytest.mark.parametrize(
    ("model", "gpu", "options"),
    [
        ("Qwen/Qwen3-30B-A3B", "h100_sxm", {}),
        ("openai/gpt-oss-120b", "b200_sxm", {"engine": "trtllm"}),
        ("openai/gpt-oss-20b", "h200_sxm", {"engine": "sglang"}),
        ("deepseek-ai/DeepSeek-R1", "b200_sxm", {"engine": "sglang", "tp": 8, "ep": 8}),
        ("mistralai/Mixtral-8x7B-v0.1", "h100_sxm", {"tp": 2}),
        ("Qwen/Qwen3-32B", "h100_sxm", {"tp": 2}),
    ],
)
def test_more_users_never_give_less_output(model: str, gpu: str, options: dict[str, Any]) -> None:
    step = Deployment.create(model, gpu, **options).step_model()
    rates = [users / step.stages_s([StepBatch((), [1500] * users)])[0] for users in range(1, 130)]
    assert all(fewer <= more for fewer, more in pairwise(rates))


def test_tensor_parallelism_speeds_a_large_model_up_but_not_in_proportion() -> None:
    times = [on_tp("Llama-3.1-70B", "h200", tp, "fp8").step_s([], [4000] * 16) for tp in (1, 2, 4, 8)]
    assert times == sorted(times, reverse=True)
    assert times[0] / times[3] < 8


def test_tensor_parallelism_over_pcie_costs_more_than_over_nvlink() -> None:
    shares = {}
    for gpu in ("l40s", "h100"):
        operations = on_tp("Qwen3-32B", gpu, 4, "fp8").explain([StepBatch([(4096, 0)], [])])
        total = sum(o.seconds for o in operations)
        shares[gpu] = next(o.seconds for o in operations if o.name == "all-reduce") / total
    assert shares["l40s"] > 3 * shares["h100"]


def test_expert_parallelism_waits_for_the_busiest_rank() -> None:
    def experts(ep: int, tokens: int) -> float:
        operations = on_tp("Qwen3-235B-A22B", "h200", 8, "fp8", ep).explain([StepBatch([(tokens, 0)], [])])
        return next(o.seconds for o in operations if o.name == "experts")

    # imbalance fades with the number of tokens, and whole experts move fewer activations than slices do
    assert experts(8, 8192) < experts(1, 8192)


def test_lm_head_runs_for_sequences_not_for_prompt_tokens() -> None:
    def lm_head(prefill: list[tuple[int, int]], decode: list[int]) -> float:
        return next(o.seconds for o in step(*DEPLOYMENTS[0]).explain([StepBatch(prefill, decode)]) if o.name == "lm_head")

    assert lm_head([(8000, 0)], []) == lm_head([(1, 0)], []) == lm_head([], [5])
    assert lm_head([(8000, 0)], [5] * 200) == lm_head([], [5] * 201)


def test_a_sliding_window_stops_growth_with_context_in_its_layers() -> None:
    def window_layers(context: int) -> float:
        operations = on_tp("gpt-oss-120b", "b200", 1, "mxfp4").explain([StepBatch([], [context] * 8)])
        return next(o.seconds for o in operations if o.name == "decode attention, sliding window")

    assert window_layers(64) < window_layers(128) == window_layers(100_000)


def test_a_short_sequence_beside_long_ones_reads_only_what_it_has_of_the_window() -> None:
    s = on_tp("gpt-oss-120b", "b200", 1, "mxfp4")
    times = [s.explain([StepBatch([], [100_000, short])]) for short in (1, 128)]
    window = [next(o.seconds for o in t if o.name == "decode attention, sliding window") for t in times]
    assert window[0] < window[1]


def test_prefix_cache_hits_make_prefill_cheaper() -> None:
    s = step(*DEPLOYMENTS[0])
    assert s.step_s([(100, 7900)], []) < 0.3 * s.step_s([(8000, 0)], [])


def test_fp8_weights_without_fp8_arithmetic_cost_fp8_bytes_and_bf16_flops() -> None:
    # decode is bound by bytes: close to fp8; prefill by flops: no gain over bf16
    fp8, bf16 = (on_tp("Llama-3.1-8B", "a100", 1, w) for w in ("fp8", "bf16"))
    assert fp8.step_s([], [500]) < 0.75 * bf16.step_s([], [500])
    assert fp8.step_s([(8192, 0)], []) == pytest.approx(bf16.step_s([(8192, 0)], []), rel=0.03)
