"""Attention with a KV cache, of prompt chunks and of decoding sequences; latent attention (MLA); the index of sparse attention."""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot, sqrt

from llmirage_server.perf.catalogue.constants import Constants, DecodeConstants, PrefillConstants
from llmirage_server.perf.catalogue.dtypes import KV_DTYPE_BYTES, WEIGHT_DTYPES
from llmirage_server.perf.catalogue.gpus import GpuSpec
from llmirage_server.perf.kernels.gemm import gemm
from llmirage_server.perf.kernels.kernel import (
    MMA_ROWS,
    NS,
    US,
    DecodeKernel,
    PrefillKernel,
    TokenKernel,
    Work,
    explain,
    round_up,
)

_QUERY_BLOCK = 128  # rows of queries that one thread block takes


@dataclass(frozen=True, slots=True)
class PrefillAttention:
    """Attention of all prompt chunks of a step in one launch; arguments as in kernel.PrefillKernel."""

    per_pair: float
    per_new: float
    per_longest: float
    memory_new: float
    memory_context: float
    floor: float
    power: float
    root: float
    # for `work`
    flops_per_pair: float
    peak_flops: float
    bytes_new: float
    bytes_context: float
    bandwidth: float

    def seconds(self, pairs: float, new_tokens: float, context_tokens: float, longest: float) -> float:
        compute = self.per_pair * pairs + self.per_new * new_tokens + self.per_longest * longest
        memory = self.memory_new * new_tokens + self.memory_context * context_tokens
        return float((compute**self.power + memory**self.power) ** self.root) + self.floor

    def work(self, pairs: float, new_tokens: float, context_tokens: float, longest: float) -> Work:
        flops = self.flops_per_pair * pairs
        moved = self.bytes_new * new_tokens + self.bytes_context * context_tokens
        return explain(
            self.seconds(pairs, new_tokens, context_tokens, longest),
            flops,
            moved,
            flops / self.peak_flops,
            moved / self.bandwidth,
            compute=self.per_pair * pairs + self.per_new * new_tokens + self.per_longest * longest,
            memory=self.memory_new * new_tokens + self.memory_context * context_tokens,
            launch=self.floor,
        )


def prefill_attention(
    gpu: GpuSpec,
    c: PrefillConstants,
    *,
    heads: int,
    qk_dim: int,
    v_dim: int,
    bytes_new: float,
    bytes_context: float,
    windowed: bool = False,
) -> PrefillAttention:
    """Time of causal attention, F being the bf16 rate, d half of dqk + dv.

    compute = 4 h d' (pairs + diagonal 128 new) / (F compute) + wave W. Exponentials cost the same for every head size, hence
    d' = sqrt(d^2 + softmax_dims^2); blocks on the diagonal (or at the edges of a window: window_diagonal) are half empty;
    W = 4 * 128 * d' * longest * S / F is one whole wave of query blocks. memory = bytes / (BW memory). Smooth maximum of
    `power`, plus the floor.
    """
    peak, bandwidth = gpu.flops["bf16"], gpu.bandwidth_bytes_per_s
    dims = 2.0 * hypot((qk_dim + v_dim) / 2.0, c["softmax_dims"])
    per_pair = 2.0 * heads * dims / (peak * c["compute"])
    reached = bandwidth * c["memory"]
    return PrefillAttention(
        per_pair=per_pair,
        per_new=per_pair * c["window_diagonal" if windowed else "diagonal"] * _QUERY_BLOCK,
        per_longest=c["wave"] * 2.0 * _QUERY_BLOCK * dims * gpu.sm_count / peak,
        memory_new=bytes_new / reached,
        memory_context=bytes_context / reached,
        floor=c["floor_us"] * US,
        power=c["power"],
        root=1.0 / c["power"],
        flops_per_pair=2.0 * heads * (qk_dim + v_dim),
        peak_flops=peak,
        bytes_new=bytes_new,
        bytes_context=bytes_context,
        bandwidth=bandwidth,
    )


