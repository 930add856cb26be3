"""Dense matrix multiplications: projections, MLPs, router, lm_head."""

from __future__ import annotations

from llmirage_server.perf.catalogue.constants import Constants
from llmirage_server.perf.catalogue.dtypes import WeightDtype
from llmirage_server.perf.catalogue.gpus import GpuSpec
from llmirage_server.perf.kernels.kernel import US, Parts, Roofline

_TILE = 128  # rows and columns of the output tile of one thread block
_QUANTISE_BYTES = 3.0  # an activation is read in bf16 and written in 8 bits


class Gemm(Roofline):
    """C[m, n] = A[m, k] x W[k, n] as a function of m, or `batches` such products in one launch.

    compute = 2 m n (k + prologue) / (F compute) + wave W: filling and draining the pipeline of a tile costs as much as
    `prologue` more columns, and W = 2 * 128 * 128 * k * S / F is one whole wave of output tiles over the S
    multiprocessors, for a half-filled last wave costs as much as a full one. memory = (n k weight bytes + m k activation
    bytes + 2 m n) / (BW memory) + stream S 128 k weight bytes / BW. Smooth maximum of `power`, plus 3 m k quantise / BW
    where activations are quantised before (formats below 16 bits), plus the floor.

    fused_cast: the kernel before (norm, activation, attention) writes the 8-bit activations, since their scales are known
    from the checkpoint. Then nothing quantises, and the launch costs what that of a bf16 GEMM does: the tables hold GEMMs
    with dynamic scales, one or two kernels more (TensorRT-LLM 12 us instead of 3).

    repeated: as a benchmark that repeats one call finds it, with weights of up to `cache_mb` served from the L2 cache at
    `cache` times the memory bandwidth. Layers of a model evict each other's weights, so a model never sees that.
    """

    def __init__(
        self,
        gpu: GpuSpec,
        constants: Constants,
        dtype: WeightDtype,
        n: int,
        k: int,
        *,
        batches: int = 1,
        op: str = "gemm",
        repeated: bool = False,
        fused_cast: bool = False,
    ) -> None:
        c = constants.of(op, dtype.kernel_dtype)
        self.n, self.k = n, k
        peak, bandwidth = gpu.flops[dtype.compute], gpu.bandwidth_bytes_per_s
        reached = bandwidth * c["memory"]
        self.peak_flops, self.bandwidth = peak, bandwidth
        self.flops_per_row = 2.0 * batches * n * k
        self.bytes_per_row = batches * (k * dtype.activation_bytes + 2.0 * n)
        self.weight_bytes = weights = batches * n * k * dtype.weight_bytes
        cached = c["cache"] if repeated and weights < c["cache_mb"] * 1e6 else 1.0
        quantised = c["quantise"] if dtype.activation_bytes < 2.0 and not fused_cast else 0.0
        floor_us = min(c["floor_us"], constants.of(op, "bf16")["floor_us"]) if fused_cast else c["floor_us"]
        self.compute_slope = self.flops_per_row * (1.0 + c["prologue"] / k) / (peak * c["compute"])
        self.compute_base = c["wave"] * 2.0 * _TILE * _TILE * k * gpu.sm_count / peak
        self.memory_slope = self.bytes_per_row / reached
        streamed = c["stream"] * gpu.sm_count * _TILE * k * dtype.weight_bytes / bandwidth
        self.memory_base = weights / reached / cached + streamed
        self.quantise_slope = quantised * _QUANTISE_BYTES * k / bandwidth
        self.floor, self.power, self.root = floor_us * US, c["power"], 1.0 / c["power"]

    def seconds(self, tokens: float) -> float:
        compute = self.compute_slope * tokens + self.compute_base
        memory = self.memory_slope * tokens + self.memory_base
        busy = float((compute**self.power + memory**self.power) ** self.root)
        return busy + self.quantise_slope * tokens + self.floor

    def parts(self, tokens: float) -> Parts:
        return Parts(
            self.flops_per_row * tokens,
            self.bytes_per_row * tokens + self.weight_bytes,
            self.compute_slope * tokens + self.compute_base,
            self.memory_slope * tokens + self.memory_base + self.quantise_slope * tokens,
            self.floor,
        )
