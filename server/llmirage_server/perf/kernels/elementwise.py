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

    def seconds(self, tokens: float) -> float:
        return self.slope * tokens + self.floor

    def work(self, tokens: float) -> Work:
        moved = self.bytes_per_token * tokens
        ideal = moved / self.bandwidth
        return explain(self.seconds(tokens), 0.0, moved, 0.0, ideal, memory=self.slope * tokens, launch=self.floor)


def elementwise(gpu: GpuSpec, bytes_per_token: float, launches: int = 1) -> TokenKernel:
    """Time to read and write `bytes_per_token` for each token: bytes / (0.8 BW) + 3 us a launch."""
    bandwidth = gpu.bandwidth_bytes_per_s
    return _Elementwise(bytes_per_token / (_EFFICIENCY * bandwidth), launches * _LAUNCH_S, bytes_per_token, bandwidth)
