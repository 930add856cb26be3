"""Runs that a command is given by their folders."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

if TYPE_CHECKING:
    from llmirage_client.measure.record import RunResult


def read_runs(places: Iterable[Path | str]) -> list[RunResult]:
    """Each of them; when one cannot be read, every problem is told and the command ends."""
    from llmirage_client.measure.run_folder import RunFolderError, read_run

    found, problems = [], []
    for place in places:
        try:
            found.append(read_run(place))
        except RunFolderError as error:
            problems.append(str(error))
    if problems:
        refuse(problems)
    return found


def refuse(problems: Iterable[str]) -> NoReturn:
    """One line a problem; exit status 2."""
    for problem in problems:
        click.echo(problem, err=True)
    sys.exit(2)