_SPLIT_TOKENS = 4096.0  # context at which the cost of splitting is split_us
_SERIAL_DIMS = 256.0  # dqk + dv at which one token costs an unsplit block serial_ns


@dataclass(frozen=True, slots=True)
class DecodeAttention:
    """Attention of all decoding sequences of a step in one launch; arguments as in kernel.DecodeKernel."""

    memory_context: float
    memory_sequence: float
    compute_context: float
    serial: float  # per token of the longest context
    floor: float
    split: float
    combine: float
    combine_tokens: float
    ramp: float
    ramp_context: float  # tokens
    per_sequence: float
    power: float
    root: float
    cached_context: float  # tokens that the L2 cache holds, in a repeated call
    cache: float
    # for `work`
    flops_context: float
    peak_flops: float
    bytes_context: float
    bytes_sequence: float
    bandwidth: float

    def seconds(self, sequences: int, context_sum: float, longest: float) -> float:
        read = context_sum / self.cache if context_sum < self.cached_context else context_sum
        memory = self.memory_context * read + self.memory_sequence * sequences
        compute = self.compute_context * context_sum + self.serial * longest
        busy = float((memory**self.power + compute**self.power) ** self.root)
        return busy + self._overhead(sequences, context_sum, longest)

    def _overhead(self, sequences: int, context_sum: float, longest: float) -> float:
        return (
            self.floor
            + self.split * sqrt(longest)
            + self.combine * longest / (longest + self.combine_tokens)
            + self.ramp * context_sum / (context_sum + self.ramp_context)
            + self.per_sequence * sequences
        )

    def work(self, sequences: int, context_sum: float, longest: float) -> Work:
        flops = self.flops_context * context_sum
        moved = self.bytes_context * context_sum + self.bytes_sequence * sequences
        read = context_sum / self.cache if context_sum < self.cached_context else context_sum
        return explain(
            self.seconds(sequences, context_sum, longest),
            flops,
            moved,
            flops / self.peak_flops,
            moved / self.bandwidth,
            compute=self.compute_context * context_sum + self.serial * longest,
            memory=self.memory_context * read + self.memory_sequence * sequences,
            launch=self._overhead(sequences, context_sum, longest),
        )


def decode_attention(
    gpu: GpuSpec,
    c: DecodeConstants,
    *,
    flops_context: float,
    packed_flops_context: float,
    bytes_context: float,
    bytes_sequence: float,
    schedules: float,
    dims: float,
    repeated: bool = False,
) -> DecodeAttention:
    """Time of decode attention, F being the bf16 rate, from what one token of context and one sequence ask for.

    memory = bytes / (BW memory); compute = packed flop / (F compute) + serial_ns longest (dqk + dv) / 256, the second for
    kernels that do not split one sequence's context over the multiprocessors. Smooth maximum of `power`, plus overheads: the
    floor, split_us sqrt(longest / 4096), combine_us longest / (longest + combine_tokens) for adding up partial results,
    ramp_us bytes / (bytes + ramp_mb) until all multiprocessors stream, schedule_ns for each of `schedules` of a sequence.

    repeated: as a benchmark that repeats one call finds it, with up to `cache_mb` of keys and values served from the L2
    cache at `cache` times the memory bandwidth. A model's layers evict each other's, so a model never sees that.
    """
    peak, bandwidth = gpu.flops["bf16"], gpu.bandwidth_bytes_per_s
    reached = bandwidth * c["memory"]
    return DecodeAttention(
        memory_context=bytes_context / reached,
        memory_sequence=bytes_sequence / reached,
        compute_context=packed_flops_context / (peak * c["compute"]),
        serial=c["serial_ns"] * NS * dims / _SERIAL_DIMS,
        floor=c["floor_us"] * US,
        split=c["split_us"] * US / sqrt(_SPLIT_TOKENS),
        combine=c["combine_us"] * US,
        combine_tokens=c["combine_tokens"],
        ramp=c["ramp_us"] * US,
        ramp_context=c["ramp_mb"] * 1e6 / bytes_context,
        per_sequence=c["schedule_ns"] * NS * schedules,
        power=c["power"],
        root=1.0 / c["power"],
        cached_context=c["cache_mb"] * 1e6 / bytes_context if repeated else 0.0,
        cache=c["cache"],
        flops_context=flops_context,
        peak_flops=peak,
        bytes_context=bytes_context,
        bytes_sequence=bytes_sequence,
        bandwidth=bandwidth,
    )


