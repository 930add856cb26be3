"""The host side of engines fitted anew without a group of runs, and the errors on that group. A figure of docs/accuracy.md.

Run it:  PYTHONPATH=tools:tests/benchmarks python -m accuracy.left_out     from the runs in tests/data/silicon; minutes

Each run of a sample is simulated with one constant changed at a time; between these values its times are interpolated, and
several changes are added up. On these sums the constants are searched from what is published, without the runs of a model
on a GPU; the least mean of logarithmic errors wins. The runs of scripted.csv.gz that were left out are then simulated.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accuracy.closed_loop import Prediction, engine_of, predict
from accuracy.report import DENSE, named_table
from accuracy.runs import MeasuredRun, load_runs
from accuracy.truth import find_drafted
from llmirage_server.perf.catalogue.lookup import find_gpu
from llmirage_server.perf.engines.lookup import find_engine

DATA = Path(__file__).resolve().parents[2] / "tests" / "data" / "silicon"
SAMPLE = 12  # runs of a group that have a say
BLACKWELL = " on Blackwell"  # where an engine may have another value
# Values of each constant that runs are simulated with, beside the shipped one.
NODES: Mapping[str, Sequence[float]] = {
    "launch_us": (0, 45, 100),
    "launch_us" + BLACKWELL: (0, 45, 100),
    "front_end_ms": (5, 30),
    "prefill_in_place": (1.0, 1.5),
    "prefill_in_place" + BLACKWELL: (1.0, 1.5),
    "host_step_ms": (0, 2),
    "host_sequence_us": (0, 24),
    "hidden_step_ms": (0, 4),
    "hidden_sequence_us": (0, 24),
}
# What is published of an engine, or where nothing is the middle of what is of any; docs/accuracy.md names sources.
START: Mapping[str, Sequence[float]] = {
    "vllm": (30, 30, 10, 1.25, 1.25, 0.5, 4, 1.5, 8),
    "sglang": (60, 60, 10, 1.25, 1.25, 0.5, 4, 1.5, 8),
    "trtllm": (60, 60, 15, 1.25, 1.25, 0.5, 4, 1.5, 8),
}
LEAST_GAIN = 0.002  # of the mean of the logarithmic errors: what the runs say nothing about stays as it was
WEIGHTS = {"ttft": 0.5, "tpot": 1.5, "latency": 1.0}  # of the errors
MOST = 0.8  # no single error counts for more than a factor of about two
ROUNDS = 4
TRIED = 25  # values of a constant
Groups = dict[str, list[MeasuredRun]]
Times = NDArray[np.float64]


def main() -> None:
    """Print the constants of each group and the errors."""
    first, second = load_runs(DATA / "runs.csv.gz"), load_runs(DATA / "scripted.csv.gz")
    scripted, drafted = {run.id for run in second}, find_drafted(first)
    engines = groups_of(run for run in first + second if run.id not in drafted and not run.odd)
    found: list[Prediction] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for engine, groups in engines.items():
            sampled = {group: Sampled(sample_of(runs), pool) for group, runs in groups.items()}
            for group, runs in groups.items():
                if not (held := [run for run in runs if run.id in scripted]):
                    continue
                best = fitted(engine, [others for name, others in sampled.items() if name != group])
                print(f"{engine} without {group}: { ({name: round(v, 3) for name, v in best.items()}) }", flush=True)
                found += pool.map(_predict, held, [best] * len(held), chunksize=4)
    print(named_table("left out", dict(_rows([p for p in found if not p.problem]))))


def groups_of(runs: Iterable[MeasuredRun]) -> dict[str, Groups]:
    """Runs on NVIDIA's GPUs by engine, and by model and GPU; accuracy.left_out_amd has AMD's."""
    of: dict[str, Groups] = {}
    for run in runs:
        if find_gpu(run.gpu).vendor != "nvidia":
            continue
        of.setdefault(run.engine, {}).setdefault(_group(run), []).append(run)
    return of


def _group(run: MeasuredRun) -> str:
    return f"{run.family} {run.gpu}"


def sample_of(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    return random.Random(3).sample(runs, min(len(runs), SAMPLE))


class Sampled:
    """TTFT and TPOT of runs, as measured and as simulated with each constant in TRIED values, the others as shipped."""

    def __init__(self, runs: Sequence[MeasuredRun], pool: Executor) -> None:
        jobs = [(run, {name: value}) for run in runs for name in NODES for value in NODES[name] if _concerns(name, run)]
        predicted = pool.map(_predict, *zip(*jobs, *((run, {}) for run in runs), strict=True), chunksize=8)
        times = np.array([(p.ttft_ms, p.tpot_ms) for p in predicted])
        by_job = {(run.id, *change.items()): found for (run, change), found in zip(jobs, times, strict=False)}
        self.shipped = times[len(jobs) :]
        self.measured = np.array([(run.ttft_ms, run.tpot_ms) for run in runs])
        self.steps = np.array([run.osl - 1 for run in runs])
        self.judged = np.array([not run.cold_start for run in runs])
        self.changed = {name: np.zeros((len(runs), TRIED, 2)) for name in NODES}  # ms that each value adds
        for name, (at, run) in product(NODES, enumerate(runs)):
            if not _concerns(name, run):
                continue
            known = [(value, by_job[run.id, (name, value)]) for value in NODES[name]]
            known = sorted([*known, (_shipped(name, run), self.shipped[at])], key=lambda pair: pair[0])
            places = [value for value, _ in known]
            for metric in (0, 1):
                line = np.interp(values_of(name), places, [found[metric] for _, found in known])
                self.changed[name][at, :, metric] = line - self.shipped[at, metric]

    def losses(self, places: Mapping[str, int]) -> Times:
        """Return the weighted logarithmic errors of each run, for one of the TRIED values of each constant."""
        times = self.shipped + sum(self.changed[name][:, place] for name, place in places.items())
        errors = [_error(times[:, i], self.measured[:, i]) for i in (0, 1)]
        latency = _error(*(t[:, 0] + self.steps * t[:, 1] for t in (times, self.measured)))
        return WEIGHTS["tpot"] * errors[1] + self.judged * (WEIGHTS["ttft"] * errors[0] + WEIGHTS["latency"] * latency)


def _error(predicted: Times, measured: Times) -> Times:
    return np.nan_to_num(np.minimum(MOST, abs(np.log(np.maximum(predicted, 1e-3) / measured))))


def values_of(name: str) -> Times:
    return np.linspace(min(NODES[name]), max(NODES[name]), TRIED)


def fitted(engine: str, samples: Sequence[Sampled]) -> dict[str, float]:
    """Search one constant after the other, all groups' runs counting the same."""
    places = {name: int(abs(values_of(name) - start).argmin()) for name, start in zip(NODES, START[engine], strict=True)}
    for _ in range(ROUNDS):
        for name in NODES:
            tried = [{**places, name: place} for place in range(TRIED)]
            losses = [np.concatenate([sample.losses(each) for sample in samples]).mean() for each in tried]
            if min(losses) < losses[places[name]] - LEAST_GAIN:
                places = tried[int(np.argmin(losses))]
    return {name: float(values_of(name)[place]) for name, place in places.items()}


