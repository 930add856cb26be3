"""Messages between GPUs: collectives of tensor and expert parallelism, hand-over between pipeline stages.

Ranks that no single link domain holds (GpuSpec.link_gpus) work in two levels: over the domain's link within, over one
network card per GPU between domains.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from llmirage_server.perf.catalogue.constants import Constants
from llmirage_server.perf.catalogue.gpus import GpuSpec
from llmirage_server.perf.kernels.kernel import US, Bound, TokenKernel, Work

# Share of a network card's line rate that collectives reach; assumed, as no measured table crosses nodes.
_NODE_LINK_REACHED = 0.8


# Cards that may not copy to each other (GeForce by its driver, others on hosts that do not allow it) meet in host memory.
# Measured on two RTX PRO 6000 without peer-to-peer copies: all-reduce at 15.2 GB/s of the bytes sent, 18 us at the least.
_THROUGH_HOST_BYTES_PER_S = 15.2e9
_THROUGH_HOST_LATENCY_S = 18e-6


class _Path(NamedTuple):
    """One algorithm: its latency, and seconds per token on the wire."""

    base: float
    slope: float


class _Collective:
    """The faster of two algorithms, after or before a part across nodes."""

    def __init__(self, gpu: GpuSpec, paths: tuple[_Path, _Path], far: _Path, near_bytes: float, far_bytes: float) -> None:
        (self.base, self.slope), (self.other_base, self.other_slope) = paths
        self.far_base, self.far_slope = far
        self.bytes_per_token = max(near_bytes, far_bytes)  # through the busiest link of one GPU
        self.ideal_slope = near_bytes / gpu.link_bytes_per_s + far_bytes / gpu.node_link_bytes_per_s

    def seconds(self, tokens: float) -> float:
        near = min(self.base + self.slope * tokens, self.other_base + self.other_slope * tokens)
        return near + self.far_base + self.far_slope * tokens

    def work(self, tokens: float) -> Work:
        near = self.base + self.slope * tokens < self.other_base + self.other_slope * tokens
        launch = (self.base if near else self.other_base) + self.far_base
        wire = (self.slope if near else self.other_slope) * tokens + self.far_slope * tokens
        bound: Bound = "launch" if launch >= wire else "network"
        return Work(self.seconds(tokens), 0.0, self.bytes_per_token * tokens, self.ideal_slope * tokens, bound)


def _two_paths(gpu: GpuSpec, c: Mapping[str, float], ranks: int, low_bytes: float, bulk_bytes: float) -> tuple[_Path, _Path]:
    """Return the path of least latency and that of most bandwidth, with the bytes each sends through a GPU's link."""
    if ranks == 1:
        return _Path(0.0, 0.0), _Path(0.0, 0.0)
    if not gpu.peer_to_peer:
        reached = min(gpu.link_bytes_per_s, _THROUGH_HOST_BYTES_PER_S)
        path = _Path(_THROUGH_HOST_LATENCY_S * (ranks - 1), bulk_bytes / reached)
        return path, path
    # two PCIe cards below one switch see more of their link than cards that talk through the host; over NVLink two GPUs see
    # less, as reductions in the switch need more
    link = gpu.link_bytes_per_s * (c["pair_link"] if ranks == 2 else 1.0)
    return (
        _Path((c["low_floor_us"] + c["low_peer_us"] * (ranks - 1)) * US, low_bytes / (link * c["low_link"])),
        _Path((c["bulk_floor_us"] + c["bulk_peer_us"] * (ranks - 1)) * US, bulk_bytes / (link * c["bulk_link"])),
    )


