"""A kernel's time and what bounds it; kernels that only read and write: norms, activations, sampling."""

from __future__ import annotations

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


def explain(
    seconds: float,
    flops: float,
    moved: float,
    arithmetic_s: float,
    traffic_s: float,
    *,
    compute: float = 0.0,
    memory: float = 0.0,
    launch: float = 0.0,
    network: float = 0.0,
) -> Work:
    """Return the Work of a call; its bound is the longest of the parts (seconds) that `seconds` is made of.

    arithmetic_s, traffic_s: at the GPU's peak rates. The compute part also holds what no arithmetic takes: the tiles that a
    few rows leave empty. Where it is the longest though the bytes take longer at the peak rates, memory is the bound.
    """
    parts: dict[Bound, float] = {"compute": compute, "memory": memory, "launch": launch, "network": network}
    bound = max(parts, key=parts.__getitem__)
    if bound == "compute" and traffic_s > arithmetic_s:
        bound = "memory"
    return Work(seconds, flops, moved, max(arithmetic_s, traffic_s), bound)


def round_up(rows: float, block: int) -> int:
    """Return the smallest multiple of `block` that holds `rows`."""
    return int(-(-rows // block)) * block


# Set by hand, not fitted: streaming kernels of all measured GPUs reach 0.75 to 0.9 of the bandwidth, and a launch inside a
# CUDA graph takes 2 to 4 us.
_EFFICIENCY = 0.8
_LAUNCH_S = 3 * US


class Elementwise:
    """A kernel that reads and writes `bytes_per_token` for each token: bytes / (0.8 BW) + 3 us a launch.

    fused_tokens: up to this many tokens it is part of another kernel and takes no time; from twice as many on, all of it.
    """

    def __init__(self, gpu: GpuSpec, bytes_per_token: float, launches: int = 1, fused_tokens: float = 0.0) -> None:
        self.bandwidth, self.bytes_per_token = gpu.bandwidth_bytes_per_s, bytes_per_token
        self.slope, self.floor = bytes_per_token / (_EFFICIENCY * self.bandwidth), launches * _LAUNCH_S
        self.fused_tokens = fused_tokens

    def seconds(self, tokens: float) -> float:
        return (self.slope * tokens + self.floor) * self._alone(tokens)

    def work(self, tokens: float) -> Work:
        alone = self._alone(tokens)
        moved = self.bytes_per_token * tokens * alone
        memory, launch = self.slope * tokens * alone, self.floor * alone
        return explain(self.seconds(tokens), 0.0, moved, 0.0, moved / self.bandwidth, memory=memory, launch=launch)

    def _alone(self, tokens: float) -> float:
        """Return the share that no other kernel does; it grows with the tokens, so that no user more makes all slower."""
        return min(1.0, max(0.0, tokens / self.fused_tokens - 1.0)) if self.fused_tokens else 1.0
