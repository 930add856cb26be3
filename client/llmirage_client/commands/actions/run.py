"""What `llmirage run` does: a run, a sweep over several loads, or a search for the highest one."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from json import dumps
from pathlib import Path
from typing import Any

import click

from llmirage_client.commands.actions.endpoint import endpoint_of, for_endpoint
from llmirage_client.commands.actions.execute_points import Loads, Steps, carried_out, search_steps, sweep_steps
from llmirage_client.commands.actions.one_run import USERS_WATCH, OneRun, Outcome, RefusedError, RunWatch
from llmirage_client.commands.actions.output import check_unused, new_folder
from llmirage_client.commands.actions.points import Search, conversations_wanted, search_of, sweep_points
from llmirage_client.commands.actions.run_description import run_name
from llmirage_client.commands.actions.spread import Spread
from llmirage_client.load.event_loop import run_on_best_loop
from llmirage_client.load.options import RunOptions
from llmirage_client.load.points import Point
from llmirage_client.measure.run_folder import find_runs
from llmirage_client.measure.slo import verdicts_json
from llmirage_client.operations.workload import load_of, readable
from llmirage_client.report.console import render
from llmirage_client.report.junit import suite_name, write_junit
from llmirage_client.report.points_files import points_json
from llmirage_client.report.points_table import points_blocks
from llmirage_client.report.screen import print_blocks
from llmirage_client.settings.run import one_point, run_options, with_distinct_conversations
from llmirage_client.settings.workload import LengthSettings
from llmirage_client.simulate.summary import figures_of_run
from llmirage_client.targets.endpoint import EndpointSettings
from llmirage_client.workload.session import Workload
from llmirage_client.workload.synthesis.generated import is_preset
from llmirage_shared.settings import at_call, settings_of

report = at_call("llmirage_client.commands.actions.report:report")  # charts take 20 ms to import


@dataclass(frozen=True, slots=True)
class RequestedRun:
    """What the settings ask for. shown: as the user knows them. search, points: several loads, if those are asked for."""

    workload: Workload
    options: RunOptions
    endpoint: EndpointSettings
    shown: Mapping[str, Any]
    spread: Spread | None
    search: Search | None
    points: list[Point]

    def one_run(self, folder: Callable[[RunOptions], Path], watch: RunWatch) -> OneRun:
        """The run of a single load."""
        options = with_distinct_conversations(self.workload, self.options)
        shown = {**self.shown, "concurrency": options.concurrency, "fixed_schedule": options.fixed_schedule}
        return OneRun(self.workload, options, self.endpoint, folder, shown, self.spread, watch)


def run(file: str | None, **settings: Any) -> None:
    check_unused(settings)
    requested = requested_run(file, settings)
    if requested.points or requested.search:
        status, folder = _several_loads(requested, settings)
    else:
        status, folder = _one_run(requested, settings)
    if settings["open"] and folder is not None and find_runs(str(folder)):
        with contextlib.redirect_stdout(sys.stderr if settings["json"] else sys.stdout):
            report((str(folder),), None, open=True, json=False)
    sys.exit(status)


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The figures of one run, by the names that simulations have, too."""
    slo = {"slo": verdicts_json(outcome.verdicts)} if outcome.verdicts else {}
    return slo | figures_of_run(outcome.metrics) | {"notes": list(outcome.result.notes)}


def requested_run(file: str | Workload | None, settings: dict[str, Any]) -> RequestedRun:
    """Raises ConfigError."""
    endpoint = endpoint_of(settings)
    with readable():
        if (settings["isl"] is not None or (isinstance(file, str) and is_preset(file))) and settings["random_seed"] is None:
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
    shown = {
        name: value
        for name, value in one_point(settings).items()
        if value not in (None, ()) and name not in (*of_file, "open", "json")
    }
    return RequestedRun(workload, options, endpoint, shown, spread, search, points)


def steps_of(requested: RequestedRun, settings: Mapping[str, Any], **loads: Any) -> Steps:
    """Of what has several loads. loads: fields of Loads that the settings do not say."""
    common = {"artifact_dir": settings["artifact_dir"], "pause_s": settings["sleep_interval"], "spread": requested.spread}
    whole = Loads(requested.workload, requested.options, requested.endpoint, requested.shown, **(common | loads))
    if requested.search:
        return search_steps(whole, requested.search)
    return sweep_steps(whole, requested.points, settings["stop_at_saturation"])


def _several_loads(requested: RequestedRun, settings: Mapping[str, Any]) -> tuple[int, Path | None]:
    """Return the exit status, and where the files are."""
    json = settings["json"]
    done = carried_out(steps_of(requested, settings, **({"tell": partial(click.echo, err=True)} if json else {})))
    if done.refused is not None:
        click.echo(done.refused, err=True)
    if done.results and json:
        written = str(done.files[0].parent) if done.files else None
        click.echo(dumps(points_json(done.results, done.notes, done.answer) | {"folder": written}))
    elif done.results:
        print_blocks(points_blocks(done.title, done.results, done.notes, done.answer, done.files), wrap=False)
    if settings["junit"] is not None and done.refused is None and not requested.search:
        verdicts = [(f"{result.name}: ", verdict) for result in done.results for verdict in result.verdicts]
        write_junit(settings["junit"], done.title, verdicts)
    return done.status, done.files[0].parent if done.files else None


def _one_run(requested: RequestedRun, settings: Mapping[str, Any]) -> tuple[int, Path | None]:
    """Return the exit status, and where the files are."""
    artifact_dir, junit = settings["artifact_dir"], settings["junit"]

    def folder(complete: RunOptions) -> Path:
        return new_folder(run_name(complete, requested.workload)) if artifact_dir is None else Path(artifact_dir)

    try:
        one = requested.one_run(folder, USERS_WATCH)
        outcome = one.outcome(run_on_best_loop(one))
    except RefusedError as error:
        click.echo(error, err=True)
        return 2, None
    if settings["json"]:
        written = str(outcome.files[0].parent) if outcome.files else None
        click.echo(dumps(as_json(outcome) | {"folder": written}))
    else:
        render(outcome.result, metrics=outcome.metrics, files=outcome.files)
    if junit is not None:
        write_junit(junit, suite_name(outcome.result), [("", verdict) for verdict in outcome.verdicts])
    return outcome.status, outcome.files[0].parent if outcome.files else None
