"""Each constant of the engines' host side: what it rests on, and the errors with it and without it.

A run supports a constant if its TTFT, TPOT or latency changes by at least a hundredth without it. The rule: at least two
models and two GPUs, or a source that names it. Errors are those on the runs of scripted.csv.gz and first_tokens.csv.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor

from accuracy.closed_loop import Prediction, predict
from accuracy.errors import Spread
from accuracy.report import METRICS, table
from accuracy.runs import MeasuredRun
from llmirage_server.perf.engines.lookup import list_engines

# Fields of an engine that measured runs gave or could give, and the value that leaves each out.
NEUTRAL: Mapping[str, float] = {
    "launch_us": 0.0,
    "front_end_ms": 0.0,
    "tokenize_ms": 0.0,
    "output_token_us": 0.0,
    "prefill_in_place": 1.0,
    "host_step_ms": 0.0,
    "host_sequence_us": 0.0,
    "hidden_step_ms": 0.0,
    "hidden_sequence_us": 0.0,
    "dp_sync_ms": 0.0,
}
_CHANGED = 0.01


def constants_table(runs: Sequence[MeasuredRun], processes: int) -> str:
    """One line for each constant of each engine that is not neutral."""
    rows: list[list[object]] = []
    with ProcessPoolExecutor(processes) as pool:
        whole = list(pool.map(predict, runs, chunksize=4))
        for engine in list_engines():
            own = [p for p in whole if p.run.engine == engine.name and not p.problem]
            for name, neutral in NEUTRAL.items():
                value = getattr(engine, name)
                if value == neutral or not own:
                    continue
                jobs = [pool.submit(predict, p.run, "known settings", {name: neutral}) for p in own]
                rows.append([engine.name, name, f"{value:g}", *_judged(own, [job.result() for job in jobs])])
    header = ["engine", "constant", "value", "runs", "models", "GPUs", *(f"{m}, with and without" for m in METRICS)]
    return table(header, rows)


def _judged(with_it: Sequence[Prediction], without: Sequence[Prediction]) -> list[object]:
    """Support of a constant: numbers of runs, models and GPUs, and the errors of these runs."""
    pairs = [pair for pair in zip(with_it, without, strict=True) if _tells(*pair)]
    if not pairs:
        return [0, 0, 0, *["-"] * len(METRICS)]
    runs = [p.run for p, _ in pairs]
    counts = [len(runs), len({run.family for run in runs}), len({run.gpu for run in runs})]
    spreads = [[Spread.of(pair[i].error(metric) for pair in pairs) for i in (0, 1)] for metric in METRICS]
    return [*counts, *(f"{one} {one.signed}; {other} {other.signed}" for one, other in spreads)]


def _tells(with_it: Prediction, without: Prediction) -> bool:
    if without.problem:
        return False
    times = ((getattr(p, f"{metric}_ms") for p in (with_it, without)) for metric in METRICS)
    return any(abs(other / one - 1) >= _CHANGED for one, other in times)
