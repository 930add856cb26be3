"""Multi-head latent attention (DeepSeek): expanded heads for prompts, the compressed cache itself for decodes."""

from __future__ import annotations

from llmirage_server.perf.catalogue.constants import Constants
from llmirage_server.perf.catalogue.dtypes import KV_DTYPE_BYTES, WEIGHT_DTYPES
from llmirage_server.perf.catalogue.gpus import GpuSpec
from llmirage_server.perf.kernels.decode import decode_attention
from llmirage_server.perf.kernels.gemm import gemm
from llmirage_server.perf.kernels.kernel import DecodeKernel, PrefillKernel, TokenKernel
from llmirage_server.perf.kernels.prefill import prefill_attention
from llmirage_server.perf.kernels.roofline import MMA_ROWS, round_up


def prefill(
    gpu: GpuSpec, constants: Constants, heads: int, qk_dim: int, v_dim: int, kv_rank_plus_rope: int, kv_dtype: str
) -> PrefillKernel:
    """Time of causal attention of prompt chunks (prefill.prefill_attention), the latent cache expanded into full heads.

    Cached tokens are read expanded, in bf16; where heads are as wide as the latent cache itself (absorbed attention, as
    sparse prefill runs it) all heads share one key of `kv_rank_plus_rope` values.
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


def decode(
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
    """Time of absorbed attention on the latent cache (decode.decode_attention).

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


def bmm(gpu: GpuSpec, constants: Constants, heads: int, n: int, k: int, *, repeated: bool = False) -> TokenKernel:
    """Time of an absorbed projection: for each head [tokens, k] x [k, n] in bf16, one batched launch (gemm.gemm)."""
    return gemm(gpu, constants, WEIGHT_DTYPES["bf16"], n, k, batches=heads, op="mla_bmm", repeated=repeated)
