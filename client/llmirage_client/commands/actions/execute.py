"""Carries out what `llmirage run` was asked for: a run, with its report on the screen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from llmirage_client.commands.actions.one_run import RefusedError, carry_out
from llmirage_client.commands.actions.run_description import run_folder
from llmirage_client.commands.actions.spread import Spread
from llmirage_client.load.options import RunOptions
from llmirage_client.report.console import render
from llmirage_client.targets.endpoint import EndpointSettings
from llmirage_client.workload.session import Workload


def execute(
    workload: Workload,
    options: RunOptions,
    endpoint: EndpointSettings,
    artifact_dir: str | None,
    shown: Mapping[str, Any],
    spread: Spread | None = None,
) -> int:
    """Return the exit status. shown: the settings as the user knows them, for the report and the files."""

    def folder(complete: RunOptions) -> Path:
        return run_folder(complete, workload) if artifact_dir is None else Path(artifact_dir)

    try:
        outcome = carry_out(workload, options, endpoint, folder, shown, spread)
    except RefusedError as error:
        click.echo(error, err=True)
        return 2
    render(outcome.result, metrics=outcome.metrics, files=outcome.files)
    return outcome.status
