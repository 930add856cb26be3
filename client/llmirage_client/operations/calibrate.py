"""A calibration: an engine profile whose simulated cluster behaves as a measured one, and its report."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

from llmirage_client.calibrate.calibration import Calibration, Errors, Fitted, Simulate
from llmirage_client.calibrate.calibration import calibrate as fit_factors
from llmirage_client.calibrate.measured_run import (
    MeasuredRun,
    MeasuredRunError,
    figures_of,
    mismatches,
    read_measured,
    unchecked,
    unknown_names,
    with_log,
    with_measured,
)
from llmirage_client.report.screen import Block, bold, plain_table, styled, warning
from llmirage_client.settings.simulation import CalibrationSettings
from llmirage_client.simulator.cluster_settings import ClusterSettings, cluster_configs, without_effect
from llmirage_client.simulator.engine import ClusterConfig, plan_of
from llmirage_client.simulator.replay import engine_fields, named_fields, replay, with_engine
from llmirage_shared.plural import plural, rounded
from llmirage_shared.settings import ConfigError, InputRefused
from llmirage_shared.statistics import Floats

_NOT_OURS = ("name", "base", "version")  # what a version does to a GPU's host times is in them already


def engine_text(base: str, values: Mapping[str, Any], comments: Sequence[str] = ()) -> str:
    """Return the YAML of an engine that differs from a named one in these fields."""
    lines = [*(f"# {comment}".rstrip() for comment in comments), f"base: {base}"]
    return "\n".join([*lines, *(f"{name}: {_scalar(value)}" for name, value in values.items())]) + "\n"


def changed_fields(profile: Mapping[str, Any], named: Mapping[str, Any], values: Mapping[str, float]) -> dict[str, Any]:
    """Return the fields of an engine file: where the profile differs from the named one it is based on, and the factors."""
    own = {name: value for name, value in profile.items() if name not in _NOT_OURS and value != named[name]}
    return own | {name: _rounded(value) for name, value in values.items() if _rounded(value) != named[name] or name in own}


@contextmanager
def replays(
    config: ClusterConfig, profile: Mapping[str, Any], named: Mapping[str, Any], runs: Sequence[MeasuredRun]
) -> Iterator[Simulate]:
    """Yield a function that serves the requests of measured runs on a cluster with changed factors.

    It returns for each run TTFT, TPOT and latency of its requests, s. It writes engine files.
    """
    numbers = count(1)  # each file has a name of its own, as plans are cached by the names in a configuration
    with tempfile.TemporaryDirectory(prefix="llmirage-") as folder:

        def serve(values: Mapping[str, float]) -> list[dict[str, Floats]]:
            file = Path(folder) / f"{next(numbers)}.yaml"
            fields = changed_fields(profile, named, {}) | {name: float(value) for name, value in values.items()}
            file.write_text(engine_text(profile["base"], fields), encoding="utf-8")
            changed = with_engine(config, str(file), profile["block_size"])
            return [_figures(changed, run) for run in runs]

        yield serve


def _figures(config: ClusterConfig, run: MeasuredRun) -> dict[str, Floats]:
    times = replay(config, run.requests)
    return figures_of(times.start_s, times.first_s, times.end_s, run.requests.output)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _scalar(value: Any) -> str:
    """Return JSON as YAML; the keys of tiers are numbers."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key:g}: {entry}" for key, entry in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


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
        with replays(config, profile, named, found) as serve:
            result = fit_factors(found, serve, profile, [_SHORT[name] for name in settings.fit])
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


_FIGURES = {"ttft": "First token (TTFT)", "tpot": "Per output token (TPOT)", "latency": "Request latency"}
_NOT_THE_ONE_PCT = 20.0
_STATES = {"before": "before", "after": "fitted", "held_out": "held out"}


def factor_line(one: Fitted) -> str:
    """Return one factor in one line, for the engine file."""
    if one.why_not is not None:
        return f"{one.factor.label}: not fitted ({one.why_not})"
    error = rounded(one.uncertainty or 0.0, 2)
    return f"{one.factor.label}: {rounded(one.before)} -> {rounded(one.after)} +/- {error} {one.factor.unit}"


def calibration_blocks(result: Calibration, deployment: str, runs: int) -> Iterator[Block]:
    """Yield the table of the factors and their precision."""
    many = plural(runs, "run")
    yield bold(f"Calibrated to {result.requests:,} requests of {many}: {deployment}")
    table = plain_table("", "profile", "fitted", "+/-", "")
    for one in result.fitted:
        fitted = "-" if one.why_not else rounded(one.after)
        error = "-" if one.uncertainty is None else f"{max(one.uncertainty, 1e-4):.1g}"
        table.add_row(one.factor.label, rounded(one.before), fitted, error, one.factor.unit)
    yield from ("", table)
    for one in result.fitted:
        if one.why_not is not None:
            yield warning(f"{one.factor.label.capitalize()} keeps the profile's value: {one.why_not}.")
    errors = plain_table("error, %", *_STATES.values())
    for name, label in _FIGURES.items():
        if name in result.errors["before"]:
            errors.add_row(label, *(_cell(result.errors[state].get(name)) for state in _STATES))
    yield from ("", errors)
    yield styled("Median / 90th percentile of the absolute error, and the median with its sign.", "dim")
    yield styled(f"Held out: {result.folds}, predicted with factors fitted to the rest.", "dim")
    if result.not_served:
        yield warning(f"{result.not_served:,} requests do not fit into this cluster: is it the measured deployment?")
    worst = max((e["tpot"].median for e in (result.errors["after"],) if "tpot" in e), default=0.0)
    if worst > _NOT_THE_ONE_PCT:
        yield warning(f"Even fitted, TPOT is {worst:.0f} % off: is this the deployment that was measured?")
    for note in result.notes:
        yield warning(note)


def as_json(result: Calibration) -> dict[str, Any]:
    """Return the calibration for JSON."""
    return {
        "requests": result.requests,
        "factors": {
            one.factor.name: {
                "before": one.before,
                "after": one.after,
                "standard_error": one.uncertainty,
                "not_fitted": one.why_not,
            }
            for one in result.fitted
        },
        "errors_pct": {state: {name: asdict(e) for name, e in found.items()} for state, found in result.errors.items()},
        "held_out": result.folds,
        "not_served": result.not_served,
        "simulations": result.simulations,
        "notes": list(result.notes),
    }


def _cell(errors: Errors | None) -> str:
    return "-" if errors is None else f"{errors.median:.1f} / {errors.p90:.1f}, {errors.bias:+.1f}"
