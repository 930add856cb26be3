"""Fits a few factors of an engine profile to measured runs, whose requests are served again in virtual time.

least_squares.py finds the factors. A factor that the runs cannot tell from noise or from another factor keeps the value of
the profile, and the report says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmirage_client.calibrate.least_squares import FACTORS, Factor, FactorFit, Simulate, System
from llmirage_client.calibrate.measured_run import FIGURES, MeasuredRun, count_of
from llmirage_client.measure.arrays import Floats

FEWEST = 20  # counted requests
_FOLDS = 5
_MAY_YIELD = 2  # from this rank on a factor may give way: times, not scales
_ALIKE = 0.9  # correlation from which two factors cannot be told apart


@dataclass(frozen=True, slots=True)
class Errors:
    """Simulated against measured, percent: median and 90th percentile of the absolute error, median of the signed one."""

    median: float
    p90: float
    bias: float
    count: int


@dataclass(frozen=True, slots=True)
class Fitted:
    """One factor. uncertainty: one standard error, in the factor's unit. why_not: why it kept the profile's value."""

    factor: Factor
    before: float
    after: float
    uncertainty: float | None = None
    why_not: str | None = None


@dataclass(frozen=True, slots=True)
class Calibration:
    """errors: by state (before, after, held_out) and figure (FIGURES). folds: what was held out, in words."""

    fitted: tuple[Fitted, ...]
    errors: Mapping[str, Mapping[str, Errors]]
    requests: int
    not_served: int
    folds: str
    simulations: int
    notes: tuple[str, ...] = ()

    @property
    def values(self) -> dict[str, float]:
        return {one.factor.name: one.after for one in self.fitted}


def calibrate(
    runs: Sequence[MeasuredRun], simulate: Simulate, profile: Mapping[str, float], wanted: Sequence[str] = ()
) -> Calibration:
    """Fit the factors (all, or those named) to the runs.

    simulate: serves the requests of the runs on a cluster with given values. profile: the values to start from.
    Raises ValueError when there are fewer than FEWEST requests.
    """
    if (count := count_of(runs)) < FEWEST:
        raise ValueError(f"{count} requests are not enough: at least {FEWEST} are needed")
    start = {factor.name: float(profile[factor.name]) for factor in FACTORS}
    fit = FactorFit(runs, simulate, start, [factor for factor in FACTORS if not wanted or factor.name in wanted])
    why = {factor.name: "is not in --fit" for factor in FACTORS if factor not in fit.free}
    groups, folds = _groups(runs)
    before = fit.simulated(start)
    x = np.array([factor.x(start[factor.name]) for factor in fit.free])
    while fit.free:
        system = fit.by_groups(x)
        x = system.x
        _, errors = _folds(fit, system, groups)
        found = _doubtful(fit, system, errors)
        if found is None:  # single requests may show less than their means
            system = fit.by_request(system)
            x = system.x
            _, errors = _folds(fit, system, groups)
            found = _doubtful(fit, system, errors)
        if found is None:
            break
        index, reason = found
        why[fit.free[index].name] = reason
        fit.free.pop(index)
        x = np.delete(x, index)
    moved, errors = _folds(fit, system, groups) if fit.free else ([x] * (int(groups.max()) + 1), np.empty(0))
    values = fit.at(x)
    after = fit.simulated(values)
    held = {name: np.full(fit.counted.size, np.nan) for name in FIGURES}
    for group, at in enumerate(moved):
        answer = fit.simulated(fit.at(at))
        for name in FIGURES:
            held[name][groups == group] = answer[name][groups == group]
    spread = {factor.name: factor.scale(x[i]) * float(errors[i]) for i, factor in enumerate(fit.free)}
    states = {"before": before, "after": after, "held_out": held}
    return Calibration(
        tuple(Fitted(f, start[f.name], values[f.name], spread.get(f.name), why.get(f.name)) for f in FACTORS),
        {state: _errors(fit, answer) for state, answer in states.items()},
        count,
        int(np.isnan(before["latency"][fit.counted]).sum()),
        folds,
        fit.calls,
        tuple(note for run in runs for note in run.notes),
    )


def _groups(runs: Sequence[MeasuredRun]) -> tuple[npt.NDArray[np.int64], str]:
    """Return the fold of each request, in which it is held out: its run, or a part of the conversations of each run."""
    if len(runs) >= 3:
        return np.repeat(np.arange(len(runs)), [len(run.requests) for run in runs]), f"each of {len(runs)} runs in turn"
    parts = []
    for run in runs:
        _, first, conversation = np.unique(run.requests.conversation, return_index=True, return_inverse=True)
        rank = np.argsort(np.argsort(first))[conversation]  # conversations in the order in which they began
        parts.append(rank * _FOLDS // max(1, first.size))
    return np.concatenate(parts), f"a fifth of the conversations, {_FOLDS} times"


def _folds(fit: FactorFit, system: System, groups: npt.NDArray[np.int64]) -> tuple[list[Floats], Floats]:
    """Return the factors without each fold (one step of Gauss and Newton from the best ones), and their standard errors.

    The error is the larger one of the jackknife over the folds and of least squares.
    """
    moved = [fit.bounded(system.x + system.step(groups != group)) for group in range(int(groups.max()) + 1)]
    others = np.array(moved)
    k = len(others)
    jackknife = np.sqrt((k - 1) / k * ((others - others.mean(axis=0)) ** 2).sum(axis=0))
    return moved, np.maximum(jackknife, system.standard_errors())


def _doubtful(fit: FactorFit, system: System, errors: Floats) -> tuple[int, str] | None:
    """Return a factor that should not be fitted, and why; None when all are known well enough."""
    covariance, lengths = system.covariance()
    for i, factor in enumerate(fit.free):
        if not lengths[i]:
            return i, f"it has no effect in these runs: {factor.needs}"
    deviations = np.sqrt(np.maximum(np.diag(covariance), 1e-300))
    alike = np.abs(covariance / np.outer(deviations, deviations)) - np.eye(len(deviations))
    pairs = [pair for pair in np.argwhere(alike >= _ALIKE) if fit.free[pair[0]].yields >= _MAY_YIELD]
    if pairs:  # host time gives way first, then the front end: a profile knows them best
        index, other = max(((int(a), int(b)) for a, b in pairs), key=lambda pair: fit.free[pair[0]].yields)
        return index, f"these runs cannot separate it from {fit.free[other].label}: {fit.free[index].needs}"
    doubtful = [i for i, factor in enumerate(fit.free) if not errors[i] <= factor.most_error]
    if not doubtful:
        return None
    index = max(doubtful, key=lambda i: (fit.free[i].yields, errors[i] / fit.free[i].most_error))
    factor = fit.free[index]
    return index, f"{factor.error_text(float(errors[index]))}: {factor.needs}"


def _errors(fit: FactorFit, answer: Mapping[str, Floats]) -> dict[str, Errors]:
    found = {}
    for name in FIGURES:
        apart = (answer[name] / fit.measured[name] - 1.0)[fit.counted] * 100.0
        apart = apart[~np.isnan(apart)]
        if apart.size:
            size = np.abs(apart)
            found[name] = Errors(
                float(np.median(size)), float(np.percentile(size, 90)), float(np.median(apart)), int(apart.size)
            )
    return found
