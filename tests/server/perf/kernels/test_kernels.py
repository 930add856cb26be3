"""Kernel times against values computed by hand, on a GPU and constants with round numbers."""

from dataclasses import replace
from itertools import pairwise
from math import hypot, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_server.perf.catalogue.constants import Constants
from llmirage_server.perf.catalogue.dtypes import WEIGHT_DTYPES
from llmirage_server.perf.catalogue.layers import GatedDelta, Mamba2
from llmirage_server.perf.catalogue.lookup import find_gpu
from llmirage_server.perf.kernels import attention, collectives, moe
from llmirage_server.perf.kernels.kernel import Elementwise, Gemm
from llmirage_server.perf.kernels.moe import busiest_rank

# 1 TB/s, 1 PFLOPS bf16, 2 PFLOPS fp8, 100 GB/s link of 8, 10 GB/s and 5 us between nodes, 100 SMs
GPU = replace(
    find_gpu("h100_sxm"),
    key="round",
    bandwidth_bytes_per_s=1e12,
    flops={"bf16": 1e15, "fp8": 2e15},
    link_bytes_per_s=1e11,
    link_gpus=8,
    sm_count=100,
    node_link_bytes_per_s=1e10,
    node_link_latency_s=5e-6,
)
BF16, FP8 = WEIGHT_DTYPES["bf16"], WEIGHT_DTYPES["fp8"]
GEMM = {
    "compute": 0.5,
    "memory": 0.5,
    "floor_us": 5,
    "wave": 0.25,
    "stream": 0.02,
    "power": 3,
    "quantise": 2,
    "prologue": 400,
    "cache": 4,
    "cache_mb": 20,
}
PREFILL = {
    "compute": 0.5,
    "memory": 0.3,
    "floor_us": 10,
    "wave": 0.5,
    "power": 2,
    "diagonal": 0.5,
    "softmax_dims": 96,
    "window_diagonal": 1.5,
}
DECODE = {
    "memory": 0.5,
    "compute": 0.25,
    "power": 3,
    "floor_us": 6,
    "split_us": 1.5,
    "combine_us": 4,
    "combine_tokens": 1024,
    "schedule_ns": 10,
    "serial_ns": 2,
    "ramp_us": 3,
    "ramp_mb": 8,
    "cache": 4,
    "cache_mb": 30,
    "unpacked": 0,
}
MOE = {
    "compute": 0.4,
    "memory": 0.5,
    "power": 5,
    "floor_us": 30,
    "padding": 0.5,
    "activation": 3,
    "spread": 1,
    "hot": 0.5,
    "cache": 4,
    "cache_mb": 1,
}
LINK = {
    "low_floor_us": 4,
    "low_peer_us": 0.5,
    "low_link": 0.25,
    "bulk_floor_us": 12,
    "bulk_peer_us": 1,
    "bulk_link": 0.5,
    "pair_link": 2,
}
LINEAR = {"compute": 0.5, "memory": 0.5, "floor_us": 8, "serial_ns": 100}
_OPS = {
    "gemm": GEMM,
    "mla_bmm": GEMM,
    "attention_prefill": PREFILL,
    "mla_prefill": PREFILL,
    "attention_decode": DECODE,
    "attention_decode_window": {**DECODE, "unpacked": 1},
    "mla_decode": DECODE,
    "moe": MOE,
    "gated_delta_prefill": LINEAR,
    "gated_delta_decode": LINEAR,
    **dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "dispatch", "combine"), LINK),
}
_TABLE = {
    "vllm": {
        f"{op} {dtype}": {"constants": {name: float(v) for name, v in c.items()}, "origin": "by hand"}
        for op, c in _OPS.items()
        for dtype in ("bf16", "fp8")
    }
}
BY_HAND = Constants("vllm", [("", _TABLE)], [("", _TABLE)])  # type: ignore[list-item]


def smooth_max(a: float, b: float, power: float) -> float:
    return float((a**power + b**power) ** (1 / power))


def test_gemm_adds_a_prologue_and_a_tile_wave_and_meets_memory_in_a_smooth_maximum() -> None:
    # m 1000, n 2000, k 4000: 2mn(k + 400) = 1.76e10 flop at 0.5e15; a quarter of a wave of 2*128*128*4000*100/1e15 s
    compute = 35.2e-6 + 0.25 * 13.1072e-6
    # weights 16 MB + activations 8 MB + output 4 MB at 0.5 TB/s -> 56 us; 2 % of 100*128*4000*2 B at 1 TB/s
    memory = 56e-6 + 0.02 * 102.4e-6
    assert Gemm(GPU, BY_HAND, BF16, 2000, 4000).seconds(1000) == pytest.approx(smooth_max(compute, memory, 3) + 5e-6)


