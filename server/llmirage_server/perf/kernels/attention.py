"""Attention with a KV cache: prompt chunks (causal) and decoding sequences."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

from llmirage_server.perf.constants import Constants
from llmirage_server.perf.dtypes import KV_DTYPE_BYTES
from llmirage_server.perf.gpus import GpuSpec
from llmirage_server.perf.kernels.kernel import DecodeKernel, PrefillKernel, Work
from llmirage_server.perf.kernels.roofline import NS, US, explain

_QUERY_BLOCK = 128  # rows of queries that one thread block takes
_MMA_ROWS = 16  # query heads of a group are packed into tensor-core tiles of this many rows


@dataclass(frozen=True, slots=True)
class PrefillAttention:
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
            max(flops / self.peak_flops, moved / self.bandwidth),
            {
                "compute": self.per_pair * pairs + self.per_new * new_tokens + self.per_longest * longest,
                "memory": self.memory_new * new_tokens + self.memory_context * context_tokens,
                "launch": self.floor,
            },
        )


def prefill(
    gpu: GpuSpec,
    constants: Constants,
    heads: int,
    kv_heads: int,
    qk_dim: int,
    v_dim: int,
    kv_dtype: str,
    window: int = 0,
    op: str = "attention_prefill",
) -> PrefillKernel:
    """Time of causal attention over the prompt chunks of a step, one kernel for all of them.

    compute = 2 h (dqk + dv) (pairs + diagonal 128 new) / (F compute) + wave W: the blocks on the diagonal are half empty, and
    W = 2 * 128 * (dqk + dv) * longest * S / F is one whole wave of query blocks. memory = (queries, outputs, new keys and
    values in bf16, and the cached ones) / (BW memory). Smooth maximum of `power`, plus the floor. F is the bf16 rate.
    """
    c = constants.of(op, kv_dtype)
    peak, bandwidth = gpu.flops["bf16"], gpu.bandwidth_bytes_per_s
    dims = qk_dim + v_dim
    flops_per_pair = 2.0 * heads * dims
    bytes_new = 2.0 * (heads + kv_heads) * dims
    bytes_context = float(kv_heads * dims * KV_DTYPE_BYTES[kv_dtype])
    per_pair = flops_per_pair / (peak * c["compute"])
    reached = bandwidth * c["memory"]
    return PrefillAttention(
        per_pair=per_pair,
        per_new=per_pair * c["diagonal"] * _QUERY_BLOCK,
        per_longest=c["wave"] * 2.0 * _QUERY_BLOCK * dims * gpu.sm_count / peak,
        memory_new=bytes_new / reached,
        memory_context=bytes_context / reached,
        floor=c["floor_us"] * US,
        power=c["power"],
        root=1.0 / c["power"],
        flops_per_pair=flops_per_pair,
        peak_flops=peak,
        bytes_new=bytes_new,
        bytes_context=bytes_context,
        bandwidth=bandwidth,
    )


@dataclass(frozen=True, slots=True)
class DecodeAttention:
    memory_context: float
    memory_sequence: float
    compute_context: float
    floor: float
    split: float
    per_sequence: float
    power: float
    root: float
    # for `work`
    flops_context: float
    peak_flops: float
    bytes_context: float
    bytes_sequence: float
    bandwidth: float

    def seconds(self, sequences: int, context_sum: float, longest: float) -> float:
        memory = self.memory_context * context_sum + self.memory_sequence * sequences
        compute = self.compute_context * context_sum
        busy = float((memory**self.power + compute**self.power) ** self.root)
        return busy + self.floor + self.split * sqrt(longest) + self.per_sequence * sequences

    def work(self, sequences: int, context_sum: float, longest: float) -> Work:
        flops = self.flops_context * context_sum
        moved = self.bytes_context * context_sum + self.bytes_sequence * sequences
        return explain(
            self.seconds(sequences, context_sum, longest),
            flops,
            moved,
            max(flops / self.peak_flops, moved / self.bandwidth),
            {
                "memory": self.memory_context * context_sum + self.memory_sequence * sequences,
                "compute": self.compute_context * context_sum,
                "launch": self.floor + self.split * sqrt(longest) + self.per_sequence * sequences,
            },
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
) -> DecodeKernel:
    """Time of attention for sequences that add `queries` tokens each, one kernel for all of them.

    memory = (keys and values of the context, queries, outputs) / (BW memory); compute = 2 kvh ceil16(queries h / kvh) (dqk +
    dv) context / (F compute): the query heads of a group share one pass over their keys, in tiles of 16 rows. Smooth maximum
    of `power`, plus the floor, split_us sqrt(longest / 4096) and schedule_ns per (sequence, KV head).
    """
    c = constants.of("attention_decode", kv_dtype)
    peak, bandwidth = gpu.flops["bf16"], gpu.bandwidth_bytes_per_s
    dims = qk_dim + v_dim
    rows = ceil(queries * heads / kv_heads / _MMA_ROWS) * _MMA_ROWS
    bytes_context = float(kv_heads * dims * KV_DTYPE_BYTES[kv_dtype])
    bytes_sequence = 2.0 * queries * heads * dims
    reached = bandwidth * c["memory"]
    return DecodeAttention(
        memory_context=bytes_context / reached,
        memory_sequence=bytes_sequence / reached,
        compute_context=2.0 * kv_heads * rows * dims / (peak * c["compute"]),
        floor=c["floor_us"] * US,
        split=c["split_us"] * US / 64.0,  # sqrt(4096)
        per_sequence=c["schedule_ns"] * NS * kv_heads,
        power=c["power"],
        root=1.0 / c["power"],
        flops_context=2.0 * queries * heads * dims,
        peak_flops=peak,
        bytes_context=bytes_context,
        bytes_sequence=bytes_sequence,
        bandwidth=bandwidth,
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