def _concerns(name: str, run: MeasuredRun) -> bool:
    """Return if the constant is that of the run's architecture."""
    apart = name + BLACKWELL in NODES or name.endswith(BLACKWELL)
    return not apart or name.endswith(BLACKWELL) == (find_gpu(run.gpu).arch == "blackwell")


def _shipped(name: str, run: MeasuredRun) -> float:
    engine, gpu = find_engine(engine_of(run)), find_gpu(run.gpu)
    field = name.removesuffix(BLACKWELL)
    here = {"launch_us": engine.launch_us_on, "prefill_in_place": engine.prefill_in_place_on}.get(field)
    return here(gpu) if here else float(getattr(engine, field))


def _predict(run: MeasuredRun, constants: Mapping[str, float]) -> Prediction:
    return predict(run, host=fields_of(run, constants))


def fields_of(run: MeasuredRun, constants: Mapping[str, float]) -> dict[str, float]:
    """Return the fields of an engine with which these constants apply to the run."""
    engine, gpu = find_engine(engine_of(run)), find_gpu(run.gpu)
    found = {name.removesuffix(BLACKWELL): value for name, value in constants.items() if _concerns(name, run)}
    if "launch_us" in found:
        found["launch_us"] *= engine.launch_us / engine.launch_us_on(gpu)
    if "prefill_in_place" in found:
        share = (engine.prefill_in_place - 1) / (engine.prefill_in_place_on(gpu) - 1)
        found["prefill_in_place"] = 1 + share * (found["prefill_in_place"] - 1)
    return found


Rows = Iterator[tuple[str, list[Prediction]]]


def _rows(found: Sequence[Prediction]) -> Rows:
    yield "**all**", list(found)
    yield "**dense**", [p for p in found if p.run.family in DENSE]
    yield "**mixtures of experts**", [p for p in found if p.run.family not in DENSE]
    for engine in sorted({p.run.engine for p in found}):
        yield f"**{engine}**", [p for p in found if p.run.engine == engine]
    for engine, group in sorted({(p.run.engine, _group(p.run)) for p in found}):
        yield f"{engine} {group}", [p for p in found if (p.run.engine, _group(p.run)) == (engine, group)]


if __name__ == "__main__":
    main()