def test_fp8_gemm_quantises_its_activations_first() -> None:
    compute = (35.2e-6 + 0.25 * 13.1072e-6) / 2
    memory = (8e6 + 4e6 + 4e6) / 0.5e12 + 0.02 * 51.2e-6
    quantise = 2 * 3 * 1000 * 4000 / 1e12
    expected = smooth_max(compute, memory, 3) + quantise + 5e-6
    assert Gemm(GPU, BY_HAND, FP8, 2000, 4000).seconds(1000) == pytest.approx(expected)


def test_elementwise_reaches_four_fifths_of_the_bandwidth() -> None:
    assert Elementwise(GPU, 8000).seconds(100) == pytest.approx(1e-6 + 3e-6)
    assert Elementwise(GPU, 8000, launches=2).seconds(100) == pytest.approx(1e-6 + 6e-6)


def test_prefill_counts_causal_pairs_exponentials_the_diagonal_and_a_wave() -> None:
    # one chunk of 1000 new tokens after 500: 1000*500 + 1000*1001/2 pairs
    pairs = attention.causal_pairs(1000, 500)
    assert pairs == 1_000_500
    dims = hypot(128, 96)  # 160
    compute = 4 * 32 * dims * (pairs + 0.5 * 128 * 1000) / 0.5e15 + 0.5 * 4 * 128 * dims * 1500 * 100 / 1e15
    # new: 32 query heads in, 32 out, 8 keys and 8 values, bf16; context: 8 keys and 8 values in fp8; at 0.3 TB/s
    memory = (1000 * 2 * (32 + 32 + 8 + 8) * 128 + 500 * (8 + 8) * 128 * 1) / 0.3e12
    kernel = attention.prefill(GPU, BY_HAND, 32, 8, 128, 128, "fp8")
    assert kernel.seconds(pairs, 1000, 500, 1500) == pytest.approx(smooth_max(compute, memory, 2) + 10e-6)
    assert kernel.work(pairs, 1000, 500, 1500).flops == 4 * 32 * 128 * pairs


def test_prefill_with_a_window_pays_for_its_edges() -> None:
    full, windowed = (attention.prefill(GPU, BY_HAND, 32, 8, 128, 128, "bf16", window) for window in (0, 128))
    assert windowed.seconds(10**8, 10**5, 0, 256) > full.seconds(10**8, 10**5, 0, 256)


def test_decode_reads_the_cache_of_all_sequences_once_and_packs_the_heads_of_a_group() -> None:
    # 8 KV heads of 128, bf16, 4 sequences of 1024 tokens; queries and outputs of 32 heads; at 0.5 TB/s
    cached = 2 * 8 * 128 * 2 * 4096
    memory = (cached + 4 * 32 * 128 * 4) / 0.5e12
    # groups of 4 query heads fill tiles of 16 rows: 4*8*16*128*4096 flop at 0.25 PFLOPS; 2 ns a token of the longest
    compute = 4 * 8 * 16 * 128 * 4096 / 0.25e15 + 2e-9 * 1024
    overhead = 6e-6 + 1.5e-6 * sqrt(1024 / 4096) + 4e-6 * 0.5 + 3e-6 * cached / (cached + 8e6) + 10e-9 * 4 * 8
    kernel = attention.decode(GPU, BY_HAND, 32, 8, 128, 128, "bf16")
    assert kernel.seconds(4, 4096, 1024) == pytest.approx(smooth_max(memory, compute, 3) + overhead)


def test_decode_kernels_that_do_not_pack_work_on_each_head() -> None:
    # windowed constants above are those of FlashAttention 2: 32 heads of 16 rows each
    cached = 2 * 8 * 128 * 2 * 512
    memory = (cached + 4 * 32 * 128 * 4) / 0.5e12
    compute = 4 * 32 * 16 * 128 * 512 / 0.25e15 + 2e-9 * 128
    overhead = 6e-6 + 1.5e-6 * sqrt(128 / 4096) + 4e-6 * 128 / 1152 + 3e-6 * cached / (cached + 8e6) + 10e-9 * 4 * 32
    kernel = attention.decode(GPU, BY_HAND, 32, 8, 128, 128, "bf16", window=128)
    assert kernel.seconds(4, 512, 128) == pytest.approx(smooth_max(memory, compute, 3) + overhead)


def test_more_queries_per_sequence_fill_the_same_tiles_before_they_cost() -> None:
    one, four, many = (attention.decode(GPU, BY_HAND, 32, 8, 128, 128, "bf16", queries=q) for q in (1, 4, 128))
    # 4 heads a group: 4 queries are 16 rows, one tile; only their own reads are added
    assert four.seconds(1, 10**6, 10**6) == pytest.approx(one.seconds(1, 10**6, 10**6), rel=1e-4)
    assert many.seconds(1, 10**6, 10**6) > 1.1 * one.seconds(1, 10**6, 10**6)


