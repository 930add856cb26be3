"""Puts docs/accuracy.md together."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from accuracy.bands import class_of, points_of, write_bands
from accuracy.closed_loop import STAND_INS, Prediction, Variant, predict_all
from accuracy.coverage import coverage_table, width_table
from accuracy.csv_files import read_csv
from accuracy.errors import Spread
from accuracy.kernels import kernel_errors
from accuracy.plots import write_plots
from accuracy.replay import load_recorded, measured, replay
from accuracy.report import (
    METRICS,
    group_of,
    kernel_summary,
    kernel_table,
    occupancy_table,
    replay_table,
    run_table,
    summary,
    table,
    totals,
    worst,
)
from accuracy.runs import DATA, ROOT, MeasuredRun, RunsError, load_runs
from accuracy.saved import load_predictions, save_predictions, shipped
from accuracy.sections import (
    AGENTS,
    MAX_THROUGHPUT,
    TEXT,
    agents_section,
    max_throughput_section,
    memory_section,
    refusals,
    text,
)
from accuracy.truth import find_drafted

SPECULATIVE = "speculative.csv.gz"
SCRIPTED = "scripted.csv.gz"
_LEFT_OUT = {"family": "family", "gpu": "GPU", "version": "version of the engine", "deployment": "deployment"}
DISAGGREGATED = "disaggregated.csv.gz"
PREDICTIONS = DATA / "predictions.csv.gz"
FIGURES = ROOT / "server" / "llmirage_server" / "perf" / "catalogue" / "data" / "bands.json"


def write_document(out: Path, data: Path, ops: Path, processes: int, sample: int, figures: Path | None = FIGURES) -> None:
    """Run everything on the measurements in `data` and the op tables in `ops`, and write the page.

    figures: where the errors of whole runs go as data, for `llmirage size`.
    """
    if importlib.util.find_spec("aiconfigurator_core") is None:
        raise RunsError(["the page compares with aiconfigurator-core, which is not installed: pip install -e '.[silicon]'"])
    runs = load_runs(data / "runs.csv.gz")
    predictions = predict_all(runs, processes=processes)
    scripted = predict_all(load_runs(data / SCRIPTED), processes=processes)
    if figures is not None:
        save_predictions(PREDICTIONS, [*predictions, *scripted])
        write_bands(figures, shipped(PREDICTIONS.parent))  # of the digits that are kept
    found = [part for name, part in PARTS.items() if (data / _NEEDS.get(name, "")).exists()]
    parts = [part(data, ops, processes, sample) for part in found]
    _write(out, [*_of_whole_runs(out, data, predictions, scripted, figures or FIGURES), *parts], data)


def write_whole_runs(out: Path, data: Path, names: Sequence[str], processes: int, sample: int) -> None:
    """Write the page from the predictions of whole runs that are kept; of the other parts, simulate those of these names."""
    kept = [load_predictions(PREDICTIONS, load_runs(data / name)) for name in ("runs.csv.gz", SCRIPTED)]
    parts = [PARTS[name](data, data / "ops", processes, sample) for name in PARTS if name in names]
    if missing := [name for name in PARTS if name not in names]:
        parts.append(f"Not simulated anew for this version of the page: {', '.join(missing)}; `make accuracy` adds them.")
    _write(out, [*_of_whole_runs(out, data, *kept, FIGURES), *parts], data)


def _of_whole_runs(
    out: Path, data: Path, predictions: Sequence[Prediction], scripted: Sequence[Prediction], figures: Path
) -> list[str]:
    runs = [p.run for p in predictions]
    shown = [p for p in _usable(predictions) if not p.run.cold_start]
    return [
        *(text(name) for name in ("intro", "fitted", "left-out")),
        _whole_runs(runs, predictions),
        _scripted(scripted),
        _bands([*predictions, *scripted], figures),
        _repeats(data),
        "\n\n".join([text("plots"), write_plots(out.with_suffix(""), shown)]),
    ]


def _sampled(data: Path, sample: int) -> list[MeasuredRun]:
    return load_runs(data / "runs.csv.gz")[::sample]


def _write(out: Path, sections: Sequence[str], data: Path) -> None:
    whole = [*sections, text("own-runs"), _dropped(data)]
    out.write_text("\n\n".join(section.strip() for section in whole) + "\n")


def _usable(predictions: Sequence[Prediction]) -> list[Prediction]:
    return [p for p in predictions if not p.problem]


def _whole_runs(runs: Sequence[MeasuredRun], predictions: Sequence[Prediction]) -> str:
    usable, drafted = _usable(predictions), find_drafted(runs)
    lines = [
        text("whole-runs"),
        summary(usable),
        "Without the runs that probably drafted tokens (see the rows at the end of this page):",
        summary([p for p in usable if p.run.id not in drafted]),
        "### By kind of model, and by source",
        run_table(usable, "runs", lambda p: ({"moe": "mixtures of experts", "dense": "dense"}[class_of(p.run.model)],)),
        run_table(usable, "source", lambda p: (_source(p.run),)),
        "### By engine",
        run_table(usable, "engine", lambda p: (p.run.engine,)),
        "### By GPU",
        run_table(usable, "GPU", lambda p: (p.run.gpu,)),
        "### By model",
        run_table(usable, "model", lambda p: (p.run.family,)),
        "### By deployment",
        run_table(usable, "deployment", group_of),
        "### The ten worst deployments",
        worst(usable, _causes()),
        *refusals((p.run.id, p.problem) for p in predictions),
    ]
    return "\n\n".join(lines)


def _source(run: MeasuredRun) -> str:
    if run.id.startswith("inferencex"):
        return "InferenceMAX's records of DeepSeek-R1"
    return "InferenceMAX, from aiconfigurator-core" if run.shortest < 1 else "NVIDIA's sweeps, from aiconfigurator-core"


def _causes() -> list[tuple[str, str]]:
    """Beginnings of deployments' names, and why the model is off there."""
    return [(row["deployment"], row["cause"]) for row in read_csv(TEXT / "causes.csv")]


