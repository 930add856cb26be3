"""Constants of the host side fitted without a group of runs, and the errors on that group. A figure of docs/accuracy.md.

Run it:  PYTHONPATH=tools:tests/benchmarks python -m accuracy.left_out     from the runs in tests/data/silicon; minutes

Each run of a sample is simulated with one constant changed at a time; between these values its times are interpolated, and
several changes are added up. On these sums the constants are searched from what is published, without the runs of a model
on a GPU; the least mean of logarithmic errors wins. First tokens of single clients, on which the shipped launching rests,
are among them. The runs of scripted.csv.gz that were left out are then simulated.
Constants that engines share are fitted on all of them. Times of a step and of a sequence stay as shipped.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor

import numpy as np
from numpy.typing import NDArray

from accuracy.closed_loop import Prediction, engine_of, predict
from accuracy.report import DENSE, named_table
from accuracy.runs import DATA, MeasuredRun, load_runs
from accuracy.truth import find_drafted
from llmirage_server.perf.catalogue.lookup import find_gpu
from llmirage_server.perf.engines.lookup import find_engine

SAMPLE = 7  # runs of each model, GPU and engine that have a say
# What is published of an engine, or where nothing is the middle of what is of any; docs/accuracy.md names sources.
START: Mapping[str, float] = {
    "vllm launch_us": 30,
    "sglang launch_us": 60,
    "sglang launch_us on Blackwell": 60,
    "trtllm launch_us": 60,
    "prefill_in_place": 1.25,
    "vllm prefill_in_place on Blackwell": 1.25,
    "vllm front_end_ms": 10,
    "sglang front_end_ms": 10,
    "trtllm front_end_ms": 15,
}
FIELDS = ("launch_us", "prefill_in_place", "front_end_ms")
RANGES: Mapping[str, tuple[float, float]] = {
    "launch_us": (0, 100), "prefill_in_place": (1, 1.5), "front_end_ms": (5, 30)
}  # fmt: skip
SIMULATED = (("launch_us", 0.0), ("launch_us", 100.0), ("prefill_in_place", 1.5))  # a front end adds to TTFT alone
LEAST_GAIN = 0.0007  # of the mean of the logarithmic errors: what the runs say nothing about stays as it was
WEIGHTS = {"ttft": 0.5, "tpot": 1.5, "latency": 1.0}  # of the errors
MOST = 0.8  # no single error counts for more than a factor of about two
ROUNDS = 4
TRIED = 26  # values of a constant
Times = NDArray[np.float64]


def main() -> None:
    """Print the constants of each group and the errors."""
    names = ("runs.csv.gz", "scripted.csv.gz", "first_tokens.csv")
    first, second, single = (load_runs(DATA / name) for name in names)
    scripted, drafted = {run.id for run in second}, find_drafted(first)
    groups = groups_of(run for run in first + second + single if run.id not in drafted and not run.odd)
    found: list[Prediction] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        sampled = Sampled([run for runs in groups.values() for run in sample_of(runs)], pool)
        for group, runs in groups.items():
            if held := [run for run in runs if run.id in scripted]:
                best = fitted(sampled, group)
                print(f"without {group}: { ({name: round(v, 3) for name, v in best.items()}) }", flush=True)
                found += pool.map(_predict, held, [best] * len(held), chunksize=4)
    print(named_table("left out", dict(_rows([p for p in found if not p.problem]))))


def groups_of(runs: Iterable[MeasuredRun]) -> dict[str, list[MeasuredRun]]:
    """Runs on NVIDIA's GPUs by model and GPU; accuracy.left_out_amd has AMD's."""
    of: dict[str, list[MeasuredRun]] = {}
    for run in runs:
        if find_gpu(run.gpu).vendor == "nvidia":
            of.setdefault(group_of(run), []).append(run)
    return of


def group_of(run: MeasuredRun) -> str:
    return f"{run.family} {run.gpu}"


def sample_of(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """Return as many runs of each engine."""
    engines = sorted({run.engine for run in runs})
    parts = [[run for run in runs if run.engine == engine] for engine in engines]
    return [run for part in parts for run in random.Random(3).sample(part, min(len(part), SAMPLE))]


class Sampled:
    """TTFT and TPOT of runs, as measured and as simulated with each constant in TRIED values, the others as shipped."""

    def __init__(self, runs: Sequence[MeasuredRun], pool: Executor) -> None:
        changes = ({}, *({field: value} for field, value in SIMULATED))
        jobs = [(run, {name_of(run, field): value for field, value in change.items()}) for run in runs for change in changes]
        predicted = pool.map(_predict, *zip(*jobs, strict=True), chunksize=8)
        times = np.array([(p.ttft_ms, p.tpot_ms) for p in predicted]).reshape(len(runs), len(changes), 2)
        self.shipped = times[:, 0]
        self.groups = np.array([group_of(run) for run in runs])
        self.measured = np.array([(run.ttft_ms, run.tpot_ms) for run in runs])
        self.steps = np.array([run.osl - 1 for run in runs])
        self.judged = np.array([not run.cold_start for run in runs])
        self.changed = {name: np.zeros((len(runs), TRIED, 2)) for name in START}  # ms that each value adds
        for at, run in enumerate(runs):
            for field in FIELDS:
                here, name = _shipped(run, field), name_of(run, field)
                if field == "front_end_ms":
                    self.changed[name][at, :, 0] = values_of(name) - here
                    continue
                known = [(value, times[at, i]) for i, (of, value) in enumerate(SIMULATED, 1) if of == field]
                known = sorted([*known, (here, times[at, 0])], key=lambda pair: pair[0])
                for metric in (0, 1):
                    line = _line(values_of(name), [(value, float(found[metric])) for value, found in known])
                    self.changed[name][at, :, metric] = line - times[at, 0, metric]

    def losses(self, places: Mapping[str, int]) -> Times:
        """Return the weighted logarithmic errors of each run, for one of the TRIED values of each constant."""
        times = self.shipped + sum(self.changed[name][:, place] for name, place in places.items())
        ttft, tpot = (_error(times[:, i], self.measured[:, i]) for i in (0, 1))
        latency = _error(*(t[:, 0] + self.steps * t[:, 1] for t in (times, self.measured)))
        judged: Times = self.judged * (WEIGHTS["ttft"] * ttft + WEIGHTS["latency"] * latency)
        return judged + WEIGHTS["tpot"] * tpot


def _error(predicted: Times, measured: Times) -> Times:
    return np.nan_to_num(np.minimum(MOST, abs(np.log(np.maximum(predicted, 1e-3) / measured))))


def _line(values: Times, known: Sequence[tuple[float, float]]) -> Times:
    """Interpolate between what is known, and go on below the least as above it."""
    (low, first), (next_, second), *_ = known
    slope = (second - first) / (next_ - low) if next_ > low else 0.0
    inner: Times = np.interp(values, *zip(*known, strict=True))
    return np.where(values < low, first + slope * (values - low), inner)


def values_of(name: str) -> Times:
    return np.linspace(*next(RANGES[field] for field in FIELDS if field in name), TRIED)


def fitted(sampled: Sampled, without: str) -> dict[str, float]:
    """Search one constant after the other on the runs of the other groups."""
    kept = sampled.groups != without
    places = {name: int(abs(values_of(name) - start).argmin()) for name, start in START.items()}
    for _ in range(ROUNDS):
        for name in START:
            losses = [sampled.losses({**places, name: place})[kept].mean() for place in range(TRIED)]
            if min(losses) < losses[places[name]] - LEAST_GAIN:
                places[name] = int(np.argmin(losses))
    return {name: float(values_of(name)[place]) for name, place in places.items()}


def name_of(run: MeasuredRun, field: str) -> str:
    """Return the constant that sets the field of the run's engine on its GPU."""
    names = (f"{run.engine} {field} on Blackwell", f"{run.engine} {field}", field)
    return next(name for name in names[find_gpu(run.gpu).arch != "blackwell" :] if name in START)


