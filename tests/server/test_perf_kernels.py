"""Kernel times against values computed by hand, on a GPU with round numbers."""

from __future__ import annotations

from dataclasses import replace
from math import log, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_server.perf import kernels_v1 as kernels
from llmirage_server.perf.dtypes import WEIGHT_DTYPES
from llmirage_server.perf.gpus import Constants, GpuSpec

# 1 TB/s, 1 PFLOPS bf16, 2 PFLOPS fp8, 100 GB/s link, 100 SMs; half of each peak is reached.
GPU = GpuSpec(
    key="round",
    name="Round",
    memory_bytes=100 * 1024**3,
    bandwidth_bytes_per_s=1e12,
    flops={"bf16": 1e15, "fp8": 2e15},
    link_bytes_per_s=1e11,
    link_kind="nvlink",
    link_gpus=8,
    sm_count=100,
    tdp_w=500,
    constants=Constants(
        compute_bf16=0.5,
        compute_fp8=0.5,
        compute_attention=0.5,
        memory=0.5,
        gemm_floor_us=5.0,
        kernel_floor_us=10.0,
        allreduce_floor_us=4.0,
        link=0.5,
        wave=0.25,
    ),
    confidence="made up",
    source="made up",
    constants_source="made up",
)
BF16, FP8 = WEIGHT_DTYPES["bf16"], WEIGHT_DTYPES["fp8"]


def smooth_max(a: float, b: float, power: float) -> float:
    return float((a**power + b**power) ** (1 / power))


def test_gemm_adds_a_tile_wave_and_meets_memory_in_a_cubic_maximum() -> None:
    # m 1000, n 2000, k 4000: 2mnk = 1.6e10 flop at 0.5e15 -> 32 us; a quarter of a wave of 2*128*128*4000*100/1e15 s
    compute = 32e-6 + 0.25 * 13.1072e-6
    # weights 16 MB + activations 8 MB + output 4 MB at 0.5 TB/s -> 56 us; 2 % of 100*128*4000*2 B at 1 TB/s
    memory = 56e-6 + 0.02 * 102.4e-6
    assert kernels.gemm(GPU, BF16, 2000, 4000)(1000) == pytest.approx(smooth_max(compute, memory, 3) + 5e-6, rel=1e-12)


def test_fp8_gemm_moves_half_the_weights_and_computes_at_the_fp8_rate() -> None:
    compute = 16e-6 + 0.25 * 13.1072e-6 / 2
    memory = (8e6 + 4e6 + 4e6) / 0.5e12 + 0.02 * 51.2e-6
    assert kernels.gemm(GPU, FP8, 2000, 4000)(1000) == pytest.approx(smooth_max(compute, memory, 3) + 5e-6, rel=1e-12)


def test_decode_attention_reads_the_cache_of_all_sequences_once() -> None:
    # 8 KV heads of 128, bf16, 4 sequences of 1024 tokens; queries and outputs of 32 heads; at 0.5 TB/s
    memory = (2 * 8 * 128 * 2 * 4096 + 4 * 32 * 128 * 4) / 0.5e12
    # groups of 4 query heads fill tiles of 16 rows: 4*8*16*128*4096 flop at 0.5 PFLOPS
    compute = 4 * 8 * 16 * 128 * 4096 / 0.5e15
    extra = 10e-6 + 1.5e-6 * sqrt(1024 / 4096) + 10e-9 * 4 * 8
    seconds = kernels.decode_attention(GPU, 32, 8, 128, 2)(4, 4096, 1024)
    assert seconds == pytest.approx(smooth_max(memory, compute, 3) + extra, rel=1e-12)


def test_prefill_attention_counts_causal_pairs_the_diagonal_and_a_wave() -> None:
    # one chunk of 1000 new tokens after 500: 1000*500 + 1000*1001/2 pairs
    pairs = kernels.causal_pairs(1000, 500)
    assert pairs == 1_000_500
    compute = 4 * 32 * 128 * (pairs + 128 * 1000) / 0.5e15 + 2 * 0.25 * 4 * 128 * 128 * 1500 * 100 / 1e15
    # new: 32 query heads in, 32 out, 8 keys and 8 values, bf16; context: 8 keys and 8 values in fp8; at 0.6 * 0.5 TB/s
    memory = (1000 * 2 * (32 + 32 + 8 + 8) * 128 + 500 * (8 + 8) * 128 * 1) / 0.3e12
    seconds = kernels.prefill_attention(GPU, 32, 8, 128, 1)(pairs, 1000, 500, 1500)
    assert seconds == pytest.approx(smooth_max(compute, memory, 2) + 10e-6, rel=1e-12)