def test_latent_attention_reads_one_shared_key_per_token() -> None:
    work = attention.mla_decode(GPU, BY_HAND, 128, 512, 64, "fp8").work(2, 8192, 4096)
    assert work.bytes == 8192 * 576 + 2 * 2 * 128 * 1088
    assert work.flops == 2 * 128 * 1088 * 8192
    expanded = attention.mla_prefill(GPU, BY_HAND, 128, 192, 128, 576, "bf16").work(1, 10, 100, 110)
    assert expanded.bytes == 4 * 128 * 320 * 10 + 2 * 128 * 320 * 100
    absorbed = attention.mla_prefill(GPU, BY_HAND, 128, 576, 512, 576, "fp8").work(1, 10, 100, 110)
    assert absorbed.bytes == pytest.approx((2 * 128 * 1088 + 576) * 10 + 576 * 100)


def test_absorbed_projection_is_one_product_for_each_head() -> None:
    work = attention.mla_bmm(GPU, BY_HAND, 16, 512, 128).work(10)
    assert work.flops == 2 * 10 * 16 * 512 * 128
    assert work.bytes == 2 * 16 * 512 * 128 + 10 * 16 * (128 + 512) * 2


def test_evenly_routed_experts_are_read_once_if_any_token_meets_them() -> None:
    # 8 experts, 2 per token, 3 tokens: 6 pairs, of which some meet the same expert
    met = busiest_rank(8, 2, 1, 0.0).experts[2]
    matrices = 3 * 512 * 256
    compute = 2 * matrices * (6 + 0.5 * 64 * met) / 0.4e15
    memory = matrices * 2 * met / 0.5e12
    moving = (3 * 6 + 1 * 6) * (4 * 512 + 6 * 256) / 1e12
    kernel = moe.Experts(GPU, BY_HAND, BF16, 512, 256, 8, 2, 1, skew=0)
    assert kernel.seconds(3) == pytest.approx(smooth_max(compute, memory, 5) + moving + 30e-6)
    # twice as many between two known counts: all 8 are met; beyond them nothing more is read
    assert kernel.work(1000).bytes == pytest.approx(matrices * 2 * 8 + 2000 * (4 * 512 + 6 * 256) + 1000 * 4 * 512)


def test_deepgemm_computes_127_padded_rows_of_every_expert() -> None:
    kernel = moe.Experts(GPU, BY_HAND, replace(BF16, expert_kernels="deepgemm"), 512, 256, 8, 2, 1, skew=0)
    rows, met = 3 * 2 + 127 * 8, kernel.routed(3)[1]
    compute = 2 * 3 * 512 * 256 * rows / 0.65e15
    memory = 3 * 512 * 256 * 2 * met / 0.5e12
    moving = (rows * (3 * 512 + 10 * 256) + 3 * 2 * 4 * 512) / 0.5e12
    assert kernel.seconds(3) == pytest.approx(smooth_max(compute, memory, 5) + moving + 30e-6)


def test_ungated_experts_have_two_matrices() -> None:
    gated, plain = (moe.Experts(GPU, BY_HAND, BF16, 512, 256, 8, 2, 1, gated, skew=0).work(3) for gated in (True, False))
    assert plain.flops == pytest.approx(gated.flops * 2 / 3)


def test_skewed_routers_load_one_rank_more_and_meet_fewer_experts() -> None:
    even, skewed = busiest_rank(128, 8, 8, 0.0), busiest_rank(128, 8, 8)
    at = even.tokens.index(64.0)
    assert even.experts[at] == pytest.approx(16.0, abs=0.3)
    assert 64.0 <= even.pairs[at] < skewed.pairs[at]
    assert busiest_rank(128, 8, 1).experts[at] < busiest_rank(128, 8, 1, 0.0).experts[at]
    assert busiest_rank(128, 8, 1).pairs[at] == 64 * 8  # one rank gets all there are


@pytest.mark.parametrize(("experts", "per_token"), [(8, 2), (32, 4), (128, 4), (128, 8), (256, 8), (384, 8)])
@pytest.mark.parametrize("skew", [0.0, 1.01, 1.2])
def test_one_token_meets_its_experts_and_more_tokens_meet_smoothly_more(experts: int, per_token: int, skew: float) -> None:
    rank = busiest_rank(experts, per_token, 1, skew)
    assert rank.experts[0] == rank.pairs[0] == per_token
    for (tokens, met), (more, then) in pairwise(zip(rank.tokens, rank.experts, strict=True)):
        assert met <= then <= met * more / tokens + 1e-9  # never in larger steps than the tokens


