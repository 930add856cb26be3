"""Fits a few factors of an engine profile to measured runs, whose requests are served again in virtual time.

A factor that the runs cannot tell from noise or from another factor keeps the value of the profile, and the report says so.

Least squares: minimised are logarithms of simulated over measured TTFT and TPOT (Levenberg and Marquardt; derivatives by
differences). A request that arrives a moment earlier or later meets another step, so the times of single requests jump while
the factors move. The means over groups of similar requests (similar prompts, similar load) are therefore fitted first, with
wide differences. Where the engine is matched so well that single requests follow it, they are fitted next, one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from llmirage_client.calibrate.measured_run import FIGURES, MeasuredRun, count_of
from llmirage_shared.plural import rounded
from llmirage_shared.statistics import Bools, Floats, Ints

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


@dataclass(frozen=True, slots=True)
class Factor:
    """name: the field of an engine file. Fitted is x: the logarithm of a scale, or milliseconds.

    step: of derivatives. enough: a smaller change ends the fit. most_error: a factor with a larger standard error (of x) is
    not fitted. yields: of two factors that cannot be told apart, the one with the higher rank keeps the profile's value.
    needs: what runs must have to show it. least, most: bounds of the value.
    """

    name: str
    label: str
    unit: str
    is_scale: bool
    step: float
    enough: float
    most_error: float
    yields: int
    needs: str
    least: float
    most: float

    def x(self, value: float) -> float:
        return math.log(value) if self.is_scale else value

    def value(self, x: float) -> float:
        return math.exp(x) if self.is_scale else x

    def scale(self, x: float) -> float:
        """Return the change of the value per unit of x."""
        return math.exp(x) if self.is_scale else 1.0

    def bounded(self, x: float) -> float:
        return min(max(x, self.x(self.least)), self.x(self.most))

    def error_text(self, error: float) -> str:
        """Return the precision in words. error: one standard error of x."""
        if self.is_scale:
            return f"known to {100 * error:.0f} % only" if error < 1 else "nothing of it shows"
        return f"known to {rounded(error, 2)} ms only"


_LONG_REPLIES = "longer replies are needed"
_UNCACHED = "long uncached prompts are needed"
_BATCHES = "runs with small and large batches are needed"
_UNQUEUED = "requests with short prompts on a cluster without a queue are needed"
FACTORS = (
    Factor("decode_scale", "decode", "x", True, 0.05, 3e-4, 0.10, 0, _LONG_REPLIES, 0.05, 20.0),
    Factor("prefill_scale", "prefill", "x", True, 0.1, 5e-4, 0.10, 1, _UNCACHED, 0.05, 20.0),
    Factor("host_step_ms", "host", "ms a step", False, 0.5, 0.005, 0.4, 3, _BATCHES, 0.0, 50.0),
    Factor("front_end_ms", "front end", "ms a request", False, 3.0, 0.01, 3.0, 2, _UNQUEUED, 0.0, 10_000.0),
)


Answers = Sequence[Mapping[str, Floats]]  # by run, what the cluster does: FIGURES in s
Simulate = Callable[[Mapping[str, float]], Answers]

_KINDS = ("ttft", "tpot")
_IN_TPOT = ("decode_scale", "host_step_ms")
_IN_TTFT = ("prefill_scale", "front_end_ms")
_FLOOR_S = {"ttft": 1e-3, "tpot": 1e-5}  # added before the logarithm: the resolution of measurements
_LEAST_SPREAD = 0.002  # of logarithms
_HUBER = 1.345
_ROUNDS = 12
_TRIES = 5
_MOST_GROUPS, _FEW_IN_GROUP = 12, 10
_FINE = 0.02  # of the wide differences, for single requests
_JUMP = 6.0  # times the median: a larger derivative is that of a request that met another step


@dataclass(frozen=True, slots=True)
class WeightedGroups:
    """One grouping of requests.

    kind: an index into _KINDS. used: the requests in it. at, weights: group and weight of each. scale: of
    each group.
    """

    kind: int
    used: Bools
    at: Ints
    weights: Floats
    scale: Floats

    def means(self, values: Floats) -> Floats:
        """Return weighted means of the values by group, times the scale of the group; shape (groups,).

        values: one a request.
        """
        there = self.scale > 0
        sums = np.bincount(self.at, self.weights * values[self.used], self.scale.size)[there]
        found: Floats = sums / np.bincount(self.at, self.weights, self.scale.size)[there] * self.scale[there]
        return found

    def cost(self, logs: Floats) -> float:
        """Return the weighted squares of logarithms by kind and request."""
        return float((self.means(logs[self.kind]) ** 2).sum())


@dataclass(frozen=True, slots=True)
class System:
    """The least-squares problem at x. logs: by kind and request; jacobian: their derivatives by factor.

    groups: for each grouping its kind, and the group of each request (-1: none).
    """

    x: Floats
    logs: Floats
    jacobian: Floats
    groups: list[tuple[int, Ints]]

    def weighted(self, kept: Bools | None = None) -> list[WeightedGroups]:
        """Return each grouping with its weights, from the spread of the requests of a group at x."""
        found = []
        for kind, group in self.groups:
            used = group >= 0 if kept is None else (group >= 0) & kept
            if not used.any():
                continue
            logs, at = self.logs[kind][used], group[used]
            number = int(at.max()) + 1
            if number < at.size:  # unloaded requests follow the engine closer than those under load
                apart = np.abs(logs - _medians(logs, at, number)[at])
                spread = np.maximum(1.4826 * _medians(apart, at, number), _LEAST_SPREAD)[at]
            else:
                apart = np.abs(logs)
                spread = np.full(at.size, max(1.4826 * float(np.median(apart)), _LEAST_SPREAD))
            weights = 1.0 / np.maximum(apart / (_HUBER * spread), 1.0)
            if number == at.size:  # single requests
                weights = np.where(_jumps(self.jacobian[kind][used]), 0.0, weights)
            found.append(WeightedGroups(kind, used, at, weights, np.sqrt(np.bincount(at, weights / spread**2, number))))
        return found

    def rows(self, kept: Bools | None = None) -> tuple[Floats, Floats]:
        """Return derivatives (rows, factors) and residuals (rows,), both in units of the residual's spread."""
        groups = self.weighted(kept)
        left = [np.stack([each.means(column) for column in self.jacobian[each.kind].T], axis=-1) for each in groups]
        return np.concatenate(left), np.concatenate([each.means(self.logs[each.kind]) for each in groups])

    def step(self, kept: Bools | None = None, damping: float = 0.0) -> Floats:
        """Return the step from x, by the requests that are kept."""
        a, b = self.rows(kept)
        # Sums instead of matrix products: BLAS threads cost more than they do here.
        normal = (a[:, :, None] * a[:, None, :]).sum(axis=0)
        normal += np.diag(damping * np.diag(normal) + 1e-9)
        step: Floats = np.linalg.solve(normal, -(a * b[:, None]).sum(axis=0))
        return step

    def covariance(self) -> tuple[Floats, Floats]:
        """Return covariance of the factors for residuals of spread 1, and the length of each column of the derivatives."""
        a, _ = self.rows()
        lengths = np.sqrt((a * a).sum(axis=0))
        safe = np.where(lengths > 0, lengths, 1.0)
        unit = a / safe
        normal = (unit[:, :, None] * unit[:, None, :]).sum(axis=0) + np.diag(np.where(lengths > 0, 1e-12, 1e-9))
        covariance: Floats = np.linalg.inv(normal) / np.outer(safe, safe)
        return covariance, lengths

    def standard_errors(self) -> Floats:
        """Return standard errors of the factors, from the size of the residuals."""
        a, b = self.rows()
        covariance, _ = self.covariance()
        spread = max(float((b * b).sum()) / max(1, len(b) - a.shape[1]), 1.0)
        return np.asarray(np.sqrt(np.maximum(np.diag(covariance), 0.0) * spread))