_SMALL_WINDOW = 256  # tokens; windowed decode was measured at 128, where the length of the context no longer shows


def prefill(
    gpu: GpuSpec,
    constants: Constants,
    heads: int,
    kv_heads: int,
    qk_dim: int,
    v_dim: int,
    kv_dtype: str,
    window: int = 0,
) -> PrefillKernel:
    """Time of causal attention over the prompt chunks of a step (prefill_attention).

    Queries, outputs and new keys and values are read and written in bf16, cached ones read in `kv_dtype`. window: keys that
    a query sees, 0 for all; the caller counts pairs accordingly.
    """
    dims = qk_dim + v_dim
    return prefill_attention(
        gpu,
        constants.prefill("attention_prefill", kv_dtype),
        heads=heads,
        qk_dim=qk_dim,
        v_dim=v_dim,
        bytes_new=2.0 * (heads + kv_heads) * dims,
        bytes_context=float(kv_heads * dims * KV_DTYPE_BYTES[kv_dtype]),
        windowed=window > 0,
    )


def decode(
    gpu: GpuSpec,
    constants: Constants,
    heads: int,
    kv_heads: int,
    qk_dim: int,
    v_dim: int,
    kv_dtype: str,
    queries: int = 1,
    window: int = 0,
    *,
    repeated: bool = False,
) -> DecodeKernel:
    """Time of attention for sequences that add `queries` tokens each (decode_attention).

    The query heads of a group share one pass over their keys, in tensor-core tiles of 16 rows: compute counts 2 kvh
    ceil16(queries h / kvh) (dqk + dv) flop per token of context; each (sequence, KV head) is scheduled for itself. Kernels
    with `unpacked` constants (FlashAttention 2 with a window) schedule and compute each query head apart instead. The
    caller clips contexts to `window` (0: none). Small windows have constants of their own.
    """
    c = constants.decode("attention_decode_window" if window else "attention_decode", kv_dtype)
    groups = heads if c["unpacked"] else kv_heads
    if window > _SMALL_WINDOW:
        c = constants.decode("attention_decode", kv_dtype)
    dims = qk_dim + v_dim
    return decode_attention(
        gpu,
        c,
        flops_context=2.0 * queries * heads * dims,
        packed_flops_context=2.0 * groups * round_up(queries * heads / groups, MMA_ROWS) * dims,
        bytes_context=float(kv_heads * dims * KV_DTYPE_BYTES[kv_dtype]),
        bytes_sequence=2.0 * queries * heads * dims,
        schedules=groups,
        dims=dims,
        repeated=repeated,
    )


def causal_pairs(new_tokens: int, context_tokens: int, window: int = 0) -> int:
    """(query, key) pairs of a chunk: a query attends to itself and what is before it, at most `window` keys (0: all)."""
    end = context_tokens + new_tokens
    if not window or end <= window:
        return new_tokens * context_tokens + new_tokens * (new_tokens + 1) // 2
    if context_tokens >= window:
        return new_tokens * window
    growing = window - context_tokens
    return causal_pairs(growing, context_tokens) + (new_tokens - growing) * window


