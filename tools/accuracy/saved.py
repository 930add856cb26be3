"""What was predicted when docs/accuracy.md was made, a line for each run: tests/data/silicon/predictions.csv.gz."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable
from pathlib import Path

from accuracy.closed_loop import Prediction
from accuracy.runs import MeasuredRun, load_runs

_FIGURES = ("ttft_ms", "tpot_ms", "output_tokens_per_s")


def save_predictions(path: Path, predictions: Iterable[Prediction]) -> None:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["id", *_FIGURES])
    for p in predictions:
        if not p.problem:
            writer.writerow([p.run.id, *(f"{getattr(p, name):.5g}" for name in _FIGURES)])
    path.write_bytes(gzip.compress(buffer.getvalue().encode(), mtime=0))


def shipped(data: Path) -> list[Prediction]:
    """Return the predictions of all whole runs as they are committed."""
    path, files = data / "predictions.csv.gz", ("runs.csv.gz", "scripted.csv.gz")
    return load_predictions(path, (run for name in files for run in load_runs(data / name)))


def load_predictions(path: Path, runs: Iterable[MeasuredRun]) -> list[Prediction]:
    """Those of the runs that have one."""
    text = gzip.decompress(path.read_bytes()).decode()
    figures = {row["id"]: {name: float(row[name]) for name in _FIGURES} for row in csv.DictReader(io.StringIO(text))}
    return [Prediction(run, **figures[run.id]) for run in runs if run.id in figures]
