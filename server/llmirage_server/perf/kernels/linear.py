"""Linear attention: layers that carry a state of fixed size per sequence instead of a KV cache.

Constants are fitted on gated delta nets; state-space layers, of which no kernel was measured, take the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmirage_server.perf.catalogue.constants import Constants, RecurrenceName
from llmirage_server.perf.catalogue.gpus import GpuSpec
from llmirage_server.perf.kernels.kernel import NS, US, TokenKernel, Work, explain

_CHUNK = 64  # tokens of one block of the chunked prefill algorithms (flash-linear-attention, mamba-ssm)
_STATE_BYTES = 4.0  # states are kept in float32


@dataclass(frozen=True, slots=True)
class _Linear:
    compute_slope: float
    memory_slope: float
    slope: float
    floor: float
    flops_per_token: float
    peak_flops: float
    bytes_per_token: float
    bandwidth: float

    def seconds(self, tokens: float) -> float:
        return self.slope * tokens + self.floor

    def work(self, tokens: float) -> Work:
        flops, moved = self.flops_per_token * tokens, self.bytes_per_token * tokens
        return explain(
            self.seconds(tokens),
            flops,
            moved,
            flops / self.peak_flops,
            moved / self.bandwidth,
            compute=self.compute_slope * tokens,
            memory=self.memory_slope * tokens,
            launch=self.floor,
        )


def _linear(
    gpu: GpuSpec, constants: Constants, op: RecurrenceName, flops_per_token: float, bytes_per_token: float
) -> TokenKernel:
    """Time floor + tokens x the largest of flop / (F compute), bytes / (BW memory) and serial_ns."""
    c = constants.recurrence(op)
    peak, bandwidth = gpu.flops["bf16"], gpu.bandwidth_bytes_per_s
    compute = max(flops_per_token / (peak * c["compute"]), c["serial_ns"] * NS)
    memory = bytes_per_token / (bandwidth * c["memory"])
    return _Linear(
        compute_slope=compute,
        memory_slope=memory,
        slope=max(compute, memory),
        floor=c["floor_us"] * US,
        flops_per_token=flops_per_token,
        peak_flops=peak,
        bytes_per_token=bytes_per_token,
        bandwidth=bandwidth,
    )


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
    return _linear(gpu, constants, "gated_delta_prefill", flops, moved)


def gated_delta_decode(
    gpu: GpuSpec, constants: Constants, key_heads: int, value_heads: int, key_dim: int, value_dim: int
) -> TokenKernel:
    """Time of one step of the recurrence for each decoding sequence: the state of every value head is read and written."""
    state = float(value_heads * key_dim * value_dim)
    moved = 2.0 * state * _STATE_BYTES + 4.0 * key_heads * key_dim + 4.0 * value_heads * value_dim
    return _linear(gpu, constants, "gated_delta_decode", 6.0 * state, moved)


def mamba2_prefill(gpu: GpuSpec, constants: Constants, heads: int, head_dim: int, groups: int, state: int) -> TokenKernel:
    """Time of the chunked state-space scan (SSD) over the new tokens of a step's prompt chunks.

    In blocks of C = 64 tokens, per token: 2 C groups N for C B^T, 2 C heads P for its product with x, 4 heads P N to update
    and read the state. Inputs and outputs in bf16; the state makes one pass in C.
    """
    inner = heads * head_dim
    flops = 2.0 * _CHUNK * groups * state + 2.0 * _CHUNK * inner + 4.0 * inner * state
    moved = 4.0 * inner + 4.0 * groups * state + 2.0 * inner * state * _STATE_BYTES / _CHUNK
    return _linear(gpu, constants, "gated_delta_prefill", flops, moved)


def mamba2_decode(gpu: GpuSpec, constants: Constants, heads: int, head_dim: int, groups: int, state: int) -> TokenKernel:
    """Time of one step of the recurrence for each decoding sequence: the state of every head is read and written."""
    inner = heads * head_dim
    moved = 2.0 * inner * state * _STATE_BYTES + 4.0 * inner + 4.0 * groups * state
    return _linear(gpu, constants, "gated_delta_decode", 6.0 * inner * state, moved)
