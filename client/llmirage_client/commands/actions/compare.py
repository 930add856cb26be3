"""The action of `llmirage compare`: tables or JSON of the differences, and the exit status."""

from __future__ import annotations

import sys
from json import dumps
from typing import Any

import click

from llmirage_client.operations import finished_runs as operation
from llmirage_client.report.comparison_table import print_comparison
from llmirage_client.settings.output import CompareSettings
from llmirage_shared.settings import instance_of


def compare(baseline: str, runs: tuple[str, ...], json: bool, **given: Any) -> None:
    """Run `llmirage compare`."""
    settings = instance_of(CompareSettings, given)
    compared, tolerance = operation.compare(baseline, runs, settings), settings.fail_if_worse
    if json:
        content = {
            "baseline": baseline,
            "confidence_pct": settings.confidence,
            "tolerance_pct": None if tolerance is None else 100 * tolerance,
            "comparisons": [one.json(tolerance or 0.0) for one in compared],
        }
        click.echo(dumps(content, indent=2))
    else:
        for one in compared:
            print_comparison(baseline, one.run, one.comparison, one.differing, settings.confidence, tolerance)
    if tolerance is not None:
        sys.exit(1 if operation.worse_runs(compared, tolerance) else 0)
