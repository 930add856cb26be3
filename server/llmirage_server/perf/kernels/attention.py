"""Attention with a KV cache, of prompt chunks and of decoding sequences, latent (MLA) and sparse; linear attention."""

from __future__ import annotations

from collections.abc import Mapping
from math import hypot, sqrt

from llmirage_server.perf.catalogue.constants import Constants
from llmirage_server.perf.catalogue.dtypes import KV_DTYPE_BYTES, WEIGHT_DTYPES
from llmirage_server.perf.catalogue.gpus import GpuSpec
from llmirage_server.perf.catalogue.layers import GatedDelta, Mamba2
from llmirage_server.perf.kernels.kernel import MMA_ROWS, NS, US, Gemm, Roofline, TokenKernel, round_up

_QUERY_BLOCK = 128  # rows of queries that one thread block takes
_SPLIT_TOKENS = 4096.0  # context at which the cost of splitting is split_us
_SERIAL_DIMS = 256.0  # dqk + dv at which one token costs an unsplit block serial_ns
_SMALL_WINDOW = 256  # tokens; windowed decode was measured at 128, where the length of the context no longer shows
_SCORE_BYTES = 4.0  # float32 scores of the sparse index are written, and read by the selection of the best keys


class PrefillAttention(Roofline):
    """Causal attention of all prompt chunks of a step in one launch.

    compute = 4 h d' (pairs + diagonal 128 new) / (F compute) + wave W, F being the bf16 rate and d half of dqk + dv.
    Exponentials cost the same for every head size, hence d' = sqrt(d^2 + softmax_dims^2); blocks on the diagonal (or at the
    edges of a window: window_diagonal) are half empty; W = 4 * 128 * d' * longest * S / F is one whole wave of query blocks.
    memory = bytes / (BW memory). Smooth maximum of `power`, plus the floor.
    """

    def __init__(
        self,
        gpu: GpuSpec,
        c: Mapping[str, float],
        *,
        heads: int,
        qk_dim: int,
        v_dim: int,
        bytes_new: float,
        bytes_context: float,
        windowed: bool = False,
    ) -> None:
        self.peak_flops, self.bandwidth = gpu.flops["bf16"], gpu.bandwidth_bytes_per_s
        dims = 2.0 * hypot((qk_dim + v_dim) / 2.0, c["softmax_dims"])
        reached = self.bandwidth * c["memory"]
        self.per_pair = 2.0 * heads * dims / (self.peak_flops * c["compute"])
        self.per_new = self.per_pair * c["window_diagonal" if windowed else "diagonal"] * _QUERY_BLOCK
        self.per_longest = c["wave"] * 2.0 * _QUERY_BLOCK * dims * gpu.sm_count / self.peak_flops
        self.memory_new, self.memory_context = bytes_new / reached, bytes_context / reached
        self.floor, self.power, self.root = c["floor_us"] * US, c["power"], 1.0 / c["power"]
        self.flops_per_pair = 2.0 * heads * (qk_dim + v_dim)
        self.bytes_new, self.bytes_context = bytes_new, bytes_context

    def seconds(self, pairs: float, new_tokens: float, context_tokens: float, longest: float) -> float:
        """Return the seconds of a launch.

        pairs: (query, key) pairs that the mask leaves, summed over the chunks (`causal_pairs`), as new_tokens and
        context_tokens are; longest: keys that the longest chunk attends to.
        """
        compute = self.per_pair * pairs + self.per_new * new_tokens + self.per_longest * longest
        memory = self.memory_new * new_tokens + self.memory_context * context_tokens
        return float((compute**self.power + memory**self.power) ** self.root) + self.floor

    def amounts(self, pairs: float, new_tokens: float, context_tokens: float, longest: float) -> tuple[float, float]:
        return self.flops_per_pair * pairs, self.bytes_new * new_tokens + self.bytes_context * context_tokens


