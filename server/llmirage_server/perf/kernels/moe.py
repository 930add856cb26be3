"""The routed experts of a mixture of experts, as one fused kernel on the busiest rank."""

from __future__ import annotations

from dataclasses import dataclass

from llmirage_server.perf.constants import Constants
from llmirage_server.perf.dtypes import WeightDtype
from llmirage_server.perf.gpus import GpuSpec
from llmirage_server.perf.kernels.kernel import TokenKernel, Work
from llmirage_server.perf.kernels.roofline import US, explain

_ROW_BLOCK = 64  # an expert's rows are padded by up to this many


@dataclass(frozen=True, slots=True)
class _Experts:
    experts: int  # of this rank
    pairs_per_token: float
    missed: float  # chance that one token does not visit a given expert
    compute_pair: float
    compute_expert: float
    memory_expert: float
    per_pair: float
    per_token: float
    floor: float
    power: float
    root: float
    # for `work`
    flops_pair: float
    peak_flops: float
    bytes_expert: float
    bytes_pair: float
    bytes_token: float
    bandwidth: float

    def seconds(self, tokens: float) -> float:
        pairs = self.pairs_per_token * tokens
        met = self.experts * (1.0 - self.missed**tokens)
        compute = self.compute_pair * pairs + self.compute_expert * met
        memory = self.memory_expert * met
        busy = float((compute**self.power + memory**self.power) ** self.root)
        return busy + self.per_pair * pairs + self.per_token * tokens + self.floor

    def work(self, tokens: float) -> Work:
        pairs = self.pairs_per_token * tokens
        met = self.experts * (1.0 - self.missed**tokens)
        flops = self.flops_pair * pairs
        moved = self.bytes_expert * met + self.bytes_pair * pairs + self.bytes_token * tokens
        return explain(
            self.seconds(tokens),
            flops,
            moved,
            max(flops / self.peak_flops, moved / self.bandwidth),
            {
                "compute": self.compute_pair * pairs + self.compute_expert * met,
                "memory": self.memory_expert * met + self.per_pair * pairs + self.per_token * tokens,
                "launch": self.floor,
            },
        )


def experts(
    gpu: GpuSpec,
    constants: Constants,
    dtype: WeightDtype,
    hidden: int,
    width: int,
    experts: int,
    per_token: int,
    ep: int,
    gated: bool = True,
) -> TokenKernel:
    """Time of the routed experts on the busiest of `ep` ranks as a function of the tokens that enter the group.

    `width` is that of one expert on this rank (divided by the tensor parallelism of the experts); `experts` counts those of the
    whole layer.
    """
    c = constants.of("moe", dtype.kernel_dtype)
    peak, bandwidth = gpu.flops[dtype.compute], gpu.bandwidth_bytes_per_s
    matrices = 3 if gated else 2
    weights = float(matrices * hidden * width)
    compute_pair = 2.0 * weights / (peak * c["compute"])
    bytes_pair = 4.0 * hidden + 2.0 * matrices * width
    return _Experts(
        experts=max(1, experts // ep),
        pairs_per_token=per_token / ep,
        missed=1.0 - per_token / experts,
        compute_pair=compute_pair,
        compute_expert=compute_pair * c["padding"] * _ROW_BLOCK,
        memory_expert=weights * dtype.weight_bytes / (bandwidth * c["memory"]),
        per_pair=c["activation"] * bytes_pair / bandwidth,
        per_token=c["activation"] * 4.0 * hidden / bandwidth,
        floor=c["floor_us"] * US,
        power=c["power"],
        root=1.0 / c["power"],
        flops_pair=2.0 * weights,
        peak_flops=peak,
        bytes_expert=weights * dtype.weight_bytes,
        bytes_pair=bytes_pair,
        bytes_token=4.0 * hidden,
        bandwidth=bandwidth,
    )
