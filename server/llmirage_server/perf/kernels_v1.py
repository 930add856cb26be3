"""How long one kernel takes: one function per operation, each giving a small function of what changes from step to step.

Every operation is a roofline with three corrections that measured kernels demand: the compute and memory times meet in a
smooth maximum instead of a sharp one, each is divided by the share of the peak that real kernels reach, and there is a
floor for launch and tail. The nine constants of a GPU (perf/gpus.py) are the only fitted numbers; those written in this
file are the same for every GPU and were set once, before the fit.

All factories take per-rank sizes (already divided by tensor or expert parallelism) and return seconds. Everything that
does not change from step to step is folded into a few coefficients at construction, because these functions run on the
server's hot path.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log, sqrt

from llmirage_server.perf.dtypes import WeightDtype
from llmirage_server.perf.gpus import GpuSpec

_US = 1e-6
_TILE = 128  # rows and columns of the output tile of one thread block
_ELEMENTWISE_EFFICIENCY = 0.8  # of the memory bandwidth
_ELEMENTWISE_FLOOR_S = 3e-6
_WEIGHT_TILE_OVERHEAD = 0.02  # share of a whole column of tiles that a GEMM re-reads
_QUERY_BLOCK = 128  # rows of queries that one attention thread block takes
_MMA_ROWS = 16  # grouped query heads are packed into tensor-core tiles of this many rows
_SPLIT_KV_S = 1.5e-6  # growth of a decode attention kernel with sqrt(context / 4096): combining its splits
_SPLIT_SCHEDULE_S = 10e-9  # scheduling cost of one (sequence, KV head) pair in decode attention
_EXPERT_ROW_BLOCK = 64  # an expert's rows are padded by up to this many
_MOE_COMPUTE = 0.8  # of a plain GEMM's share of the peak
_MOE_MEMORY = 0.95
_MOE_FLOORS = 3  # kernels of a fused MoE: sort, two grouped GEMMs
_MOE_ACTIVATION_PASSES = 3.0
_PREFILL_MEMORY = 0.6  # of a streaming kernel's share of the bandwidth
_ONE_SHOT_LINK = 0.85  # of the two-shot all-reduce's share of the link
_ONE_SHOT_PER_PEER_S = 0.05e-6
_TWO_SHOT_FLOORS = 3


def gemm(gpu: GpuSpec, dtype: WeightDtype, n: int, k: int) -> Callable[[float], float]:
    """Time of C[m, n] = A[m, k] x W[k, n] as a function of m.

    compute = 2 m n k / (F ec) + wc W, where W = 2 * 128 * 128 * k * S / F is one whole wave of output tiles over the S
    multiprocessors: a half-filled last wave costs as much as a full one. memory = (n k weight bytes + m k activation
    bytes + 2 m n) / (BW em) + 0.02 S 128 k weight bytes / BW. Smooth maximum of power 3, plus the GEMM floor.
    """
    c = gpu.constants
    flops = gpu.flops[dtype.compute]
    efficiency = c.compute_bf16 if dtype.compute == "bf16" else c.compute_fp8
    reached = gpu.bandwidth_bytes_per_s * c.memory
    compute_slope = 2.0 * n * k / flops / efficiency
    compute_base = c.wave * 2.0 * _TILE * _TILE * k * gpu.sm_count / flops
    memory_slope = (k * dtype.activation_bytes + 2.0 * n) / reached
    memory_base = (
        n * k * dtype.weight_bytes / reached
        + _WEIGHT_TILE_OVERHEAD * gpu.sm_count * _TILE * k * dtype.weight_bytes / gpu.bandwidth_bytes_per_s
    )
    floor = c.gemm_floor_us * _US

    def seconds(m: float) -> float:
        compute = compute_slope * m + compute_base
        memory = memory_slope * m + memory_base
        return float((compute**3 + memory**3) ** (1 / 3)) + floor

    return seconds


def elementwise(gpu: GpuSpec, bytes_per_token: float) -> Callable[[float], float]:
    """Time of a kernel that only reads and writes (norm with residual, activation): bytes / (0.8 BW) + 3 us."""
    slope = bytes_per_token / (_ELEMENTWISE_EFFICIENCY * gpu.bandwidth_bytes_per_s)

    def seconds(tokens: float) -> float:
        return slope * tokens + _ELEMENTWISE_FLOOR_S

    return seconds


def prefill_attention(
    gpu: GpuSpec, heads: int, kv_heads: int, head_dim: int, kv_bytes: int
) -> Callable[[int, int, int, int], float]:
    """Time of causal attention over the prompt chunks of a step, one kernel for all of them.

    Takes (pairs, new_tokens, context_tokens, longest): pairs = (query, key) pairs that the mask leaves, summed over the
    chunks; new and context tokens summed over the chunks; longest = keys that the longest chunk attends to.
    compute = (4 h d pairs + 4 h d new 128) / (F ec) + 2 wc W, where the second term is the half-empty block on the diagonal
    and W = 4 * 128 * d * longest * S / F one whole wave of query blocks. memory = (queries, outputs, new keys and values in
    bf16 and the cached ones) / (0.6 BW em). Smooth maximum of power 2, plus the kernel floor.
    """
    c = gpu.constants
    flops = gpu.flops["bf16"]
    pair = 4.0 * heads * head_dim / flops / c.compute_attention
    wave = 2.0 * c.wave * 4.0 * _QUERY_BLOCK * head_dim * gpu.sm_count / flops
    reached = gpu.bandwidth_bytes_per_s * c.memory * _PREFILL_MEMORY
    new_slope = 4.0 * (heads + kv_heads) * head_dim / reached
    context_slope = 2.0 * kv_heads * head_dim * kv_bytes / reached
    floor = c.kernel_floor_us * _US

    def seconds(pairs: int, new_tokens: int, context_tokens: int, longest: int) -> float:
        compute = pair * (pairs + _QUERY_BLOCK * new_tokens) + wave * longest
        memory = new_slope * new_tokens + context_slope * context_tokens
        return sqrt(compute * compute + memory * memory) + floor

    return seconds


def decode_attention(
    gpu: GpuSpec, heads: int, kv_heads: int, head_dim: int, kv_bytes: int
) -> Callable[[int, int, int], float]:
    """Time of attention for sequences that add one token each, one kernel for all of them.

    Takes (sequences, context_tokens, longest): context summed over the sequences and that of the longest one.
    memory = (2 kvh d kv_bytes context + 4 h d sequences) / (BW em); compute = 4 kvh ceil16(h / kvh) d context / (F ec): the
    query heads of a group share one pass over their keys, in tiles of 16 rows. Smooth maximum of power 3, plus the kernel
    floor, 1.5 us sqrt(longest / 4096) and 10 ns per (sequence, KV head).
    """
    c = gpu.constants
    reached = gpu.bandwidth_bytes_per_s * c.memory
    packed_rows = ceil(heads / kv_heads / _MMA_ROWS) * _MMA_ROWS
    memory_context = 2.0 * kv_heads * head_dim * kv_bytes / reached
    memory_sequence = 4.0 * heads * head_dim / reached
    compute_context = 4.0 * kv_heads * packed_rows * head_dim / gpu.flops["bf16"] / c.compute_attention
    floor = c.kernel_floor_us * _US
    split = _SPLIT_KV_S / sqrt(4096.0)
    schedule = _SPLIT_SCHEDULE_S * kv_heads

    def seconds(sequences: int, context_tokens: int, longest: int) -> float:
        memory = memory_context * context_tokens + memory_sequence * sequences
        compute = compute_context * context_tokens
        busy = float((memory**3 + compute**3) ** (1 / 3))
        return busy + floor + split * sqrt(longest) + schedule * sequences

    return seconds


def mixture_of_experts(
    gpu: GpuSpec, dtype: WeightDtype, hidden: int, intermediate: int, experts: int, experts_per_token: int, ep: int
) -> Callable[[float], float]:
    """Time of the routed experts on the busiest of `ep` ranks as a function of the tokens of the step.

    Routing is taken as uniform. A rank gets N = T k / ep (token, expert) pairs on average; the busiest of ep gets about
    sqrt(2 ln ep) standard deviations of a binomial more. D = E/ep (1 - (1 - q)^T) of its experts are met by any of T
    tokens, q being the chance that a token picks a given expert of that rank. compute = 6 H I (N + 64 D) / (0.8 F ec): rows
    are padded to blocks; memory = 3 H I D weight bytes / (0.95 BW em): every expert met is read once. Smooth maximum of
    power 5, plus 3 (N (4 H + 6 I) + 4 T H) / BW for gathering and scattering, plus three kernel floors.
    """
    c = gpu.constants
    flops = gpu.flops[dtype.compute]
    efficiency = c.compute_bf16 if dtype.compute == "bf16" else c.compute_fp8
    matrices = 3.0 * hidden * intermediate
    compute_row = 2.0 * matrices / flops / (efficiency * _MOE_COMPUTE)
    memory_expert = matrices * dtype.weight_bytes / (gpu.bandwidth_bytes_per_s * c.memory * _MOE_MEMORY)
    pair_slope = _MOE_ACTIVATION_PASSES * (4.0 * hidden + 6.0 * intermediate) / gpu.bandwidth_bytes_per_s
    token_slope = _MOE_ACTIVATION_PASSES * 4.0 * hidden / gpu.bandwidth_bytes_per_s
    floor = _MOE_FLOORS * c.kernel_floor_us * _US
    local = experts // ep
    most_pairs = min(experts_per_token, local)  # a token picks distinct experts
    mean_pairs = experts_per_token / ep
    spread = sqrt(2.0 * log(ep) * mean_pairs * (1.0 - 1.0 / ep)) if ep > 1 else 0.0

    def seconds(tokens: float) -> float:
        pairs = min(mean_pairs * tokens + spread * sqrt(tokens), most_pairs * tokens)
        met = local * (1.0 - (1.0 - pairs / tokens / local) ** tokens)
        compute = compute_row * (pairs + _EXPERT_ROW_BLOCK * met)
        memory = memory_expert * met
        return float((compute**5 + memory**5) ** 0.2) + pair_slope * pairs + token_slope * tokens + floor

    return seconds


def all_reduce(gpu: GpuSpec, ranks: int, bytes_per_token: float) -> Callable[[float], float]:
    """Time to sum B = tokens * bytes_per_token over `ranks` GPUs: the better of two algorithms.

    One-shot (everyone reads everyone): a + 0.05 us (n - 1) + (n - 1) B / (0.85 e link); two-shot (reduce-scatter, then
    all-gather): 3 a + 2 (n - 1) / n B / (e link).
    """
    c = gpu.constants
    link = gpu.link_bytes_per_s * c.link
    one_base = c.allreduce_floor_us * _US + _ONE_SHOT_PER_PEER_S * (ranks - 1)
    one_slope = (ranks - 1) * bytes_per_token / (link * _ONE_SHOT_LINK)
    two_base = _TWO_SHOT_FLOORS * c.allreduce_floor_us * _US
    two_slope = 2.0 * (ranks - 1) / ranks * bytes_per_token / link

    def seconds(tokens: float) -> float:
        return min(one_base + one_slope * tokens, two_base + two_slope * tokens)

    return seconds


def causal_pairs(new_tokens: int, context_tokens: int, window: int = 0) -> int:
    """(query, key) pairs of a chunk: a query attends to itself and what is before it, at most `window` keys (0: all)."""
    end = context_tokens + new_tokens
    if not window or end <= window:
        return new_tokens * context_tokens + new_tokens * (new_tokens + 1) // 2
    if context_tokens >= window:
        return new_tokens * window
    growing = window - context_tokens
    return causal_pairs(growing, context_tokens) + (new_tokens - growing) * window
