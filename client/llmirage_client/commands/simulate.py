"""`llmirage simulate`: a workload on a simulated cluster in virtual time."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from llmirage_client.commands.flags.cluster import cluster_config, cluster_flags
from llmirage_client.commands.flags.endpoint import endpoint_fields, endpoint_flags, in_context_mode_of
from llmirage_client.commands.flags.lists import only
from llmirage_client.commands.flags.load import check_schedule, load_fields, load_flags
from llmirage_client.commands.flags.measure import measure_flags
from llmirage_client.commands.flags.sections import SectionedCommand, flag, together
from llmirage_client.commands.flags.warmup import warmup_fields, warmup_flags
from llmirage_client.commands.flags.workload import load_workload, workload_fields, workload_flags
from llmirage_client.commands.output import cannot_be_file, cannot_be_folder

if TYPE_CHECKING:
    from pathlib import Path

    from llmirage_client.load.options import RunOptions
    from llmirage_client.simulate.simulation import Simulation
    from llmirage_client.workload.session import Workload

_SYNTHETIC = "Load without a file"
_SIMULATION = "Simulation"
_CTRL_C = "Ctrl-C"
_FOLDER = "artifacts/simulation"
_LISTS = ("concurrency", "request_rate", "request_count", "num_conversations")  # options that take several values elsewhere

synthetic_flags = together(
    flag(
        _SYNTHETIC,
        "--isl",
        metavar="N|DIST",
        help="Input tokens of a request: 1000, 800:1200, 'lognormal(p50=900, p95=4000)'.",
    ),
    flag(_SYNTHETIC, "--osl", metavar="N|DIST", help="Output tokens of a request, in the same forms."),
    flag(_SYNTHETIC, "--requests", type=click.IntRange(min=1), metavar="N", help="How many requests.  [default: 1000]"),
    flag(
        _SYNTHETIC,
        "--turns",
        metavar="N|DIST",
        default="1",
        show_default=True,
        help="Requests of a session: each continues the last one with --isl new tokens.",
    ),
    flag(
        _SYNTHETIC,
        "--think-time",
        metavar="S|DIST",
        default="0",
        show_default=True,
        help="Seconds from a reply to the session's next request.",
    ),
    flag(
        _SYNTHETIC,
        "--shared-prefix",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        metavar="N",
        help="So many tokens at the beginning are the same in all sessions.",
    ),
)

simulation_flags = together(
    flag(
        _SIMULATION,
        "--door",
        type=click.Choice(["direct", "memory"]),
        default="direct",
        show_default=True,
        help="Ask the cluster alone, or go through the server's whole protocol in memory: slower, with the same times.",
    ),
    flag(
        _SIMULATION,
        "--max-time",
        type=click.FloatRange(min=0, min_open=True),
        metavar="S",
        help="Stop after so many seconds of the cluster's time.",
    ),
    flag(
        _SIMULATION,
        "--trace",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="Write every step and request as a Chrome trace, for https://ui.perfetto.dev.",
    ),
    flag(
        _SIMULATION,
        "--json",
        "as_json",
        is_flag=True,
        help="Print the summary alone, as JSON. Files only with --artifact-dir.",
    ),
)


# Those of the options of `run` that change what is asked, not where and how it travels.
_ASKED = ("extra_inputs", "endpoint_type", "context_mode", "tool_results", "streaming", "use_legacy_max_tokens")


def request_flags(command: Any) -> Any:
    """The options of `run` that say what a request is."""

    @endpoint_flags
    def every() -> None: ...

    of_run: list[click.Parameter] = getattr(every, "__click_params__", [])
    command.__click_params__ = [
        *getattr(command, "__click_params__", []),
        *[option for option in of_run if option.name in _ASKED],
    ]
    return command


@click.command(cls=SectionedCommand, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.argument("workload", required=False)
@simulation_flags
@synthetic_flags
@cluster_flags
@workload_flags
@request_flags
@load_flags
@warmup_flags
@measure_flags
def simulate(workload: str | None, **settings: Any) -> None:
    """Run WORKLOAD (a file, bundled:NAME, or lengths by --isl and --osl) on a simulated cluster, and report it.

    Time is virtual: an hour of the cluster passes as fast as it can be computed. The same seed gives the same result;
    --random-seed is 0 if it is not given. Exit status: 0 all requests succeeded, 1 some failed or --max-time came first,
    2 the input was refused.
    """  # fmt: skip
    if settings["random_seed"] is None:
        settings["random_seed"] = 0
    for name in _LISTS:
        if len(settings[name] or ()) > 1:
            raise click.UsageError(f"--{name.replace('_', '-')} has several values: `llmirage sweep` compares them")
    config = cluster_config(settings, settings["random_seed"])
    loaded = in_context_mode_of(_workload(workload, settings), settings)
    fields = endpoint_fields(loaded, settings | {"endpoint_path": None, "session_header": None, "model": None})
    fields |= load_fields(loaded, settings) | workload_fields(settings) | warmup_fields(settings)

    from llmirage_client.load.options import RunOptions
    from llmirage_client.simulate.progress import SimulationProgress
    from llmirage_client.simulate.simulation import SimulationError, simulate
    from llmirage_client.simulator.engine import ConfigError

    options = RunOptions(**fields)
    check_schedule(loaded, options)
    shown = {name: value for name, value in settings.items() if value not in (None, (), False)}
    shown |= {name: only(shown[name]) for name in _LISTS if name in shown}
    _check_places(settings)
    try:
        with SimulationProgress(lambda: _expected(loaded, options), settings["max_time"]) as progress:
            simulation = simulate(
                config,
                loaded,
                options,
                door=settings["door"],
                max_time_s=settings["max_time"],
                shown=shown,
                trace=settings["trace"] is not None,
                stoppable=_stop_on_ctrl_c,
                on_progress=progress.update,
            )
    except (SimulationError, ConfigError) as error:
        click.echo(f"llmirage simulate: {error}", err=True)
        sys.exit(2)
    written = _show(simulation, settings)
    if simulation.stopped == _CTRL_C:
        sys.exit(130)
    complete = simulation.stopped is None and not simulation.summary["failed_requests"]
    sys.exit(0 if complete and written else 1)


def _expected(workload: Workload, options: RunOptions) -> int | None:
    """Requests of the run, its warm-up included; None: nobody knows."""
    from llmirage_client.commands.run_description import expected_requests

    warm_up = options.of_warm_up()
    counts = [expected_requests(workload, phase) for phase in (options, warm_up) if phase is not None]
    return None if None in counts else sum(count or 0 for count in counts)


def _stop_on_ctrl_c(stop: Callable[[str], None]) -> None:
    """The first Ctrl-C ends the simulation and lets it be reported; the second ends the process."""
    import signal

    def heed(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop(_CTRL_C)

    with contextlib.suppress(ValueError):  # not in the main thread, as in tests
        signal.signal(signal.SIGINT, heed)


def _workload(file: str | None, settings: dict[str, Any]) -> Workload:
    from llmirage_client.workload.session import WorkloadError

    lengths = [name for name in ("isl", "osl") if settings[name] is not None]
    try:
        if file is not None:
            if lengths:
                raise click.UsageError(f"--{lengths[0]} is for a load without a file: give either it or WORKLOAD")
            return load_workload(file, settings, only(settings["num_conversations"]))
        if len(lengths) < 2:
            raise click.UsageError("give a WORKLOAD, or a load without a file by --isl and --osl")
        from llmirage_client.workload.synthetic_load import synthetic_load

        return synthetic_load(
            settings["isl"],
            settings["osl"],
            settings["requests"] or only(settings["request_count"]) or 1000,
            turns=settings["turns"],
            wait_s=settings["think_time"],
            shared_prefix_tokens=settings["shared_prefix"],
            seed=settings["random_seed"],
        )
    except WorkloadError as error:
        click.echo(error, err=True)
        sys.exit(2)


def _check_places(settings: dict[str, Any]) -> None:
    """Exits where files cannot be written, before anything is worked out in vain."""
    folder = settings["artifact_dir"] or ("" if settings["as_json"] else _FOLDER)
    problems = [why for place in (folder,) if place and (why := cannot_be_folder(place))]
    if problems and not settings["artifact_dir"]:
        problems = [f"{problems[0]}; --artifact-dir says where else"]
    problems += [f"--trace {why}" for place in (settings["trace"],) if place and (why := cannot_be_file(place))]
    if problems:
        click.echo("llmirage simulate: " + "\n".join(problems), err=True)
        sys.exit(2)


def _show(simulation: Simulation, settings: dict[str, Any]) -> bool:
    """Write the files, and print the summary or the report; return whether the files could be written."""
    import json

    if simulation.stopped:
        click.echo(f"Stopped early: {simulation.stopped}.", err=True)
    files: list[Path] = []
    problem = None
    try:
        files = _write(simulation, settings)
    except OSError as error:  # a full disk, perhaps: what was worked out is shown all the same
        problem = f"llmirage simulate: the files could not be written: {error}"
        click.echo(problem, err=True)
    if settings["as_json"]:
        if errors := simulation.metrics.errors:  # the report would show them
            count, whole = errors[0].count, simulation.summary["requests"] + simulation.summary["failed_requests"]
            click.echo(f"{count:,} of {whole:,} requests failed: {errors[0].error.message}", err=True)
        click.echo(json.dumps(simulation.summary))
        return problem is None
    from llmirage_client.report.console import render
    from llmirage_client.report.screen import print_blocks
    from llmirage_client.simulate.report import cluster_blocks

    render(simulation.result, metrics=simulation.metrics)
    written = "\nWritten to " + str(files[0].parent) + ": " + ", ".join(file.name for file in files) if files else None
    print_blocks([*cluster_blocks(simulation), *([written] if written else [])])
    return problem is None


def _write(simulation: Simulation, settings: dict[str, Any]) -> list[Path]:
    """The files of a run and the cluster's series, and the trace. Raises OSError."""
    from pathlib import Path

    if settings["trace"]:
        from llmirage_client.simulate.chrome_trace import write_trace

        left_out = write_trace(settings["trace"], simulation.steps, simulation.result.records)
        more = f" without its last {left_out:,} events" if left_out else ""
        click.echo(f"Trace written to {settings['trace']}{more}; open it in https://ui.perfetto.dev", err=True)
    if not settings["artifact_dir"] and settings["as_json"]:
        return []
    from llmirage_client.report.files import write_artifacts
    from llmirage_client.simulate.report import write_series

    folder = Path(settings["artifact_dir"] or _FOLDER)
    files = write_artifacts(simulation.result, folder, metrics=simulation.metrics)
    if simulation.series is not None:
        files.append(write_series(simulation.series, folder))
    return files
