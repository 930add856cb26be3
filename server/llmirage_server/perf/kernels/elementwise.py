"""Kernels that only read and write: norms, activations, sampling."""

from __future__ import annotations

from dataclasses import dataclass

from llmirage_server.perf.catalogue.gpus import GpuSpec
from llmirage_server.perf.kernels.kernel import TokenKernel, Work
from llmirage_server.perf.kernels.roofline import US, explain

# Set by hand, not fitted: streaming kernels of all measured GPUs reach 0.75 to 0.9 of the bandwidth, and a launch inside a
# CUDA graph takes 2 to 4 us.
_EFFICIENCY = 0.8
_LAUNCH_S = 3 * US


@dataclass(frozen=True, slots=True)
class _Elementwise:
    slope: float
    floor: float
    bytes_per_token: float
    bandwidth: float
    fused_tokens: float

    def seconds(self, tokens: float) -> float:
        return (self.slope * tokens + self.floor) * self._alone(tokens)

    def work(self, tokens: float) -> Work:
        alone = self._alone(tokens)
        moved = self.bytes_per_token * tokens * alone
        memory, launch = self.slope * tokens * alone, self.floor * alone
        return explain(self.seconds(tokens), 0.0, moved, 0.0, moved / self.bandwidth, memory=memory, launch=launch)

    def _alone(self, tokens: float) -> float:
        """Which part is not done by another kernel. Grows with the tokens, so that no user more makes all of them slower."""
        if not self.fused_tokens:
            return 1.0
        return min(1.0, max(0.0, tokens / self.fused_tokens - 1.0))


def elementwise(gpu: GpuSpec, bytes_per_token: float, launches: int = 1, fused_tokens: float = 0.0) -> TokenKernel:
    """Time to read and write `bytes_per_token` for each token: bytes / (0.8 BW) + 3 us a launch.

    fused_tokens: up to so many it is part of another kernel, and takes no time; from twice so many on it takes all of it.
    """
    bandwidth = gpu.bandwidth_bytes_per_s
    slope = bytes_per_token / (_EFFICIENCY * bandwidth)
    return _Elementwise(slope, launches * _LAUNCH_S, bytes_per_token, bandwidth, fused_tokens)
