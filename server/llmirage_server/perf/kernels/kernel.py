"""A kernel's time and what bounds it; kernels that only read and write: norms, activations, sampling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

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


class Parts(NamedTuple):
    """Amounts of a call, and the parts of its seconds."""

    flops: float
    bytes: float
    compute_s: float
    memory_s: float
    launch_s: float


class Roofline:
    """A kernel bound by arithmetic, memory or its launch; `seconds` and `parts` take what the load is."""

    peak_flops: float
    bandwidth: float
    seconds: Callable[..., float]
    parts: Callable[..., Parts]

    def work(self, *load: float) -> Work:
        """Explain a call; its bound is its longest part.

        The compute part also holds what no arithmetic takes: the tiles that a few rows leave empty. Where it is the longest
        though the bytes take longer at the peak rates, memory is the bound.
        """
        parts = self.parts(*load)
        arithmetic_s, traffic_s = parts.flops / self.peak_flops, parts.bytes / self.bandwidth
        bound: Bound = "launch"
        if parts.launch_s < max(parts.compute_s, parts.memory_s):
            bound = "memory" if parts.memory_s > parts.compute_s or traffic_s > arithmetic_s else "compute"
        return Work(self.seconds(*load), parts.flops, parts.bytes, max(arithmetic_s, traffic_s), bound)


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

    def parts(self, tokens: float) -> Parts:
        streamed = tokens * self._alone(tokens)
        return Parts(0.0, self.bytes_per_token * streamed, 0.0, self.slope * streamed, self.floor * self._alone(tokens))

    def _alone(self, tokens: float) -> float:
        """Return the share that no other kernel does; it grows with the tokens, so that no user more makes all slower."""
        return min(1.0, max(0.0, tokens / self.fused_tokens - 1.0)) if self.fused_tokens else 1.0
