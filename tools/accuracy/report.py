"""docs/accuracy.md, from what was measured and predicted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from accuracy.bands import class_of
from accuracy.closed_loop import Prediction
from accuracy.errors import Spread, grouped
from accuracy.kernels import KernelErrors
from accuracy.replay import Metrics, RecordedRun

METRICS = ("latency", "tpot", "ttft")
DENSE = ("Llama-3.1-8B-Instruct", "Llama-3.1-70B", "Qwen3-32B")


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; columns after the first are right-aligned when they hold numbers."""
    lines = [f"| {' | '.join(header)} |", "|" + "|".join(" --- " for _ in header) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(str(cell) for cell in row)} |" for row in rows)])


def run_table(
    predictions: Sequence[Prediction],
    name: str,
    key: Callable[[Prediction], tuple[str, ...]],
    metrics: Sequence[str] = METRICS,
) -> str:
    """One line for each group of runs: how many, and error of request latency, TPOT and TTFT."""
    return named_table(name, {" ".join(group): members for group, members in grouped(predictions, key).items()}, metrics)


def named_table(name: str, groups: Mapping[str, Sequence[Prediction]], metrics: Sequence[str] = METRICS) -> str:
    """The same of groups that may share runs; those without any are not shown."""
    rows = []
    for group, members in groups.items():
        if members:
            spreads = [Spread.of(p.error(metric) for p in members) for metric in metrics]
            rows.append([group, len(members), *(cell for s in spreads for cell in (str(s), s.signed))])
    names = [metric.upper() if metric in ("tpot", "ttft") else metric for metric in metrics]
    header = [name, "n" if name == "runs" else "runs", *(cell for each in names for cell in (each, "bias"))]
    return table(header, rows)


def summary(predictions: Sequence[Prediction]) -> str:
    """The lines that are promised: dense and all models, under the engines they were measured with."""
    all_of = [p for p in predictions if p.run.engine != "sglang"]
    chosen = {
        "vLLM and TensorRT-LLM, dense models": [p for p in all_of if p.run.family in DENSE],
        "vLLM and TensorRT-LLM, all models": all_of,
        "SGLang": [p for p in predictions if p.run.engine == "sglang"],
        "all": list(predictions),
    }
    return named_table("runs", chosen)


def totals(predictions: Sequence[Prediction]) -> str:
    """Errors of all runs, by kind of model and by engine."""
    kinds = {"dense": "dense", "moe": "mixtures of experts"}
    groups = {"**all**": list(predictions)}
    groups |= {f"**{name}**": [p for p in predictions if class_of(p.run.model) == kind] for kind, name in kinds.items()}
    engines = sorted({p.run.engine for p in predictions})
    return named_table("runs", groups | {engine: [p for p in predictions if p.run.engine == engine] for engine in engines})


def group_of(prediction: Prediction) -> tuple[str, ...]:
    """Model, format, GPU, engine and split of a run."""
    run = prediction.run
    split = f"tp{run.tp}" + (f" dp{run.dp}" if run.dp > 1 else "") + (f" ep{run.ep}" if run.ep > 1 else "")
    return run.family, run.weights, run.gpu, run.engine, split


def worst(predictions: Sequence[Prediction], causes: Sequence[tuple[str, str]], count: int = 10) -> str:
    """The deployments of at least three runs with the largest median error, and why: causes by the beginning of a name."""
    judged = [p for p in predictions if not p.run.cold_start]
    groups = [(name, members) for name, members in grouped(judged, group_of).items() if len(members) >= 3]
    ranked = sorted(groups, key=lambda item: -Spread.of(p.error("latency") for p in item[1]).median)[:count]
    rows = []
    for parts, members in ranked:
        s, name = Spread.of(p.error("latency") for p in members), " ".join(parts)
        cause = next((cause for beginning, cause in causes if name.startswith(beginning)), "not known")
        rows.append([name, s.n, str(s), f"{s.bias:+.1f}", cause])
    return table(["deployment", "runs", "latency", "bias", "cause"], rows)


_OPS = {
    "gemm": "GEMM",
    "attention_prefill": "prefill attention",
    "attention_decode": "decode attention",
    "attention_decode_window": "decode attention, window",
    "mla_prefill": "MLA prefill",
    "mla_decode": "MLA decode",
    "mla_bmm": "MLA absorbed product",
    "moe": "MoE",
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
}


