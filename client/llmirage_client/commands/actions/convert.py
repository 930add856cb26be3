"""The action of `llmirage convert`: write a workload file in another format."""

from __future__ import annotations

from json import dumps
from typing import Any

import click

from llmirage_client.commands.actions.output import check_json, write_output
from llmirage_client.operations import convert as operation
from llmirage_client.operations.convert import check_writable
from llmirage_client.operations.workload import load_workload, readable
from llmirage_client.settings.workload import ConvertSettings
from llmirage_client.workload.convert import Converted
from llmirage_shared.settings import instance_of


def convert(file: str, output: str | None, json: bool, **given: Any) -> None:
    """Run `llmirage convert`."""
    settings = instance_of(ConvertSettings, given)
    check_writable(settings.to)
    check_json(json, output)
    with readable():
        workload = load_workload(file, settings, tokenizer=settings.tokenizer, seed=settings.random_seed)
        converted = operation.convert(workload, settings.to, settings.tokenizer, settings.random_seed)
    write_output(converted.data, output)
    if json:
        told = {"file": output, "format": converted.format, "conversations": len(workload.roots), "notes": _notes(converted)}
        click.echo(dumps(told))
        return
    count = len(workload.roots)
    what = f"{count:,} conversation{'' if count == 1 else 's'} as {converted.format}"
    click.echo(f"{output or 'standard output'}: {what}", err=True)
    for note in _notes(converted):
        click.echo(f"note: {note}", err=True)


def _notes(converted: Converted) -> list[str]:
    options = " ".join(f"--format-option {key}={_option(value)}" for key, value in converted.options.items())
    return [*converted.notes, *([f"to load it, give --format {converted.format} {options}"] if options else [])]


def _option(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
