"""What `llmirage run` does: a run, a sweep over several loads, or a search for the highest one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from llmirage_client.commands.actions.endpoint import endpoint_of, for_endpoint
from llmirage_client.commands.actions.execute_points import Loads, execute_search, execute_sweep
from llmirage_client.commands.actions.one_run import RefusedError, carry_out
from llmirage_client.commands.actions.output import check_unused, new_folder
from llmirage_client.commands.actions.points import conversations_wanted, search_of, sweep_points
from llmirage_client.commands.actions.run_description import run_name
from llmirage_client.commands.actions.spread import Spread
from llmirage_client.commands.actions.workload import load_of, readable
from llmirage_client.load.options import RunOptions
from llmirage_client.report.console import render
from llmirage_client.report.junit import suite_name, write_junit
from llmirage_client.settings.run import one_point, run_options, with_distinct_conversations
from llmirage_client.settings.workload import LengthSettings
from llmirage_client.targets.endpoint import EndpointSettings
from llmirage_client.workload.session import Workload
from llmirage_client.workload.synthesis.generated import is_preset
from llmirage_shared.settings import settings_of


def run(file: str | None, **settings: Any) -> None:
    check_unused(settings)
    endpoint = endpoint_of(settings)
    with readable():
        if (settings["isl"] is not None or is_preset(file)) and settings["random_seed"] is None:
            settings["random_seed"] = int.from_bytes(os.urandom(6))
        workload = load_of(file, settings, conversations_wanted(settings))
    options = run_options(workload, settings)
    workload = for_endpoint(workload, settings)
    spread = None
    if settings["executor"] is not None:
        spread = Spread(settings["executor"], settings["workers"], settings["ray_address"])
    search, points = search_of(settings), sweep_points(workload, settings)
    if search:
        settings |= {search.variable: (search.start,), "fixed_schedule": False}
        options = run_options(workload, settings, seed=options.seed)
    of_file = () if settings["isl"] else settings_of(LengthSettings)
    shown = {name: value for name, value in one_point(settings).items() if value not in (None, ()) and name not in of_file}
    if points or search:
        loads = Loads(workload, options, endpoint, shown, settings["artifact_dir"], settings["sleep_interval"], spread)
        if search:
            sys.exit(execute_search(loads, search))
        sys.exit(execute_sweep(loads, points, settings["stop_at_saturation"], settings["junit"]))
    options = with_distinct_conversations(workload, options)
    shown |= {"concurrency": options.concurrency, "fixed_schedule": options.fixed_schedule}
    sys.exit(_one_run(workload, options, endpoint, settings["artifact_dir"], shown, spread, settings["junit"]))


def _one_run(
    workload: Workload,
    options: RunOptions,
    endpoint: EndpointSettings,
    artifact_dir: str | None,
    shown: Mapping[str, Any],
    spread: Spread | None,
    junit: str | None,
) -> int:
    """Return the exit status. shown: the settings as the user knows them, for the report and the files."""

    def folder(complete: RunOptions) -> Path:
        return new_folder(run_name(complete, workload)) if artifact_dir is None else Path(artifact_dir)

    try:
        outcome = carry_out(workload, options, endpoint, folder, shown, spread)
    except RefusedError as error:
        click.echo(error, err=True)
        return 2
    render(outcome.result, metrics=outcome.metrics, files=outcome.files)
    if junit is not None:
        write_junit(junit, suite_name(outcome.result), [("", verdict) for verdict in outcome.verdicts])
    return outcome.status
