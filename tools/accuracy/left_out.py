"""The host side of engines fitted anew without a group of runs, and the errors on that group. A figure of docs/accuracy.md.

Run it:  PYTHONPATH=tools:tests/benchmarks python -m accuracy.left_out     from the runs in tests/data/silicon; takes minutes

Every constant that the runs gave is searched, one after the other, on samples of the runs of the engine's other groups; the
least sum of the mean logarithmic errors of TTFT, TPOT and latency wins, and predicts the group that was left out.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

from accuracy.closed_loop import Prediction, engine_of, predict
from accuracy.report import DENSE, named_table
from accuracy.runs import MeasuredRun, load_runs
from accuracy.truth import find_drafted
from llmirage_server.perf.catalogue.lookup import find_gpu
from llmirage_server.perf.engines.lookup import find_engine

DATA = Path(__file__).resolve().parents[2] / "tests" / "data" / "silicon"
Constants = tuple[float, ...]
SAMPLE = 24  # runs of each other group
VALUES: Mapping[str, Sequence[float]] = {
    "launch_us": (0, 15, 30, 45, 60, 75),
    "front_end_ms": (5, 10, 15, 20, 30),
    "prefill_in_place": (1.0, 1.1, 1.2, 1.3, 1.4, 1.5),
    "host_step_ms": (0, 0.25, 0.5, 1, 2),
    "host_sequence_us": (0, 2, 4, 8, 16),
}
# What is published of each engine, or where nothing is the middle of what is of any; docs/accuracy.md names sources.
START: Mapping[str, Constants] = {
    "vllm": (30, 10, 1.4, 0.5, 4),
    "sglang": (60, 10, 1.4, 0.5, 4),
    "trtllm": (60, 15, 1.4, 0.5, 4),
}
LEAST_GAIN = 0.002  # of the mean of the logarithmic errors: what the runs say nothing about stays as it was
WEIGHTS = {"ttft": 0.5, "tpot": 1.5, "latency": 1.0}  # of the errors
ROUNDS = 2
Groups = dict[str, list[MeasuredRun]]


def main() -> None:
    """Print the constants of each group and the errors; write the predictions that error bands come from."""
    first, second = load_runs(DATA / "runs.csv.gz"), load_runs(DATA / "scripted.csv.gz")
    scripted = {run.id for run in second}
    drafted = find_drafted(first)
    engines = groups_of(run for run in first + second if run.id not in drafted and not run.odd)
    found: list[Prediction] = []
    kept: list[Prediction] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        simulated = Simulated(pool)
        for engine, groups in engines.items():
            for group, held in groups.items():
                sample = [run for name, others in groups.items() if name != group for run in sample_of(others)]
                best = fitted(sample, simulated)
                print(f"{engine} without {group}: {dict(zip(VALUES, best, strict=True))}", flush=True)
                constants = [best] * len(held)
                found += pool.map(_predict, held, constants, [True] * len(held), chunksize=4)
                kept += pool.map(_predict, held, constants, chunksize=4)
    print(named_table("left out", dict([*_totals(_usable(found)), *_engines(_usable(found)), *_groups(_usable(found))])))
    print(named_table("host side left out, AMD's kernels kept", dict([*_totals(_usable(kept)), *_engines(_usable(kept))])))
    print(
        named_table(
            "scripted.csv.gz", dict([*_totals(of := [p for p in _usable(kept) if p.run.id in scripted]), *_engines(of)])
        )
    )


def groups_of(runs: Iterable[MeasuredRun]) -> dict[str, Groups]:
    """Runs by engine, and by group."""
    of: dict[str, Groups] = {}
    for run in runs:
        of.setdefault(run.engine, {}).setdefault(_group(run), []).append(run)
    return of


def _group(run: MeasuredRun) -> str:
    return f"{run.family} {run.gpu}"


def sample_of(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    return random.Random(3).sample(runs, min(len(runs), SAMPLE))


class Simulated:
    """Predictions of runs with constants, each made once."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._known: dict[tuple[str, Constants], Prediction] = {}

    def losses(self, runs: Sequence[MeasuredRun], tried: Sequence[Constants]) -> list[float]:
        """Of each of the constants, over all runs."""
        new = [(run, each) for each in tried for run in runs if (run.id, each) not in self._known]
        made = self._pool.map(_predict, [run for run, _ in new], [each for _, each in new], chunksize=4)
        self._known.update(zip([(run.id, each) for run, each in new], made, strict=True))
        return [fmean(_loss(self._known[run.id, each]) for run in runs) for each in tried]


def fitted(runs: Sequence[MeasuredRun], simulated: Simulated) -> Constants:
    best = START[runs[0].engine]
    for _ in range(ROUNDS):
        for place, values in enumerate(VALUES.values()):
            tried = [(*best[:place], value, *best[place + 1 :]) for value in values]
            losses = simulated.losses(runs, tried)
            now = losses[values.index(best[place])]
            if min(losses) < now - LEAST_GAIN:
                best = tried[losses.index(min(losses))]
    return best


def _loss(p: Prediction) -> float:
    """No single run counts for more than an error of a factor of about two."""
    if p.problem:
        return 0.0
    judged = ((weight, p.error(name)) for name, weight in WEIGHTS.items())
    return sum(weight * min(0.8, abs(math.log1p(error))) for weight, error in judged if not math.isnan(error))


def _predict(run: MeasuredRun, constants: Constants, left_out: bool = False) -> Prediction:
    host, gpu = changes_of(run, constants, left_out)
    return predict(run, host=host, gpu=gpu)


def changes_of(run: MeasuredRun, constants: Constants, left_out: bool = False) -> tuple[dict[str, float], dict[str, Any]]:
    """Constants of an engine and a GPU. Those fitted to runs on an AMD GPU are left out with it, published ones are not."""
    host = dict(zip(VALUES, constants, strict=True))
    engine = find_engine(engine_of(run))
    host["host_step_ms"] += engine.on(find_gpu(run.gpu)).host_step_ms - engine.host_step_ms
    return host, {"reached": None} if left_out else {}


def _usable(found: Sequence[Prediction]) -> list[Prediction]:
    return [p for p in found if not p.problem]


Rows = Iterator[tuple[str, list[Prediction]]]


def _totals(found: Sequence[Prediction]) -> Rows:
    nvidia = [p for p in found if find_gpu(p.run.gpu).vendor == "nvidia"]
    yield "**all**", list(found)
    yield "**all on NVIDIA GPUs**", nvidia
    yield "**dense**", [p for p in found if p.run.family in DENSE]
    yield "**mixtures of experts**", [p for p in found if p.run.family not in DENSE]
    yield "**mixtures of experts on NVIDIA GPUs**", [p for p in nvidia if p.run.family not in DENSE]


def _engines(found: Sequence[Prediction]) -> Rows:
    for engine in sorted({p.run.engine for p in found}):
        yield f"**{engine}**", [p for p in found if p.run.engine == engine]


def _groups(found: Sequence[Prediction]) -> Rows:
    for engine, group in sorted({(p.run.engine, _group(p.run)) for p in found}):
        yield f"{engine} {group}", [p for p in found if (p.run.engine, _group(p.run)) == (engine, group)]


if __name__ == "__main__":
    main()
