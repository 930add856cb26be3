"""The host side of engines fitted anew without a group of runs, and the errors on that group. A figure of docs/accuracy.md.

Run it:  PYTHONPATH=tools:tests/benchmarks python -m accuracy.left_out     from the runs in tests/data/silicon; takes minutes

It also writes tests/data/silicon/left_out.csv.gz, the predictions that error bands come from (`bands.py`). AMD's kernels
are as they are there: every GPU of AMD in the catalogue has them.

Every constant that the runs gave is searched, one after the other, on samples of the runs of other groups of the same engine
profile; the least sum of the mean logarithmic errors of TTFT, TPOT and latency wins, and predicts the group that was left
out. With fewer than two other groups, those of the engine's other profiles count too: versions have more in common than not.
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
from accuracy.saved import save_predictions
from accuracy.truth import find_drafted
from llmirage_server.perf.catalogue.lookup import find_gpu
from llmirage_server.perf.engines.lookup import find_engine

DATA = Path(__file__).resolve().parents[2] / "tests" / "data" / "silicon"
LEFT_OUT = "left_out.csv.gz"
Constants = tuple[float, ...]
SAMPLE = 24  # runs of each other group
LEAST_GROUPS = 2  # other groups of a profile, to decide without other versions
VALUES: Mapping[str, Sequence[float]] = {
    "eager_layer_us": (0, 250, 500, 1000, 1500, 2000),
    "eager_layer_us_rocm": (0, 250, 500, 1000, 1500, 2000),
    "front_end_ms": (5, 10, 15, 20, 30),
    "prefill_in_place": (1.0, 1.1, 1.2, 1.3, 1.4, 1.5),
    "host_step_ms": (0, 0.25, 0.5, 1, 2),
    "host_sequence_us": (0, 2, 4, 8, 16),
    "output_token_us": (0, 45, 90),  # 90: of TensorRT-LLM alone (SLOW_OUTPUT)
    "tokenize_ms": (0, 3),
}
# What is published of each engine, or where nothing is the middle of what is of any; docs/accuracy.md names sources.
START: Mapping[str, Constants] = {
    "vllm": (1500, 1500, 10, 1.4, 0.5, 4, 45, 0),
    "sglang": (2000, 1500, 10, 1.4, 0.5, 4, 45, 0),
    "trtllm": (1000, 1500, 15, 1.4, 0.5, 4, 45, 0),
}
LEAST_GAIN = 0.002  # of the mean of the logarithmic errors: what the runs say nothing about stays as it was
PUBLISHED_STEP_MS = 11.7  # what ROCm images of some versions add to a step on gfx942 comes from no run here (perf/engines)
WEIGHTS = {"ttft": 0.5, "tpot": 1.5, "latency": 1.0}  # of the errors
ON_AMD = "eager_layer_us_rocm"  # launching a layer there; elsewhere "eager_layer_us"
# TensorRT-LLM 1.0 saturates at 9,000 to 11,000 tokens a second; vLLM did, too, before its output path was mended
# (vllm-project/vllm#12287), and takes 46 us since (BLIS).
SLOW_OUTPUT = "trtllm"
ROUNDS = 2
Groups = dict[str, list[MeasuredRun]]
Profile = tuple[str, str]


def main() -> None:
    """Print the constants of each group and the errors; write the predictions that error bands come from."""
    first, second = load_runs(DATA / "runs.csv.gz"), load_runs(DATA / "scripted.csv.gz")
    scripted = {run.id for run in second}
    drafted = find_drafted(first)
    profiles = profiles_of(run for run in first + second if run.id not in drafted and not run.odd)
    found: list[Prediction] = []
    kept: list[Prediction] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        simulated = Simulated(pool)
        for profile, groups in profiles.items():
            for group, held in groups.items():
                sample = [run for others in others_of(profiles, profile, group) for run in sample_of(others)]
                best = fitted(sample, simulated)
                print(f"{' '.join(profile)} without {group}: {dict(zip(VALUES, best, strict=True))}", flush=True)
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
    save_predictions(DATA / LEFT_OUT, [p for p in kept if p.run.id not in scripted])


def profiles_of(runs: Iterable[MeasuredRun]) -> dict[Profile, Groups]:
    """Runs by the profile of their engine, and by group."""
    of: dict[Profile, Groups] = {}
    for run in runs:
        old = run.engine == "vllm" and run.engine_version.startswith(("0.11", "0.12", "0.13"))
        version = "0.13" if old else run.engine_version[:3] if run.engine == "trtllm" else ""
        of.setdefault((run.engine, version), {}).setdefault(_group(run), []).append(run)
    return of


def _group(run: MeasuredRun) -> str:
    return f"{run.family} {run.gpu}"


def others_of(profiles: Mapping[Profile, Groups], profile: Profile, group: str) -> list[list[MeasuredRun]]:
    """The groups that decide where one is left out, of all profiles of the engine."""
    own = [runs for name, runs in profiles[profile].items() if name != group]
    if len(own) >= LEAST_GROUPS:
        return own
    near = [groups for each, groups in profiles.items() if each[0] == profile[0] and each != profile]
    return own + [runs for groups in near for name, runs in groups.items() if name != group]


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
    amd = any(find_gpu(run.gpu).vendor == "amd" for run in runs)
    slow = any(run.engine == SLOW_OUTPUT for run in runs)
    for _ in range(ROUNDS):
        for place, (name, all_values) in enumerate(VALUES.items()):
            if name == ON_AMD and not amd:
                continue
            values = all_values if slow or name != "output_token_us" else all_values[:-1]
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
    """Of engine and GPU. What runs said of an AMD GPU, its kernels and what versions add to a step, is left out with it."""
    host = dict(zip(VALUES, constants, strict=True))
    launching = host.pop(ON_AMD)
    if find_gpu(run.gpu).vendor == "amd":
        host["eager_layer_us"] = launching
    engine = find_engine(engine_of(run))
    more_ms = engine.on(find_gpu(run.gpu)).host_step_ms - engine.host_step_ms
    if not left_out or more_ms == PUBLISHED_STEP_MS:
        host["host_step_ms"] += more_ms
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
