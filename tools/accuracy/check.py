"""Has a group of measured runs lost accuracy against the committed page? `make accuracy CHECK=1`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accuracy.bands import class_of
from accuracy.closed_loop import Prediction
from accuracy.errors import Spread, grouped
from accuracy.report import METRICS
from accuracy.runs import MeasuredRun

_POINTS = 2.0  # per cent of the measured value
_SHARE = 0.1  # of the committed error


def lost(before: Sequence[Prediction], now: Sequence[Prediction]) -> list[str]:
    """A sentence for each group whose median error grew by 2 points and by a tenth; both lists have the same runs."""
    known = {p.run.id: p for p in before}
    pairs = [(known[p.run.id], p) for p in now if p.run.id in known and not p.problem]
    refused = [f"{p.run.id}: refused now: {p.problem}" for p in now if p.run.id in known and p.problem]
    problems = []
    for name in dict.fromkeys(name for p, _ in pairs for name in _groups(p.run)):
        members = [pair for pair in pairs if name in _groups(pair[0].run)]
        for metric in METRICS:
            old, new = (Spread.of(pair[i].error(metric) for pair in members).median for i in (0, 1))
            if new > old + _POINTS and new > old * (1 + _SHARE):
                problems.append(f"{name}: median error of {metric} {new:.1f} %, was {old:.1f} % ({len(members)} runs)")
    return refused + problems


def _groups(run: MeasuredRun) -> Iterator[str]:
    yield "all"
    yield f"{class_of(run.model)} models"
    yield run.engine
    yield f"{run.family} {run.gpu} {run.engine}"


def sample(runs: Sequence[MeasuredRun], each: int) -> list[MeasuredRun]:
    """So many runs of each model, GPU and engine, spread over the cheaper half of them."""
    chosen: list[MeasuredRun] = []
    for members in grouped(runs, lambda run: (run.family, run.gpu, run.engine)).values():
        cheap = sorted(members, key=lambda run: (run.concurrency * run.osl, run.id))[: max(each, len(members) // 2)]
        chosen += [cheap[i * len(cheap) // each] for i in range(min(each, len(cheap)))]
    return chosen
