"""What was predicted when docs/accuracy.md was made, a line for each run: tests/data/silicon/predictions.csv.gz."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from accuracy.closed_loop import Prediction
from accuracy.csv_files import read_csv, write_csv
from accuracy.runs import MeasuredRun, load_runs

_FIGURES = ("ttft_ms", "tpot_ms", "output_tokens_per_s")


def save_predictions(path: Path, predictions: Iterable[Prediction]) -> None:
    rows = ([p.run.id, *(f"{getattr(p, name):.5g}" for name in _FIGURES)] for p in predictions if not p.problem)
    write_csv(path, ["id", *_FIGURES], rows)


def shipped(data: Path) -> list[Prediction]:
    """Return the predictions of all whole runs as they are committed."""
    path, files = data / "predictions.csv.gz", ("runs.csv.gz", "scripted.csv.gz")
    return load_predictions(path, (run for name in files for run in load_runs(data / name)))


def load_predictions(path: Path, runs: Iterable[MeasuredRun]) -> list[Prediction]:
    """Those of the runs that have one."""
    figures = {row["id"]: {name: float(row[name]) for name in _FIGURES} for row in read_csv(path)}
    return [Prediction(run, **figures[run.id]) for run in runs if run.id in figures]
