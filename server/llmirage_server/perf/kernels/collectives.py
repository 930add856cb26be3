"""Messages between GPUs: collectives of tensor and expert parallelism, hand-over between pipeline stages."""

from __future__ import annotations

from dataclasses import dataclass

from llmirage_server.perf.constants import Constants
from llmirage_server.perf.gpus import GpuSpec
from llmirage_server.perf.kernels.kernel import TokenKernel, Work
from llmirage_server.perf.kernels.roofline import US, explain

# Between nodes: one 400 Gb/s InfiniBand or RoCE port a GPU (NVIDIA ConnectX-7), latency of one RDMA message.
NODE_LINK_BYTES_PER_S = 50e9
NODE_LATENCY_S = 5e-6
_BULK_EFFICIENCY = 0.75  # of the link: ring all-gather, reduce-scatter, all-to-all (NCCL)
_BULK_FLOOR_S = 8e-6


@dataclass(frozen=True, slots=True)
class _BestOfTwo:
    """The faster of two algorithms, each latency + slope x tokens."""

    base: float
    slope: float
    other_base: float
    other_slope: float
    bytes_per_token: float  # through the link of one GPU
    link: float

    def seconds(self, tokens: float) -> float:
        return min(self.base + self.slope * tokens, self.other_base + self.other_slope * tokens)

    def work(self, tokens: float) -> Work:
        moved = self.bytes_per_token * tokens
        seconds = self.seconds(tokens)
        base = self.base if self.base + self.slope * tokens <= seconds else self.other_base
        return explain(seconds, 0.0, moved, moved / self.link, {"network": seconds - base, "launch": base})


@dataclass(frozen=True, slots=True)
class _Message:
    base: float
    slope: float
    bytes_per_token: float  # through the link of one GPU
    link: float

    def seconds(self, tokens: float) -> float:
        return self.base + self.slope * tokens

    def work(self, tokens: float) -> Work:
        moved = self.bytes_per_token * tokens
        parts = self.slope * tokens
        return explain(self.seconds(tokens), 0.0, moved, moved / self.link, {"network": parts, "launch": self.base})


def all_reduce(gpu: GpuSpec, constants: Constants, ranks: int, bytes_per_token: float) -> TokenKernel:
    """Time to sum B = tokens * bytes_per_token over `ranks` GPUs: the better of two algorithms.

    One-shot (everyone reads everyone): one_floor + one_peer (n - 1) + (n - 1) B / (link one_link); two-shot (reduce-scatter,
    then all-gather): two_floor + 2 (n - 1) / n B / (link two_link).
    """
    c = constants.of("all_reduce", "bf16")
    link = gpu.link_bytes_per_s
    share = 2.0 * (ranks - 1) / ranks * bytes_per_token
    return _BestOfTwo(
        base=(c["one_floor_us"] + c["one_peer_us"] * (ranks - 1)) * US,
        slope=(ranks - 1) * bytes_per_token / (link * c["one_link"]),
        other_base=c["two_floor_us"] * US,
        other_slope=share / (link * c["two_link"]),
        bytes_per_token=share,
        link=link,
    )


def _bulk(gpu: GpuSpec, ranks: int, bytes_per_token: float) -> TokenKernel:
    link, latency = gpu.link_bytes_per_s, _BULK_FLOOR_S
    if ranks > gpu.link_gpus:
        link, latency = NODE_LINK_BYTES_PER_S, latency + NODE_LATENCY_S
    return _Message(latency, bytes_per_token / (link * _BULK_EFFICIENCY), bytes_per_token, link)


def all_gather(gpu: GpuSpec, constants: Constants, ranks: int, bytes_per_token: float) -> TokenKernel:
    """Time until every rank has the `bytes_per_token` of every token, of which it had 1 / ranks."""
    return _bulk(gpu, ranks, (ranks - 1) / ranks * bytes_per_token)


def reduce_scatter(gpu: GpuSpec, constants: Constants, ranks: int, bytes_per_token: float) -> TokenKernel:
    """Time until every rank has the sum of its 1 / ranks of the tokens, `bytes_per_token` each."""
    return _bulk(gpu, ranks, (ranks - 1) / ranks * bytes_per_token)


def all_to_all(gpu: GpuSpec, constants: Constants, ranks: int, bytes_per_token: float) -> TokenKernel:
    """Time until every rank has sent each token's `bytes_per_token`, spread evenly over the ranks; tokens of one rank."""
    return _bulk(gpu, ranks, (ranks - 1) / ranks * bytes_per_token)


def point_to_point(gpu: GpuSpec, constants: Constants, bytes_per_token: float, across_nodes: bool = False) -> TokenKernel:
    """Time to hand `bytes_per_token` of each token to one other GPU."""
    return _bulk(gpu, gpu.link_gpus + 1 if across_nodes else 1, bytes_per_token)
