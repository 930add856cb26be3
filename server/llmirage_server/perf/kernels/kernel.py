"""A kernel's time and what bounds it; dense matrix products, and kernels that only read and write (norms, activations)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

from llmirage_server.perf.catalogue.constants import Constants
from llmirage_server.perf.catalogue.dtypes import WeightDtype
from llmirage_server.perf.catalogue.gpus import GpuSpec

Bound = Literal["compute", "memory", "launch", "network"]


class Work(NamedTuple):
    """One call of a kernel on one GPU, explained."""

    seconds: float
    flops: float
    bytes: float  # through GPU memory; through the link where the bound is the network
    ideal_s: float  # roofline limit: the larger of flops and bytes at the datasheet's rates
    bound: Bound  # the largest of the compute, memory, launch (fixed) and network parts of `seconds`


class TokenKernel(Protocol):
    """A kernel whose time depends on the tokens (rows, sequences) of the step alone."""

    def seconds(self, tokens: float) -> float: ...
    def work(self, tokens: float) -> Work: ...


US = 1e-6
NS = 1e-9
MMA_ROWS = 16  # rows of a tensor-core tile: that many query heads share one pass over their keys


class Roofline:
    """A kernel bound by arithmetic, memory or its launch; its methods take what the load is."""

    peak_flops: float
    bandwidth: float
    floor: float  # seconds of a call without load
    seconds: Callable[..., float]
    amounts: Callable[..., tuple[float, float]]  # operations, bytes through GPU memory

    def work(self, *load: float) -> Work:
        """Explain a call; its launch is the bound if it takes half of the time, else the rate that is reached first."""
        seconds, (flops, moved) = self.seconds(*load), self.amounts(*load)
        arithmetic_s, traffic_s = flops / self.peak_flops, moved / self.bandwidth
        bound: Bound = "compute" if arithmetic_s > traffic_s else "memory"
        return Work(seconds, flops, moved, max(arithmetic_s, traffic_s), bound if seconds > 2 * self.floor else "launch")


def round_up(rows: float, block: int) -> int:
    """Return the smallest multiple of `block` that holds `rows`."""
    return int(-(-rows // block)) * block


# Set by hand, not fitted: streaming kernels of all measured GPUs reach 0.75 to 0.9 of the bandwidth, and a launch inside a
# CUDA graph takes 2 to 4 us.
_EFFICIENCY = 0.8
_LAUNCH_S = 3 * US


class Elementwise(Roofline):
    """A kernel that reads and writes `bytes_per_token` for each token: bytes / (0.8 BW) + 3 us a launch.

    fused_tokens: up to this many tokens it is part of another kernel and takes no time; from twice as many on, all of it.
    """

    def __init__(self, gpu: GpuSpec, bytes_per_token: float, launches: int = 1, fused_tokens: float = 0.0) -> None:
        self.bandwidth, self.peak_flops = gpu.bandwidth_bytes_per_s, gpu.flops["bf16"]
        self.bytes_per_token = bytes_per_token
        self.slope, self.floor = bytes_per_token / (_EFFICIENCY * self.bandwidth), launches * _LAUNCH_S
        self.fused_tokens = fused_tokens

    def seconds(self, tokens: float) -> float:
        return (self.slope * tokens + self.floor) * self._alone(tokens)

    def amounts(self, tokens: float) -> tuple[float, float]:
        return 0.0, self.bytes_per_token * (tokens * self._alone(tokens))

    def _alone(self, tokens: float) -> float:
        """Return the share that no other kernel does; it grows with the tokens, so that no user more makes all slower."""
        return min(1.0, max(0.0, tokens / self.fused_tokens - 1.0)) if self.fused_tokens else 1.0


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
        quantised = c["quantise"] if dtype.activation_bytes < 2.0 and not fused_cast else 0.0
        floor_us = min(c["floor_us"], constants.of(op, "bf16")["floor_us"]) if fused_cast else c["floor_us"]
        self.compute_slope = self.flops_per_row * (1.0 + c["prologue"] / k) / (peak * c["compute"])
        self.compute_base = c["wave"] * 2.0 * _TILE * _TILE * k * gpu.sm_count / peak
        self.memory_slope = self.bytes_per_row / reached
        streamed = c["stream"] * gpu.sm_count * _TILE * k * dtype.weight_bytes / bandwidth
        self.memory_base = weights / reached + streamed
        self.quantise_slope = quantised * _QUANTISE_BYTES * k / bandwidth
        self.floor, self.power, self.root = floor_us * US, c["power"], 1.0 / c["power"]

    def seconds(self, tokens: float) -> float:
        compute = self.compute_slope * tokens + self.compute_base
        memory = self.memory_slope * tokens + self.memory_base
        busy = float((compute**self.power + memory**self.power) ** self.root)
        return busy + self.quantise_slope * tokens + self.floor

    def amounts(self, tokens: float) -> tuple[float, float]:
        return self.flops_per_row * tokens, self.bytes_per_row * tokens + self.weight_bytes
