"""The section of docs/accuracy.md on bands: how wide they are, and how many runs of groups that were left out they hold."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accuracy.bands import Point, covered
from accuracy.report import table
from llmirage_server.perf.bands import QUANTITIES, Quantity

_HEADINGS: dict[Quantity, str] = {"ttft": "TTFT", "tpot": "TPOT", "latency": "latency", "throughput": "throughput"}

_SHOWN = 4  # parts of a group's name in the table: measured or not, class, engine, GPU


def coverage_table(points: Sequence[Point], by: str = "family") -> str:
    """Shares of runs within the bands of 50 and 90 %, by engine, class and GPU. by: see `covered`."""
    inside = {quantity: covered(points, quantity, by) for quantity in QUANTITIES}
    rows = []
    for name in _groups(points):
        members = [i for i, point in enumerate(points) if name in _names(point)]
        cells = [_share([inside[quantity][i] for i in members]) for quantity in QUANTITIES]
        rows.append([name, len(members), *cells])
    return table(["runs", "n", *_HEADINGS.values()], rows)


def _groups(points: Sequence[Point]) -> list[str]:
    names = {name: depth for point in points for depth, name in enumerate(_names(point))}
    return sorted(names, key=lambda name: (names[name], name))


def _names(point: Point) -> list[str]:
    _, kind, engine, gpu, _, family = point.strata[-1].split()
    return ["all", {"moe": "mixtures of experts", "dense": "dense"}[kind], engine, gpu, family]


def _share(rows: Sequence[Sequence[bool]]) -> str:
    return " / ".join(f"{100 * sum(row[i] for row in rows) / len(rows):.0f}" for i in (0, 1))


def width_table(figures: Path) -> str:
    """The factors of the committed data, down to GPUs; those of formats and families are printed with each answer."""
    data: dict[str, Any] = json.loads(figures.read_text())
    rows = []
    for name, group in data["groups"].items():
        if len(name.split()) > _SHOWN:
            continue
        cells = []
        for quantity in QUANTITIES:
            parts = [*name.split(), "", "", ""]
            levels = data["seen"][quantity] if len(parts) == 9 else data["levels"][quantity][parts[2]]
            half, most = (math.exp(group["scale"][quantity] * level) for level in levels)
            cells.append(f"{half:.2f} / {most:.2f}")
        rows.append([name or "all", group["runs"], group["deployments"], *cells])
    wider = (
        "Groups by format and family of models are in `perf/catalogue/data/bands.json`; "
        "each answer prints the factors that it uses. Beyond the measured concurrency or prompt length the logarithm of a "
        "factor grows as it does from smaller loads of a deployment to its largest; still further it is unknown:"
    )
    doublings = range(1, 1 + len(data["beyond"]["ttft"]))
    grown = [[f"{2**n} times", *(f"{data['beyond'][quantity][n - 1]:.2f}" for quantity in QUANTITIES)] for n in doublings]
    tables = (["group", "runs", "deployments"], rows), (["load"], grown)
    widths, growth = (table([*header, *_HEADINGS.values()], cells) for header, cells in tables)
    return f"{widths}\n\n{wider}\n\n{growth}"