def kernel_table(errors: Sequence[KernelErrors]) -> str:
    """Operation and format down, GPU across; in each cell the engines in the order vLLM / SGLang / TensorRT-LLM."""
    gpus = list(dict.fromkeys(e.gpu for e in errors))
    rows = []
    for (op, dtype), members in grouped(errors, lambda e: (_OPS.get(e.op, e.op), e.dtype)).items():
        row: list[str] = [f"{op}, {dtype}"]
        for gpu in gpus:
            here = sorted((e for e in members if e.gpu == gpu), key=lambda e: _ENGINE_ORDER.index(e.engine))
            row.append("<br>".join(f"{_SHORT[e.engine]} {e.spread}" for e in here) or " ")
        rows.append(row)
    return table(["operation", *gpus], rows)


_ENGINE_ORDER = ("vllm", "sglang", "trtllm", "pooled")
_SHORT = {"vllm": "v", "sglang": "s", "trtllm": "t", "pooled": ""}


def kernel_summary(errors: Sequence[KernelErrors]) -> str:
    """Median over GPUs and engines of each operation's figures."""
    rows = []
    for (op, dtype), members in grouped(errors, lambda e: (_OPS.get(e.op, e.op), e.dtype)).items():
        medians, p90s = sorted(e.spread.median for e in members), sorted(e.spread.p90 for e in members)
        middle = len(members) // 2
        rows.append([f"{op}, {dtype}", len(members), f"{medians[middle]:.1f} / {p90s[middle]:.1f}", f"{medians[-1]:.1f}"])
    return table(["operation", "tables", "median / p90", "largest median"], rows)


def replay_table(run: RecordedRun, measured: Metrics, replays: dict[str, Metrics]) -> str:
    """Measured and replayed metrics side by side."""
    kv = bool(run.kv_share.any())
    lines: list[tuple[str, Callable[[Metrics], float], str]] = [
        ("TPOT, mean (ms)", lambda m: m.tpot_s * 1e3, ".1f"),
        ("request latency, mean (s)", lambda m: m.latency_s, ".2f"),
        ("output tokens/s", lambda m: m.tokens_per_s, ".0f"),
        ("TTFT, mean (s)", lambda m: m.ttft_s, ".2f"),
        ("TPOT, p90 (ms)", lambda m: m.tpot_p90_s * 1e3, ".1f"),
        ("TPOT, p99 (ms)", lambda m: m.tpot_p99_s * 1e3, ".1f"),
        ("request latency, p90 (s)", lambda m: m.latency_p90_s, ".2f"),
        ("sequences running, mean", lambda m: float(m.running.mean()), ".1f"),
    ]
    if kv:
        lines.append(("KV cache in use, mean (%)", lambda m: m.kv_mean * 100, ".1f"))
        lines.append(("requests held up by preemption", lambda m: float(m.held_up), ".0f"))
        lines.append(("left the batch unfinished (lower bound)", lambda m: float(m.preempted), ".0f"))
    rows = []
    for name, value, form in lines:
        row = [name, format(value(measured), form)]
        for metrics in replays.values():
            row += [format(value(metrics), form), f"{(value(metrics) / value(measured) - 1) * 100:+.1f} %"]
        rows.append(row)
    header = ["", "measured", *(cell for name in replays for cell in (name, "error"))]
    return table(header, rows)


def occupancy_table(measured: Metrics, replayed: Metrics, every: int = 20) -> str:
    """Running sequences and KV occupancy over time."""
    ends = min(len(measured.kv), len(replayed.kv))
    picks = range(every - 1, ends, every)
    rows = [
        ["running, measured", *(f"{measured.running[i]:.0f}" for i in picks)],
        ["running, replayed", *(f"{replayed.running[i]:.0f}" for i in picks)],
        ["KV in use, measured (%)", *(f"{measured.kv[i] * 100:.0f}" for i in picks)],
        ["KV in use, replayed (%)", *(f"{replayed.kv[i] * 100:.0f}" for i in picks)],
    ]
    return table(["second", *(str(i + 1) for i in picks)], rows)
