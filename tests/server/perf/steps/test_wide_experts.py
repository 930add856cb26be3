"""Experts over several nodes: messages as DeepEP sends them, and what a GPU brings with more of them."""

from collections.abc import Callable

import pytest

from llmirage_server.perf.catalogue.constants import constants_for
from llmirage_server.perf.catalogue.lookup import find_gpu
from llmirage_server.perf.deployment import Deployment
from llmirage_server.perf.kernels import collectives
from llmirage_server.perf.kernels.kernel import TokenKernel
from llmirage_server.perf.steps.step_model import StepBatch

HIDDEN, PER_TOKEN = 7168, 8
FP8 = 1 + 4 / 128


@pytest.mark.parametrize(
    ("ranks", "dispatch_us", "combine_us"), [(16, 118, 195), (32, 155, 273), (64, 173, 314), (128, 192, 369)]
)
def test_messages_between_nodes_take_what_deepep_measured(ranks: int, dispatch_us: float, combine_us: float) -> None:
    """DeepEP's README, low-latency kernels: H800 with 50 GB/s cards, 128 tokens a rank. Nothing was fitted on it."""
    gpu = find_gpu("h800_sxm")
    on, where = (gpu, constants_for(gpu, "sglang")), (ranks, HIDDEN, PER_TOKEN)
    there = collectives.dispatch(*on, *where, FP8).seconds(128) * 1e6
    back = collectives.combine(*on, *where, 2.0).seconds(128) * 1e6
    assert 0.8 * dispatch_us < there < 1.4 * dispatch_us
    assert 0.8 * combine_us < back < 1.3 * combine_us


@pytest.mark.parametrize("send", [collectives.dispatch, collectives.combine])
def test_within_one_link_domain_more_ranks_cost_only_what_they_are_sent(send: Callable[..., TokenKernel]) -> None:
    """A token is sent once for each of its 8 experts, of which all but one in so many ranks are elsewhere."""
    gpu = find_gpu("gb200")
    few, many = (send(gpu, constants_for(gpu, "sglang"), ranks, HIDDEN, PER_TOKEN) for ranks in (8, 48))
    assert many.seconds(0) == few.seconds(0) < 100e-6
    ratio = (many.seconds(64) - many.seconds(0)) / (few.seconds(64) - few.seconds(0))
    assert ratio == pytest.approx((47 / 48) / (7 / 8))


def test_copies_of_popular_experts_keep_the_ranks_of_wide_expert_parallelism_level() -> None:
    def experts_s(ranks: int) -> float:
        model = Deployment.create("deepseek-r1", "gb200", engine="sglang", dp=ranks, ep=ranks).step_model()
        batches = [StepBatch([], [2048] * 512)] * ranks
        return next(o.seconds for o in model.explain(batches) if o.name == "experts")  # type: ignore[attr-defined]

    assert experts_s(16) < 0.75 * experts_s(8)  # half as many experts a rank, as many tokens a rank, and none of them hot


def test_long_prompts_cross_the_network_once_for_each_node() -> None:
    """The same source, throughput kernels: 4,096 tokens at EP64 cross at 51 GB/s, each once for a node."""
    gpu, nodes = find_gpu("h800_sxm"), 8
    kernel = collectives.dispatch(gpu, constants_for(gpu, "sglang"), 64, HIDDEN, PER_TOKEN, FP8)
    crossing = (nodes - 1) * (1 - (1 - 1 / nodes) ** PER_TOKEN) * HIDDEN * FP8 * 4096
    assert 25e9 < crossing / kernel.seconds(4096) < 55e9


def per_gpu(ranks: int) -> float:
    """Tokens per second and GPU with 256 sequences of 2,048 tokens on each."""
    model = Deployment.create("deepseek-v3", "h200_sxm", engine="sglang", dp=ranks, ep=ranks).step_model()
    return 256 / model.stages_s([StepBatch([], [2048] * 256)] * ranks)[0]  # type: ignore[attr-defined]


def test_more_gpus_do_not_make_each_of_them_a_fraction_of_itself() -> None:
    """LMSYS measured 2,790 tokens a second and GPU on 72 H100 that decode, with two batches that overlap."""
    few, *more = (per_gpu(ranks) for ranks in (8, 16, 32, 64))
    assert all(0.75 * few < each < 1.25 * few for each in more)
    assert 0.7 * 2790 < more[-1] < 1.3 * 2790


def test_a_mixture_whose_experts_do_not_divide_has_copies_of_some() -> None:
    step = Deployment.create("deepseek-ai/DeepSeek-V3", "h200_sxm", engine="sglang", dp=48, ep=48).step_model()
    assert step.stages_s([StepBatch((), [1000] * 8)] * 48)[0] > 0


def test_step_says_what_is_extrapolated() -> None:
    def said(**split: int) -> list[str]:
        model = Deployment.create("deepseek-v3", "h200_sxm", engine="sglang", **split).step_model()
        model.stages_s([StepBatch([], [2048])] * 1)  # type: ignore[attr-defined]
        return [line for line in model.provenance() if line.startswith("extrapolated")]  # type: ignore[attr-defined]

    wide = said(dp=16, ep=16)
    assert [line.split(":")[1].split(",")[0] for line in wide] == [" experts", " messages between nodes"]
    assert not said(dp=8, ep=8)