def _domains(gpu: GpuSpec, ranks: int) -> tuple[int, int]:
    """Return the ranks in one link domain, and the number of domains."""
    near = min(ranks, gpu.link_gpus)
    return near, -(-ranks // near)


def _far(gpu: GpuSpec, rounds: int, bytes_per_token: float) -> _Path:
    if not rounds:
        return _Path(0.0, 0.0)
    return _Path(rounds * gpu.node_link_latency_s, bytes_per_token / (gpu.node_link_bytes_per_s * _NODE_LINK_REACHED))


def all_reduce(gpu: GpuSpec, constants: Constants, ranks: int, bytes_per_token: float) -> TokenKernel:
    """Time to sum B = tokens * bytes_per_token over n GPUs: the faster of two algorithms.

    One-shot (everyone reads everyone): low_floor + low_peer (n - 1) + (n - 1) B / (link low_link); two-shot (reduce-scatter,
    then all-gather): bulk_floor + bulk_peer (n - 1) + 2 (n - 1) / n B / (link bulk_link). Over m domains, each GPU also
    sums 1 / n of B with its peers of the other domains: 2 (m - 1) / m B / n over the network in 2 (m - 1) rounds.
    """
    near, domains = _domains(gpu, ranks)
    share = 2.0 * (near - 1) / near * bytes_per_token
    far_bytes = 2.0 * (domains - 1) / domains * bytes_per_token / near
    paths = _two_paths(gpu, constants.of("all_reduce", "bf16"), near, (near - 1) * bytes_per_token, share)
    return _Collective(gpu, paths, _far(gpu, 2 * (domains - 1), far_bytes), share, far_bytes)


def _bulk(op: str, gpu: GpuSpec, constants: Constants, ranks: int, bytes_per_token: float) -> TokenKernel:
    """Return the faster of two protocols, each floor + peer (n - 1) + (n - 1) / n B / (link share)."""
    near, domains = _domains(gpu, ranks)
    share = (near - 1) / near * bytes_per_token
    far_bytes = (domains - 1) / domains * bytes_per_token / near  # crosses the network once, is passed on within the domain
    paths = _two_paths(gpu, constants.of(op, "bf16"), near, share, share)
    return _Collective(gpu, paths, _far(gpu, domains - 1, far_bytes), share, far_bytes)


# Until every rank has `bytes_per_token` of every token, of which it had 1 / ranks; has the sum of its 1 / ranks of the
# tokens; has sent each of its tokens' `bytes_per_token`, spread evenly over the ranks of one domain (NCCL).
all_gather, reduce_scatter = partial(_bulk, "all_gather"), partial(_bulk, "reduce_scatter")
all_to_all = partial(_bulk, "all_to_all")


def _messages(
    op: str, gpu: GpuSpec, constants: Constants, ranks: int, hidden: int, per_token: int, value_bytes: float = 2.0
) -> TokenKernel:
    """Return the faster of low latency, which sends a token once for each of its experts, and throughput: once a rank.

    Within a link domain in bf16, whatever is sent.
    """
    if ranks > gpu.link_gpus:
        return _between_domains(op, gpu, constants, ranks, hidden, per_token, value_bytes)
    other_ranks = 2.0 * hidden * (ranks - 1) / ranks
    bulk_bytes = other_ranks * different(ranks, per_token)
    paths = _two_paths(gpu, constants.of(op, "bf16"), ranks, other_ranks * per_token, bulk_bytes)
    return _Collective(gpu, paths, _Path(0.0, 0.0), bulk_bytes, 0.0)


def _between_domains(
    op: str, gpu: GpuSpec, constants: Constants, ranks: int, hidden: int, per_token: int, value_bytes: float
) -> TokenKernel:
    """Return messages between ranks of several link domains.

    A token goes over the network once for each of its experts (low latency), or once for each domain, whose link passes it
    on (throughput); link and network work at the same time. DeepEP's own figures, H800 with 50 GB/s cards, EP64: 173 us for
    the dispatch of 128 tokens and 314 us for their return; with 4,096 tokens 51 and 50 GB/s over the network.
    """
    near, domains = _domains(gpu, ranks)
    near_bytes = 2.0 * hidden * different(ranks, per_token) * (near - 1) / near
    low_bytes = 2.0 * hidden * per_token * (near - 1) / near / domains
    far = (domains - 1) / domains * value_bytes * hidden
    to_ranks, to_domains = _far(gpu, 1, per_token * far), _far(gpu, 1, different(domains, per_token) * far)
    low, bulk = _two_paths(gpu, constants.of(op, "bf16"), near, low_bytes, near_bytes * value_bytes / 2.0)
    paths = (
        _Path(low.base + to_ranks.base, max(low.slope, to_ranks.slope)),
        _Path(bulk.base + to_domains.base, max(bulk.slope, to_domains.slope)),
    )
    return _Collective(gpu, paths, _Path(0.0, 0.0), near_bytes / domains, different(domains, per_token) * far)


# A rank's tokens of `hidden` values to the ranks of their experts, and the experts' outputs back to a token's rank, where
# they are summed (DeepEP).
dispatch, combine = partial(_messages, "dispatch"), partial(_messages, "combine")


def different(places: int, chosen: int) -> float:
    """Return the expected number of distinct places among `places` that a token's experts are in."""
    return places * (1.0 - (1.0 - 1.0 / places) ** chosen)


def point_to_point(gpu: GpuSpec, constants: Constants, bytes_per_token: float, across_nodes: bool = False) -> TokenKernel:
    """Time to hand `bytes_per_token` of each token to one other GPU, within the link domain or across nodes.

    Within, as an all-to-all of two, in which each sends half of its bytes to the other.
    """
    if across_nodes:
        nothing = (_Path(0.0, 0.0), _Path(0.0, 0.0))
        return _Collective(gpu, nothing, _far(gpu, 1, bytes_per_token), 0.0, bytes_per_token)
    return all_to_all(gpu, constants, 2, 2.0 * bytes_per_token)
