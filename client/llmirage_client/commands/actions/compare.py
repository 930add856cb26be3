"""What `llmirage compare` does: what differs between runs, and what of it is more than chance."""

from __future__ import annotations

import sys
from json import dumps
from typing import Any

import click

from llmirage_client.commands.actions.run_description import read_runs
from llmirage_client.measure.comparison import Comparison, Difference
from llmirage_client.measure.comparison import compare as compared
from llmirage_client.measure.run_differences import run_differences
from llmirage_client.report.comparison_table import print_comparison


def compare(baseline: str, runs: tuple[str, ...], confidence: float, fail_if_worse: bool, json: bool) -> None:
    found = read_runs((baseline, *runs))
    comparisons = [compared(found[0], other, confidence=confidence / 100) for other in found[1:]]
    warnings = [run_differences(found[0], other) for other in found[1:]]
    if json:
        entries = zip(runs, comparisons, warnings, strict=True)
        content = {
            "baseline": baseline,
            "confidence_pct": confidence,
            "comparisons": [_as_json(place, one, said) for place, one, said in entries],
        }
        click.echo(dumps(content, indent=2))
    else:
        for place, one, said in zip(runs, comparisons, warnings, strict=True):
            print_comparison(baseline, place, one, said, confidence)
    if fail_if_worse and any(d.better is False for one in comparisons for d in one.differences):
        sys.exit(1)


def _as_json(place: str, comparison: Comparison, warnings: list[str]) -> dict[str, Any]:
    return {
        "run": place,
        "paired": comparison.paired,
        "conversations": list(comparison.conversations),
        "warnings": warnings,
        "metrics": [_difference(d) for d in comparison.differences],
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
        "beyond_noise": one.beyond_noise,
        "better": one.better,
        "why_not": one.why_not,
    }
