"""The actions of `llmirage report`, `compare` and `verify-client`: pages of runs, differences, errors of a client."""

from __future__ import annotations

import sys
from json import dumps
from pathlib import Path
from typing import Any

import click

from llmirage_client.measure.client_error import client_error, read_stamps
from llmirage_client.measure.run_folder import read_runs
from llmirage_client.operations import finished_runs as operation
from llmirage_client.report.console import print_comparison
from llmirage_client.report.output_files import open_page
from llmirage_client.report.screen import print_table
from llmirage_client.settings.output import CompareSettings
from llmirage_shared.settings import ConfigError, InputRefused, instance_of

_NAMES = {"ttft": "TTFT", "itl": "ITL, mean of a reply", "gap": "gap between two chunks"}


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


def verify_client(run: str, stamps: str, json: bool) -> None:
    """Run `llmirage verify-client`."""
    [result] = read_runs([run])
    found = client_error(result.records, read_stamps(stamps))
    if not found.compared:
        raise InputRefused([f"{stamps} has none of the {found.requests} streamed requests of {run}, by X-Request-ID"])
    if json:
        click.echo(dumps(found.as_dict(), indent=2))
        return
    click.echo(f"{found.compared} of {found.requests} streamed requests have stamps. Measured less sent, in ms:\n")
    print_table(
        [
            {"": name, "values": one.count, "median": f"{one.median:+.3f}", "p99 of amounts": f"{one.p99:.3f}"}
            for tag, name in _NAMES.items()
            if (one := getattr(found, tag)) is not None
        ]
    )