@dataclass
class FactorFit:
    """A fit over all runs. free: the factors being fitted; x has a value for each (see Factor.x)."""

    runs: Sequence[MeasuredRun]
    simulate: Simulate
    start: dict[str, float]
    free: list[Factor]
    calls: int = 0
    _known: dict[tuple[float, ...], Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.measured = {name: np.concatenate([run.figures[name] for run in self.runs]) for name in FIGURES}
        self.counted = np.concatenate([run.counted for run in self.runs])
        new = np.concatenate([run.requests.prompt - run.requests.shared for run in self.runs])
        context = np.concatenate([run.requests.prompt + run.requests.output // 2 for run in self.runs])
        load = np.concatenate([run.load for run in self.runs])
        unloaded = np.concatenate([run.unloaded for run in self.runs])
        every = np.ones_like(unloaded)
        self._ttft_unloaded = self._grouped("ttft", unloaded, new)
        self._ttft = [*self._grouped("ttft", ~unloaded, new), *self._grouped("ttft", every, load)]
        self._tpot = [*self._grouped("tpot", every, load), *self._grouped("tpot", every, context)]

    def simulated(self, values: Mapping[str, float]) -> dict[str, Floats]:
        """Return FIGURES of all requests, s."""
        self.calls += 1
        answers = self.simulate(values)
        return {name: np.concatenate([answer[name] for answer in answers]) for name in FIGURES}

    def at(self, x: Floats) -> dict[str, float]:
        """Return the values of all factors."""
        return self.start | {factor.name: factor.value(float(v)) for factor, v in zip(self.free, x, strict=True)}

    def bounded(self, x: Floats) -> Floats:
        return np.array([factor.bounded(float(v)) for v, factor in zip(x, self.free, strict=True)], dtype=np.float64)

    def by_groups(self, x: Floats) -> System:
        """Return the best factors from x on, by means over groups.

        Each factor is first fitted where it shows without the others: in TPOT, and in the TTFT of unloaded requests. From
        there all are fitted together; a fit of all from x itself would meet many local minima.
        """
        for names, groups in ((_IN_TPOT, self._tpot), (_IN_TTFT, self._ttft_unloaded)):
            fixed = [factor.name not in names for factor in self.free]
            if groups and not all(fixed):
                x = self._descend(x, groups, 1.0, fixed).x
        return self._descend(x, [*self._ttft_unloaded, *self._ttft, *self._tpot], 1.0)

    def by_request(self, wide: System) -> System:
        """Return better factors, if single requests follow the engine; else the same."""
        single = [(kind, np.where(self._usable(kind), np.arange(self.counted.size), -1)) for kind in range(len(_KINDS))]
        fine = self._descend(wide.x, single, _FINE)
        return fine if _spread(fine.logs) < 0.5 * _spread(wide.logs) else wide

    def _descend(
        self, x: Floats, groups: list[tuple[int, Ints]], width: float, fixed: Sequence[bool] | None = None
    ) -> System:
        fixed = fixed or [False] * len(self.free)
        damping = 1e-3
        system = System(x, self._logs(x), self._slopes(x, width, fixed), groups)
        for _ in range(_ROUNDS):
            found: System | None = None
            weighted = system.weighted()
            cost = sum(each.cost(system.logs) for each in weighted)
            for _ in range(_TRIES):
                moved = self.bounded(system.x + system.step(damping=damping))
                there = System(moved, self._logs(moved), system.jacobian, groups)
                if sum(each.cost(there.logs) for each in weighted) < cost:
                    found = there
                    damping = max(damping / 10, 1e-6)
                    break
                damping *= 10
            if found is None:
                break
            moves = np.abs(found.x - system.x)
            system = System(found.x, found.logs, self._slopes(found.x, width, fixed), groups)
            if all(move < factor.enough * width**0.5 for move, factor in zip(moves, self.free, strict=True)):
                break
        return system

    def _logs(self, x: Floats) -> Floats:
        """Return log(simulated / measured), shape (kinds, requests); 0 where either is unknown."""
        values = self.at(x)
        key = tuple(values[factor.name] for factor in FACTORS)
        if key not in self._known:
            answer = self.simulated(values)
            rows = [_log_ratio(answer[name], self.measured[name], _FLOOR_S[name]) for name in _KINDS]
            self._known[key] = np.where(self.counted, np.array(rows), 0.0)
        return self._known[key]

    def _slopes(self, x: Floats, width: float, fixed: Sequence[bool]) -> Floats:
        """Return derivatives of `_logs`, shape (kinds, requests, factors); 0 for fixed factors."""
        base = self._logs(x)
        columns = []
        for i, factor in enumerate(self.free):
            if fixed[i]:
                columns.append(np.zeros_like(base))
                continue
            moved = x.copy()
            moved[i] += factor.step * width
            columns.append((self._logs(moved) - base) / (factor.step * width))
        return np.stack(columns, axis=-1)

    def _usable(self, kind: int) -> Bools:
        usable: Bools = self.counted & ~np.isnan(self.measured[_KINDS[kind]])
        return usable

    def _grouped(self, kind: str, chosen: Bools, feature: npt.NDArray[np.generic]) -> list[tuple[int, Ints]]:
        """Return a grouping of the chosen requests by similar values of a feature; none if none of them has a figure."""
        used = self._usable(_KINDS.index(kind)) & chosen
        return [(_KINDS.index(kind), _quantiles(feature, used))] if used.any() else []


def _quantiles(values: npt.NDArray[np.generic], used: Bools) -> Ints:
    """Return groups of about equal size with similar values; -1 for requests that are not used."""
    groups = np.full(values.size, -1, dtype=np.int64)
    count = int(used.sum())
    number = min(_MOST_GROUPS, max(1, count // _FEW_IN_GROUP))
    groups[np.flatnonzero(used)[np.argsort(values[used], kind="stable")]] = np.arange(count) * number // max(1, count)
    return groups


def _medians(values: Floats, group: Ints, number: int) -> Floats:
    return np.array([np.median(values[group == each]) if (group == each).any() else 0.0 for each in range(number)])


def _jumps(slopes: Floats) -> Bools:
    size = np.abs(slopes)
    return np.asarray((size > _JUMP * np.median(size, axis=0) + 1e-9).any(axis=1))


def _spread(logs: Floats) -> float:
    return float(np.median(np.abs(logs[0][logs[0] != 0.0]))) if (logs[0] != 0.0).any() else 0.0


def _log_ratio(simulated: Floats, measured: Floats, floor_s: float) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.log((simulated + floor_s) / (measured + floor_s))
    return np.nan_to_num(ratio, nan=0.0, posinf=0.0, neginf=0.0)
