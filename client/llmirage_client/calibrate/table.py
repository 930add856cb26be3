"""The result of a calibration, on the screen and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from llmirage_client.calibrate.calibration import Calibration, Errors, Fitted
from llmirage_client.report.screen import Block, bold, plain_table, styled, warning
from llmirage_shared.plural import plural, rounded

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
