"""Measured kernels against the model's own, with the constants that ship: what a fit left over, operation by operation.

Which rows count, and which kernel an engine would pick, is said where the constants are fitted (tests/benchmarks/fitting).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from fitting.families import kernel_seconds
from fitting.tables import Rows, read_rows

from accuracy.csv_files import read_csv, write_csv
from accuracy.errors import Spread
from llmirage_server.perf.catalogue.constants import POOLED, constants_for
from llmirage_server.perf.catalogue.lookup import find_gpu

TABLES = (
    "gemm", "context_attention", "generation_attention", "mla", "mla_bmm", "moe", "custom_allreduce", "nccl", "moe_a2a",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class KernelErrors:
    """Errors of one operation in one format on one GPU under one engine."""

    gpu: str
    engine: str
    op: str
    dtype: str
    errors: list[float]  # relative; above 0 we are too slow

    @property
    def spread(self) -> Spread:
        return Spread.of(self.errors)


def kernel_errors(*folders: Path) -> list[KernelErrors]:
    """Compare every usable row of the op tables in the folders."""
    return [_compare(rows) for folder in folders for rows in read_rows(folder)]


def _compare(rows: Rows) -> KernelErrors:
    gpu = find_gpu(rows.gpu)
    engine = rows.engine if rows.engine != POOLED else "vllm"  # NCCL is the same under all
    predicted = kernel_seconds(rows, gpu, constants_for(gpu, engine))
    return KernelErrors(rows.gpu, rows.engine, rows.op, rows.dtype, (predicted / rows.seconds - 1).tolist())


def reduce_table(source: Path, table: str, target: Path, rows_each: int) -> None:
    """Write at most `rows_each` rows of each GPU, engine, format and kernel, picked by a fixed seed, in their order."""
    packed = source / f"{table}.csv.gz"
    rows = read_csv(packed if packed.exists() else source / f"{table}.csv")
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, row in enumerate(rows):
        kinds = [row[c] for c in row if c.endswith("dtype") or c in ("phase", "op_name", "distribution", "kernel_source")]
        groups.setdefault((row["system"], row.get("backend", ""), *kinds), []).append(i)
    rng = random.Random(0)
    kept = sorted(i for group in groups.values() for i in rng.sample(group, min(rows_each, len(group))))
    write_csv(target / packed.name, list(rows[0]), (rows[i].values() for i in kept))
