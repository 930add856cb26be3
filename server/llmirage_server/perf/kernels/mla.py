"""Multi-head latent attention (DeepSeek): expanded heads for prompts, the compressed cache itself for decodes."""

from __future__ import annotations

from math import ceil

from llmirage_server.perf.constants import Constants
from llmirage_server.perf.dtypes import KV_DTYPE_BYTES, WEIGHT_DTYPES
from llmirage_server.perf.gpus import GpuSpec
from llmirage_server.perf.kernels import attention
from llmirage_server.perf.kernels.attention import DecodeAttention
from llmirage_server.perf.kernels.kernel import DecodeKernel, PrefillKernel, TokenKernel
from llmirage_server.perf.kernels.roofline import NS, US

_MMA_ROWS = 16


def prefill(
    gpu: GpuSpec, constants: Constants, heads: int, qk_dim: int, v_dim: int, kv_rank_plus_rope: int, kv_dtype: str
) -> PrefillKernel:
    """Time of causal attention of prompt chunks with the latent cache expanded into full heads (see attention.prefill)."""
    return attention.prefill(gpu, constants, heads, heads, qk_dim, v_dim, kv_dtype, op="mla_prefill")


def decode(
    gpu: GpuSpec, constants: Constants, heads: int, kv_rank: int, rope_dim: int, kv_dtype: str, queries: int = 1
) -> DecodeKernel:
    """Time of absorbed attention on the latent cache: all heads share one key of kv_rank + rope_dim values per token.

    memory = context (kv_rank + rope_dim) bytes / (BW memory); compute = 2 context ceil16(queries h) (2 kv_rank + rope_dim) / (F
    compute); floors as in attention.decode, with schedule_ns per (sequence, head).
    """
    c = constants.of("mla_decode", kv_dtype)
    peak, bandwidth = gpu.flops["bf16"], gpu.bandwidth_bytes_per_s
    width = 2 * kv_rank + rope_dim
    rows = ceil(queries * heads / _MMA_ROWS) * _MMA_ROWS
    bytes_context = float((kv_rank + rope_dim) * KV_DTYPE_BYTES[kv_dtype])
    return DecodeAttention(
        memory_context=bytes_context / (bandwidth * c["memory"]),
        memory_sequence=0.0,
        compute_context=2.0 * rows * width / (peak * c["compute"]),
        floor=c["floor_us"] * US,
        split=c["split_us"] * US / 64.0,
        per_sequence=c["schedule_ns"] * NS * heads,
        power=c["power"],
        root=1.0 / c["power"],
        flops_context=2.0 * queries * heads * width,
        peak_flops=peak,
        bytes_context=bytes_context,
        bytes_sequence=0.0,
        bandwidth=bandwidth,
    )


def bmm(gpu: GpuSpec, constants: Constants, heads: int, n: int, k: int) -> TokenKernel:
    """Time of the absorbed projections: for each head, [tokens, k] x [k, n] in bf16, one batched launch."""
    from llmirage_server.perf.kernels.gemm import gemm

    return gemm(gpu, constants, WEIGHT_DTYPES["bf16"], heads * n, k)
