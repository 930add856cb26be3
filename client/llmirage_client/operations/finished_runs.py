"""Finished runs: as one HTML page, and compared: the differences of their metrics, and which are more than chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmirage_client.measure.comparison import Comparison, Difference, run_differences
from llmirage_client.measure.comparison import compare as compare_results
from llmirage_client.measure.run_folder import (
    NO_RUN,
    ClusterLevels,
    RunFolderError,
    find_runs,
    read_cluster_series,
    read_runs,
)
from llmirage_client.report.html.run_page import run_page
from llmirage_client.report.html.run_view import names_of
from llmirage_client.report.load_points import read_sweep
from llmirage_client.settings.output import CompareSettings
from llmirage_shared.settings import InputRefused

PAGE_FILE = "report.html"
_MOST_RUNS = 100


@dataclass(frozen=True, slots=True)
class RunsPage:
    """The page of one run or several. notes: on what the page leaves out. default: its file."""

    html: bytes
    runs: list[str]
    notes: list[str]
    default: Path


def report(runs: Sequence[str]) -> RunsPage:
    """Make the page. runs: folders of runs, or of such folders, or files of records.

    Raises InputRefused with all problems.
    """
    places = _places(runs)
    found = read_runs(places)
    names = names_of([str(place.resolve()) for place in places])
    clusters, notes = _clusters(places, names)
    sweep = read_sweep(Path(runs[0])) if len(runs) == 1 else None
    page = run_page(list(zip(names, found, strict=True)), clusters, sweep).encode("utf-8", "replace")
    return RunsPage(page, names, notes, _default(runs, places))


def _places(runs: Sequence[str]) -> list[Path]:
    """Return every run named, or below a folder named, each once and in order."""
    places: list[Path] = []
    problems = []
    for name in runs:
        found = find_runs(name)
        if not found:
            problems.append(f"{name}: {NO_RUN if Path(name).exists() else 'there is no such file or folder'}")
        places += [place for place in found if place not in places]
    if problems:
        raise InputRefused(problems)
    if len(places) > _MOST_RUNS:
        raise InputRefused([f"These are {len(places)} runs; a page shows at most {_MOST_RUNS}. Name fewer of them."])
    return places


def _clusters(places: list[Path], names: list[str]) -> tuple[dict[str, ClusterLevels], list[str]]:
    """Return the levels of simulated clusters by run, and a note for each broken file."""
    found, notes = {}, []
    for place, name in zip(places, names, strict=True):
        try:
            series = read_cluster_series(place if place.is_dir() else place.parent)
        except RunFolderError as error:
            notes.append(f"{error}; the page is without it.")
        else:
            if series is not None:
                found[name] = series
    return found, notes


def _default(runs: Sequence[str], places: list[Path]) -> Path:
    """Return the page in the folder named; a file of records stands for its folder."""
    if len(runs) > 1:
        return Path(PAGE_FILE)
    folder = Path(runs[0]) if Path(runs[0]).is_dir() else places[0].parent
    return folder / PAGE_FILE


@dataclass(frozen=True, slots=True)
class RunComparison:
    """One run against the baseline. differing: settings in which the two runs differ, one sentence each."""

    run: str
    comparison: Comparison
    differing: list[str]

    def json(self, tolerance: float) -> dict[str, Any]:
        """Return the entry of --json. tolerance: the share by which a metric may be worse."""
        comparison = self.comparison
        return {
            "run": self.run,
            "paired": comparison.paired,
            "conversations": list(comparison.conversations),
            "warnings": self.differing,
            "worse": [f"{d.tag}_{d.statistic}".rstrip("_") for d in comparison.worse(tolerance)],
            "metrics": [_difference(d) | {"seen_pct": comparison.seen(d, tolerance)} for d in comparison.differences],
        }


def compare(baseline: str, runs: Sequence[str], settings: CompareSettings) -> list[RunComparison]:
    """Compare each run with the baseline. Raises InputRefused for a run that cannot be read."""
    first, *others = read_runs((baseline, *runs))
    return [
        RunComparison(place, compare_results(first, one, confidence=settings.confidence / 100), run_differences(first, one))
        for place, one in zip(runs, others, strict=True)
    ]


def worse_runs(compared: Sequence[RunComparison], tolerance: float) -> list[str]:
    """Return the runs that have a metric worse by more than chance and the tolerance.

    Raises InputRefused where a run has too few requests to tell.
    """
    if unjudged := [one.run for one in compared if not one.comparison.judged]:
        raise InputRefused([f"{run}: too few requests to tell whether a metric is worse" for run in unjudged], "compare")
    return [one.run for one in compared if one.comparison.worse(tolerance)]


def _difference(one: Difference) -> dict[str, Any]:
    return {
        "metric": one.tag,
        "statistic": one.statistic or None,
        "unit": one.unit,
        "baseline": one.baseline,
        "value": one.value,
        "difference": one.difference,
        "difference_pct": one.percent,
        "low": one.low,
        "high": one.high,
        "standard_error": one.error,
        "beyond_noise": one.beyond_noise,
        "better": one.better,
        "why_not": one.why_not,
    }
