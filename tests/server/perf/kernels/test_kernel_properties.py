"""What must hold of every kernel on every GPU: more work is never faster, more bandwidth never slower."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_server.perf.catalogue.constants import Constants, constants_for
from llmirage_server.perf.catalogue.dtypes import WEIGHT_DTYPES
from llmirage_server.perf.catalogue.gpus import GpuSpec
from llmirage_server.perf.catalogue.layers import GatedDelta, Mamba2
from llmirage_server.perf.catalogue.lookup import find_gpu
from llmirage_server.perf.kernels import attention, collectives, moe
from llmirage_server.perf.kernels.kernel import Elementwise, Gemm, TokenKernel, Work

BF16, FP8 = WEIGHT_DTYPES["bf16"], WEIGHT_DTYPES["fp8"]


def token_kernels(gpu: GpuSpec, c: Constants) -> list[TokenKernel]:
    dtypes = [WEIGHT_DTYPES[name].on(gpu.flops) for name in WEIGHT_DTYPES]
    return [
        *(Gemm(gpu, c, dtype, 1536, 2048) for dtype in dtypes),
        *(moe.Experts(gpu, c, dtype, 2048, 768, 128, 8, ep) for dtype in dtypes for ep in (1, 8)),
        Elementwise(gpu, 8000),
        attention.mla_bmm(gpu, c, 16, 512, 128),
        *(make(gpu, c, ranks, 4096) for make in COLLECTIVES for ranks in (2, 8, 144)),
        *(make(gpu, c, ranks, 2048, 8) for make in (collectives.dispatch, collectives.combine) for ranks in (2, 8, 144)),
        collectives.point_to_point(gpu, c, 4096),
        collectives.point_to_point(gpu, c, 4096, across_nodes=True),
        attention.recurrent_prefill(gpu, c, GatedDelta(16, 32, 128, 128)),
        attention.recurrent_decode(gpu, c, GatedDelta(16, 32, 128, 128)),
        attention.recurrent_prefill(gpu, c, Mamba2(64, 64, 8, 128)),
        attention.recurrent_decode(gpu, c, Mamba2(64, 64, 8, 128)),
    ]


COLLECTIVES = (collectives.all_reduce, collectives.all_gather, collectives.reduce_scatter, collectives.all_to_all)


def prefill_kernels(gpu: GpuSpec, c: Constants) -> list[attention.PrefillAttention]:
    return [
        *(attention.prefill(gpu, c, 32, 8, 128, 128, kv, window) for kv in ("bf16", "fp8") for window in (0, 128)),
        attention.mla_prefill(gpu, c, 16, 192, 128, 576, "bf16"),
        attention.indexer_prefill(gpu, c, 64, 128),
    ]


def decode_kernels(gpu: GpuSpec, c: Constants) -> list[attention.DecodeAttention]:
    return [
        *(attention.decode(gpu, c, 32, 8, 128, 128, kv, window=window) for kv in ("bf16", "fp8") for window in (0, 128)),
        attention.decode(gpu, c, 32, 8, 128, 128, "bf16", queries=3),
        attention.mla_decode(gpu, c, 16, 512, 64, "fp8"),
        attention.indexer_decode(gpu, c, 64, 128),
    ]


PLACES = [("h100_sxm", "vllm"), ("b200_sxm", "sglang"), ("a100_sxm", "trtllm"), ("l40s", "vllm"), ("mi300x", "vllm")]
FITTED = [(gpu := find_gpu(key), constants_for(gpu, engine)) for key, engine in PLACES]
TOKEN_KERNELS = [kernel for gpu, c in FITTED for kernel in token_kernels(gpu, c)]
PREFILL_KERNELS = [kernel for gpu, c in FITTED for kernel in prefill_kernels(gpu, c)]
DECODE_KERNELS = [kernel for gpu, c in FITTED for kernel in decode_kernels(gpu, c)]


def explains(work: Work, seconds: float) -> bool:
    """The explanation is of the same call, and no part of it takes longer than the whole."""
    return work.seconds == seconds and work.flops >= 0 and work.bytes >= 0 and work.ideal_s >= 0


@given(tokens=st.integers(1, 100_000), more=st.integers(1, 5_000))
def test_no_kernel_is_faster_with_more_tokens_and_work_is_of_the_same_call(tokens: int, more: int) -> None:
    for kernel in TOKEN_KERNELS:
        seconds = kernel.seconds(tokens)
        assert seconds <= kernel.seconds(tokens + more)
        assert explains(kernel.work(tokens), seconds)


@given(new=st.integers(1, 20_000), context=st.integers(0, 100_000), more=st.integers(1, 5_000))
def test_prefill_is_never_faster_with_more_tokens(new: int, context: int, more: int) -> None:
    for kernel in PREFILL_KERNELS:
        call = attention.causal_pairs(new, context), new, context, new + context
        seconds = kernel.seconds(*call)
        assert seconds <= kernel.seconds(
            attention.causal_pairs(new + more, context), new + more, context, new + more + context
        )
        assert seconds <= kernel.seconds(
            attention.causal_pairs(new, context + more), new, context + more, new + context + more
        )
        assert explains(kernel.work(*call), seconds)


@given(sequences=st.integers(1, 512), context=st.integers(1, 100_000), more=st.integers(1, 5_000))
def test_decode_is_never_faster_with_more_context_or_sequences(sequences: int, context: int, more: int) -> None:
    for kernel in DECODE_KERNELS:
        call = sequences, sequences * context, context
        seconds = kernel.seconds(*call)
        assert seconds <= kernel.seconds(sequences, sequences * (context + more), context + more)
        assert seconds <= kernel.seconds(sequences + more, (sequences + more) * context, context)
        assert explains(kernel.work(*call), seconds)


@given(tokens=st.integers(1, 20_000), factor=st.floats(1.01, 4))
def test_no_kernel_is_slower_with_more_bandwidth(tokens: int, factor: float) -> None:
    gpu, c = FITTED[0]
    faster = replace(
        gpu,
        bandwidth_bytes_per_s=gpu.bandwidth_bytes_per_s * factor,
        link_bytes_per_s=gpu.link_bytes_per_s * factor,
        node_link_bytes_per_s=gpu.node_link_bytes_per_s * factor,
    )
    for slow, fast in (
        (Gemm(gpu, c, FP8, 1536, 2048), Gemm(faster, c, FP8, 1536, 2048)),
        (moe.Experts(gpu, c, FP8, 2048, 768, 128, 8, 1), moe.Experts(faster, c, FP8, 2048, 768, 128, 8, 1)),
        (collectives.all_reduce(gpu, c, 16, 8192), collectives.all_reduce(faster, c, 16, 8192)),
    ):
        assert fast.seconds(tokens) <= slow.seconds(tokens)
    slow_, fast_ = (attention.decode(g, c, 32, 4, 128, 128, "bf16") for g in (gpu, faster))
    assert fast_.seconds(tokens, tokens * 100, 100) <= slow_.seconds(tokens, tokens * 100, 100)


def test_the_bound_is_the_longest_part() -> None:
    gpu, c = FITTED[0]
    large, small = Gemm(gpu, c, BF16, 8192, 8192), Gemm(gpu, c, BF16, 128, 128)
    assert (large.work(16384).bound, large.work(1).bound, small.work(1).bound) == ("compute", "memory", "launch")
    reduce = collectives.all_reduce(gpu, c, 8, 16384)
    assert (reduce.work(1).bound, reduce.work(100_000).bound) == ("launch", "network")


@pytest.mark.parametrize("key", ["h100_sxm", "b200_sxm", "a100_sxm", "rtx_pro_6000_server"])
def test_large_kernels_come_close_to_the_speed_of_light_but_not_beyond(key: str) -> None:
    gpu = find_gpu(key)
    c = constants_for(gpu, "vllm")
    for work in (
        Gemm(gpu, c, BF16, 16384, 16384).work(16384),
        Gemm(gpu, c, BF16, 16384, 16384).work(1),
        attention.decode(gpu, c, 64, 8, 128, 128, "bf16").work(256, 256 * 16384, 16384),
    ):
        assert 0.55 * work.seconds < work.ideal_s < work.seconds


@given(rows=st.integers(1, 4096), n=st.integers(1, 64), k=st.integers(1, 64))
def test_arithmetic_is_no_bound_where_the_bytes_take_longer(rows: int, n: int, k: int) -> None:
    """Tiles that a few rows leave empty made products of one row compute-bound."""
    gpu, c = FITTED[0]
    for kernel in (Gemm(gpu, c, BF16, 256 * n, 256 * k), moe.Experts(gpu, c, FP8, 256 * k, 64 * n, 64, 4, 1)):
        work = kernel.work(rows)
        if work.bound == "compute":
            assert work.bytes / gpu.bandwidth_bytes_per_s < work.ideal_s