class DecodeAttention(Roofline):
    """Attention of all decoding sequences of a step in one launch, from the demand of one token of context and one sequence.

    memory = bytes / (BW memory); compute = packed flop / (F compute) + serial_ns longest (dqk + dv) / 256, F being the bf16
    rate, the second term for kernels that do not split one sequence's context over the multiprocessors. Smooth maximum of
    `power`, plus overheads: the floor, split_us sqrt(longest / 4096), combine_us longest / (longest + combine_tokens) for
    adding up partial results, ramp_us bytes / (bytes + ramp_mb) until all multiprocessors stream, schedule_ns for each of
    `schedules` of a sequence.
    """

    def __init__(
        self,
        gpu: GpuSpec,
        c: Mapping[str, float],
        *,
        flops_context: float,
        packed_flops_context: float,
        bytes_context: float,
        bytes_sequence: float,
        schedules: float,
        dims: float,
    ) -> None:
        self.peak_flops, self.bandwidth = gpu.flops["bf16"], gpu.bandwidth_bytes_per_s
        reached = self.bandwidth * c["memory"]
        self.memory_context, self.memory_sequence = bytes_context / reached, bytes_sequence / reached
        self.compute_context = packed_flops_context / (self.peak_flops * c["compute"])
        self.serial = c["serial_ns"] * NS * dims / _SERIAL_DIMS  # per token of the longest context
        self.floor, self.power, self.root = c["floor_us"] * US, c["power"], 1.0 / c["power"]
        self.split = c["split_us"] * US / sqrt(_SPLIT_TOKENS)
        self.combine, self.combine_tokens = c["combine_us"] * US, c["combine_tokens"]
        self.ramp, self.ramp_context = c["ramp_us"] * US, c["ramp_mb"] * 1e6 / bytes_context
        self.per_sequence = c["schedule_ns"] * NS * schedules
        self.flops_context, self.bytes_context, self.bytes_sequence = flops_context, bytes_context, bytes_sequence

    def seconds(self, sequences: int, context_sum: float, longest: float) -> float:
        """Return the seconds of a launch; contexts in tokens, clipped to the window."""
        memory = self.memory_context * context_sum + self.memory_sequence * sequences
        compute = self.compute_context * context_sum + self.serial * longest
        return float((memory**self.power + compute**self.power) ** self.root) + (
            self.floor
            + self.split * sqrt(longest)
            + self.combine * longest / (longest + self.combine_tokens)
            + self.ramp * context_sum / (context_sum + self.ramp_context)
            + self.per_sequence * sequences
        )

    def amounts(self, sequences: int, context_sum: float, longest: float) -> tuple[float, float]:
        return self.flops_context * context_sum, self.bytes_context * context_sum + self.bytes_sequence * sequences


