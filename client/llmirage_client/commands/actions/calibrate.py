"""The action of `llmirage calibrate`: write the engine file, and print the factors and their errors."""

from __future__ import annotations

from json import dumps
from pathlib import Path
from typing import Any

import click

from llmirage_client.calibrate.table import as_json, calibration_blocks
from llmirage_client.operations import calibrate as operation
from llmirage_client.operations.calibrate import CalibrateSettings
from llmirage_client.report.screen import print_blocks
from llmirage_client.simulator.cluster_settings import ClusterSettings
from llmirage_shared.settings import InputRefused, instance_of


def calibrate(runs: tuple[str, ...], output: str, json: bool, **given: Any) -> None:
    """Run `llmirage calibrate`."""
    settings = instance_of(CalibrateSettings, given, cluster=ClusterSettings.of(given))
    found = operation.calibrate(runs, settings)
    try:
        Path(output).write_text(found.engine_file, encoding="utf-8")
    except OSError as error:
        raise InputRefused([f"the engine file could not be written: {error}"], "calibrate") from None
    if json:
        about = {"deployment": found.deployment, "output": output}
        click.echo(dumps(as_json(found.calibration) | about, indent=2))
        return
    print_blocks(calibration_blocks(found.calibration, found.deployment, len(found.runs)))
    click.echo(f"\nWritten to {output}; use it: llmirage simulate --engine {output} ...")