def _shipped(run: MeasuredRun, field: str) -> float:
    engine, gpu = find_engine(engine_of(run)), find_gpu(run.gpu)
    here = {"launch_us": engine.launch_us_on, "prefill_in_place": engine.prefill_in_place_on}.get(field)
    return here(gpu) if here else float(getattr(engine, field))


def _predict(run: MeasuredRun, constants: Mapping[str, float]) -> Prediction:
    return predict(run, host=fields_of(run, constants))


def fields_of(run: MeasuredRun, constants: Mapping[str, float]) -> dict[str, float]:
    """Return the fields of an engine with which these constants apply to the run."""
    engine, gpu = find_engine(engine_of(run)), find_gpu(run.gpu)
    found = {field: constants[name] for field in FIELDS if (name := name_of(run, field)) in constants}
    if "launch_us" in found:
        found["launch_us"] *= engine.launch_us / engine.launch_us_on(gpu)
    if "prefill_in_place" in found:
        share = (engine.prefill_in_place - 1) / (engine.prefill_in_place_on(gpu) - 1)
        found["prefill_in_place"] = 1 + share * (found["prefill_in_place"] - 1)
    return found


def _rows(found: Sequence[Prediction]) -> Iterator[tuple[str, list[Prediction]]]:
    yield "**all**", list(found)
    yield "**dense**", [p for p in found if p.run.family in DENSE]
    yield "**mixtures of experts**", [p for p in found if p.run.family not in DENSE]
    for engine in sorted({p.run.engine for p in found}):
        yield f"**{engine}**", [p for p in found if p.run.engine == engine]
    for engine, group in sorted({(p.run.engine, group_of(p.run)) for p in found}):
        yield f"{engine} {group}", [p for p in found if (p.run.engine, group_of(p.run)) == (engine, group)]


if __name__ == "__main__":
    main()
