"""What a GPU is: datasheet figures and the nine constants that say how much of them real kernels reach."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

GIB = 1024**3


@dataclass(frozen=True, slots=True)
class Constants:
    """Nine efficiencies and floors of one GPU, fitted on measured kernels of three serving frameworks pooled."""

    compute_bf16: float  # share of the dense bf16 rate that a large GEMM reaches
    compute_fp8: float  # the same for fp8 and fp4
    compute_attention: float  # the same for attention kernels, of the bf16 rate
    memory: float  # share of the memory bandwidth that a streaming kernel reaches
    gemm_floor_us: float  # time of a GEMM that does next to nothing
    kernel_floor_us: float  # time of an attention kernel that does next to nothing
    allreduce_floor_us: float  # time of a one-shot all-reduce of nothing
    link: float  # share of the one-direction link rate that an all-reduce reaches
    wave: float  # weight of one whole tile wave in a GEMM's compute time


@dataclass(frozen=True, slots=True)
class GpuSpec:
    """One GPU of the catalogue. Rates are dense (no sparsity)."""

    key: str
    name: str
    memory_bytes: int  # as the driver reports it
    bandwidth_bytes_per_s: float
    flops: dict[str, float]  # by compute class: "bf16", "fp8", "fp4"; a class that is missing the GPU does not have
    link_bytes_per_s: float  # one direction, from one GPU to the others
    link_kind: str  # "nvlink", "infinity-fabric" or "pcie"
    link_gpus: int  # GPUs that this link joins: the largest tensor-parallel group
    sm_count: int
    tdp_w: int
    constants: Constants
    confidence: str  # "fitted on silicon" or "transferred", with what it was transferred from and its error band
    source: str  # of the datasheet figures
    constants_source: str
    aliases: tuple[str, ...] = field(default=())

    @property
    def rates(self) -> frozenset[str]:
        """The compute classes this GPU's tensor cores have."""
        return frozenset(self.flops)


def gpu_from_yaml(key: str, entry: dict[str, Any], constants: Constants, confidence: str, constants_source: str) -> GpuSpec:
    """Build a spec from its catalogue entry (units there: GiB, TB/s, TFLOPS, GB/s one direction)."""
    return GpuSpec(
        key=key,
        name=entry["name"],
        memory_bytes=int(entry["memory_gib"] * GIB),
        bandwidth_bytes_per_s=entry["bandwidth_tb_per_s"] * 1e12,
        flops={rate: tflops * 1e12 for rate, tflops in entry["tflops"].items()},
        link_bytes_per_s=entry["link_gb_per_s"] * 1e9,
        link_kind=entry["link"],
        link_gpus=entry["link_gpus"],
        sm_count=entry["sm"],
        tdp_w=entry["tdp_w"],
        constants=constants,
        confidence=confidence,
        source=entry["source"],
        constants_source=constants_source,
        aliases=tuple(entry.get("aliases", ())),
    )


def median_constants(others: list[Constants]) -> Constants:
    """Return the median of each constant; a GPU without fp8 rate has NaN there and does not vote."""
    medians = {}
    for f in fields(Constants):
        values = sorted(v for c in others if (v := getattr(c, f.name)) == v)
        middle = len(values) // 2
        medians[f.name] = values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2
    return Constants(**medians)
