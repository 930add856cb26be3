"""Works a study out: every point once, results on disk at once, and only what is missing when it is started again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from llmirage_client.sweep.executors import Executor, WorkerDied
from llmirage_client.sweep.file import Study, StudyPoint
from llmirage_client.sweep.point import Task, key_of, measured_steadily, work

RESULTS_FILE = "results.jsonl"
_FINAL = ("ok", "refused", "stopped")  # a point that failed is tried again

OnPoint = Callable[["Row", int, int], None]


@dataclass(frozen=True, slots=True)
class Row:
    """A point and what came of it. figures: see sweep_point.figures_of; empty unless there is something to tell."""

    point: StudyPoint
    status: str
    reason: str
    figures: dict[str, Any]
    series: dict[str, list[float]]
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Sweep:
    """rows: in the order of the points. reused: the number of rows kept from an earlier start."""

    study: Study
    rows: tuple[Row, ...]
    reused: int
    wall_s: float
    cpu_s: float


def sweep(
    study: Study,
    executor: Executor,
    folder: Path,
    version: str,
    *,
    max_time_s: float | None = None,
    fresh: bool = False,
    runs: bool = False,
    on_point: OnPoint = lambda row, done, total: None,
) -> Sweep:
    """Work out the points of a study.

    on_point: gets (row, done, total) as points are done. fresh: work everything out anew. runs: keep each point's whole
    run, in a folder of its own. Raises OSError.
    """
    begun_s = time.perf_counter()
    study = measured_steadily(study)
    folder.mkdir(parents=True, exist_ok=True)
    keys = {point.number: key_of(point, max_time_s, version) for point in study.points}
    path = folder / RESULTS_FILE
    if fresh:
        path.unlink(missing_ok=True)
    known = dict(_known(path))
    rows: dict[int, Row] = {}
    missing: list[StudyPoint] = []
    for point in study.points:
        found = known.get(keys[point.number])
        there = not runs or (folder / run_folder(point)).exists() or point.refused
        if found is not None and there:
            rows[point.number] = _row(point, found)
        else:
            missing.append(point)
    reused = len(rows)
    total = len(study.points)
    with path.open("a+", encoding="utf-8") as file:
        _end_line(path, file)

        def keep(point: StudyPoint, result: dict[str, Any]) -> None:
            line = {"key": keys[point.number], "name": point.name, **result}
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
            file.flush()
            rows[point.number] = _row(point, result)
            on_point(rows[point.number], len(rows), total)

        for point in missing:
            if point.refused:
                keep(point, {"status": "refused", "reason": point.refused})
        possible = [point for point in missing if point.config is not None]
        tasks = [
            Task(point.number, point.config, point.load, max_time_s, str(folder / run_folder(point)) if runs else None)
            for point in possible
            if point.config is not None
        ]
        for index, result in executor.map(work, tasks):
            dead = {"status": "failed", "reason": str(result)}
            keep(possible[index], dead if isinstance(result, WorkerDied) else result)
    ordered = tuple(rows[point.number] for point in study.points)
    cpu_s = sum(row.cpu_s for row in ordered)
    return Sweep(study, ordered, reused, time.perf_counter() - begun_s, cpu_s)


def _end_line(path: Path, file: TextIO) -> None:
    """End a line that was cut off, so that the next is a line of its own."""
    if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
        file.write("\n")


def run_folder(point: StudyPoint) -> str:
    """Return a name that sorts as the points do."""
    return f"runs/point_{point.number:04d}"


def _row(point: StudyPoint, result: dict[str, Any]) -> Row:
    return Row(
        point,
        result["status"],
        result["reason"],
        result.get("figures", {}),
        result.get("series", {}),
        result.get("cpu_s", 0.0),
    )


def _known(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield results of earlier starts by key; a line that was cut off, by a kill or a full disk, is none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        try:
            result = json.loads(line)
            if result["status"] in _FINAL:
                yield result["key"], result
        except (ValueError, KeyError, TypeError):
            continue