def test_the_busiest_rank_counts_as_far_as_the_constants_say() -> None:
    skewed = busiest_rank(8, 2, 4)
    at = skewed.tokens.index(64.0)
    pairs = 32 * (skewed.pairs[at] / 32) ** 0.5  # `hot` above is a half
    assert moe.Experts(GPU, BY_HAND, BF16, 512, 256, 8, 2, 4).work(64).flops == pytest.approx(2 * 3 * 512 * 256 * pairs)


def test_small_all_reduce_is_one_shot_and_large_one_two_shot() -> None:
    kernel = collectives.all_reduce(GPU, BY_HAND, 8, 1e4)
    assert kernel.seconds(1) == pytest.approx(4e-6 + 7 * 0.5e-6 + 7 * 1e4 / (1e11 * 0.25))
    assert kernel.seconds(10_000) == pytest.approx(12e-6 + 7e-6 + 2 * 7 / 8 * 1e8 / (1e11 * 0.5))
    # two GPUs see twice the link here
    pair = collectives.all_reduce(GPU, BY_HAND, 2, 1e4)
    assert pair.seconds(10_000) == pytest.approx(12e-6 + 1e-6 + 1e8 / (2e11 * 0.5))


def test_ranks_beyond_one_domain_cross_nodes() -> None:
    near, far = (collectives.all_reduce(GPU, BY_HAND, ranks, 1e4) for ranks in (8, 16))
    # each of 8 GPUs sums its eighth with one peer: B / 8 over the network card at 0.8 of 10 GB/s, in two rounds
    assert far.seconds(10_000) - near.seconds(10_000) == pytest.approx(2 * 5e-6 + 1e8 / 8 / 8e9)
    gather_near, gather_far = (collectives.all_gather(GPU, BY_HAND, ranks, 1e4) for ranks in (8, 16))
    assert gather_far.seconds(10_000) - gather_near.seconds(10_000) == pytest.approx(5e-6 + 0.5e8 / 8 / 8e9)


def test_hand_over_to_the_next_stage() -> None:
    assert collectives.point_to_point(GPU, BY_HAND, 1e4).seconds(10_000) == pytest.approx(12e-6 + 1e-6 + 1e8 / (2e11 * 0.5))
    across = collectives.point_to_point(GPU, BY_HAND, 1e4, across_nodes=True)
    assert across.seconds(10_000) == pytest.approx(5e-6 + 1e8 / 8e9)


def test_linear_attention_streams_its_state_on_decode() -> None:
    work = attention.recurrent_decode(GPU, BY_HAND, GatedDelta(16, 32, 128, 128)).work(10)
    assert work.bytes == 10 * (2 * 4 * 32 * 128 * 128 + 4 * 16 * 128 + 4 * 32 * 128)
    assert work.seconds == pytest.approx(work.bytes / 0.5e12 + 8e-6)
    scan = attention.recurrent_decode(GPU, BY_HAND, Mamba2(64, 64, 8, 128)).work(10)
    assert scan.bytes == 10 * (2 * 4 * 64 * 64 * 128 + 4 * 64 * 64 + 4 * 8 * 128)


def test_linear_attention_of_prompts_goes_block_after_block() -> None:
    few, many = (attention.recurrent_prefill(GPU, BY_HAND, GatedDelta(heads, 2 * heads, 128, 128)) for heads in (1, 16))
    assert few.seconds(1000) == pytest.approx(100e-6 + 8e-6)
    assert many.seconds(1000) == pytest.approx(many.work(1000).bytes / 0.5e12 + 8e-6)


def test_indexer_reads_one_small_key_per_token() -> None:
    assert attention.indexer_decode(GPU, BY_HAND, 64, 128).work(1, 1000, 1000).bytes == 1000 * (128 + 8) + 64 * 128
    assert attention.indexer_prefill(GPU, BY_HAND, 64, 128).work(5000, 100, 0, 100).flops == 2 * 64 * 128 * 5000


@given(new=st.integers(1, 60), context=st.integers(0, 60), window=st.integers(0, 70))
def test_causal_pairs_are_what_counting_gives(new: int, context: int, window: int) -> None:
    counted = sum(min(i + 1, window) if window else i + 1 for i in range(context, context + new))
    assert attention.causal_pairs(new, context, window) == counted


def test_cards_that_cannot_copy_to_each_other_meet_in_host_memory() -> None:
    apart = replace(GPU, peer_to_peer=False)
    kernel = collectives.all_reduce(apart, BY_HAND, 2, 1e4)
    assert kernel.seconds(0) == pytest.approx(18e-6)
    assert kernel.seconds(1000) == pytest.approx(18e-6 + 1e7 / 15.2e9)
    assert collectives.all_gather(apart, BY_HAND, 4, 1e4).seconds(1000) == pytest.approx(3 * 18e-6 + 0.75e7 / 15.2e9)
