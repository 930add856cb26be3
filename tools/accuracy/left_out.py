"""The host side of engines fitted anew without a group of runs, and the errors on that group. A figure of docs/accuracy.md.

Run it:  PYTHONPATH=tools:tests/benchmarks python -m accuracy.left_out     from the runs in tests/data/silicon; takes minutes

Every combination of a small grid within the bounds is tried on a sample of the other runs of the same engine profile; the
best one, by the sum of the mean logarithmic errors of TTFT, TPOT and latency, predicts all runs of the group left out.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from statistics import fmean

from accuracy.closed_loop import Prediction, predict
from accuracy.report import run_table
from accuracy.runs import MeasuredRun, load_runs
from accuracy.truth import find_suspects

DATA = Path(__file__).resolve().parents[2] / "tests" / "data" / "silicon"
SAMPLE = 12  # runs of each other group
GRID: Mapping[str, Sequence[float]] = {
    "eager_layer_us": (500, 1000, 2000),
    "front_end_ms": (10, 20, 30),
    "prefill_in_place": (1.0, 1.15, 1.4),
}
Changes = tuple[tuple[str, float], ...]


def main() -> None:
    """Print the table."""
    runs = load_runs(DATA / "runs.csv.gz")
    suspects = find_suspects(runs) | {run.id for run in runs if run.speculation}
    found: list[Prediction] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for profile, members in _profiles(run for run in runs if run.id not in suspects):
            groups = sorted({_group(run) for run in members})
            for group in groups if len(groups) > 1 else ():
                best = _fitted([run for run in members if _group(run) != group], pool)
                print(f"{' '.join(profile)} without {group}: {dict(best)}", flush=True)
                held = [run for run in members if _group(run) == group]
                found += pool.map(_predict, held, [best] * len(held), chunksize=4)
    print(run_table([p for p in found if not p.problem], "left out", lambda p: (p.run.engine, _group(p.run))))


def _profiles(runs: Iterable[MeasuredRun]) -> Iterator[tuple[tuple[str, str], list[MeasuredRun]]]:
    of: dict[tuple[str, str], list[MeasuredRun]] = {}
    for run in runs:
        old = run.engine == "vllm" and run.engine_version.startswith(("0.11", "0.12", "0.13"))
        version = "0.13" if old else run.engine_version[:3] if run.engine == "trtllm" else ""
        of.setdefault((run.engine, version), []).append(run)
    yield from of.items()


def _group(run: MeasuredRun) -> str:
    return f"{run.family} {run.gpu}"


def _fitted(runs: Sequence[MeasuredRun], pool: ProcessPoolExecutor) -> Changes:
    by_group: dict[str, list[MeasuredRun]] = {}
    for run in runs:
        by_group.setdefault(_group(run), []).append(run)
    rng = random.Random(3)
    sample = [run for group in by_group.values() for run in rng.sample(group, min(len(group), SAMPLE))]
    grid: list[Changes] = [tuple(zip(GRID, values, strict=True)) for values in product(*GRID.values())]
    tried = [(each, run) for each in grid for run in sample]
    answers = list(pool.map(_predict, [run for _, run in tried], [each for each, _ in tried], chunksize=16))
    losses = [fmean(map(_loss, answers[i : i + len(sample)])) for i in range(0, len(answers), len(sample))]
    return grid[losses.index(min(losses))]


def _loss(p: Prediction) -> float:
    """No single run counts for more than an error of a factor of about two."""
    if p.problem:
        return 0.0
    ttft, tpot, latency = (min(0.8, abs(math.log1p(p.error(name)))) for name in ("ttft", "tpot", "latency"))
    return 0.5 * ttft + 1.5 * tpot + latency


def _predict(run: MeasuredRun, changes: Changes) -> Prediction:
    return predict(run, host=dict(changes))


if __name__ == "__main__":
    main()
