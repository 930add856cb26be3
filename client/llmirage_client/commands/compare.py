"""`llmirage compare`: what differs between runs, and what of it is more than chance."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from llmirage_client.commands.read_runs import read_runs

if TYPE_CHECKING:
    from llmirage_client.measure.comparison import Comparison, Difference


@click.command()
@click.argument("baseline")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option(
    "--confidence",
    type=click.FloatRange(50, 99.9),
    default=95.0,
    show_default=True,
    metavar="PERCENT",
    help="How sure the bounds of a difference are.",
)
@click.option(
    "--fail-if-worse", is_flag=True, help="Exit status 1 when a figure is worse than the baseline's by more than noise."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead of tables.")
def compare(baseline: str, runs: tuple[str, ...], confidence: float, fail_if_worse: bool, as_json: bool) -> None:
    """Compare the figures of each RUN with those of BASELINE.

    A run is the folder of its files, or its profile_export.jsonl; AIPerf's are read as well. The bounds of a difference come
    from drawing each run's conversations anew, again and again: a difference whose bounds do not include zero is more than
    the runs vary by chance. Exit status 2 when a run cannot be read.
    """
    from llmirage_client.measure.comparison import compare as compared
    from llmirage_client.measure.run_differences import run_differences

    found = read_runs((baseline, *runs))
    comparisons = [compared(found[0], other, confidence=confidence / 100) for other in found[1:]]
    warnings = [run_differences(found[0], other) for other in found[1:]]
    if as_json:
        entries = zip(runs, comparisons, warnings, strict=True)
        content = {
            "baseline": baseline,
            "confidence_pct": confidence,
            "comparisons": [_as_json(place, one, said) for place, one, said in entries],
        }
        click.echo(json.dumps(content, indent=2))
    else:
        from llmirage_client.report.comparison_table import print_comparison

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
