"""The records of InferenceMAX runs of DeepSeek-R1 (inferencex_dsr1.csv) as `MeasuredRun`s: one for each point.

A point that ran every night is one run here, with the medians over its nights; how far the nights lie apart is a figure of
the page. What stands in silicon_dev.csv as well is left to it.

Until WARMED nothing warmed a server up before a run, so that the means over its requests hold what the first ones waited
for: 2 to 75 s each. Medians stand for the means of those runs, and of any run whose TTFT has a p99 above ten medians.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from accuracy.csv_files import Row, read_csv
from accuracy.errors import Spread, grouped
from accuracy.runs import MeasuredRun
from accuracy.truth import with_settings

T = TypeVar("T")
WARMED = "2026-01-21"  # --num-warmups came with commit d053ae2 of SemiAnalysisAI/InferenceX
_LONG_TAIL = "ttft_tail_10x"  # p99 of TTFT above ten medians
_GPUS = {"b200": "b200_sxm", "h200": "h200_sxm"}
_ENGINES = {"sglang": "sglang", "trt": "trtllm", "dynamo-sglang": "sglang", "mori-sglang": "sglang", "dynamo-trt": "trtllm"}
_ONE_INSTANCE = ("sglang", "trt")
_SAME = ("hardware", "framework", "precision", "topology", "isl", "osl", "concurrency", "spec_decoding")
# Of rows without an image: SGLang's version by its first day in the configurations (.github/configs/amd-master.yaml,
# nvidia-master.yaml of SemiAnalysisAI/InferenceX). Until 2025-12 AMD's were images of its own, built from SGLang 0.5.2.
_SGLANG: dict[tuple[str, str], tuple[tuple[str, str], ...]] = {
    ("mi300x", "fp8"): (
        ("2026-05-18", "0.5.12"), ("2026-02-26", "0.5.9"), ("2026-02-12", "0.5.8"), ("2026-01-23", "0.5.7"),
        ("2026-01-05", "0.5.5"), ("", "0.5.2"),
    ),
    ("mi325x", "fp8"): (
        ("2026-05-17", "0.5.12"), ("2026-02-26", "0.5.9"), ("2026-02-12", "0.5.8"), ("2026-01-23", "0.5.7"),
        ("2026-01-05", "0.5.5"), ("", "0.5.2"),
    ),
    ("mi355x", "fp8"): (
        ("2026-05-18", "0.5.12"), ("2026-02-26", "0.5.9"), ("2026-01-27", "0.5.8"), ("2026-01-05", "0.5.5"), ("", "0.5.2"),
    ),
    ("mi355x", "fp4"): (
        ("2026-05-18", "0.5.12"), ("2026-02-26", "0.5.9"), ("2026-01-28", "0.5.8"), ("2026-01-12", "0.5.7"),
        ("2025-12-16", "0.5.6"), ("", "0.5.2"),
    ),
    ("b200", "fp8"): (
        ("2026-05-17", "0.5.12"), ("2026-05-14", "0.5.11"), ("2026-03-25", "0.5.9"), ("2025-12-31", "0.5.6"),
        ("2025-11-11", "0.5.5"), ("", "0.5.3"),
    ),
    ("b200", "fp4"): (
        ("2026-05-17", "0.5.12"), ("2026-03-25", "0.5.9"), ("2025-12-31", "0.5.6"), ("2025-11-11", "0.5.5"), ("", "0.5.3"),
    ),
    ("h200", "fp8"): (
        ("2026-05-17", "0.5.12"), ("2026-05-12", "0.5.11"), ("2026-03-07", "0.5.9"), ("2026-01-22", "0.5.7"),
        ("2025-12-31", "0.5.6"), ("2025-11-10", "0.5.5"), ("", "0.5.2"),
    ),
}  # fmt: skip


def engine_of(row: Row) -> str:
    return _ENGINES[row["framework"]]


def run_of(row: Row, **figures: Any) -> MeasuredRun:
    """Return the run of a record: all of them are of DeepSeek-R1. figures: what not every record has, by MeasuredRun."""
    return MeasuredRun(
        engine=engine_of(row),
        model="deepseek-ai/DeepSeek-R1",
        gpu=_gpu(row),
        isl=int(row["isl"]),
        osl=int(row["osl"]),
        concurrency=int(row["concurrency"]),
        weights=_weights(row),
        shortest=0.8,
        **figures,
    )


def newest(rows: Iterable[Row]) -> Iterable[Row]:
    """Return the last record of each point."""
    return {tuple(row[name] for name in _SAME): row for row in sorted(rows, key=lambda row: row["date"])}.values()


def since(first_days: Iterable[tuple[str, T]], row: Row) -> T:
    """Return what counted on the day of the record, of entries with the first day of each, the newest first."""
    return next(value for day, value in first_days if row["date"] >= day)


@dataclass(frozen=True, slots=True)
class Repeats:
    """|second / first - 1| of consecutive repeats of a point: median and 90th percentile in per cent, of TTFT and TPOT."""

    points: int
    pairs: int
    ttft: tuple[float, float]
    tpot: tuple[float, float]


def read_inferencex(path: Path) -> list[MeasuredRun]:
    """Return the points of the file that one instance served without speculation and that silicon_dev.csv lacks.

    Left out: runs of engines that are not simulated (ATOM), and those that stalled, by their effective concurrency.
    """
    points = grouped((row for row in read_csv(path) if _simulated(row) and not row["overlap_how"]), _point)
    return [_run(rows) for rows in points.values()]


def with_records(runs: Iterable[MeasuredRun], path: Path) -> list[MeasuredRun]:
    """The runs of silicon_dev.csv, with medians where the file has the very run and means do not stand for it.

    Those without a record are marked where the records of their deployment's nights show a cold start.
    """
    rows = [row for row in read_csv(path) if _simulated(row)]
    records = [row for row in rows if row["ttft_mean_ms"]]
    cold = {_deployment(row) for row in rows if row["date"] < WARMED and _LONG_TAIL in row["flags"]}
    return [_as_recorded(run, next((row for row in records if _is_of(row, run)), None), cold) for run in runs]


def _as_recorded(run: MeasuredRun, row: Row | None, cold: set[tuple[str, ...]]) -> MeasuredRun:
    if row is None:
        return replace(run, cold_start=1) if (run.engine, run.gpu, run.weights, run.engine_version) in cold else run
    if not _started_cold(row):
        return run
    medians = {f"{name}_ms": float(row[f"{name}_median_ms"]) for name in ("ttft", "tpot")}
    return replace(run, **medians, statistic="median", engine_version=_version(row))  # type: ignore[arg-type]


def _is_of(row: Row, run: MeasuredRun) -> bool:
    """By its two means, which the file has with seven digits: they agree in no two runs."""
    return math.isclose(float(row["ttft_mean_ms"]), run.ttft_ms, rel_tol=1e-6) and math.isclose(
        float(row["tpot_mean_ms"]), run.tpot_ms, rel_tol=1e-6
    )


def _deployment(row: Row) -> tuple[str, ...]:
    return engine_of(row), _gpu(row), _weights(row), _version(row)


def _started_cold(row: Row) -> bool:
    return row["date"] < WARMED or _LONG_TAIL in row["flags"]


def _gpu(row: Row) -> str:
    return _GPUS.get(row["hardware"], row["hardware"])


def _weights(row: Row) -> str:
    return "fp8_block" if row["precision"] == "fp8" else "mxfp4" if row["hardware"] == "mi355x" else "nvfp4"


def repeats_of(path: Path) -> Repeats:
    """How far repeats of one point lie apart that follow each other under one version of the engine."""
    points = [
        sorted(rows, key=lambda row: row["date"]) for rows in grouped(filter(_simulated, read_csv(path)), _point).values()
    ]
    pairs = [pair for rows in points for pair in pairwise(rows)]

    def spread(name: str) -> tuple[float, float]:
        found = Spread.of(float(b[f"{name}_median_ms"]) / float(a[f"{name}_median_ms"]) - 1 for a, b in pairs)
        return round(found.median, 1), round(found.p90, 1)

    return Repeats(sum(len(rows) > 1 for rows in points), len(pairs), spread("ttft"), spread("tpot"))


def _simulated(row: Row) -> bool:
    aggregated = row["disagg"] == "no" and row["spec_decoding"] == "none" and row["framework"] in _ONE_INSTANCE
    return aggregated and "low_effective_concurrency" not in row["flags"]


def _point(row: Row) -> tuple[str, ...]:
    return *(row[name] for name in _SAME), _version(row)


def _version(row: Row) -> str:
    if (found := re.search(r":v?(\d[\w.]*)", row["image"])) is not None:
        return found[1]
    if row["framework"] != "sglang":
        return "1.1"
    return since(_SGLANG.get((row["hardware"], row["precision"]), (("", ""),)), row)


def _run(rows: list[Row]) -> MeasuredRun:
    row = rows[0]
    means = all(each["ttft_mean_ms"] and not _started_cold(each) for each in rows)
    statistic = "mean" if means else "median"
    ranks, ep = int(row["decode_tp"]), int(row["decode_ep"])
    dp = ranks if row["decode_dp_attention"] == "1" else 1
    run = run_of(
        row,
        ttft_ms=median(float(each[f"ttft_{statistic}_ms"]) for each in rows),
        tpot_ms=median(float(each[f"tpot_{statistic}_ms"]) for each in rows),
        output_tokens_per_s=median(float(each["output_tok_s_per_decode_gpu"]) * int(each["decode_gpus"]) for each in rows),
        statistic=statistic,
        id=f"inferencex_dsr1 row {row['row']}" + (f" and {len(rows) - 1} repeats" if len(rows) > 1 else ""),
        engine_version=_version(row),
        tp=ranks // dp,
        dp=dp,
        ep=ep,
    )
    return with_settings(run)
