"""Robust least squares of a family's constants on measured rows, and how far off the result is."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from fitting.families import FAMILIES, Constant, Family, with_gpu
from fitting.tables import Column, Columns, Rows, l2_mb
from scipy.optimize import least_squares

from llmirage_server.perf.catalogue.gpus import GpuSpec

_SOFT = 0.1  # errors beyond 10 % count less and less
_PULL = 0.5  # of a constant towards its start, over its whole range: settles those that the rows say nothing about
_GEMM_CACHE_MB = (10.0, 17.0, 25.0, 35.0)  # benchmarks rotate a few tensors, so the share of the L2 that one gets varies
_PULL_TO_PRIOR = 1.0
_ROWS_PER_GPU = 1500  # in pooled fits, so that no GPU outweighs the others


@dataclass(frozen=True)
class Error:
    """Absolute errors in percent, and the signed median."""

    median: float
    p90: float
    bias: float
    rows: int

    def __str__(self) -> str:
        return f"{self.median:5.1f} /{self.p90:6.1f}  bias {self.bias:+5.1f}  n {self.rows}"


def error(predicted: Column, measured: Column) -> Error:
    """Compare; both in the same unit."""
    off = (predicted / measured - 1.0) * 100.0
    absolute = np.abs(off)
    return Error(float(np.median(absolute)), float(np.percentile(absolute, 90)), float(np.median(off)), len(off))


def predict(rows: Rows, gpu: GpuSpec, constants: Constant) -> Column:
    """Seconds of the rows by the formula."""
    return FAMILIES[rows.op].formula(with_gpu(rows, gpu), constants)


def fit(
    parts: Sequence[tuple[Rows, GpuSpec]], start: Constant | None = None, prior: Constant | None = None
) -> dict[str, float]:
    """Fit one set of constants to rows of one operation and format, of one GPU or of several.

    start: where to begin. prior: constants of a like GPU, to which what few rows do not settle is pulled.

    The loss is a soft L1 of log(predicted / measured), so that a factor too slow weighs as much as one too fast.
    """
    rng = np.random.default_rng(0)
    columns: list[Columns] = []
    measured: list[Column] = []
    for rows, gpu in parts:
        if len(parts) > 1 and len(rows) > _ROWS_PER_GPU:
            rows = rows.subset(np.sort(rng.permutation(len(rows))[:_ROWS_PER_GPU]))
        columns.append(with_gpu(rows, gpu))
        measured.append(rows.seconds)
    shared = set.intersection(*(set(x) for x in columns))
    joined = {name: np.concatenate([x[name] for x in columns]) for name in shared}
    seconds = np.concatenate(measured)
    rows, gpu = parts[0]
    family = _family(rows.op, rows.dtype, list({g.key for _, g in parts}), {g.link for _, g in parts})
    best: tuple[float, dict[str, float]] | None = None
    for fixed in _choices(rows, [g.key for _, g in parts]):
        cost, constants = _solve(family, joined, seconds, {**family.fixed, **fixed}, start, prior)
        if best is None or cost < best[0]:
            best = cost, constants
    assert best is not None
    return best[1]


def _family(op: str, dtype: str, gpus: list[str], links: set[str]) -> Family:
    """The family's ranges, narrowed to what makes sense for this format and GPU."""
    family = FAMILIES[op]
    ranges = dict(family.ranges)
    if dtype == "fp8" and op in ("attention_prefill", "mla_prefill"):
        ranges["compute"] = ranges["compute"]._replace(high=2.0)  # of the bf16 rate; attention may run in fp8
    if op == "gemm":
        if dtype in ("bf16", "int4", "int8_weight_only"):
            del ranges["quantise"]
        if "pcie" not in links:
            del ranges["cache"]
    defaults = {"quantise": 0.0, "cache": 1.0}
    missing = {name: value for name, value in defaults.items() if name in family.ranges and name not in ranges}
    return Family(ranges, family.formula, {**family.fixed, **missing})


def _choices(rows: Rows, gpus: list[str]) -> list[dict[str, float]]:
    """Constants that are not fitted but given, or chosen among a few."""
    cache_mb = l2_mb(gpus[0]) if len(gpus) == 1 else 0.0
    if rows.op == "gemm":
        return (
            [{"cache_mb": mb} for mb in _GEMM_CACHE_MB]
            if gpus[0] in ("l40s", "rtx_pro_6000_server")
            else [{"cache_mb": 0.0}]
        )
    if rows.op in ("mla_bmm", "moe", "mla_decode"):
        return [{"cache_mb": cache_mb}]
    if rows.op.startswith("attention_decode"):
        unpacked = float(rows.columns["unpacked"].min()) if len(gpus) == 1 or rows.engine != "pooled" else 0.0
        return [{"cache_mb": cache_mb, "unpacked": unpacked}]
    return [{}]


def _solve(
    family: Family, x: Columns, seconds: Column, fixed: dict[str, float], start: Constant | None, prior: Constant | None
) -> tuple[float, dict[str, float]]:
    names = list(family.ranges)
    low = np.array([family.ranges[name].low for name in names])
    high = np.array([family.ranges[name].high for name in names])
    initial = np.array([family.ranges[name].start for name in names])
    if prior is not None:
        initial = np.clip(np.array([prior[name] for name in names]), low, high)
    first = initial if start is None else np.array([start[name] for name in names])
    pull = _PULL if prior is None else _PULL_TO_PRIOR
    margin = 1e-6 * (high - low)

    def residuals(values: Column) -> Column:
        constants = {**dict(zip(names, values, strict=True)), **fixed}
        off = np.log(family.formula(x, constants) / seconds)
        return np.concatenate([off, pull * (values - initial) / (high - low)])

    found = least_squares(
        residuals,
        np.clip(first, low + margin, high - margin),
        bounds=(low, high),
        loss="soft_l1",
        f_scale=_SOFT,
        max_nfev=150,
        x_scale=np.maximum(np.abs(initial), 0.01),
    )
    values = {name: float(f"{value:.4g}") for name, value in zip(names, found.x, strict=True)}
    return float(found.cost), {**{name: 0.0 if abs(v) < 1e-3 else v for name, v in values.items()}, **fixed}
