"""`llmirage faults`: its options, and the list that it prints."""

from __future__ import annotations

import json as json_module
import textwrap
from collections.abc import Iterable
from dataclasses import asdict

import click

from llmirage_server.faults.kinds import FAULTS
from llmirage_server.faults.rule import Conditions, FaultDescription, described, find_fault, parameter_texts
from llmirage_shared.command_line import argument, command, json_option
from llmirage_shared.extensions import installed
from llmirage_shared.settings import ConfigError, did_you_mean

faults = command(
    "faults",
    "llmirage_server.commands.faults:list_faults",
    [argument("kind", metavar="[KIND]", required=False), json_option("Print JSON.")],
    """List the faults that a server can be told to make, or explain one.

    `llmirage serve --faults FILE` makes them (docs/faults.md).
    """,
    examples=("llmirage faults", "llmirage faults cut"),
)


_WIDTH = 100
_INDENT = 20


def list_faults(kind: str | None, json: bool) -> None:
    """List the faults, or describe one. Raises ConfigError for a fault that does not exist."""
    known = [*FAULTS, *installed("fault")]
    try:
        found = {name: find_fault(name, imports=True) for name in (known if kind is None else [kind])}
    except ValueError as error:
        raise ConfigError([str(error)]) from None
    if kind is not None and found[kind] is None:
        raise ConfigError([f"there is no fault {kind!r}{did_you_mean(kind, known)}; there are {', '.join(known)}"])
    chosen = [described(fault) for fault in found.values() if fault is not None]
    if json:
        click.echo(json_module.dumps([asdict(fault) for fault in chosen], indent=2))
    elif kind is not None:
        click.echo("\n".join(_explained(chosen[0])))
    else:
        click.echo("\n".join(_listed((fault.kind, fault.summary) for fault in chosen)))
        click.echo("\n`llmirage faults KIND` tells the parameters of one, and which requests it can be limited to.")


def _explained(fault: FaultDescription) -> list[str]:
    lines = [f"{fault.kind}: {fault.summary}", ""]
    if fault.streams_only:
        lines += ["It happens to streamed replies only.", ""]
    if fault.parameters:
        lines += ["Parameters", *_listed(fault.parameters), ""]
    lines += ["Which requests", *_listed(parameter_texts(Conditions)), ""]
    return [*lines, "Example, a line of the list `faults:` in a file:", f"  - {fault.example}"]


def _listed(texts: Iterable[tuple[str, str]]) -> list[str]:
    indent = " " * _INDENT
    return [
        textwrap.fill(
            text, _WIDTH, break_on_hyphens=False, initial_indent=f"  {name}".ljust(_INDENT), subsequent_indent=indent
        )
        for name, text in texts
    ]