def _scripted(predictions: Sequence[Prediction]) -> str:
    usable = [p for p in _usable(predictions) if not p.run.odd]
    lines = [text("scripted"), totals(usable), run_table(usable, "deployment", group_of)]
    return "\n\n".join(lines)


def _bands(predictions: Sequence[Prediction], figures: Path) -> str:
    points = points_of(predictions)
    lines = [
        text("bands"),
        *(f"Without the run's {name}:\n\n{coverage_table(points, by)}" for by, name in _LEFT_OUT.items()),
        "### Factors, of 50 / 90 %",
        width_table(figures),
    ]
    return "\n\n".join(lines)


def _repeats(data: Path) -> str:
    found = json.loads((data / "repeats.json").read_text())
    rows = [[name, *(f"{found[key][0]} / {found[key][1]}" for key in ("tpot", "ttft"))] for name in ("difference",)]
    points = f"{found['points']} points, {found['pairs']} pairs"
    return "\n\n".join([text("repeats"), table([points, "TPOT", "TTFT"], rows)])


def speculative_section(data: Path, processes: int) -> str:
    """Runs that drafted tokens, with the share of drafts that was accepted as measured."""
    usable = _usable(predict_all(load_runs(data / SPECULATIVE), processes=processes))
    lines = [
        text("speculative"),
        run_table(usable, "runs", lambda p: ("all",)),
        run_table(usable, "model", lambda p: (p.run.family, p.run.weights, p.run.gpu, p.run.engine)),
        run_table(usable, "draft tokens", lambda p: (p.run.speculation, str(p.run.drafts))),
        run_table(usable, "clients", lambda p: ("up to 16" if p.run.concurrency <= 16 else "more",)),
    ]
    return "\n\n".join(lines)


def disaggregated_section(data: Path, processes: int) -> str:
    """Runs with prefill and decode on different instances."""
    runs = sorted(load_runs(data / DISAGGREGATED), key=lambda run: -run.concurrency * run.osl)  # the longest first
    predictions = predict_all(runs, processes=processes)
    usable = _usable(predictions)

    def errors(name: str, key: Callable[[Prediction], tuple[str, ...]]) -> str:
        return run_table(usable, name, key, (*METRICS, "throughput"))

    lines = [
        text("disaggregated"),
        errors("runs", lambda p: ("all",)),
        errors("router", lambda p: (p.run.settings,)),
        errors("GPU", lambda p: (p.run.gpu, p.run.weights)),
        errors("drafts", lambda p: (p.run.speculation or "none",)),
        errors(
            "clients",
            lambda p: ("up to 16" if p.run.concurrency <= 16 else "to 256" if p.run.concurrency <= 256 else "more",),
        ),
        errors(
            "topology",
            lambda p: (f"{p.run.settings} {p.run.gpu} {p.run.weights}", *p.run.speculation.split(), p.run.topology),
        ),
    ]
    lines += refusals((p.run.id, p.problem) for p in predictions)
    return "\n\n".join(lines)


