"""The action of `llmirage check`: validate a workload file, and print its counts or its problems."""

from __future__ import annotations

import sys
from dataclasses import asdict
from json import dumps
from typing import Any

import click

from llmirage_client.operations.workload import load_workload
from llmirage_client.settings.workload import FileSettings
from llmirage_client.workload.session import Workload, WorkloadError
from llmirage_client.workload.summary import WorkloadSummary, summarise
from llmirage_shared.settings import instance_of


def check(file: str, json: bool, tokenizer: str | None, **given: Any) -> None:
    """Run `llmirage check`."""
    try:
        workload = load_workload(file, instance_of(FileSettings, given), tokenizer=tokenizer)
    except WorkloadError as error:
        if json:
            click.echo(dumps({"file": file, "valid": False, "problems": [asdict(problem) for problem in error.problems]}))
            sys.exit(2)
        click.echo(error, err=True)
        if len(error.problems) > 1:
            click.echo(f"{file} is not valid: {len(error.problems)} problems", err=True)
        sys.exit(2)
    summary = summarise(workload)
    if json:
        about = {"file": file, "valid": True, "format": workload.format, "notes": list(workload.notes)}
        click.echo(dumps(about | asdict(summary)))
        return
    click.echo(f"{file} is valid")
    for name, text in _rows(workload, summary):
        click.echo(f"  {name:<16}{text}")
    for note in workload.notes:
        click.echo(f"  note: {note}")


def _rows(workload: Workload, summary: WorkloadSummary) -> list[tuple[str, str]]:
    rows = [
        ("format", workload.format),
        ("sessions", f"{summary.sessions:,}, {_count(summary.roots, 'root')}"),
        ("turns", f"{summary.turns:,}"),
    ]
    if workload.branching:
        forks, spawns = _count(summary.forks, "forked child", "ren"), _count(summary.spawns, "spawned child", "ren")
        rows.append(("branches", f"{forks}, {spawns}, {_count(summary.joins, 'join')}"))
        rows.append(("depth", f"{summary.depth}"))
    rows.append(("wire requests", f"{summary.requests:,} when every root runs once"))
    if summary.tokens:
        tokens = summary.tokens
        mean = tokens.input_tokens / tokens.calls
        longest = f"mean {mean:,.0f} and longest {tokens.longest_input_tokens:,} a call"
        rows.append(("prompt tokens", f"{tokens.input_tokens:,}, {longest}"))
        rows.append(("reply tokens", f"{tokens.output_tokens:,}, mean {tokens.output_tokens / tokens.calls:,.0f} a call"))
        rows.append(("token ids", f"in {tokens.calls_with_ids:,} of {tokens.calls:,} calls"))
        if tokens.repeated_tokens is not None:
            share = tokens.repeated_tokens / tokens.input_tokens
            rows.append(("prefix reuse", f"{share:.0%} of prompt tokens, with an unlimited cache"))
    if summary.arrivals_s:
        first, last = summary.arrivals_s
        rows.append(("arrivals", f"from {first:,.3f} s to {last:,.3f} s"))
    return rows


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number:,} {noun}{plural if number != 1 else ''}"
