"""sweep.json and sweep.csv, written and read: every point of a run at several loads, in the folder above theirs."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmirage_client.measure.catalogue import PER_REQUEST, WHOLE_RUN
from llmirage_client.measure.load_points import PointResult, SearchAnswer
from llmirage_client.measure.slo import Objective, SloError, parse_slo
from llmirage_client.report.whole_files import write_json, write_text

SWEEP_JSON = "sweep.json"
SWEEP_CSV = "sweep.csv"
_POINT_FOLDER = re.compile(r"\d{2,}_(concurrency|request_rate)[\d.e+-]+")
_STATISTICS = ("avg", "p50", "p90", "p95", "p99")


def forget_points(folder: Path) -> None:
    """Removes what an earlier sweep or search left in the folder: both files, and the folders of its points."""
    try:
        points = json.loads((folder / SWEEP_JSON).read_text())["points"]
        names = [point["folder"] for point in points if _POINT_FOLDER.fullmatch(str(point["folder"]))]
    except (OSError, ValueError, KeyError, TypeError):
        return
    for name in names:
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in (SWEEP_JSON, SWEEP_CSV):
        (folder / name).unlink(missing_ok=True)


def points_json(results: Sequence[PointResult], notes: Sequence[str], answer: SearchAnswer | None) -> dict[str, Any]:
    """The content of sweep.json."""
    content: dict[str, Any] = {
        "variable": results[0].variable,
        "points": [_point(result) for result in results],
        "notes": list(notes),
    }
    if answer is not None:
        content["search"] = {
            "slo": answer.slo,
            "answer": str(answer),
            "highest_met": answer.best,
            "lowest_missed": answer.worst,
            "too_close_to_tell": list(answer.open),
            "lower_bound": answer.lower,
            "upper_bound": answer.upper,
            "interrupted": answer.interrupted,
        }
    return content


def write_points(
    folder: Path, results: Sequence[PointResult], notes: Sequence[str], answer: SearchAnswer | None
) -> list[Path]:
    """Writes both files, each whole or not at all, and returns their paths. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    json_path, csv_path = folder / SWEEP_JSON, folder / SWEEP_CSV
    write_json(json_path, points_json(results, notes, answer))
    rows = [point_row(result) for result in results]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(csv_path, text.getvalue())
    return [json_path, csv_path]


def _point(result: PointResult) -> dict[str, Any]:
    metrics = result.metrics
    content: dict[str, Any] = {
        result.variable: result.load,
        "folder": result.files[0].parent.name if result.files else None,
        "exit_status": result.status,
        "falls_behind": result.behind,
    }
    if result.verdicts:
        content["meets_slo"] = result.meets
        content["objectives"] = [
            {"objective": v.objective.text, "value": v.value, "unit": v.objective.metric.unit, "met": v.met}
            for v in result.verdicts
        ]
    content |= {tag: WHOLE_RUN[tag].entry(value) for tag, value in metrics.whole_run.items()}
    content |= {tag: PER_REQUEST[tag].entry(summary) for tag, summary in metrics.per_request.items()}
    return content


def point_row(result: PointResult) -> dict[str, Any]:
    """One row of the table: whole-run metrics under their tags, others as tag_statistic."""
    row: dict[str, Any] = {result.variable: result.load, "exit_status": result.status}
    if result.verdicts:
        row["meets_slo"] = result.meets
    row |= dict(result.metrics.whole_run)
    for tag, summary in result.metrics.per_request.items():
        row |= {f"{tag}_{statistic}": getattr(summary, statistic) for statistic in _STATISTICS}
    return row


@dataclass(frozen=True, slots=True)
class LoadSweep:
    """answer: of a search, in a sentence; empty for a sweep. found: a load meets the objectives, and the search is over.

    met: by a run's folder, whether it met every objective."""

    answer: str = ""
    found: bool = False
    objectives: tuple[Objective, ...] = ()
    met: Mapping[str, bool] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_sweep(folder: Path) -> LoadSweep | None:
    """From the folder above the runs; None when there is no such file, or nothing in it can be read."""
    try:
        content = json.loads((folder / SWEEP_JSON).read_bytes())
        search = content.get("search") or {}
        points = content.get("points") or []
        return LoadSweep(
            answer=str(search.get("answer") or ""),
            found=search.get("highest_met") is not None and not search.get("interrupted"),
            objectives=_objectives(search.get("slo")),
            met={str(p["folder"]): bool(p["meets_slo"]) for p in points if "meets_slo" in p},
            notes=tuple(str(note) for note in content.get("notes") or ()),
        )
    except (OSError, ValueError, AttributeError, TypeError, KeyError):
        return None


def _objectives(slo: object) -> tuple[Objective, ...]:
    try:
        return parse_slo(slo) if isinstance(slo, str) else ()
    except SloError:
        return ()
