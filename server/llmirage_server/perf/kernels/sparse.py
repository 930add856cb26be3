"""The indexer of DeepSeek sparse attention: small heads that score every key, of which the real attention takes the best.

Scores are computed on fp8 keys, one key shared by all index heads. Its efficiencies are those of attention on prompts and of
MLA decode on the same GPU (provenance "transferred"): no table of the indexer alone has been fitted.
"""

from __future__ import annotations

from llmirage_server.perf.catalogue.constants import Constants
from llmirage_server.perf.catalogue.gpus import GpuSpec
from llmirage_server.perf.kernels.decode import decode_attention
from llmirage_server.perf.kernels.kernel import DecodeKernel, PrefillKernel
from llmirage_server.perf.kernels.prefill import prefill_attention
from llmirage_server.perf.kernels.roofline import MMA_ROWS, round_up

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
