"""`llmirage calibrate`: an engine file whose simulated cluster behaves as a measured one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from llmirage_client.commands.flags.cluster import cluster_config, cluster_flags
from llmirage_client.commands.flags.sections import SectionedCommand, flag, together
from llmirage_client.commands.output import cannot_be_file

if TYPE_CHECKING:
    from llmirage_client.calibrate.calibration import Calibration
    from llmirage_client.calibrate.measured_run import MeasuredRun

_CALIBRATION = "Calibration"
_SHORT = {"decode": "decode_scale", "prefill": "prefill_scale", "host": "host_step_ms", "front-end": "front_end_ms"}

calibration_flags = together(
    flag(
        _CALIBRATION,
        "--output",
        "-o",
        type=click.Path(dir_okay=False),
        default="calibrated.yaml",
        show_default=True,
        metavar="FILE",
        help="The engine file to write, for --engine.",
    ),
    flag(
        _CALIBRATION,
        "--fit",
        "fitted",
        multiple=True,
        type=click.Choice(list(_SHORT)),
        help="Fit this factor; may be given several times.  [default: all that the runs can tell]",
    ),
    flag(_CALIBRATION, "--json", "as_json", is_flag=True, help="Print a JSON object instead of tables."),
)


@click.command(cls=SectionedCommand, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@calibration_flags
@cluster_flags
def calibrate(runs: tuple[str, ...], **settings: Any) -> None:
    """Fit an engine profile to measured RUNs against one deployment: the folder of `llmirage run` or AIPerf, the JSON of
    `vllm bench serve --save-result --save-detailed`, or evalscope's benchmark_data.db.

    Say which deployment that was (--model, --gpu, --engine ...). The runs' own requests are simulated with changed factors
    until their times agree. Exit status 2 when a run or the cluster was refused.
    """  # fmt: skip
    from llmirage_client.calibrate.calibration import calibrate as calibrated
    from llmirage_client.calibrate.engine_file import Replays, changed_fields, engine_text
    from llmirage_client.calibrate.measured_run import MeasuredRunError, read_measured
    from llmirage_client.simulator.engine import ConfigError, plan_of
    from llmirage_client.simulator.replay import engine_fields, named_fields

    config = cluster_config(settings, 0)
    found: list[MeasuredRun] = []
    problems: list[str] = []
    for place in runs:
        try:
            found.append(read_measured(place))
        except MeasuredRunError as error:
            problems.append(str(error))
    if problem := cannot_be_file(settings["output"]):
        problems.append(f"--output {problem}")
    try:
        profile = engine_fields(config)
    except ConfigError as error:
        problems += error.problems
    if problems:
        _refuse("\n".join(problems))
    named = named_fields(profile["base"])
    try:
        with Replays(config, profile, named, found) as replays:
            result = calibrated(found, replays, profile, [_SHORT[name] for name in settings["fitted"]])
    except (ValueError, ConfigError) as error:
        _refuse(str(error))
    deployment = plan_of(config)[0].deployment.describe()
    values = changed_fields(profile, named, result.values)
    try:
        with open(settings["output"], "w", encoding="utf-8") as file:
            file.write(engine_text(profile["base"], values, _comments(result, runs, deployment)))
    except OSError as error:
        _refuse(f"the engine file could not be written: {error}")
    _show(result, settings, deployment, found)


def _refuse(message: str) -> Any:
    click.echo(f"llmirage calibrate: {message}", err=True)
    sys.exit(2)


def _comments(result: Calibration, runs: tuple[str, ...], deployment: str) -> list[str]:
    """What whoever opens the file should know."""
    from importlib.metadata import version

    from llmirage_client.calibrate.table import factor_line

    lines = [
        f"Written by `llmirage calibrate` {version('llmirage')} from {result.requests} requests of {', '.join(runs)},",
        f"measured on {deployment}.",
    ]
    lines += [factor_line(one) for one in result.fitted]
    for name, held in result.errors["held_out"].items():
        before = result.errors["before"].get(name)
        was = f", {before.median:.1f} % before" if before else ""
        lines.append(f"{name}: median error {held.median:.1f} % on requests held out{was}")
    return lines


def _show(result: Calibration, settings: dict[str, Any], deployment: str, runs: list[MeasuredRun]) -> None:
    if settings["as_json"]:
        import json

        from llmirage_client.calibrate.table import as_json

        click.echo(json.dumps(as_json(result) | {"deployment": deployment, "output": settings["output"]}, indent=2))
        return
    from llmirage_client.calibrate.table import print_calibration

    print_calibration(result, deployment, len(runs))
    click.echo(f"\nWritten to {settings['output']}; use it: llmirage simulate --engine {settings['output']} ...")
