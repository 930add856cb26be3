"""A run at several loads: its table on the screen, and sweep.json and sweep.csv, written and read."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmirage_client.measure.catalogue import PER_REQUEST, WHOLE_RUN
from llmirage_client.measure.load_points import PointResult, SearchAnswer
from llmirage_client.measure.slo import Objective, SloError, parse_slo
from llmirage_client.report.output_files import hide_in_text, write_json, write_text
from llmirage_client.report.screen import (
    Block,
    cached_cell,
    count,
    known,
    latency_cells,
    number,
    plain_table,
    rate_cells,
    warning,
)

SWEEP_JSON = "sweep.json"
SWEEP_CSV = "sweep.csv"
_POINT_FOLDER = re.compile(r"\d{2,}_(concurrency|request_rate)[\d.e+-]+")
_STATISTICS = ("avg", "p50", "p90", "p95", "p99")


def forget_points(folder: Path) -> None:
    """Remove what an earlier sweep or search left in the folder: both files, and the folders of its points."""
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
    """Return the content of sweep.json."""
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
    """Write both files, each in one step, and return their paths. Raises OSError."""
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


def point_row(result: PointResult, named: Callable[[str, str], str] = "{}_{}".format) -> dict[str, Any]:
    """Return one row of the table: whole-run metrics under their tags, others as `named` makes it of tag and statistic."""
    row: dict[str, Any] = {result.variable: result.load, "exit_status": result.status}
    if result.verdicts:
        row["meets_slo"] = result.meets
    row |= dict(result.metrics.whole_run)
    for tag, summary in result.metrics.per_request.items():
        row |= {named(tag, statistic): getattr(summary, statistic) for statistic in _STATISTICS}
    return row


@dataclass(frozen=True, slots=True)
class LoadSweep:
    """answer: of a search, in a sentence; empty for a sweep. found: a load meets the objectives, and the search is over.

    met: by a run's folder, whether it met every objective.
    """

    answer: str = ""
    found: bool = False
    objectives: tuple[Objective, ...] = ()
    met: Mapping[str, bool] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_sweep(folder: Path) -> LoadSweep | None:
    """Read the sweep from the folder above the runs; None when there is no such file, or nothing in it can be read."""
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


_HEAD = ("ok", "failed", "s", "req/s", "out tok/s", "TTFT p50", "p99", "TPOT p50", "p99", "latency p50", "p99", "cached")


def one_line(result: PointResult) -> str:
    """Return a line on a finished point with its main figures."""
    cells = dict(zip(_HEAD[:5], _row(result)[1:6], strict=True))
    parts = [f"{cells['ok']} ok, {cells['failed']} failed in {cells['s']} s", f"{cells['req/s']} requests/s"]
    for tag, word in (("time_to_first_token", "TTFT"), ("inter_token_latency", "TPOT"), ("request_latency", "latency")):
        summary = result.metrics.per_request.get(tag)
        if summary is not None:
            parts.append(f"{word} p50 {number(summary.p50)}, p99 {number(summary.p99)} ms")
    if result.first_error:
        parts.append(f"failed with: {result.first_error}")
    return "  " + "; ".join(parts)


def points_blocks(
    title: str, results: Sequence[PointResult], notes: Sequence[str], answer: SearchAnswer | None, files: Sequence[Path]
) -> list[Block]:
    """Return all blocks. Points stand by their load; those of a search are marked as met or missed."""
    ordered = sorted(results, key=lambda result: (result.load, result.number))
    judged = any(result.verdicts for result in results)
    table = plain_table(results[0].variable.replace("_", " "), *_HEAD, *(["SLO"] if judged else []), ends=judged)
    for result in ordered:
        table.add_row(*_row(result), *([result.mark] if judged else []))
    of_cluster = f", of the cluster's own life (at speed {results[0].speed:g})"
    unit = "times in ms" + ("" if all(result.speed == 1 for result in results) else of_cluster)
    name = results[0].variable.replace("_", " ")
    failures = [f"{name} {one.load:g} failed with: {one.first_error}" for one in ordered if one.first_error]
    blocks: list[Block] = ["", hide_in_text(title), *map(warning, dict.fromkeys(failures)), "", table, unit]
    if answer is not None:
        blocks += ["", str(answer)]
    if notes:
        blocks += ["", *(f"Note: {note}" for note in notes)]
    if files:
        folder = files[0].parent
        blocks.append("")
        blocks.append(f"Written to {folder}: {', '.join(file.name for file in files)}, and a folder for each point")
        blocks.append(f"HTML report: llmirage report {shlex.quote(str(folder))} --open")
    return blocks


def _row(result: PointResult) -> list[str]:
    values = result.metrics.whole_run
    requests_per_s, tokens_per_s = rate_cells(result.metrics)
    return [
        f"{result.load:g}",
        count(values.get("request_count", 0)),
        count(values.get("error_request_count", 0)),
        known(values.get("benchmark_duration"), "{:.1f}".format),
        requests_per_s if result.surplus is None else f"{requests_per_s} for {result.load:g}",
        tokens_per_s,
        *latency_cells(result.metrics),
        cached_cell(result.metrics),
    ]
