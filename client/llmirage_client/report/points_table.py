"""The table of a run at several loads, and the answer of a search, on the screen."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from llmirage_client.measure.load_points import PointResult, SearchAnswer
from llmirage_client.report.numbers import cached_cell, count, known, latency_cells, number, rate_cells
from llmirage_client.report.screen import Block, plain_table
from llmirage_client.report.secrets import hide_in_text

_HEAD = ("ok", "failed", "s", "req/s", "out tok/s", "TTFT p50", "p99", "TPOT p50", "p99", "latency p50", "p99", "cached")


def one_line(result: PointResult) -> str:
    """A point as it ends: what was done, and the figures that matter most."""
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
    """Everything. Points stand by their load; those of a search are marked as met or missed."""
    ordered = sorted(results, key=lambda result: (result.load, result.number))
    judged = any(result.verdicts for result in results)
    table = plain_table(results[0].variable.replace("_", " "), *_HEAD, *(["SLO"] if judged else []))
    for result in ordered:
        table.add_row(*_row(result), *([result.mark] if judged else []))
    of_cluster = f", of the cluster's own life (at speed {results[0].speed:g})"
    unit = "times in ms" + ("" if all(result.speed == 1 for result in results) else of_cluster)
    blocks: list[Block] = ["", hide_in_text(title), "", table, unit]
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
    return [
        f"{result.load:g}",
        count(values.get("request_count", 0)),
        count(values.get("error_request_count", 0)),
        known(values.get("benchmark_duration"), "{:.1f}".format),
        *rate_cells(result.metrics),
        *latency_cells(result.metrics),
        cached_cell(result.metrics),
    ]
