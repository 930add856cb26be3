"""Dense matrix multiplications: projections, MLPs, router, lm_head."""

from __future__ import annotations

from dataclasses import dataclass

from llmirage_server.perf.constants import Constants
from llmirage_server.perf.dtypes import WeightDtype
from llmirage_server.perf.gpus import GpuSpec
from llmirage_server.perf.kernels.kernel import TokenKernel, Work
from llmirage_server.perf.kernels.roofline import US, explain

_TILE = 128  # rows and columns of the output tile of one thread block


@dataclass(frozen=True, slots=True)
class _Gemm:
    compute_slope: float
    compute_base: float
    memory_slope: float
    memory_base: float
    floor: float
    power: float
    root: float
    # for `work`
    flops_per_row: float
    peak_flops: float
    bytes_per_row: float
    bytes_base: float
    bandwidth: float

    def seconds(self, tokens: float) -> float:
        compute = self.compute_slope * tokens + self.compute_base
        memory = self.memory_slope * tokens + self.memory_base
        return float((compute**self.power + memory**self.power) ** self.root) + self.floor

    def work(self, tokens: float) -> Work:
        flops = self.flops_per_row * tokens
        moved = self.bytes_per_row * tokens + self.bytes_base
        return explain(
            self.seconds(tokens),
            flops,
            moved,
            max(flops / self.peak_flops, moved / self.bandwidth),
            {
                "compute": self.compute_slope * tokens + self.compute_base,
                "memory": self.memory_slope * tokens + self.memory_base,
                "launch": self.floor,
            },
        )


def gemm(gpu: GpuSpec, constants: Constants, dtype: WeightDtype, n: int, k: int) -> TokenKernel:
    """Time of C[m, n] = A[m, k] x W[k, n] as a function of m.

    compute = 2 m n k / (F compute) + wave W, where W = 2 * 128 * 128 * k * S / F is one whole wave of output tiles over the S
    multiprocessors: a half-filled last wave costs as much as a full one. memory = (n k weight bytes + m k activation
    bytes + 2 m n) / (BW memory) + stream S 128 k weight bytes / BW. Smooth maximum of `power`, plus the floor.
    """
    c = constants.of("gemm", dtype.kernel_dtype)
    peak, bandwidth = gpu.flops[dtype.compute], gpu.bandwidth_bytes_per_s
    reached = bandwidth * c["memory"]
    bytes_per_row = k * dtype.activation_bytes + 2.0 * n
    weights = n * k * dtype.weight_bytes
    return _Gemm(
        compute_slope=2.0 * n * k / (peak * c["compute"]),
        compute_base=c["wave"] * 2.0 * _TILE * _TILE * k * gpu.sm_count / peak,
        memory_slope=bytes_per_row / reached,
        memory_base=weights / reached + c["stream"] * gpu.sm_count * _TILE * k * dtype.weight_bytes / bandwidth,
        floor=c["floor_us"] * US,
        power=c["power"],
        root=1.0 / c["power"],
        flops_per_row=2.0 * n * k,
        peak_flops=peak,
        bytes_per_row=bytes_per_row,
        bytes_base=weights,
        bandwidth=bandwidth,
    )
