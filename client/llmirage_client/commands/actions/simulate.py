"""The actions of `llmirage simulate` and `route-score`: write the files of a simulation, print reports."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from json import dumps
from pathlib import Path
from typing import Any

import click

from llmirage_client.measure.slo import MISSED
from llmirage_client.operations import route_score as routing
from llmirage_client.operations import simulate as operation
from llmirage_client.operations.simulate import SimulateSettings, simulation_json
from llmirage_client.report import files as run_files
from llmirage_client.report.console import render, warm_up_note, written_lines
from llmirage_client.report.files import suite_name, write_junit
from llmirage_client.report.output_files import check_unused, new_folder, open_page
from llmirage_client.report.screen import print_blocks, print_table
from llmirage_client.settings.simulation import RouteScoreSettings
from llmirage_client.simulate.report import cluster_blocks, report_series, write_trace
from llmirage_client.simulate.simulation import Simulation, own_process
from llmirage_client.simulator.cluster_settings import ClusterSettings
from llmirage_shared.plural import plural
from llmirage_shared.settings import InputRefused, at_call, cannot_be_folder, instance_of

single_page = at_call("llmirage_client.report.html.run_page:single_page")  # charts take 20 ms to import
view_run = at_call("llmirage_client.report.html.run_view:view_run")

_CTRL_C = "Ctrl-C"
MANY = 10_000  # requests: records of more take seconds to write, and tens of megabytes


def simulate(workload: str | None, trace: str | None, records: bool | None, json: bool, open: bool, **given: Any) -> None:
    """Run `llmirage simulate`."""
    own_process()
    settings = instance_of(SimulateSettings, given, cluster=ClusterSettings.of(given))
    check_unused(settings.artifact_dir, settings.overwrite)
    writes = not json or open or settings.artifact_dir is not None
    if settings.artifact_dir is None and writes and (problem := cannot_be_folder("artifacts/simulation")):
        raise InputRefused([f"{problem}; choose another folder with --artifact-dir"], "simulate")
    with_steps = trace is not None
    kept = open or with_steps or bool(records)
    simulation = operation.simulate(workload, settings, stoppable=_stop_on_ctrl_c, with_steps=with_steps, with_records=kept)
    if simulation.stopped:
        click.echo(f"Stopped early: {simulation.stopped}.", err=True)
    files: list[Path] = []
    written = True
    try:
        if trace is not None:
            _write_trace(simulation, trace)
        if settings.junit is not None:
            verdicts = [("", verdict) for verdict in simulation.verdicts]
            write_junit(settings.junit, suite_name(simulation.result_without_records), verdicts)
        if writes:
            files = _write(simulation, settings.artifact_dir, records)
    except OSError as error:  # a full disk, perhaps: the figures are shown all the same
        click.echo(f"llmirage simulate: the files could not be written: {error}", err=True)
        written = False
    _show(simulation, settings.steady_state, json, files)
    if open and files:
        written &= _open(simulation, files[0].parent)
    if simulation.stopped == _CTRL_C:
        sys.exit(130)
    if not all(verdict.met for verdict in simulation.verdicts):
        sys.exit(MISSED)
    sys.exit(0 if simulation.passed and written else 1)


def _stop_on_ctrl_c(stop: Callable[[str], None]) -> None:
    """End the simulation at the first Ctrl-C, which lets it be reported, and the process at the second."""

    def on_interrupt(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop(_CTRL_C)

    with contextlib.suppress(ValueError):  # not in the main thread, as in tests
        signal.signal(signal.SIGINT, on_interrupt)


def _show(simulation: Simulation, steady_state: bool, json: bool, files: list[Path]) -> None:
    if not json:
        result = simulation.result_without_records
        if not result.records and (warm_up := int((~simulation.columns.measured).sum())):
            result = replace(result, notes=[*result.notes, warm_up_note(warm_up)])
        render(result, metrics=simulation.metrics)
        print_blocks([*cluster_blocks(simulation), *(["", *written_lines(files)] if files else [])])
        return
    if errors := simulation.metrics.errors:  # the report would show them
        count, whole = errors[0].count, simulation.summary["requests"] + simulation.summary["failed_requests"]
        click.echo(f"{count:,} of {plural(whole, 'request')} failed: {errors[0].error.message}", err=True)
    click.echo(dumps(simulation_json(simulation, steady_state=steady_state)))


def _open(simulation: Simulation, folder: Path) -> bool:
    """Write the page, from memory as the files may lack the records, and open it; return whether it could be written."""
    page = folder / "report.html"
    text: str = single_page(view_run(simulation.result), report_series(simulation.series))
    try:
        page.write_bytes(text.encode("utf-8", "replace"))
    except OSError as error:
        click.echo(f"llmirage simulate: {page} could not be written: {error}", err=True)
        return False
    click.echo(f"HTML report written to {page}.", err=True)
    open_page(page)
    return True


def _write_trace(simulation: Simulation, trace: str) -> None:
    """Raise OSError where it cannot be written."""
    left_out = write_trace(trace, simulation.steps, simulation.result.records)
    more = f" without its last {plural(left_out, 'event')}" if left_out else ""
    click.echo(f"Trace written to {trace}{more}; open it in https://ui.perfetto.dev", err=True)


def _write(simulation: Simulation, artifact_dir: str | None, records: bool | None) -> list[Path]:
    """Write the files of a run and the cluster's series. Raises OSError."""
    count = len(simulation.columns.ok)
    each_request = count <= MANY if records is None else records
    if each_request and count > MANY:
        click.echo(f"Writing the records of {plural(count, 'request')}.", err=True)
    folder = Path(artifact_dir) if artifact_dir else new_folder("simulation")
    result = simulation.result if each_request else simulation.result_without_records
    files = run_files.write_artifacts(
        result, folder, metrics=simulation.metrics, columns=simulation.columns, each_request=each_request
    )
    return [*files, report_series(simulation.series).write(folder)]


def route_score(run: str, stamps: str, json: bool, **given: Any) -> None:
    """Run `llmirage route-score`."""
    own_process()
    settings, cluster = instance_of(RouteScoreSettings, given), ClusterSettings.of(given)
    scores = routing.route_scores(run, stamps, settings, cluster)
    if json:
        click.echo(dumps(scores.json(), indent=2))
        return
    click.echo(f"best possible: {routing.BEST}; times in ms\n")
    print_table(
        [
            {
                "router": name,
                "requests": one.requests,
                "cached": _shown(one.hit_rate, "{:.1%}"),
                "balance": _shown(one.balance, "{:.2f}"),
                **{f"TTFT {tag}": _shown((one.ttft_ms or {}).get(tag), "{:,.1f}") for tag in ("mean", "p50", "p90", "p99")},
                "mean/best": _shown((one.ttft_over_best(scores.best) or {}).get("mean"), "{:.2f}"),
            }
            for name, one in scores.rows()
        ]
    )


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
