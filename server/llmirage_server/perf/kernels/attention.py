"""Attention with a KV cache: prompt chunks (causal) and decoding sequences."""

from __future__ import annotations

from llmirage_server.perf.catalogue.constants import Constants
from llmirage_server.perf.catalogue.dtypes import KV_DTYPE_BYTES
from llmirage_server.perf.catalogue.gpus import GpuSpec
from llmirage_server.perf.kernels.decode import decode_attention
from llmirage_server.perf.kernels.kernel import DecodeKernel, PrefillKernel
from llmirage_server.perf.kernels.prefill import prefill_attention
from llmirage_server.perf.kernels.roofline import MMA_ROWS, round_up

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
    """Time of causal attention over the prompt chunks of a step (prefill.prefill_attention).

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
    """Time of attention for sequences that add `queries` tokens each (decode.decode_attention).

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
