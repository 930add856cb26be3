"""The action of `llmirage run`: carry out runs, write their files, and print their report."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from json import dumps
from pathlib import Path
from typing import Any

import click

from llmirage_client.load.options import RunOptions
from llmirage_client.load.plan import run_name
from llmirage_client.load.runner import run_on_best_loop
from llmirage_client.measure.run_folder import find_runs
from llmirage_client.operations.execute_points import carried_out
from llmirage_client.operations.one_run import CTRL_C, INTERRUPTED, RefusedError, RunWatch, Stoppable
from llmirage_client.operations.output_caching import audit_output_caching
from llmirage_client.operations.run import RequestedRun, requested_run, run_json, steps_of
from llmirage_client.report.console import render
from llmirage_client.report.files import suite_name, write_junit
from llmirage_client.report.load_points import points_blocks, points_json
from llmirage_client.report.output_files import check_unused, new_folder
from llmirage_client.report.progress import Progress
from llmirage_client.report.screen import print_blocks
from llmirage_client.settings.run import RunSettings
from llmirage_shared.settings import at_call, instance_of

report = at_call("llmirage_client.commands.actions.finished_runs:report")  # charts take 20 ms to import


def run(file: str | None, json: bool, open: bool, **given: Any) -> None:
    """Run `llmirage run`."""
    settings = instance_of(RunSettings, given)
    check_unused(settings.artifact_dir, settings.overwrite)
    requested = requested_run(file, settings)
    if settings.audit is not None:
        sys.exit(_audit(requested, settings, json))
    many = requested.points or requested.search
    status, folder = _several_loads(requested, settings, json) if many else _one_run(requested, settings, json)
    if open and folder is not None and find_runs(str(folder)):
        with contextlib.redirect_stdout(sys.stderr if json else sys.stdout):
            report((str(folder),), None, open=True, json=False)
    sys.exit(status)


def _audit(requested: RequestedRun, settings: RunSettings, json: bool) -> int:
    """Return the exit status."""
    try:
        audit, status = audit_output_caching(requested, settings, USERS_WATCH)
    except RefusedError as error:
        click.echo(error, err=True)
        return error.status
    except OSError as error:
        click.echo(f"--artifact-dir: {error.filename}: {error.strerror or error}", err=True)
        return 1
    if audit is None:
        click.echo("The audit has no verdict: a phase was cut off.", err=True)
    elif json:
        click.echo(dumps(audit.as_dict()))
    else:
        print_blocks(audit.blocks(), wrap=False)
    return status


def _several_loads(requested: RequestedRun, settings: RunSettings, json: bool) -> tuple[int, Path | None]:
    """Return the exit status, and the folder of the files."""
    beside = partial(click.echo, err=True)
    done = carried_out(steps_of(requested, settings, USERS_WATCH, beside if json else click.echo, beside))
    if done.refused is not None:
        click.echo(done.refused, err=True)
    if done.results and json:
        written = str(done.files[0].parent) if done.files else None
        click.echo(dumps(points_json(done.results, done.notes, done.answer) | {"folder": written}))
    elif done.results:
        print_blocks(points_blocks(done.title, done.results, done.notes, done.answer, done.files), wrap=False)
    if settings.junit is not None and done.refused is None and not requested.search:
        verdicts = [(f"{result.name}: ", verdict) for result in done.results for verdict in result.verdicts]
        write_junit(settings.junit, done.title, verdicts)
    return done.status, done.files[0].parent if done.files else None


def _one_run(requested: RequestedRun, settings: RunSettings, json: bool) -> tuple[int, Path | None]:
    """Return the exit status, and the folder of the files."""
    artifact_dir, junit = settings.artifact_dir, settings.junit

    def folder(complete: RunOptions) -> Path:
        return new_folder(run_name(complete, requested.workload)) if artifact_dir is None else Path(artifact_dir)

    try:
        one = requested.one_run(folder, USERS_WATCH)
        outcome = one.outcome(run_on_best_loop(one))
    except RefusedError as error:
        click.echo(error, err=True)
        return error.status, None
    if json:
        written = str(outcome.files[0].parent) if outcome.files else None
        click.echo(dumps(run_json(outcome) | {"folder": written}))
    else:
        render(outcome.result, metrics=outcome.metrics, files=outcome.files)
    if junit is not None:
        write_junit(junit, suite_name(outcome.result), [("", verdict) for verdict in outcome.verdicts])
    return outcome.status, outcome.files[0].parent if outcome.files else None


def _cancel_on_signals(run: Stoppable) -> Callable[[], Any]:
    """End the run at the first Ctrl-C (or SIGTERM), which lets it be reported, and the process at the second."""
    loop = asyncio.get_running_loop()
    seen = 0

    def stop() -> None:
        nonlocal seen
        seen += 1
        if seen > 1:
            os._exit(INTERRUPTED)  # every finished record is in its file already
        click.echo("\nStopping; the report of what finished follows. Ctrl-C again ends at once.", err=True)
        run.cancel(CTRL_C)

    numbers = (signal.SIGINT, signal.SIGTERM)
    try:
        for number in numbers:
            loop.add_signal_handler(number, stop)
    except NotImplementedError:  # Windows: Ctrl-C ends the process, with the records of what finished in their file
        return lambda: None
    return lambda: [loop.remove_signal_handler(number) for number in numbers]


USERS_WATCH = RunWatch(Progress, _cancel_on_signals, True)
"""The terminal shows the progress, signals end the run, and the process is there for it alone."""
