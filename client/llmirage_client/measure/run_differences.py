"""The settings in which two runs differ: a comparison of figures is about these as much as about the endpoints."""

from __future__ import annotations

from collections import Counter
from typing import Any

from llmirage_client.measure.metrics import compute
from llmirage_client.measure.record import RunResult

# Options that say where files go or where requests come from, not what was asked of the endpoint.
_NO_MATTER = {
    *(
        "artifact_dir",
        "overwrite",
        "records",
        "api_key",
        "url",
        "headers",
        "goodput",
        "slo",
        "junit",
        "slice_duration",
        "file",
    )
}


def run_differences(baseline: RunResult, other: RunResult) -> list[str]:
    """One sentence each, about the workload, the settings and how the runs ended; empty when there is nothing to say."""
    found = []
    settings: tuple[tuple[str, Any, Any], ...] = (
        ("model", baseline.model, other.model),
        ("API", baseline.endpoint, other.endpoint),
        ("workload", baseline.workload_path, other.workload_path),
        ("format of the workload", baseline.workload_format, other.workload_format),
        ("streaming", baseline.streaming, other.streaming),
        ("speed", baseline.speed, other.speed),
    )
    for word, one, two in settings:
        if one != two:
            found.append(f"The {word} differs: {_shown(one)} and {_shown(two)}.")
    options = []
    for name in sorted((baseline.options.keys() | other.options.keys()) - _NO_MATTER - {"model", "streaming", "speed"}):
        one, two = _shown(baseline.options.get(name)), _shown(other.options.get(name))
        if one != two:
            options.append(f"--{name.replace('_', '-')} ({one}, {two})")
    if options:
        found.append(f"Options differ: {', '.join(options)}.")
    if _conversations(baseline) != _conversations(other):
        counts = " and ".join(str(len(_conversations(run))) for run in (baseline, other))
        found.append(f"The runs have different conversations ({counts} different ones).")
    for name, run in (("first", baseline), ("other", other)):
        if run.cancelled:
            found.append(f"The {name} run is not whole: {run.cancel_reason or 'it was stopped'}.")
        cost = compute(run).client
        if cost is not None and cost.was_bottleneck:
            state = "late" if cost.late else "busy"
            found.append(f"The client of the {name} run was {state}: its figures may be worse than the endpoint is.")
    return found


def _conversations(run: RunResult) -> Counter[str]:
    roots = {
        (r.root_correlation_id, r.conversation_id) for r in run.records if r.agent_depth == 0 and r.phase == "profiling"
    }
    return Counter(name for _, name in roots)


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)) and len(value) == 1:
        value = value[0]
    if not value:  # switches that are off, lists without an entry, zeros: as if not given
        return "not given"
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."
