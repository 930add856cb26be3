"""What a GPU is: the figures of its datasheet, and whose measured kernels say how much of them it reaches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

GIB = 1024**3
MIB = 1024**2

FITTED = "fitted on silicon"
LINK_KINDS = ("nvlink", "pcie", "infinity-fabric", "ici")
NODE_LINK_GB_PER_S = 50.0  # a 400 Gb/s network card per GPU, as in NVIDIA's HGX H100 reference systems
HOST_GB_PER_S = 50.0  # of PCIe 5.0 x16's 63 in one direction, what large copies reach; each GPU has a link of its own
NODE_LINK_LATENCY_US = 5.0  # "typical for InfiniBand between racks": aiconfigurator-core 0.12.0 systems/gb200.yaml


class Reached(NamedTuple):
    """Kernels that nobody measured one by one, against those whose constants serve them: known from whole runs alone.

    memory, compute: factors on the reached shares of the datasheet's rates. launch_us: more for each call of a kernel.
    """

    memory: float
    compute: float
    launch_us: float


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One GPU. Rates are dense (no sparsity), links in one direction."""

    key: str
    name: str
    memory_bytes: int  # as the driver reports it
    bandwidth_bytes_per_s: float
    flops: dict[str, float]  # by compute class: "bf16", "fp8", "fp4", "int8"; a class that is missing the GPU does not have
    link_bytes_per_s: float  # from one GPU to the others of its domain
    link: str  # one of LINK_KINDS
    link_gpus: int  # GPUs that this link joins
    sm_count: int  # streaming multiprocessors, compute units (AMD) or 128 x 128 matrix units (TPU)
    tdp_w: int | None
    confidence: str  # FITTED or "transferred: ", whose constants serve it, and the error band
    source: str  # of the datasheet figures
    aliases: tuple[str, ...] = ()
    node_link_bytes_per_s: float = NODE_LINK_GB_PER_S * 1e9  # from one GPU to those beyond its domain
    node_link_latency_s: float = NODE_LINK_LATENCY_US / 1e6
    host_bytes_per_s: float = HOST_GB_PER_S * 1e9  # of copies from host memory
    price_usd_per_h: tuple[float, float] | None = None  # low and high of on-demand offers
    constants_of: str | None = None  # key of the GPU whose measured kernels serve it; None: pooled fits of its kind
    within: float = 0.0  # of kernels that are not its own: the share by which steps may be off
    reached: Reached | None = None  # what its kernels do against those fits; None: the same
    vendor: str = "nvidia"
    arch: str = ""  # of the vendor: hopper, blackwell, gfx942, ...; engines treat GPUs by it
    peer_to_peer: bool = True  # GPUs copy to each other directly; False: through the host's memory
    profiled: bool = False  # its kernels were measured within a running server, not one by one
    unverified: tuple[str, ...] = ()  # figures without a page of the vendor behind them

    @property
    def rates(self) -> frozenset[str]:
        """The compute classes this GPU's tensor cores have."""
        return frozenset(self.flops)

    @property
    def has_fp4(self) -> bool:
        """If its tensor cores multiply in fp4."""
        return "fp4" in self.flops


def transferred(whose: str, within_percent: int) -> str:
    """The confidence of a GPU whose kernels were not measured."""
    return f"transferred: {whose}; about {within_percent} % band"


def gpu_from_entry(key: str, entry: Mapping[str, Any], confidence: str) -> GpuSpec:
    """Build a spec from its entry (units there: MiB, TB/s, TFLOPS, GB/s, us), whose keys data/gpus.yaml explains."""
    price = entry.get("price_usd_per_h")
    return GpuSpec(
        key=key,
        name=entry["name"],
        memory_bytes=int(entry["memory_mib"] * MIB),
        bandwidth_bytes_per_s=entry["bandwidth_tb_per_s"] * 1e12,
        flops={rate: tflops * 1e12 for rate, tflops in entry["tflops"].items()},
        link_bytes_per_s=entry["link_gb_per_s"] * 1e9,
        link=entry["link"],
        link_gpus=entry["link_gpus"],
        sm_count=entry["sm"],
        tdp_w=entry.get("tdp_w"),
        confidence=confidence,
        source=entry["source"],
        aliases=tuple(entry.get("aliases", ())),
        node_link_bytes_per_s=entry.get("node_link_gb_per_s", NODE_LINK_GB_PER_S) * 1e9,
        node_link_latency_s=entry.get("node_link_latency_us", NODE_LINK_LATENCY_US) / 1e6,
        host_bytes_per_s=entry.get("host_gb_per_s", HOST_GB_PER_S) * 1e9,
        price_usd_per_h=(price[0], price[1]) if price else None,
        constants_of=entry.get("constants_of"),
        within=entry.get("within_percent", 0) / 100,
        reached=Reached(**entry["reached"]) if "reached" in entry else None,
        vendor={"infinity-fabric": "amd", "ici": "google"}.get(entry["link"], "nvidia"),
        arch=entry.get("arch", ""),
        peer_to_peer=entry.get("peer_to_peer", True),
        profiled=entry.get("profiled", False),
        unverified=tuple(entry.get("unverified", ())),
    )
