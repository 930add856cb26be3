"""The actions of `llmirage report` and `compare`: the page of runs, and the differences between them."""

from __future__ import annotations

import sys
from json import dumps
from pathlib import Path
from typing import Any

import click

from llmirage_client.commands.actions.output import open_page
from llmirage_client.operations import finished_runs as operation
from llmirage_client.report.comparison_table import print_comparison
from llmirage_client.settings.output import CompareSettings
from llmirage_shared.settings import ConfigError, InputRefused, instance_of


def report(runs: tuple[str, ...], output: str | None, open: bool, json: bool) -> None:
    """Run `llmirage report`."""
    if json and output == "-":
        raise ConfigError(["--json and --output - exclude each other: standard output cannot have both"])
    page = operation.report(runs)
    for note in page.notes:
        click.echo(note, err=True)
    if output == "-":
        sys.stdout.buffer.write(page.html)
        sys.stdout.buffer.flush()
        return
    path = Path(output) if output else page.default
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(page.html)
    except OSError as error:
        raise InputRefused([f"{path}: {error.strerror or error}"]) from None
    if json:
        click.echo(dumps({"file": str(path), "bytes": len(page.html), "runs": page.runs}))
    else:
        click.echo(f"Written to {path} ({len(page.html) / 1e3:,.0f} kB).")
    if open:
        open_page(path)


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
