"""What `llmirage compare` does: what differs between runs, and what of it is more than chance."""

from __future__ import annotations

import sys
from json import dumps
from typing import Any

import click

from llmirage_client.commands.actions.refusal import refuse
from llmirage_client.commands.actions.run_description import read_runs
from llmirage_client.measure.comparison import Comparison, Difference
from llmirage_client.measure.comparison import compare as compared
from llmirage_client.measure.run_differences import run_differences
from llmirage_client.report.comparison_table import print_comparison


def compare(baseline: str, runs: tuple[str, ...], confidence: float, fail_if_worse: float | None, json: bool) -> None:
    found = read_runs((baseline, *runs))
    comparisons = [compared(found[0], other, confidence=confidence / 100) for other in found[1:]]
    warnings = [run_differences(found[0], other) for other in found[1:]]
    if json:
        entries = zip(runs, comparisons, warnings, strict=True)
        content = {
            "baseline": baseline,
            "confidence_pct": confidence,
            "tolerance_pct": None if fail_if_worse is None else 100 * fail_if_worse,
            "comparisons": [_as_json(place, one, said, fail_if_worse or 0.0) for place, one, said in entries],
        }
        click.echo(dumps(content, indent=2))
    else:
        for place, one, said in zip(runs, comparisons, warnings, strict=True):
            print_comparison(baseline, place, one, said, confidence, fail_if_worse)
    if fail_if_worse is not None:
        if unjudged := [place for place, one in zip(runs, comparisons, strict=True) if not one.judged]:
            refuse([f"{place}: too few requests to tell whether a metric is worse" for place in unjudged], "compare")
        sys.exit(1 if any(one.worse(fail_if_worse) for one in comparisons) else 0)


def _as_json(place: str, comparison: Comparison, warnings: list[str], tolerance: float) -> dict[str, Any]:
    return {
        "run": place,
        "paired": comparison.paired,
        "conversations": list(comparison.conversations),
        "warnings": warnings,
        "worse": [f"{d.tag}_{d.statistic}".rstrip("_") for d in comparison.worse(tolerance)],
        "metrics": [_difference(d) | {"seen_pct": comparison.seen(d, tolerance)} for d in comparison.differences],
    }


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
