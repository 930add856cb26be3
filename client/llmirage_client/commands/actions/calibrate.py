"""What `llmirage calibrate` does: an engine file whose simulated cluster behaves as a measured one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import click

from llmirage_client.calibrate.calibration import Calibration
from llmirage_client.calibrate.calibration import calibrate as calibrated
from llmirage_client.calibrate.engine_file import Replays, changed_fields, engine_text
from llmirage_client.calibrate.engine_log import with_log
from llmirage_client.calibrate.measured_deployment import mismatches, unknown_names, with_measured
from llmirage_client.calibrate.measured_run import MeasuredRun, MeasuredRunError, read_measured
from llmirage_client.calibrate.table import as_json, calibration_blocks, factor_line
from llmirage_client.commands.actions.refusal import refuse
from llmirage_client.report.screen import print_blocks
from llmirage_client.simulator.cluster_settings import cluster_configs, without_effect
from llmirage_client.simulator.engine import plan_of
from llmirage_client.simulator.replay import engine_fields, named_fields
from llmirage_shared.settings import ConfigError

_SHORT = {"decode": "decode_scale", "prefill": "prefill_scale", "host": "host_step_ms", "front-end": "front_end_ms"}


@dataclass(frozen=True, slots=True)
class EngineFit:
    """A calibration, the deployment it is of, the runs it is from, and the engine file's text."""

    calibration: Calibration
    deployment: str
    runs: list[MeasuredRun]
    engine_file: str


def calibrate(runs: tuple[str, ...], **settings: Any) -> None:
    found = fitted(runs, settings)
    try:
        Path(settings["output"]).write_text(found.engine_file, encoding="utf-8")
    except OSError as error:
        _refuse(f"the engine file could not be written: {error}")
    _show(found, settings)


def fitted(runs: tuple[str, ...], settings: dict[str, Any]) -> EngineFit:
    """What the command finds; nothing is shown or written. Raises ConfigError."""
    found: list[MeasuredRun] = []
    problems: list[str] = []
    for place in runs:
        try:
            found.append(read_measured(place))
        except MeasuredRunError as error:
            problems.append(str(error))
    if problems:
        _refuse("\n".join(problems))
    config, *alone = cluster_configs(with_measured(with_log(settings, settings["engine_log"]), found), 0)
    idle = without_effect([config, *alone])
    given = {name for name, value in settings.items() if value is not None and value != ()}
    in_file = settings["cluster_file"] is not None  # runs and logs, too, name settings: a router of one instance
    if problems := [sentence for name, sentence in idle.items() if in_file or name in given]:
        _refuse("\n".join(problems))
    profile = engine_fields(config)
    if problems := mismatches(config, found):
        _refuse("\n".join(problems))
    found[0].notes.extend(unknown_names(found))
    named = named_fields(profile["base"])
    try:
        with Replays(config, profile, named, found) as replays:
            result = calibrated(found, replays, profile, [_SHORT[name] for name in settings["fit"]])
    except (ValueError, ConfigError) as error:
        _refuse(str(error))
    deployment = plan_of(config)[0].deployment.describe()
    values = changed_fields(profile, named, result.values)
    text = engine_text(profile["base"], values, _comments(result, runs, deployment))
    return EngineFit(result, deployment, found, text)


def _refuse(problem: str) -> NoReturn:
    refuse([problem], "calibrate")


def _comments(result: Calibration, runs: tuple[str, ...], deployment: str) -> list[str]:
    """What a reader of the file should know."""
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


def _show(found: EngineFit, settings: dict[str, Any]) -> None:
    if settings["json"]:
        about = {"deployment": found.deployment, "output": settings["output"]}
        click.echo(json.dumps(as_json(found.calibration) | about, indent=2))
        return

    print_blocks(calibration_blocks(found.calibration, found.deployment, len(found.runs)))
    click.echo(f"\nWritten to {settings['output']}; use it: llmirage simulate --engine {settings['output']} ...")
