"""A calibration: an engine profile whose simulated cluster behaves as a measured one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import NoReturn

from llmirage_client.calibrate.calibration import Calibration
from llmirage_client.calibrate.calibration import calibrate as fit_factors
from llmirage_client.calibrate.engine_file import Replays, changed_fields, engine_text
from llmirage_client.calibrate.engine_log import with_log
from llmirage_client.calibrate.measured_deployment import mismatches, unchecked, unknown_names, with_measured
from llmirage_client.calibrate.measured_run import MeasuredRun, MeasuredRunError, read_measured
from llmirage_client.calibrate.table import factor_line
from llmirage_client.settings.simulation import CalibrationSettings
from llmirage_client.simulator.cluster_settings import ClusterSettings, cluster_configs, without_effect
from llmirage_client.simulator.engine import plan_of
from llmirage_client.simulator.replay import engine_fields, named_fields
from llmirage_shared.settings import ConfigError, InputRefused

_SHORT = {"decode": "decode_scale", "prefill": "prefill_scale", "host": "host_step_ms", "front-end": "front_end_ms"}


@dataclass(frozen=True, kw_only=True)
class CalibrateSettings(CalibrationSettings):
    """Settings of `llmirage calibrate`. cluster: the measured deployment."""

    cluster: ClusterSettings = field(default_factory=ClusterSettings)


@dataclass(frozen=True, slots=True)
class EngineFit:
    """A calibration, the deployment it is of, the runs it is from, and the engine file's text."""

    calibration: Calibration
    deployment: str
    runs: list[MeasuredRun]
    engine_file: str


def calibrate(runs: Sequence[str], settings: CalibrateSettings) -> EngineFit:
    """Fit an engine profile to measured runs of one deployment. Raises ConfigError."""
    found: list[MeasuredRun] = []
    problems: list[str] = []
    for place in runs:
        try:
            found.append(read_measured(place))
        except MeasuredRunError as error:
            problems.append(str(error))
    if problems:
        _refuse("\n".join(problems))
    cluster = settings.cluster
    config, *alone = cluster_configs(with_measured(with_log(cluster, settings.engine_log), found), 0)
    given = partial(_of_the_user, cluster)
    if problems := given(without_effect([config, *alone])):
        _refuse("\n".join(problems))
    profile = engine_fields(config)
    if problems := mismatches(config, found):
        _refuse("\n".join(problems))
    idle = given(without_effect([config, *alone], harmless=True))
    found[0].notes.extend([*unknown_names(found), *unchecked(config, found), *(f"{sentence}." for sentence in idle)])
    named = named_fields(profile["base"])
    try:
        with Replays(config, profile, named, found) as replays:
            result = fit_factors(found, replays, profile, [_SHORT[name] for name in settings.fit])
    except (ValueError, ConfigError) as error:
        _refuse(str(error))
    deployment = plan_of(config)[0].deployment.describe()
    values = changed_fields(profile, named, result.values)
    text = engine_text(profile["base"], values, _comments(result, runs, deployment))
    return EngineFit(result, deployment, found, text)


def _of_the_user(cluster: ClusterSettings, idle: Mapping[str, str]) -> list[str]:
    """Return the sentences about settings that the user gave: measured runs and logs, too, name some."""
    return [sentence for name, sentence in idle.items() if cluster.cluster_file is not None or name in cluster.overrides]


def _refuse(problem: str) -> NoReturn:
    raise InputRefused([problem], "calibrate")


def _comments(result: Calibration, runs: Sequence[str], deployment: str) -> list[str]:
    """Return the notes that a reader of the file needs."""
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