def test_experts_of_one_rank_are_read_once_if_any_token_meets_them() -> None:
    # 8 experts, 2 per token, 3 tokens: each is met with chance 1 - (3/4)^3 = 37/64, so 4.625 of them; 6 pairs
    met, pairs, matrices = 8 * 37 / 64, 6, 3 * 512 * 256
    compute = 2 * matrices * (pairs + 64 * met) / (1e15 * 0.5 * 0.8)
    memory = matrices * 2 * met / (1e12 * 0.5 * 0.95)
    moving = 3 * (pairs * (4 * 512 + 6 * 256) + 3 * 4 * 512) / 1e12
    seconds = kernels.mixture_of_experts(GPU, BF16, 512, 256, 8, 2, 1)(3)
    assert seconds == pytest.approx(smooth_max(compute, memory, 5) + moving + 30e-6, rel=1e-12)


def test_busiest_rank_gets_more_than_its_share() -> None:
    # 64 tokens, 2 experts each of 8 on 4 ranks: 32 pairs on average, sqrt(2 ln 4) deviations of sqrt(64*2/4*3/4) on top
    pairs = 32 + sqrt(2 * log(4)) * sqrt(24)
    met = 2 * (1 - (1 - pairs / 64 / 2) ** 64)
    matrices = 3 * 512 * 256
    compute = 2 * matrices * (pairs + 64 * met) / (1e15 * 0.5 * 0.8)
    memory = matrices * 2 * met / (1e12 * 0.5 * 0.95)
    moving = 3 * (pairs * (4 * 512 + 6 * 256) + 64 * 4 * 512) / 1e12
    seconds = kernels.mixture_of_experts(GPU, BF16, 512, 256, 8, 2, 4)(64)
    assert seconds == pytest.approx(smooth_max(compute, memory, 5) + moving + 30e-6, rel=1e-12)


def test_small_all_reduce_is_one_shot_and_large_one_two_shot() -> None:
    time = kernels.all_reduce(GPU, 8, 1e4)
    assert time(1) == pytest.approx(4e-6 + 7 * 0.05e-6 + 7 * 1e4 / (1e11 * 0.5 * 0.85), rel=1e-12)
    assert time(10_000) == pytest.approx(12e-6 + 2 * 7 / 8 * 1e8 / (1e11 * 0.5), rel=1e-12)


def test_elementwise_reaches_four_fifths_of_the_bandwidth() -> None:
    assert kernels.elementwise(GPU, 8000)(100) == pytest.approx(1e-6 + 3e-6, rel=1e-12)


@given(new=st.integers(1, 60), context=st.integers(0, 60), window=st.integers(0, 70))
def test_causal_pairs_are_what_counting_gives(new: int, context: int, window: int) -> None:
    counted = sum(min(i + 1, window) if window else i + 1 for i in range(context, context + new))
    assert kernels.causal_pairs(new, context, window) == counted


@given(tokens=st.integers(1, 20_000), more=st.integers(1, 5_000), ep=st.sampled_from([1, 2, 4, 8]))
def test_no_kernel_is_faster_with_more_tokens(tokens: int, more: int, ep: int) -> None:
    for time in (
        kernels.gemm(GPU, FP8, 1536, 2048),
        kernels.elementwise(GPU, 8000),
        kernels.all_reduce(GPU, 4, 4096),
        kernels.mixture_of_experts(GPU, FP8, 2048, 768, 128, 8, ep),
    ):
        assert time(tokens + more) >= time(tokens)


@given(tokens=st.integers(1, 20_000), factor=st.floats(1.01, 4))
def test_no_kernel_is_slower_with_more_bandwidth(tokens: int, factor: float) -> None:
    faster = replace(GPU, bandwidth_bytes_per_s=GPU.bandwidth_bytes_per_s * factor)
    for make in (
        lambda gpu: kernels.gemm(gpu, FP8, 1536, 2048)(tokens),
        lambda gpu: kernels.mixture_of_experts(gpu, FP8, 2048, 768, 128, 8, 1)(tokens),
        lambda gpu: kernels.decode_attention(gpu, 32, 4, 128, 2)(tokens, tokens * 100, 100),
        lambda gpu: kernels.prefill_attention(gpu, 32, 4, 128, 2)(tokens * tokens, tokens, 0, tokens),
    ):
        assert make(faster) <= make(GPU)
