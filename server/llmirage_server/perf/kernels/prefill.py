"""Causal attention of prompt chunks, whatever the shape of a head."""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot

from llmirage_server.perf.catalogue.constants import PrefillConstants
from llmirage_server.perf.catalogue.gpus import GpuSpec
from llmirage_server.perf.kernels.kernel import Work
from llmirage_server.perf.kernels.roofline import US, explain

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
