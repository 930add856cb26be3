"""What `llmirage convert` does: a workload file in another format."""

from __future__ import annotations

from json import dumps
from typing import Any

import click

from llmirage_client.commands.actions.output import check_json, write_output
from llmirage_client.commands.actions.refusal import refuse
from llmirage_client.commands.actions.workload import load_workload, readable
from llmirage_client.load.written_out import written_out
from llmirage_client.workload.convert import WRITERS, ConversionError, Converted
from llmirage_client.workload.convert import convert as in_format
from llmirage_client.workload.registry import ALIASES
from llmirage_client.workload.session import Workload
from llmirage_shared.settings import ConfigError


def convert(file: str, to: str, output: str | None, **settings: Any) -> None:
    check_writable(to)
    check_json(settings, output)
    with readable():
        workload = load_workload(file, settings)
        try:
            converted = converted_to(workload, to, settings["tokenizer"], settings["random_seed"])
        except ConversionError as error:
            refuse([f"{file}: {error}"])
    write_output(converted.data, output)
    if settings["json"]:
        told = {"file": output, "format": converted.format, "conversations": len(workload.roots), "notes": _notes(converted)}
        click.echo(dumps(told))
        return
    count = len(workload.roots)
    what = f"{count:,} conversation{'' if count == 1 else 's'} as {converted.format}"
    click.echo(f"{output or 'standard output'}: {what}", err=True)
    for note in _notes(converted):
        click.echo(f"note: {note}", err=True)


def check_writable(to: str) -> None:
    """Raises ConfigError for a format that cannot be written."""
    if ALIASES.get(to, to) not in WRITERS:
        raise ConfigError([f"Invalid value for --to: {to!r} cannot be written; choose one of {', '.join(WRITERS)}"])


def converted_to(workload: Workload, format_name: str, tokenizer: str | None, seed: int) -> Converted:
    """As it is, or else with the texts written out that the file gives by their length. Raises ConversionError."""
    try:
        return in_format(workload, format_name)
    except ConversionError:
        if all(turn.synthetic is None for session in workload.sessions.values() for turn in session.turns):
            raise
    return in_format(written_out(workload, tokenizer, seed), format_name)


def _notes(converted: Converted) -> list[str]:
    options = " ".join(f"--format-option {key}={_option(value)}" for key, value in converted.options.items())
    return [*converted.notes, *([f"to load it, give --format {converted.format} {options}"] if options else [])]


def _option(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