# Grouped-query attention.
def prefill(
    gpu: GpuSpec, constants: Constants, heads: int, kv_heads: int, qk_dim: int, v_dim: int, kv_dtype: str, window: int = 0
) -> PrefillAttention:
    """Return causal attention over prompt chunks.

    Queries, outputs and new keys and values are read and written in bf16, cached ones read in `kv_dtype`. window: keys that
    a query sees, 0 for all; the caller counts pairs accordingly.
    """
    dims = qk_dim + v_dim
    return PrefillAttention(
        gpu,
        constants.of("attention_prefill", kv_dtype),
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
) -> DecodeAttention:
    """Return attention for sequences that add `queries` tokens each.

    The query heads of a group share one pass over their keys, in tensor-core tiles of 16 rows: compute counts 2 kvh
    ceil16(queries h / kvh) (dqk + dv) flop per token of context; each (sequence, KV head) is scheduled for itself. Kernels
    with `unpacked` constants (FlashAttention 2 with a window) schedule and compute each query head apart instead. The
    caller clips contexts to `window` (0: none). Small windows have constants of their own.
    """
    c = constants.of("attention_decode_window" if window else "attention_decode", kv_dtype)
    groups = heads if c["unpacked"] else kv_heads
    if window > _SMALL_WINDOW:
        c = constants.of("attention_decode", kv_dtype)
    dims = qk_dim + v_dim
    return DecodeAttention(
        gpu,
        c,
        flops_context=2.0 * queries * heads * dims,
        packed_flops_context=2.0 * groups * round_up(queries * heads / groups, MMA_ROWS) * dims,
        bytes_context=float(kv_heads * dims * KV_DTYPE_BYTES[kv_dtype]),
        bytes_sequence=2.0 * queries * heads * dims,
        schedules=groups,
        dims=dims,
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


# Multi-head latent attention (DeepSeek): expanded heads for prompts, the compressed cache itself for decodes.
def mla_prefill(
    gpu: GpuSpec, constants: Constants, heads: int, qk_dim: int, v_dim: int, latent: int, kv_dtype: str
) -> PrefillAttention:
    """Return causal attention of prompt chunks, the latent cache (`latent` values a token) expanded into full heads.

    Cached tokens are read expanded, in bf16; where heads are as wide as the latent cache itself (absorbed attention, as
    sparse prefill runs it) all heads share one key.
    """
    dims = qk_dim + v_dim
    key_bytes = latent * KV_DTYPE_BYTES[kv_dtype] if qk_dim == latent else 2.0 * heads * dims
    return PrefillAttention(
        gpu,
        constants.of("mla_prefill", kv_dtype),
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
) -> DecodeAttention:
    """Return absorbed attention on the latent cache.

    All heads share one key of kv_rank + rope_dim values per token, of which kv_rank are the value too; compute counts
    2 ceil16(queries h) (2 kv_rank + rope_dim) flop per token of context, and each (sequence, head) is scheduled.
    """
    width = 2 * kv_rank + rope_dim
    return DecodeAttention(
        gpu,
        constants.of("mla_decode", kv_dtype),
        flops_context=2.0 * queries * heads * width,
        packed_flops_context=2.0 * round_up(queries * heads, MMA_ROWS) * width,
        bytes_context=float((kv_rank + rope_dim) * KV_DTYPE_BYTES[kv_dtype]),
        bytes_sequence=2.0 * queries * heads * width,
        schedules=heads,
        dims=width,
    )


def mla_bmm(gpu: GpuSpec, constants: Constants, heads: int, n: int, k: int) -> TokenKernel:
    """Return an absorbed projection: for each head [tokens, k] x [k, n] in bf16, one batched launch."""
    return Gemm(gpu, constants, WEIGHT_DTYPES["bf16"], n, k, batches=heads, op="mla_bmm")


# The indexer of DeepSeek sparse attention: small heads score every key, of which the real attention takes the best. Keys are
# fp8, one shared by all heads; efficiencies are those of attention on prompts and of MLA decode on the same GPU (provenance
# "transferred"), as no table of the indexer alone has been fitted.
def indexer_prefill(gpu: GpuSpec, constants: Constants, heads: int, head_dim: int) -> PrefillAttention:
    """Return the scores of all (query, key) pairs of prompt chunks: 2 h d flop a pair, as the first half of attention."""
    return PrefillAttention(
        gpu,
        constants.of("attention_prefill", "bf16"),
        heads=heads,
        qk_dim=head_dim,
        v_dim=0,
        bytes_new=float(heads * head_dim + head_dim),
        bytes_context=float(head_dim),
    )


def indexer_decode(gpu: GpuSpec, constants: Constants, heads: int, head_dim: int, queries: int = 1) -> DecodeAttention:
    """Return the scores of each decoding sequence's context: one fp8 key and two passes over the scores a token."""
    return DecodeAttention(
        gpu,
        constants.of("mla_decode", "bf16"),
        flops_context=2.0 * queries * heads * head_dim,
        packed_flops_context=2.0 * round_up(queries * heads, MMA_ROWS) * head_dim,
        bytes_context=head_dim + 2.0 * _SCORE_BYTES * queries,
        bytes_sequence=float(queries * heads * head_dim),
        schedules=1,
        dims=head_dim,
    )


# Linear attention: layers that carry a state of fixed size per sequence instead of a KV cache. Constants are fitted on gated
# delta nets; state-space layers, of which no kernel was measured, take the same.
_CHUNK = 64  # tokens of one block of the chunked prefill algorithms (flash-linear-attention, mamba-ssm)
_STATE_BYTES = 4.0  # states are kept in float32


class _Linear(Roofline):
    """floor + tokens x the largest of flop / (F compute), bytes / (BW memory) and serial_ns."""

    def __init__(self, gpu: GpuSpec, constants: Constants, op: str, flops_per_token: float, bytes_per_token: float) -> None:
        c = constants.of(op, "bf16")
        self.peak_flops, self.bandwidth = gpu.flops["bf16"], gpu.bandwidth_bytes_per_s
        compute_s, memory_s = (
            flops_per_token / (self.peak_flops * c["compute"]),
            bytes_per_token / (self.bandwidth * c["memory"]),
        )
        self.slope, self.floor = max(compute_s, memory_s, c["serial_ns"] * NS), c["floor_us"] * US
        self.flops_per_token, self.bytes_per_token = flops_per_token, bytes_per_token

    def seconds(self, tokens: float) -> float:
        return self.slope * tokens + self.floor

    def amounts(self, tokens: float) -> tuple[float, float]:
        return self.flops_per_token * tokens, self.bytes_per_token * tokens


def recurrent_prefill(gpu: GpuSpec, constants: Constants, block: GatedDelta | Mamba2, tp: int = 1) -> TokenKernel:
    """Time of the chunked algorithm over the new tokens of a step's prompt chunks, in blocks of C = 64 tokens.

    Gated delta rule, per token and value head: 2 C (2 dk + 2 dv) flop within the block (two Gram matrices, their products
    with keys and values) and 6 dk dv against the state (read, correct, update). State space (SSD), per token: 2 C groups N
    for C B^T, 2 C heads P for its product with x, 4 heads P N to update and read the state. Inputs and outputs are bf16; the
    state stays on chip but for one pass in C. Blocks of one sequence follow each other, so that few heads leave a GPU idle:
    no token takes less than serial_ns, as if all tokens were of one sequence.
    """
    shared, out, _, state = block.widths(tp)
    if isinstance(block, GatedDelta):
        flops = 4.0 * _CHUNK * (block.value_heads // tp * block.key_dim + out) + 6.0 * state
    else:
        flops = 2.0 * _CHUNK * (shared + out) + 4.0 * state
    moved = 4.0 * (shared + out) + 2.0 * state * _STATE_BYTES / _CHUNK
    return _Linear(gpu, constants, "gated_delta_prefill", flops, moved)


def recurrent_decode(gpu: GpuSpec, constants: Constants, block: GatedDelta | Mamba2, tp: int = 1) -> TokenKernel:
    """Time of one step of the recurrence for each decoding sequence: the state of every head is read and written."""
    shared, out, _, state = block.widths(tp)
    moved = 2.0 * state * _STATE_BYTES + 4.0 * (shared + out)
    return _Linear(gpu, constants, "gated_delta_decode", 6.0 * state, moved)