def mla_prefill(
    gpu: GpuSpec, constants: Constants, heads: int, qk_dim: int, v_dim: int, kv_rank_plus_rope: int, kv_dtype: str
) -> PrefillKernel:
    """Time of causal attention of prompt chunks (prefill_attention), the latent cache expanded into full heads.

    Cached tokens are read expanded, in bf16; where heads are as wide as the latent cache itself (absorbed attention, as
    sparse mla_prefill runs it) all heads share one key of `kv_rank_plus_rope` values.
    """
    dims = qk_dim + v_dim
    absorbed = qk_dim == kv_rank_plus_rope
    key_bytes = kv_rank_plus_rope * KV_DTYPE_BYTES[kv_dtype] if absorbed else 2.0 * heads * dims
    return prefill_attention(
        gpu,
        constants.prefill("mla_prefill", kv_dtype),
        heads=heads,
        qk_dim=qk_dim,
        v_dim=v_dim,
        bytes_new=2.0 * heads * dims + key_bytes,
        bytes_context=float(key_bytes),
    )


def mla_decode(
    gpu: GpuSpec,
    constants: Constants,
    heads: int,
    kv_rank: int,
    rope_dim: int,
    kv_dtype: str,
    queries: int = 1,
    *,
    repeated: bool = False,
) -> DecodeKernel:
    """Time of absorbed attention on the latent cache (decode_attention).

    All heads share one key of kv_rank + rope_dim values per token, of which kv_rank are the value too; compute counts
    2 ceil16(queries h) (2 kv_rank + rope_dim) flop per token of context, and each (sequence, head) is scheduled.
    """
    width = 2 * kv_rank + rope_dim
    return decode_attention(
        gpu,
        constants.decode("mla_decode", kv_dtype),
        flops_context=2.0 * queries * heads * width,
        packed_flops_context=2.0 * round_up(queries * heads, MMA_ROWS) * width,
        bytes_context=float((kv_rank + rope_dim) * KV_DTYPE_BYTES[kv_dtype]),
        bytes_sequence=2.0 * queries * heads * width,
        schedules=heads,
        dims=width,
        repeated=repeated,
    )


def mla_bmm(gpu: GpuSpec, constants: Constants, heads: int, n: int, k: int, *, repeated: bool = False) -> TokenKernel:
    """Time of an absorbed projection: for each head [tokens, k] x [k, n] in bf16, one batched launch (gemm.gemm)."""
    return gemm(gpu, constants, WEIGHT_DTYPES["bf16"], n, k, batches=heads, op="mla_bmm", repeated=repeated)


# The indexer of DeepSeek sparse attention: small heads score every key, of which the real attention takes the best. Keys are
# fp8, one shared by all heads; efficiencies are those of attention on prompts and of MLA decode on the same GPU (provenance
# "transferred"), as no table of the indexer alone has been fitted.
_SCORE_BYTES = 4.0  # float32 scores are written, and read by the selection of the best keys


def indexer_prefill(gpu: GpuSpec, constants: Constants, heads: int, head_dim: int) -> PrefillKernel:
    """Time to score all (query, key) pairs of the prompt chunks: 2 h d flop a pair, as the first half of attention."""
    return prefill_attention(
        gpu,
        constants.prefill("attention_prefill", "bf16"),
        heads=heads,
        qk_dim=head_dim,
        v_dim=0,
        bytes_new=float(heads * head_dim + head_dim),
        bytes_context=float(head_dim),
    )


def indexer_decode(gpu: GpuSpec, constants: Constants, heads: int, head_dim: int, queries: int = 1) -> DecodeKernel:
    """Time to score the whole context of each decoding sequence: one fp8 key and two passes over the scores a token."""
    return decode_attention(
        gpu,
        constants.decode("mla_decode", "bf16"),
        flops_context=2.0 * queries * heads * head_dim,
        packed_flops_context=2.0 * round_up(queries * heads, MMA_ROWS) * head_dim,
        bytes_context=head_dim + 2.0 * _SCORE_BYTES * queries,
        bytes_sequence=float(queries * heads * head_dim),
        schedules=1,
        dims=head_dim,
    )
