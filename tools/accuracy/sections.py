"""Parts of docs/accuracy.md beside the whole runs: prefix caches, maximum throughput, memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from accuracy.agents import AgentPrediction, AgentRun, predict
from accuracy.csv_files import read_as
from accuracy.errors import Spread, grouped
from accuracy.logged_memory import logged_rows
from accuracy.max_throughput import PublishedThroughput, Reached, reach
from accuracy.report import table

TEXT = Path(__file__).with_name("text")
AGENTS = "agents.csv.gz"
MAX_THROUGHPUT = "max_throughput.csv.gz"


def agents_section(data: Path, processes: int) -> str:
    """Prefix caches: hit rate and TTFT of each run, then both by family."""
    with ProcessPoolExecutor(processes) as pool:
        found = list(pool.map(predict, read_as(AgentRun, data / AGENTS)))
    rows = []
    for p in found:
        run = p.run
        cells = [f"{run.hit * 100:.1f}", f"{p.hit * 100:.1f}", f"{p.error('hit') * 100:+.1f}"]
        for metric in ("ttft_ms", "ttft_p50_ms", "tpot_ms"):
            cells += _compared(getattr(run, metric), getattr(p, metric))
        rows.append([run.name, str(run.clients), *cells])
    header = [
        "run", "clients", "hit %", "ours", "points", "TTFT ms", "ours", "%", "median", "ours", "%", "TPOT ms", "ours", "%",
    ]  # fmt: skip
    return "\n\n".join([text("agents"), _families(found), table(header, rows)])


def _families(found: Sequence[AgentPrediction]) -> str:
    rows = []
    for (family, workload), members in grouped(found, lambda p: (p.run.family, p.run.workload)).items():
        hits = Spread.of(p.error("hit") for p in members)
        cells = [str(hits), f"{hits.bias:+.1f}"]
        for metric in ("ttft_ms", "ttft_p50_ms", "tpot_ms"):
            spread = Spread.of(p.error(metric) for p in members if math.isfinite(getattr(p.run, metric)))
            cells += [str(spread), f"{spread.bias:+.1f}"]
        rows.append([f"{family} {workload}", len(members), *cells])
    header = ["runs", "n", "hit rate, points", "bias", "TTFT, mean", "bias", "TTFT, median", "bias", "TPOT", "bias"]
    return table(header, rows)


def _compared(measured: float, ours: float) -> list[str]:
    if not math.isfinite(measured):
        return ["-", f"{ours:.0f}", "-"]
    digits = 1 if measured < 50 else 0
    return [f"{measured:.{digits}f}", f"{ours:.{digits}f}", f"{(ours / measured - 1) * 100:+.0f}"]


def max_throughput_section(published: Path, processes: int) -> str:
    """NVIDIA's published maximum throughput: by kind of model, then by column of its tables."""
    with ProcessPoolExecutor(processes) as pool:
        found = list(pool.map(reach, read_as(PublishedThroughput, published), chunksize=4))
    usable = [r for r in found if not r.problem]
    lines = [
        text("max-throughput"),
        _throughput(usable, "runs", lambda r: ("dense" if r.run.dense else "mixtures of experts",)),
        _throughput(usable, "stages", lambda r: ("one stage" if r.run.pp == 1 else "pipeline", _kind(r))),
        _throughput(usable, "column", _column),
        *refusals((f"{r.run.family} {r.run.gpu} {r.run.split} {r.run.isl}/{r.run.osl}", r.problem) for r in found),
    ]
    return "\n\n".join(lines)


def _kind(reached: Reached) -> str:
    return "dense" if reached.run.dense else "mixtures"


def _column(reached: Reached) -> tuple[str, ...]:
    run = reached.run
    return run.family, run.weights, run.gpu, run.split, "of " + run.version


def _throughput(found: Sequence[Reached], name: str, key: Callable[[Reached], tuple[str, ...]]) -> str:
    rows = []
    for group, members in grouped(found, key).items():
        spread = Spread.of(r.error for r in members)
        rows.append([" ".join(group), spread.n, str(spread), f"{spread.bias:+.1f}"])
    return table([name, "n", "output tokens/s", "bias"], rows)


def memory_section() -> str:
    header = ["instance", "weights, logged", "ours", "KV pool, logged (GiB)", "ours", "error %", "remark"]
    return "\n\n".join([text("memory"), table(header, logged_rows())])


def text(name: str) -> str:
    """Return the words of a section."""
    return (TEXT / f"{name}.md").read_text().strip()


def refusals(found: Iterable[tuple[str, str]]) -> list[str]:
    """Return a list of what the engine refuses, of names and problems; nothing without a problem."""
    refused = [f"- {name}: {problem}" for name, problem in found if problem]
    return ["\n".join(["Refused by the engine:\n", *refused])] if refused else []
