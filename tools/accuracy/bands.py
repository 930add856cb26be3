"""Prediction intervals from the errors on measured runs: perf/catalogue/data/bands.json, and their coverage.

The error of a run is the logarithm of measured / predicted. Runs of one model, GPU and engine have much in common: such a
group has one typical error, the mean over its deployments of the logarithm of their median absolute error. Every stratum of
groups (all, by kernels, class of model, engine, GPU, format, family) has a scale: the mean of the typical errors, drawn
towards that of the next wider stratum as if that were three more groups; kernels that were not measured never narrow it. An
error over the scale of its stratum, fitted without any run of the same family, then of the same GPU, then of the same
version of the engine, is a score; where the family was measured in the same format on the same GPU, those fitted without the
deployment alone count. The quantiles of the scores over all runs (deployments with many runs count less, by the root of
their number) times a scale are the half-widths of a band: conformal prediction with normalised scores and groups left out.
Of an engine, its own quantiles count, drawn towards those of all as if these were one and a half more groups: tails of one
engine are heavier than those of another.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from accuracy.closed_loop import Prediction
from accuracy.truth import find_drafted
from llmirage_server.perf.bands import QUANTITIES, SHARES, Quantity, strata_for
from llmirage_server.perf.catalogue.lookup import find_gpu, find_model

SOURCE = "docs/accuracy.md: whole runs of real servers; logarithms of measured / predicted; written by make accuracy"
_DRAWN = 3.0  # groups' worth of the wider stratum in the scale of a narrower one
_LEVELS_DRAWN = (
    1.5  # groups' worth of the quantiles of all in those of an engine; the least with which the bands of all runs hold
)
_DOUBLINGS = 4  # of the concurrency, whose effect on errors enough deployments show
_LEAST = 0.01  # scale of a deployment, at least: repeats of the measurements differ by as much


@dataclass(frozen=True, slots=True)
class Point:
    """A run as the bands see it. left_out: model, GPU and engine; deployment: these, format and parallelism."""

    strata: tuple[str, ...]
    left_out: str
    deployment: str
    concurrency: float
    isl: float
    errors: dict[Quantity, float]
    version: str = ""  # of the engine

    @property
    def engine(self) -> str:
        return self.strata[-1].split()[2]

    @property
    def gpu(self) -> str:
        return self.strata[-1].split()[3]

    @property
    def family(self) -> str:
        return self.strata[-1].split()[5]


IN_TURN = ("family", "gpu", "version")  # what is left out: whole families, whole GPUs, whole versions of an engine


def points_of(predictions: Collection[Prediction]) -> list[Point]:
    """The runs that say something about the model: predicted, and without drafts or a cold start, as far as the
    measurements show.
    """
    drafted = find_drafted([p.run for p in predictions])
    return [_point(p) for p in predictions if not (p.problem or p.run.cold_start or p.run.odd or p.run.id in drafted)]


def _point(p: Prediction) -> Point:
    run = p.run
    group = f"{run.family} {run.gpu} {run.engine}"
    split = f"tp{run.tp} pp{run.pp} dp{run.dp} ep{run.ep}"
    errors = {quantity: -math.log1p(p.error(quantity)) for quantity in QUANTITIES}
    names = tuple(strata_for(find_model(run.model), find_gpu(run.gpu), run.engine, run.weights))
    deployment, version = f"{group} {run.weights} {split}", f"{run.engine} {run.engine_version}"
    return Point(names, group, deployment, run.concurrency / run.dp, run.isl, errors, version)


def class_of(model: str) -> str:
    return "moe" if find_model(model).moe else "dense"


Scales = dict[str, float]


def scales_of(points: Sequence[Point], quantity: Quantity) -> Scales:
    """Of every stratum, by its name."""
    of: dict[str, tuple[tuple[str, ...], dict[str, list[float]]]] = {}
    for point in points:
        deployments = of.setdefault(point.left_out, (point.strata, {}))[1]
        deployments.setdefault(point.deployment, []).append(abs(point.errors[quantity]))
    logs = [
        (names, fmean(math.log(max(_LEAST, median(errors))) for errors in deployments.values()))
        for names, deployments in of.values()
    ]
    found: dict[str, float] = {"": fmean(log for _, log in logs)}
    for depth in range(1, len(points[0].strata)):
        for names in sorted({names[: depth + 1] for names, _ in logs}):
            own = [log for others, log in logs if others[depth] == names[depth]]
            found[names[depth]] = (sum(own) + _DRAWN * found[names[depth - 1]]) / (len(own) + _DRAWN)
    return {name: math.exp(max(log, found[_measured_like(name, found)])) for name, log in found.items()}


def _measured_like(name: str, found: Collection[str]) -> str:
    """The stratum that has measured kernels and is otherwise the same, or the next wider one that there is."""
    parts = ["measured", *name.split()[1:]]
    while parts and " ".join(parts) not in found:
        parts.pop()
    return " ".join(parts) if name else ""


def scale_at(scales: Scales, names: Sequence[str]) -> float:
    """Of the narrowest group that has one."""
    return next(scales[name] for name in reversed(names) if name in scales)


def scores_of(points: Sequence[Point], quantity: Quantity, by: str = "family") -> list[float]:
    """|error| / scale of each point, with the scale of the runs outside its group."""
    without: dict[str, Scales] = {}
    for name in {getattr(point, by) for point in points}:
        without[name] = scales_of([point for point in points if getattr(point, by) != name], quantity)
    return [abs(p.errors[quantity]) / scale_at(without[getattr(p, by)], p.strata) for p in points]


def levels_of(points: Sequence[Point], scores: Sequence[float]) -> list[float]:
    """The quantiles of the scores, by SHARES; without weights, of n scores the ceil((n + 1) share)-th."""
    counts = Counter(point.deployment for point in points)
    n = len(points)
    weighted = sorted((score, counts[point.deployment] ** -0.5) for point, score in zip(points, scores, strict=True))
    return [_quantile(weighted, min(1.0, share / 100 * (n + 1) / n)) for share in SHARES]


Levels = dict[str, list[float]]


def engine_levels(points: Sequence[Point], scores: Sequence[float]) -> Levels:
    """Levels of every engine by its name, and of all by none."""
    found: Levels = {"": levels_of(points, scores)}
    for engine in sorted({point.engine for point in points}):
        own = [(point, score) for point, score in zip(points, scores, strict=True) if point.engine == engine]
        members = [point for point, _ in own]
        weight = len({point.left_out for point in members})
        pairs = zip(levels_of(members, [score for _, score in own]), found[""], strict=True)
        found[engine] = [
            math.exp((weight * math.log(level) + _LEVELS_DRAWN * math.log(every)) / (weight + _LEVELS_DRAWN))
            for level, every in pairs
        ]
    return found


def levels_in_turn(points: Sequence[Point], quantity: Quantity) -> Levels:
    """Levels of runs whose whole family, GPU or version had no say, one after the other."""
    scores = [score for by in IN_TURN for score in scores_of(points, quantity, by)]
    return engine_levels([*points] * len(IN_TURN), scores)


def seen_levels(points: Sequence[Point], quantity: Quantity) -> list[float]:
    """Levels of runs whose family was measured in the same format on the same GPU, in another deployment."""
    return levels_of(points, scores_of(points, quantity, "deployment"))


def _quantile(weighted: Sequence[tuple[float, float]], share: float) -> float:
    """Of values with weights, in order."""
    left = share * sum(weight for _, weight in weighted) * (1 - 1e-12)
    for value, weight in weighted:
        left -= weight
        if left <= 0:
            return value
    return weighted[-1][0]


def covered(points: Sequence[Point], quantity: Quantity, by: str = "family") -> list[list[bool]]:
    """Return, for each point, if it lies within the bands of SHARES that the runs of all other groups give."""
    found: dict[str, tuple[Scales, Levels]] = {}
    seen = seen_levels(points, quantity) if by == "deployment" else []  # one deployment hardly matters
    for name in {getattr(point, by) for point in points}:
        others = [point for point in points if getattr(point, by) != name]
        found[name] = scales_of(others, quantity), {"": seen} if by == "deployment" else levels_in_turn(others, quantity)
    rows = []
    for point in points:
        scales, levels = found[getattr(point, by)]
        scale, error = scale_at(scales, point.strata), abs(point.errors[quantity])
        rows.append([error <= scale * level for level in levels.get(point.engine, levels[""])])
    return rows


def _beyond(points: Sequence[Point], scores: Sequence[float]) -> list[float]:
    """How much larger scores are at the largest concurrency of a deployment than at its halves, quarters, ... and below.

    At the 90th percentile, a number for each of _DOUBLINGS, none below the one before, nor 1: a band is so much wider at a
    load that many doublings beyond the measured one.
    """
    most: dict[str, float] = {}
    for point in points:
        most[point.deployment] = max(point.concurrency, most.get(point.deployment, 0.0))
    shares = [(point.concurrency / most[point.deployment], score) for point, score in zip(points, scores, strict=True)]
    top = _quantile(sorted((score, 1.0) for share, score in shares if share == 1.0), 0.9)
    found = [1.0]
    for doublings in range(1, _DOUBLINGS + 1):
        rest = sorted((score, 1.0) for share, score in shares if share <= 0.5**doublings)
        found.append(max(found[-1], top / _quantile(rest, 0.9)) if rest else found[-1])
    return found[1:]


def bands(points: Sequence[Point]) -> dict[str, Any]:
    scales = {quantity: scales_of(points, quantity) for quantity in QUANTITIES}
    scores = {quantity: scores_of(points, quantity, "family") for quantity in QUANTITIES}
    groups = {}
    for name in scales["ttft"]:
        members = [point for point in points if name in point.strata]
        groups[name] = {
            "runs": len(members),
            "deployments": len({point.deployment for point in members}),
            "concurrency": max(p.concurrency for p in members),
            "isl": max(p.isl for p in members),
            "scale": {quantity: round(scales[quantity][name], 4) for quantity in QUANTITIES},
        }
    return {
        "source": SOURCE,
        "levels": {
            quantity: {
                engine: [round(level, 3) for level in levels] for engine, levels in levels_in_turn(points, quantity).items()
            }
            for quantity in QUANTITIES
        },
        "seen": {quantity: [round(level, 3) for level in seen_levels(points, quantity)] for quantity in QUANTITIES},
        "beyond": {quantity: [round(factor, 3) for factor in _beyond(points, scores[quantity])] for quantity in QUANTITIES},
        "groups": groups,
    }


def write_bands(path: Path, predictions: Sequence[Prediction]) -> None:
    """A line for each group."""
    tree = bands(points_of(predictions))
    rows = ",\n".join(f"    {json.dumps(name)}: {json.dumps(group)}" for name, group in tree.pop("groups").items())
    parts = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in tree.items()]
    path.write_text("{\n" + ",\n".join([*parts, f'  "groups": {{\n{rows}\n  }}']) + "\n}\n", encoding="utf-8")
