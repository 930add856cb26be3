"""What `llmirage simulate` does."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from llmirage_client.commands.actions.endpoint import for_endpoint
from llmirage_client.commands.actions.open_page import open_page
from llmirage_client.commands.actions.output import check_unused, new_folder
from llmirage_client.commands.actions.refusal import refuse
from llmirage_client.commands.actions.run_description import expected_requests
from llmirage_client.load.options import RunOptions
from llmirage_client.measure.slo import MISSED, judge_failures, verdicts_json
from llmirage_client.operations.workload import load_of, readable
from llmirage_client.report import files as run_files
from llmirage_client.report.console import render, written_lines
from llmirage_client.report.junit import suite_name, write_junit
from llmirage_client.report.screen import print_blocks
from llmirage_client.settings.contradictions import SEVERAL
from llmirage_client.settings.places import cannot_be_folder
from llmirage_client.settings.run import one_point, run_options, with_distinct_conversations
from llmirage_client.simulate import simulation as simulations
from llmirage_client.simulate.chrome_trace import write_trace
from llmirage_client.simulate.garbage import own_process
from llmirage_client.simulate.progress import SimulationProgress
from llmirage_client.simulate.report import cluster_blocks, report_series, write_series
from llmirage_client.simulate.simulation import Simulation, SimulationError
from llmirage_client.simulate.window import Window
from llmirage_client.simulator.bands import bands_json
from llmirage_client.simulator.cluster_settings import cluster_config
from llmirage_client.simulator.deployments import assumed
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.size.steady_state import NOT_STEADY, steady_load
from llmirage_client.size.traffic import RequestSource, file_source
from llmirage_client.workload.session import Workload
from llmirage_shared.settings import ConfigError, at_call

single_page = at_call("llmirage_client.report.html.run_page:single_page")  # charts take 20 ms to import
view_run = at_call("llmirage_client.report.html.run_view:view_run")

_CTRL_C = "Ctrl-C"
_REQUESTS = 1000  # measured in a steady state, if nothing else is asked for
_WARM_UPS = ("warmup_request_count", "num_warmup_sessions", "warmup_duration")
MANY = 10_000  # requests: records of more take seconds to write, and tens of megabytes


def simulate(workload: str | None, **settings: Any) -> None:
    own_process()
    check_unused(settings)
    writes = bool(not settings["json"] or settings["open"])
    if not settings["artifact_dir"] and writes and (problem := cannot_be_folder("artifacts/simulation")):
        refuse([f"{problem}; choose another folder with --artifact-dir"], "simulate")
    simulation = simulated(workload, settings, stoppable=_stop_on_ctrl_c)
    written = _show(simulation, settings)
    if simulation.stopped == _CTRL_C:
        sys.exit(130)
    if not all(verdict.met for verdict in simulation.verdicts):
        sys.exit(MISSED)
    failed = simulation.summary["failed_requests"] and not judge_failures(simulation.verdicts)
    complete = simulation.stopped is None and not failed
    sys.exit(0 if complete and written else 1)


def simulated(
    workload: str | Workload | None,
    settings: dict[str, Any],
    *,
    progress: Callable[..., SimulationProgress] = SimulationProgress,
    stoppable: Callable[[Callable[[str], None]], None] = lambda stop: None,
) -> Simulation:
    """The simulation that the settings of the command ask for; nothing is shown or written.

    progress: makes the progress that is shown. stoppable: see simulation.simulate. Raises ConfigError.
    """
    if several := [name for name in SEVERAL if len(settings[name] or ()) > 1]:
        flags = (f"--{name.replace('_', '-')}" for name in several)
        raise ConfigError(f"{flag} has several values; use `llmirage sweep` to compare them" for flag in flags)
    settings = one_point(settings)
    if settings["random_seed"] is None:
        settings["random_seed"] = 0
    config = cluster_config(settings, settings["random_seed"])
    with readable():
        loaded = load_of(workload, settings, settings["num_conversations"] or settings["agents"])
    options = with_distinct_conversations(loaded, run_options(loaded, settings, model=""))  # --model is the cluster's
    loaded, window = for_endpoint(loaded, settings), None
    if settings["steady_state"]:
        loaded, options, window = _steady(config, loaded, options, settings)
    shown = {name: value for name, value in settings.items() if value not in (None, (), False) and name != "open"}
    if options.agents:
        shown["concurrency"] = options.concurrency
    try:
        with progress(lambda: _expected(loaded, options), settings["max_time"]) as shown_progress:
            simulation = simulations.simulate(
                config,
                loaded,
                options,
                via=settings["via"],
                max_time_s=settings["max_time"],
                shown=shown,
                trace=settings["trace"] is not None,
                window=window,
                stoppable=stoppable,
                on_progress=shown_progress.update,
            )
    except (SimulationError, ConfigError) as error:
        refuse([str(error)], "simulate")
    if note := _measured(settings, options):
        simulation.notes.append(note)
    return simulation


def _steady(
    config: ClusterConfig, workload: Workload, options: RunOptions, settings: dict[str, Any]
) -> tuple[Workload, RunOptions, Window]:
    """Raises ConfigError."""
    ended = ("num_conversations", "duration", "benchmark_duration", "concurrency_ramp_duration", *_WARM_UPS)
    if given := [f"--{name.replace('_', '-')}" for name in ended if settings[name]]:
        raise ConfigError([f"--steady-state starts and ends the load itself: leave out {', '.join(given)}"])
    if settings["via"] == "api":
        raise ConfigError(["--steady-state needs --via engine"])
    count = settings["requests"] or options.request_count or _REQUESTS
    source = file_source(workload)
    if settings["isl"] is not None:
        source = RequestSource(lambda requests: load_of(None, {**settings, "requests": requests}, None), None, "")
    steady = steady_load(config, source, options, count)
    if steady is None:
        raise ConfigError([f"--steady-state: {NOT_STEADY}"])
    return steady


def _measured(settings: dict[str, Any], options: RunOptions) -> str | None:
    """Which requests count, of loads of which a steady state may be the question."""
    if settings["steady_state"]:
        return "Measured in the steady state: after the cluster has filled up, while the load is on."
    loaded = options.request_rate_per_s is not None or (options.rates is None and (options.concurrency or 1) > 1)
    if not loaded or settings["isl"] is None or any(settings[name] for name in _WARM_UPS):
        return None
    return (
        "All requests count, from the first on an empty cluster to the last; --steady-state measures as many after the "
        "cluster has filled up and while the load is on."
    )


def _expected(workload: Workload, options: RunOptions) -> int | None:
    """Requests of the run, its warm-up included; None: not known."""
    warm_up = options.of_warm_up()
    counts = [expected_requests(workload, phase) for phase in (options, warm_up) if phase is not None]
    return None if None in counts else sum(count or 0 for count in counts)


def _stop_on_ctrl_c(stop: Callable[[str], None]) -> None:
    """The first Ctrl-C ends the simulation and lets it be reported; the second ends the process."""

    def on_interrupt(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop(_CTRL_C)

    with contextlib.suppress(ValueError):  # not in the main thread, as in tests
        signal.signal(signal.SIGINT, on_interrupt)


def _show(simulation: Simulation, settings: dict[str, Any]) -> bool:
    """Write the files, and print the summary or the report; return whether the files could be written."""
    if simulation.stopped:
        click.echo(f"Stopped early: {simulation.stopped}.", err=True)
    files: list[Path] = []
    problem = None
    try:
        files = _write(simulation, settings)
    except OSError as error:  # a full disk, perhaps: what was worked out is shown all the same
        problem = f"llmirage simulate: the files could not be written: {error}"
        click.echo(problem, err=True)
    if settings["json"]:
        if errors := simulation.metrics.errors:  # the report would show them
            count, whole = errors[0].count, simulation.summary["requests"] + simulation.summary["failed_requests"]
            click.echo(f"{count:,} of {whole:,} requests failed: {errors[0].error.message}", err=True)
        click.echo(json.dumps(as_json(simulation, steady_state=settings["steady_state"])))
    else:
        render(simulation.result, metrics=simulation.metrics)
        print_blocks([*cluster_blocks(simulation), *(["", *written_lines(files)] if files else [])])
    if settings["open"] and files:
        problem = _open(simulation, files[0].parent) or problem
    return problem is None


def _open(simulation: Simulation, folder: Path) -> str | None:
    """Write the page, of what is in memory and perhaps in no file, and open it; return what went wrong."""
    page = folder / "report.html"
    text: str = single_page(view_run(simulation.result), report_series(simulation.series))
    try:
        page.write_bytes(text.encode("utf-8", "replace"))
    except OSError as error:
        click.echo(problem := f"llmirage simulate: {page} could not be written: {error}", err=True)
        return problem
    click.echo(f"HTML report written to {page}.", err=True)
    open_page(page)
    return None


def as_json(simulation: Simulation, *, steady_state: bool) -> dict[str, Any]:
    slo = {"slo": verdicts_json(simulation.verdicts)} if simulation.verdicts else {}
    notes = [note for note in simulation.notes if not note.startswith("Assumed")]
    bands = {"bands": bands_json(simulation.band, simulation.summary)}
    about = {"notes": notes, "assumed": assumed(simulation.config), "steady_state": steady_state}
    return slo | simulation.summary | bands | about


def _write(simulation: Simulation, settings: dict[str, Any]) -> list[Path]:
    """The files of a run and the cluster's series, and the trace. Raises OSError."""
    if settings["trace"]:
        left_out = write_trace(settings["trace"], simulation.steps, simulation.result.records)
        more = f" without its last {left_out:,} events" if left_out else ""
        click.echo(f"Trace written to {settings['trace']}{more}; open it in https://ui.perfetto.dev", err=True)
    if settings["junit"]:
        name = suite_name(simulation.result)
        write_junit(settings["junit"], name, [("", verdict) for verdict in simulation.verdicts])
    if not settings["artifact_dir"] and settings["json"] and not settings["open"]:
        return []
    count = len(simulation.columns.ok)
    each_request = count <= MANY if settings["records"] is None else settings["records"]
    if each_request and count > MANY:
        click.echo(f"Writing the records of {count:,} requests.", err=True)
    folder = Path(settings["artifact_dir"]) if settings["artifact_dir"] else new_folder("simulation")
    files = run_files.write_artifacts(simulation.result, folder, metrics=simulation.metrics, each_request=each_request)
    if simulation.series is not None:
        files.append(write_series(simulation.series, folder))
    return files
