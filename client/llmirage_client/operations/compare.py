"""Compare runs: the differences of their metrics, and which are more than chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmirage_client.measure.comparison import Comparison, Difference, run_differences
from llmirage_client.measure.comparison import compare as compare_results
from llmirage_client.measure.run_folder import read_runs
from llmirage_client.settings.output import CompareSettings
from llmirage_shared.settings import InputRefused


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
