"""A GPU: its datasheet's figures, whose measured kernels say how much of them it reaches, and files of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from llmirage_server.perf import DeploymentError, look_up
from llmirage_server.perf.catalogue.yaml_files import Key, one_of, positive, read_own, text, truth, whole

GIB = 1024**3
MIB = 1024**2

FITTED = "fitted on silicon"
LINK_KINDS = ("nvlink", "pcie", "infinity-fabric", "ici")
NODE_LINK_GB_PER_S = 50.0  # a 400 Gb/s network card per GPU, as in NVIDIA's HGX H100 reference systems
HOST_GB_PER_S = 50.0  # of PCIe 5.0 x16's 63 in one direction, what large copies reach; each GPU has a link of its own
PCIE_LATENCY_S = 20e-6
DISK_GB_PER_S = 5.0  # sequential reads of one PCIe 4.0 NVMe drive
DISK_LATENCY_S = 100e-6
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
    def has_fp4(self) -> bool:
        return "fp4" in self.flops


def transferred(whose: str, within_percent: int) -> str:
    """Return the confidence of a GPU whose kernels were not measured."""
    return f"transferred: {whose}; about {within_percent} % band"


_CONVERTED: Mapping[str, tuple[str, Callable[[Any], Any]]] = {  # keys of an entry: their fields, and what these hold
    "memory_mib": ("memory_bytes", lambda mib: int(mib * MIB)),
    "bandwidth_tb_per_s": ("bandwidth_bytes_per_s", lambda tb: tb * 1e12),
    "tflops": ("flops", lambda rates: {rate: tflops * 1e12 for rate, tflops in rates.items()}),
    "sm": ("sm_count", int),
    **{f"{link}_gb_per_s": (f"{link}_bytes_per_s", lambda gb: gb * 1e9) for link in ("link", "node_link", "host")},
    "node_link_latency_us": ("node_link_latency_s", lambda us: us / 1e6),
    **{name: (name, tuple) for name in ("aliases", "unverified", "price_usd_per_h")},
    "within_percent": ("within", lambda percent: percent / 100),
    "reached": ("reached", lambda factors: Reached(**factors)),
}
_AS_THEY_ARE = ("name", "link", "link_gpus", "source", "constants_of", "arch", "peer_to_peer", "profiled")


def gpu_from_entry(key: str, entry: Mapping[str, Any], confidence: str) -> GpuSpec:
    """Build a spec from its entry (units there: MiB, TB/s, TFLOPS, GB/s, us), whose keys data/gpus.yaml explains."""
    values: dict[str, Any] = {name: entry[name] for name in _AS_THEY_ARE if name in entry}
    values |= {name: convert(entry[given]) for given, (name, convert) in _CONVERTED.items() if given in entry}
    vendor = {"infinity-fabric": "amd", "ici": "google"}.get(entry["link"], "nvidia")
    return GpuSpec(key=key, tdp_w=entry.get("tdp_w"), confidence=confidence, vendor=vendor, **values)


def _price(value: Any) -> str:
    numbers = value if isinstance(value, list) else [value, value]
    good = len(numbers) == 2 and not any(map(positive, numbers)) and numbers[0] <= numbers[1]
    return "" if good else "must be a positive number, or a list of the lowest and the highest"


GPU_KEYS: dict[str, Key] = {
    "base": Key(text),  # a GPU of the catalogue: keys that the file has not are as there
    "name": Key(text),
    "memory_mib": Key(positive, required=True),  # as the driver reports it
    "bandwidth_tb_per_s": Key(positive, required=True),
    "tflops": Key(  # dense
        keys={"bf16": Key(positive, required=True), **{rate: Key(positive) for rate in ("fp8", "fp4", "int8")}},
        required=True,
    ),
    "sm": Key(whole, required=True),
    "link": Key(one_of(*LINK_KINDS), required=True),
    "link_gb_per_s": Key(positive, required=True),  # one direction, to the other GPUs of the node
    "link_gpus": Key(whole, required=True),  # GPUs that the link joins
    "peer_to_peer": Key(truth),  # false: copies between GPUs go through the host's memory
    "node_link_gb_per_s": Key(positive),  # one direction, to GPUs beyond them
    "node_link_latency_us": Key(positive),
    "host_gb_per_s": Key(positive),  # of copies from host memory
    "arch": Key(text),  # hopper, blackwell, ...: what engines treat it as
    "tdp_w": Key(positive),
    "price_usd_per_h": Key(_price),
    "constants_of": Key(text),  # a GPU of the catalogue whose measured kernels resemble this one's
    "source": Key(text),
}


_WITHIN_PERCENT = 30  # measured GPUs with another's kernels: latency off by 27 % in the 90th percentile (docs/accuracy.md)

# With a base nothing is required.
_CHANGED_KEYS = {name: replace(key, required=False) for name, key in GPU_KEYS.items()}
_CHANGED_KEYS["tflops"] = Key(keys={rate: Key(positive) for rate in GPU_KEYS["tflops"].keys or ()})


def gpu_from_file(path: str, find: Callable[[str], GpuSpec], entry_of: Callable[[str], Mapping[str, Any]]) -> GpuSpec:
    """Read a GPU file, whose keys are those of GPU_KEYS; `find` looks up GPUs that it names, `entry_of` a key's entry.

    Raises DeploymentError with every problem, each with file, line and key.
    """
    about = "a GPU file is a list of `key: value` lines, such as `memory_mib: 81559`"
    entry, lines = read_own(path, GPU_KEYS, about, ("base", _CHANGED_KEYS))
    problems: list[str] = []
    base, twin = (
        look_up(find, f"{lines[key,]}: {key}", entry[key], problems) if key in entry else None
        for key in ("base", "constants_of")
    )
    if problems:
        raise DeploymentError(problems)
    if base is not None:
        whole = dict(entry_of(base.key))
        entry = whole | entry | {"tflops": whole["tflops"] | entry.get("tflops", {})}
        entry["name"] = entry["name"] if ("name",) in lines else f"{base.name} ({Path(path).stem})"
        entry["source"] = entry["source"] if ("source",) in lines else f"{path}, else {base.source}"
    twin = twin or base
    measured = twin.constants_of if twin else None
    if twin and measured:
        whose = f"those measured on {find(measured).name}, as {Path(path).name} asks"
    else:
        whose = f"pooled fits of the measured {'PCIe cards' if entry['link'] == 'pcie' else 'NVLink GPUs'}"
    within = max(_WITHIN_PERCENT, round(100 * twin.within) if twin else 0)
    if not isinstance(price := entry.get("price_usd_per_h", []), list):
        entry["price_usd_per_h"] = [price, price]
    return gpu_from_entry(
        f"custom:{Path(path).stem}",
        {
            "name": Path(path).stem,
            "source": path,
            "arch": twin.arch if twin else "",
            **entry,
            "aliases": (),
            "constants_of": measured,
            "within_percent": within,
        },
        transferred(whose, within),
    )