def _replays(data: Path) -> str:
    lines = [text("replays")]
    for folder in sorted(path.parent for path in data.glob("*/run.json")):
        run = load_recorded(folder)
        reality, replays = measured(run), {"ours": replay(run)}
        if "num_gpu_blocks_override" in run.settings:
            replays["ours, KV cache by our own estimate"] = replay(run, num_gpu_blocks_override=None)
        if "peer_to_peer" in run.settings:
            replays["ours, copies between GPUs as in the catalogue"] = replay(run, peer_to_peer=None)
        lines += [f"### {run.name}", replay_table(run, reality, replays)]
        cpu = max(metrics.cpu_s for metrics in replays.values())
        preempted = "" if not run.kv_share.any() else f" Our engine counts {replays['ours'].preemptions} preemptions in all."
        lines.append(f"One replay took {cpu:.1f} CPU seconds.{preempted}")
        if run.kv_share.any():
            lines.append(occupancy_table(reality, replays["ours"]))
    return "\n\n".join(lines)


def _kernels(ops: Path, data: Path) -> str:
    errors = kernel_errors(ops, data / "rtx4090_kernels") if (data / "rtx4090_kernels").exists() else kernel_errors(ops)
    compute = [e for e in errors if e.gpu and not e.op.startswith(("all_", "reduce", "dispatch", "combine"))]
    messages = [e for e in errors if e not in compute]
    return "\n\n".join(
        [
            text("kernels"),
            kernel_summary(errors),
            "### Kernels by GPU and engine",
            kernel_table(compute),
            "### Collectives by GPU and engine",
            kernel_table(messages),
        ]
    )


def _compared(
    section: str, runs: Sequence[MeasuredRun], variant: Variant, processes: int, name: str, other_name: str
) -> str:
    """A section on runs that can be predicted in both ways: as ever, and in a variant."""
    theirs = _usable(predict_all(runs, variant, processes))
    ids = {p.run.id for p in theirs}
    ours = _usable(predict_all([run for run in runs if run.id in ids], processes=processes))
    return "\n\n".join([text(section), _beside(ours, theirs, name, other_name)])


def _beside(ours: Sequence[Prediction], others: Sequence[Prediction], name: str, other_name: str) -> str:
    """Request latency of two predictions of the same runs, by model and GPU."""
    pairs: dict[str, tuple[list[float], list[float]]] = {}
    by_id = {p.run.id: p for p in others}
    for p in ours:
        if (other := by_id.get(p.run.id)) is None:
            continue
        for group in (f"{p.run.family} {p.run.weights}, {p.run.gpu}, {p.run.engine}", "**all**"):
            a, b = pairs.setdefault(group, ([], []))
            a.append(p.error("latency"))
            b.append(other.error("latency"))
    rows = []
    for group, (a, b) in sorted(pairs.items()):
        x, y = Spread.of(a), Spread.of(b)
        rows.append([group, x.n, str(x), f"{x.bias:+.1f}", str(y), f"{y.bias:+.1f}"])
    return table(["runs", "n", name, "bias", other_name, "bias"], rows)


def _dropped(data: Path) -> str:
    reasons = Counter(row["why"] for row in read_csv(data / "dropped.csv"))
    rows = [[why, count] for why, count in reasons.most_common()]
    return "\n\n".join([text("dropped"), table(["why", "rows"], rows), text("token-positions")])


_NEEDS = {"speculation": SPECULATIVE, "prefix caches": AGENTS, "pools": DISAGGREGATED}

# Parts of the page beside the whole runs: of data, op tables, processes, and every so many-th run of comparisons.
PARTS: Mapping[str, Callable[[Path, Path, int, int], str]] = {
    "speculation": lambda data, _, processes, __: speculative_section(data, processes),
    "prefix caches": lambda data, _, processes, __: agents_section(data, processes),
    "maximum throughput": lambda _, __, processes, ___: max_throughput_section(
        PREDICTIONS.with_name(MAX_THROUGHPUT), processes
    ),
    "memory": lambda *_: memory_section(),
    "pools": lambda data, _, processes, __: disaggregated_section(data, processes),
    "replays": lambda data, *_: _replays(data),
    "kernels": lambda data, ops, *_: _kernels(ops, data),
    "transferred": lambda data, _, processes, sample: _compared(
        "transferred",
        [run for run in _sampled(data, sample) if run.gpu in STAND_INS],
        "transferred",
        processes,
        "own constants",
        "another GPU's",
    ),
    "tables": lambda data, _, processes, sample: _compared(
        "silicon", _sampled(data, sample), "silicon", processes, "roofline", "aiconfigurator-core's tables"
    ),
    "defaults": lambda data, _, processes, sample: _compared(
        "defaults",
        [run for run in _sampled(data, sample) if run.settings],
        "default settings",
        processes,
        "known settings",
        "defaults",
    ),
}
