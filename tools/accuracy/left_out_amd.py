"""Kernels of AMD's GPUs fitted anew without a group of runs, and the errors on that group. A figure of docs/accuracy.md.

Run it:  PYTHONPATH=tools:tests/benchmarks python -m accuracy.left_out_amd     from tests/data/silicon; takes minutes

The three figures of `reached` (data/gpus.yaml) are searched step by step on runs of engine versions that add nothing to a
step, with a small weight towards 1 where the runs leave them open; the group left out is then predicted with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean

from accuracy.closed_loop import Prediction, predict
from accuracy.report import run_table
from accuracy.runs import DATA, MeasuredRun, load_runs
from llmirage_server.perf.catalogue.gpus import Reached

PLAIN = {"mi300x": ("0.5.12",), "mi355x": ("0.5.8", "0.5.9", "0.5.12")}
START = Reached(memory=1.0, compute=0.5, launch_us=2.0)
_MOVES: tuple[Callable[[Reached], Reached], ...] = (
    lambda r: r._replace(memory=r.memory * 0.9),
    lambda r: r._replace(memory=r.memory * 1.1),
    lambda r: r._replace(compute=r.compute * 0.75),
    lambda r: r._replace(compute=min(1.0, r.compute * 1.3)),
    lambda r: r._replace(launch_us=max(0.0, r.launch_us - 1.5)),
    lambda r: r._replace(launch_us=r.launch_us + 1.5),
)
_ROUNDS = 4


def main() -> None:
    """Print the table."""
    runs = [run for run in load_runs(DATA / "runs.csv.gz") if run.gpu in PLAIN and not run.speculation]
    plain = [run for run in runs if run.engine_version in PLAIN[run.gpu]]
    held: list[tuple[str, Prediction]] = []
    for name, out, known in (
        ("MI355X mxfp4, from fp8", _of(plain, "mi355x", "mxfp4"), _of(plain, "mi355x", "fp8_block")),
        ("MI355X fp8, from mxfp4", _of(plain, "mi355x", "fp8_block"), _of(plain, "mi355x", "mxfp4")),
        ("MI300X, prompts of 8,192 from those of 1,024", *_by_prompt(_of(plain, "mi300x"), 8192)),
        ("MI300X, prompts of 1,024 from those of 8,192", *_by_prompt(_of(plain, "mi300x"), 1024)),
        ("MI300X, from MI355X", _of(plain, "mi300x"), _of(plain, "mi355x")),
    ):
        reached = fitted(known)
        print(f"{name}: {reached}", flush=True)
        held += [(name, p) for p in _predicted(out, reached)]
    versions = [run for run in _of(runs, "mi300x") if run.engine_version in ("0.5.7", "0.5.8", "0.5.9")]
    held += [("MI300X under 0.5.7 to 0.5.9, as shipped", predict(run)) for run in versions]
    names = {id(p): name for name, p in held}
    print(run_table([p for _, p in held], "left out", lambda p: (names[id(p)],)))


def _of(runs: Sequence[MeasuredRun], gpu: str, weights: str = "") -> list[MeasuredRun]:
    return [run for run in runs if run.gpu == gpu and weights in ("", run.weights)]


def _by_prompt(runs: Sequence[MeasuredRun], isl: int) -> tuple[list[MeasuredRun], list[MeasuredRun]]:
    return [run for run in runs if run.isl == isl], [run for run in runs if run.isl != isl]


def fitted(runs: Sequence[MeasuredRun]) -> Reached:
    best = START
    least = _loss(runs, best)
    for _ in range(_ROUNDS):
        for move in _MOVES:
            tried = move(best)
            if (loss := _loss(runs, tried)) < least:
                best, least = tried, loss
    return best


def _loss(runs: Sequence[MeasuredRun], reached: Reached) -> float:
    drawn = abs(math.log(reached.memory)) + abs(math.log(reached.compute)) + reached.launch_us / 10
    return fmean(abs(math.log1p(p.error("tpot"))) for p in _predicted(runs, reached)) + 0.004 * drawn


def _predicted(runs: Sequence[MeasuredRun], reached: Reached) -> list[Prediction]:
    return [predict(run, gpu={"reached": reached}) for run in runs]


if __name__ == "__main__":
    main()
