"""Linear attention: layers that carry a state of fixed size per sequence instead of a KV cache.

Constants are fitted on gated delta nets; state-space layers, of which no kernel was measured, take the same.
"""

from __future__ import annotations

from llmirage_server.perf.catalogue.constants import Constants
from llmirage_server.perf.catalogue.gpus import GpuSpec
from llmirage_server.perf.kernels.kernel import NS, US, Parts, Roofline, TokenKernel

_CHUNK = 64  # tokens of one block of the chunked prefill algorithms (flash-linear-attention, mamba-ssm)
_STATE_BYTES = 4.0  # states are kept in float32


class _Linear(Roofline):
    """floor + tokens x the largest of flop / (F compute), bytes / (BW memory) and serial_ns."""

    def __init__(self, gpu: GpuSpec, constants: Constants, op: str, flops_per_token: float, bytes_per_token: float) -> None:
        c = constants.of(op, "bf16")
        self.peak_flops, self.bandwidth = gpu.flops["bf16"], gpu.bandwidth_bytes_per_s
        self.compute_slope = max(flops_per_token / (self.peak_flops * c["compute"]), c["serial_ns"] * NS)
        self.memory_slope = bytes_per_token / (self.bandwidth * c["memory"])
        self.slope, self.floor = max(self.compute_slope, self.memory_slope), c["floor_us"] * US
        self.flops_per_token, self.bytes_per_token = flops_per_token, bytes_per_token

    def seconds(self, tokens: float) -> float:
        return self.slope * tokens + self.floor

    def parts(self, tokens: float) -> Parts:
        flops, moved = self.flops_per_token * tokens, self.bytes_per_token * tokens
        return Parts(flops, moved, self.compute_slope * tokens, self.memory_slope * tokens, self.floor)


def gated_delta_prefill(
    gpu: GpuSpec, constants: Constants, key_heads: int, value_heads: int, key_dim: int, value_dim: int
) -> TokenKernel:
    """Time of the chunked gated delta rule over the new tokens of a step's prompt chunks.

    In blocks of C = 64 tokens, per token and value head: 2 C (2 dk + 2 dv) flop within the block (two Gram matrices, their
    products with keys and values) and 6 dk dv against the state (read, correct, update). Queries, keys, values and outputs
    are read and written in bf16; the state stays on chip but for one pass in C. Blocks of one sequence follow each other, so
    that few heads leave a GPU idle: no token takes less than serial_ns, as if all tokens were of one sequence.
    """
    flops = value_heads * (4.0 * _CHUNK * (key_dim + value_dim) + 6.0 * key_dim * value_dim)
    moved = 4.0 * key_heads * key_dim + 4.0 * value_heads * value_dim
    moved += 2.0 * value_heads * key_dim * value_dim * _STATE_BYTES / _CHUNK
    return _Linear(gpu, constants, "gated_delta_prefill", flops, moved)


def gated_delta_decode(
    gpu: GpuSpec, constants: Constants, key_heads: int, value_heads: int, key_dim: int, value_dim: int
) -> TokenKernel:
    """Time of one step of the recurrence for each decoding sequence: the state of every value head is read and written."""
    state = float(value_heads * key_dim * value_dim)
    moved = 2.0 * state * _STATE_BYTES + 4.0 * key_heads * key_dim + 4.0 * value_heads * value_dim
    return _Linear(gpu, constants, "gated_delta_decode", 6.0 * state, moved)


def mamba2_prefill(gpu: GpuSpec, constants: Constants, heads: int, head_dim: int, groups: int, state: int) -> TokenKernel:
    """Time of the chunked state-space scan (SSD) over the new tokens of a step's prompt chunks.

    In blocks of C = 64 tokens, per token: 2 C groups N for C B^T, 2 C heads P for its product with x, 4 heads P N to update
    and read the state. Inputs and outputs in bf16; the state makes one pass in C.
    """
    inner = heads * head_dim
    flops = 2.0 * _CHUNK * groups * state + 2.0 * _CHUNK * inner + 4.0 * inner * state
    moved = 4.0 * inner + 4.0 * groups * state + 2.0 * inner * state * _STATE_BYTES / _CHUNK
    return _Linear(gpu, constants, "gated_delta_prefill", flops, moved)


def mamba2_decode(gpu: GpuSpec, constants: Constants, heads: int, head_dim: int, groups: int, state: int) -> TokenKernel:
    """Time of one step of the recurrence for each decoding sequence: the state of every head is read and written."""
    inner = heads * head_dim
    moved = 2.0 * inner * state * _STATE_BYTES + 4.0 * inner + 4.0 * groups * state
    return _Linear(gpu, constants, "gated_delta_decode", 6.0 * inner * state, moved)
