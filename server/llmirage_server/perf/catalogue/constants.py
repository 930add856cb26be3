"""The efficiency of a GPU's kernels under a serving engine: the fitted numbers of the performance model, and their origin.

A fit is a small set of constants of one operation (say, GEMM) in one number format, found on a table of measured kernels.
The data files hold one GPU each; `class_nvlink.json` and `class_pcie.json` hold fits on all the GPUs of a kind pooled, which
serve a GPU that nobody has measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TypedDict, cast

from llmirage_server.perf.catalogue.gpus import GpuSpec, Reached
from llmirage_server.perf.catalogue.lookup import find_gpu

ENGINES = ("vllm", "sglang", "trtllm")
POOLED = "pooled"  # rows of all the engines together

# Formats whose kernels are most alike, nearest first: same bytes and rate, then same rate, then same kind of kernel.
_NEAREST: dict[str, tuple[str, ...]] = {
    "bf16": ("fp8",),
    "fp8": ("fp8_block", "int8", "bf16"),
    "fp8_block": ("fp8", "int8", "bf16"),
    "int8": ("fp8", "fp8_block", "bf16"),
    "int8_weight_only": ("int4", "mxfp4", "bf16"),
    "int4": ("int8_weight_only", "mxfp4", "bf16"),
    "mxfp4_fp8": ("mxfp4", "int4", "int8_weight_only", "bf16"),
    "mxfp4_fp4": ("nvfp4", "fp8", "fp8_block", "bf16"),
    "mxfp4": ("int4", "int8_weight_only", "bf16"),
    "nvfp4": ("fp8", "fp8_block", "bf16"),
    "nvfp4_cutlass": (),  # its own are in every kind's table
}


class Fit(TypedDict):
    """One line of a data file."""

    constants: dict[str, float]
    origin: str  # the measurement: versions, rows, error


_LINK_OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "dispatch", "combine")
_FLOORS = ("floor_us", "low_floor_us", "bulk_floor_us")

Table = Mapping[str, Mapping[str, Fit]]  # engine -> "op dtype" -> fit


@dataclass(slots=True, eq=False)
class Constants:
    """The constants of one GPU under one engine, with fallbacks where something was never measured.

    Order of the search: this engine, then all engines pooled; the same for the nearest formats; all that first among the
    fits of the GPU itself, then of its twin (`GpuSpec.constants_of`), then of its kind of GPU, then of the other kind. Link
    constants never come from a twin with another kind of link; of a PCIe card they come from the measured one with the
    nearest link before they come from all PCIe cards.
    """

    engine: str
    # The tables to search, in order, each with the name of what it was measured on ("" for the GPU itself).
    sources: list[tuple[str, Table]]
    link_sources: list[tuple[str, Table]]
    reached: Reached | None = None  # what the GPU's kernels do against these
    used: dict[tuple[str, str], None] = field(default_factory=dict)  # operations and formats that were asked for

    def of(self, op: str, dtype: str) -> Mapping[str, float]:
        """Return the constants of one operation in one number format; KeyError where no GPU has any for the operation."""
        self.used[op, dtype] = None
        for _, _, _, fit in self._candidates(op, dtype):
            return fit["constants"] if self.reached is None else _scaled(fit["constants"], self.reached)
        raise KeyError(f"no constants for {op} in {dtype}")

    def provenance(self, op: str, dtype: str) -> str:
        """Say in one line where `of` takes its constants from: "fitted: ..." or "transferred: ..."."""
        for source, engine, key, fit in self._candidates(op, dtype):
            kind = "transferred" if source or key != f"{op} {dtype}" else "fitted"
            place = f" on {source}" if source else ""
            under = "" if engine == self.engine else ", engines pooled"
            return f"{kind}: {key}{place}{under}, {fit['origin']}"
        raise KeyError(f"no constants for {op} in {dtype}")

    def _candidates(self, op: str, dtype: str) -> Iterator[tuple[str, str, str, Fit]]:
        for source, table in self.link_sources if op in _LINK_OPS else self.sources:
            for name in (dtype, *_NEAREST.get(dtype, ())):
                key = f"{op} {name}"
                for engine in (self.engine, POOLED):
                    if fit := table.get(engine, {}).get(key):
                        yield source, engine, key, fit


def _scaled(constants: Mapping[str, float], reached: Reached) -> dict[str, float]:
    """Constants of kernels that reach another share of the datasheet; of its bandwidth never more than all."""
    scaled = dict(constants)
    if "memory" in scaled:
        scaled["memory"] = min(1.0, scaled["memory"] * reached.memory)
    if "compute" in scaled:
        scaled["compute"] *= reached.compute
    for name in _FLOORS:
        if name in scaled:
            scaled[name] += reached.launch_us
    return scaled


@lru_cache(maxsize=64)
def _table(name: str) -> Table | None:
    """Read one data file; None where there is none."""
    file = Path(__file__).with_name("data") / "constants" / f"{name}.json"
    if not file.is_file():
        return None
    return cast(Table, json.loads(file.read_text(encoding="utf-8"))["engines"])


def _source(words: str, name: str) -> list[tuple[str, Table]]:
    """Return a data file in words, nothing where there is none."""
    return [(words, table)] if (table := _table(name)) else []


# PCIe cards whose collectives were measured. Machines with one generation of PCIe differ less from each other than two
# generations do: four L40S reach a sixth of what four RTX PRO 6000 do, so that no fit on both together holds for either.
_MEASURED_PCIE = ("rtx_pro_6000_server", "l40s")


def constants_for(gpu: GpuSpec, engine: str) -> Constants:
    """Return what kernels of this GPU reach under this engine; ValueError for one that is not in ENGINES."""
    if engine not in ENGINES:
        raise ValueError(f"no constants for engine {engine!r}; known engines: {', '.join(ENGINES)}")
    twin = gpu.constants_of if gpu.constants_of != gpu.key else None
    own, twins = _source("", gpu.key), _source(twin, twin) if twin else []
    classes = _source("all measured NVLink GPUs", "class_nvlink") + _source("all measured PCIe cards", "class_pcie")
    # A PCIe card of an NVLink chip has another kind of link: its collectives are those of PCIe cards.
    of_link = twins if twin and find_gpu(twin).link == gpu.link else []
    if gpu.link == "pcie":
        classes.reverse()
        cards = [find_gpu(name) for name in _MEASURED_PCIE]
        nearest = min(cards, key=lambda card: abs(math.log(card.link_bytes_per_s / gpu.link_bytes_per_s)))
        of_link = of_link + _source(nearest.name, nearest.key)
    return Constants(engine, own + twins + classes, own + of_link + classes, gpu.reached)
