"""The action of `llmirage report`: write the page of runs, and open it."""

from __future__ import annotations

import sys
from json import dumps
from pathlib import Path

import click

from llmirage_client.commands.actions.output import open_page
from llmirage_client.operations import finished_runs as operation
from llmirage_shared.settings import ConfigError, InputRefused


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
