"""Runs that a command is given by their folders."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from llmirage_client.commands.actions.refusal import refuse
from llmirage_client.measure.record import RunResult
from llmirage_client.measure.run_folder import RunFolderError, read_run


def read_runs(places: Iterable[Path | str]) -> list[RunResult]:
    """Each of them; when one cannot be read, every problem is told and the command ends."""
    found, problems = [], []
    for place in places:
        try:
            found.append(read_run(place))
        except RunFolderError as error:
            problems.append(str(error))
    if problems:
        refuse(problems)
    return found
