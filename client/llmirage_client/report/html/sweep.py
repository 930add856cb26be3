"""What the files of a sweep or of a search for the highest load say beyond its runs: the objectives, and the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from llmirage_client.measure.slo import Objective, SloError, parse_slo
from llmirage_client.report.points_files import SWEEP_JSON


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
