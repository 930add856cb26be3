"""The routed experts of a mixture of experts, as one fused kernel on the busiest rank."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from llmirage_server.perf.catalogue.constants import Constants
from llmirage_server.perf.catalogue.dtypes import WeightDtype
from llmirage_server.perf.catalogue.gpus import GpuSpec
from llmirage_server.perf.kernels.kernel import TokenKernel, Work
from llmirage_server.perf.kernels.roofline import US, explain
from llmirage_server.perf.kernels.routing import DEFAULT_SKEW, busiest_rank, tabled_rank

_ROW_BLOCK = 64  # an expert's rows are padded by up to this many


@dataclass(frozen=True, slots=True)
class _Experts:
    tokens: tuple[float, ...]  # counts at which the two below are known
    pairs: tuple[float, ...]
    met: tuple[float, ...]
    compute_pair: float
    compute_expert: float
    memory_expert: float
    per_pair: float
    per_token: float
    floor: float
    power: float
    root: float
    cached_experts: float  # that the L2 cache holds, in a repeated call
    cache: float
    # for `work`
    flops_pair: float
    peak_flops: float
    bytes_expert: float
    bytes_pair: float
    bytes_token: float
    bandwidth: float

    def routed(self, tokens: float) -> tuple[float, float]:
        """Return (token, expert) pairs and distinct experts of the busiest rank."""
        known = self.tokens
        i = bisect_left(known, tokens)
        if i == 0:
            share = tokens / known[0]
            return self.pairs[0] * share, self.met[0] * share
        if i == len(known):
            return self.pairs[-1] * tokens / known[-1], self.met[-1]
        share = (tokens - known[i - 1]) / (known[i] - known[i - 1])
        low, met = self.pairs[i - 1], self.met[i - 1]
        return low + share * (self.pairs[i] - low), met + share * (self.met[i] - met)

    def seconds(self, tokens: float) -> float:
        pairs, met = self.routed(tokens)
        compute = self.compute_pair * pairs + self.compute_expert * met
        memory = self.memory_expert * (met / self.cache if met < self.cached_experts else met)
        busy = float((compute**self.power + memory**self.power) ** self.root)
        return busy + self.per_pair * pairs + self.per_token * tokens + self.floor

    def work(self, tokens: float) -> Work:
        pairs, met = self.routed(tokens)
        flops = self.flops_pair * pairs
        moved = self.bytes_expert * met + self.bytes_pair * pairs + self.bytes_token * tokens
        streamed = self.memory_expert * (met / self.cache if met < self.cached_experts else met)
        return explain(
            self.seconds(tokens),
            flops,
            moved,
            flops / self.peak_flops,
            moved / self.bandwidth,
            compute=self.compute_pair * pairs + self.compute_expert * met,
            memory=streamed + self.per_pair * pairs + self.per_token * tokens,
            launch=self.floor,
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
    *,
    skew: float = DEFAULT_SKEW,
    repeated: bool = False,
    sent: bool = False,
) -> TokenKernel:
    """Time of the routed experts on the busiest of `ep` ranks as a function of T, the tokens that enter the group.

    `width` is that of one expert on this rank (divided by the tensor parallelism of the experts); `experts` counts those of
    the whole layer. The busiest rank gets N (token, expert) pairs and meets D of its experts (routing.busiest_rank); N lies
    between the even share and that: N = T k / ep (busiest / even)^hot. M = 3 H I weights (2 H I ungated) of an expert.

    compute = 2 M (N + padding 64 D) / (F compute), rows being padded to blocks; memory = D M weight bytes / (BW memory),
    every expert met being read once. Smooth maximum of `power`, plus (activation N + spread T k) (4 H + 2 M / H) / BW for
    what is gathered, written between the matrices and summed, `spread` for kernels that walk over the pairs of all ranks;
    plus the floor. sent: a rank has the tokens of its own experts alone, and walks over no others' pairs. repeated: as in
    gemm.gemm, and tokens go to experts as in the op tables.
    """
    c = constants.moe(dtype.expert_dtype)
    peak, bandwidth = gpu.flops[dtype.compute], gpu.bandwidth_bytes_per_s
    weights = float((3 if gated else 2) * hidden * width)
    expert_bytes = weights * dtype.weight_bytes
    compute_pair = 2.0 * weights / (peak * c["compute"])
    bytes_pair = 4.0 * hidden + 2.0 * weights / hidden
    routed = (tabled_rank if repeated else busiest_rank)(experts, per_token, ep, skew)
    even = per_token / ep
    return _Experts(
        tokens=routed.tokens,
        pairs=tuple(
            even * t * (pairs / (even * t)) ** c["hot"] for t, pairs in zip(routed.tokens, routed.pairs, strict=True)
        ),
        met=routed.experts,
        compute_pair=compute_pair,
        compute_expert=compute_pair * c["padding"] * _ROW_BLOCK,
        memory_expert=expert_bytes / (bandwidth * c["memory"]),
        per_pair=c["activation"] * bytes_pair / bandwidth,
        per_token=c["spread"] * (even if sent else per_token) * bytes_pair / bandwidth,
        floor=c["floor_us"] * US,
        power=c["power"],
        root=1.0 / c["power"],
        cached_experts=c["cache_mb"] * 1e6 / expert_bytes if repeated else 0.0,
        cache=c["cache"],
        flops_pair=2.0 * weights,
        peak_flops=peak,
        bytes_expert=expert_bytes,
        bytes_pair=bytes_pair,
        bytes_token=4.0 * hidden,
        bandwidth=bandwidth,
    )
