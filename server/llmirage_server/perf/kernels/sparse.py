"""The indexer of DeepSeek sparse attention: small heads that score every key, of which the real attention takes the best.

Scores are computed on fp8 keys with one key shared by all index heads. No table of measured kernels exists; the efficiencies
are those of MLA decode and attention prefill on the same GPU (provenance "transferred").
"""

from __future__ import annotations

from llmirage_server.perf.constants import Constants
from llmirage_server.perf.gpus import GpuSpec
from llmirage_server.perf.kernels.attention import DecodeAttention, PrefillAttention
from llmirage_server.perf.kernels.kernel import DecodeKernel, PrefillKernel
from llmirage_server.perf.kernels.roofline import US

_SCORE_BYTES = 4.0  # float32 scores are written and read by the selection of the best keys


def indexer_prefill(gpu: GpuSpec, constants: Constants, heads: int, head_dim: int) -> PrefillKernel:
    """Time to score all (query, key) pairs of the prompt chunks: 2 h d flop and 8 bytes of scores a pair."""
    c = constants.of("attention_prefill", "bf16")
    peak = gpu.flops.get("fp8", gpu.flops["bf16"])
    bandwidth = gpu.bandwidth_bytes_per_s
    flops = 2.0 * heads * head_dim
    per_pair = flops / (peak * c["compute"]) + 2.0 * _SCORE_BYTES / bandwidth
    return PrefillAttention(
        per_pair=per_pair,
        per_new=0.0,
        per_longest=0.0,
        memory_new=2.0 * heads * head_dim / bandwidth,
        memory_context=float(head_dim) / bandwidth,
        floor=c["floor_us"] * US,
        power=c["power"],
        root=1.0 / c["power"],
        flops_per_pair=flops,
        peak_flops=peak,
        bytes_new=2.0 * heads * head_dim,
        bytes_context=float(head_dim),
        bandwidth=bandwidth,
    )


def indexer_decode(gpu: GpuSpec, constants: Constants, heads: int, head_dim: int, queries: int = 1) -> DecodeKernel:
    """Time to score the whole context of each decoding sequence: one fp8 key and 8 bytes of scores a token."""
    c = constants.of("mla_decode", "bf16")
    peak, bandwidth = gpu.flops.get("fp8", gpu.flops["bf16"]), gpu.bandwidth_bytes_per_s
    moved = head_dim + 2.0 * _SCORE_BYTES * queries
    flops = 2.0 * queries * heads * head_dim
    return DecodeAttention(
        memory_context=moved / (bandwidth * c["memory"]),
        memory_sequence=0.0,
        compute_context=flops / (peak * c["compute"]),
        floor=c["floor_us"] * US,
        split=c["split_us"] * US / 64.0,
        per_sequence=0.0,
        power=c["power"],
        root=1.0 / c["power"],
        flops_context=flops,
        peak_flops=peak,
        bytes_context=moved,
        bytes_sequence=0.0,
        bandwidth=bandwidth,
    )
