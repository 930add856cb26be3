"""profile_export_aiperf.json and .csv: the summary of a run, with AIPerf's names and structure; its _timeslices likewise."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from llmirage_client.measure.catalogue import OVER_TIME, PER_CONVERSATION, PER_REQUEST, WHOLE_RUN, Spec
from llmirage_client.measure.columns import BRANCH_MODES
from llmirage_client.measure.groups import RequestGroup
from llmirage_client.measure.metrics import Metrics, Slice
from llmirage_client.measure.over_time import Level
from llmirage_client.measure.record import RunResult
from llmirage_client.measure.slo import verdicts_json, verdicts_of
from llmirage_client.report.records_file import RunClock, error_details, run_head
from llmirage_shared.statistics import Summary

CSV_STATISTICS = ("avg", "min", "max", "sum", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "std")


def summary_json(result: RunResult, metrics: Metrics, cli_command: str, benchmark_id: str = "") -> dict[str, Any]:
    """Return the content of profile_export_aiperf.json. What AIPerf has no place for is under the key "llmirage"."""
    clock = RunClock(result.start_s, result.start_unix_s, result.speed)
    head = run_head(result, benchmark_id, clock.start_unix_ns)
    content: dict[str, Any] = {key: head.pop(key) for key in ("schema_version", "benchmark_id")}
    content |= {tag: WHOLE_RUN[tag].entry(value) for tag, value in metrics.whole_run.items()}
    content |= {tag: PER_REQUEST[tag].entry(summary) for tag, summary in metrics.per_request.items()}
    content |= {tag: OVER_TIME[tag].entry(level) for tag, level in metrics.over_time.items()}
    duration_s = (result.end_s - result.start_s) * result.speed
    content |= {
        "input_config": head["input_config"],
        "run_info": {"cli_command": cli_command},
        "was_cancelled": result.cancelled,
        "is_complete": not result.cancelled,
        "error_summary": [{"error_details": error_details(g.error), "count": g.count} for g in metrics.errors],
        "start_time": head["start_time"],
        "end_time": datetime.fromtimestamp(result.start_unix_s + duration_s, UTC).isoformat(timespec="microseconds"),
    }
    if result.branch_stats is not None:
        content["branch_stats"] = asdict(result.branch_stats)
    cost = metrics.client
    verdicts = verdicts_of(result.options, metrics)
    content["llmirage"] = {
        **head["llmirage"],
        "run_s": result.end_s - result.start_s,
        "cancel_reason": result.cancel_reason,
        "input_tokens_counted_by": metrics.input_counted_by,
        "output_tokens_counted_by": metrics.output_counted_by,
        "by_agent_depth": [_group_json("agent_depth", g) for g in metrics.by_depth],
        "by_turn_index": [_group_json("turn_index", g) for g in metrics.by_turn],
        "by_branch_mode": [
            _group_json("branch_mode", g) | {"branch_mode": BRANCH_MODES[g.key]} for g in metrics.by_branch_mode
        ],
        "conversations": {tag: PER_CONVERSATION[tag].entry(s) for tag, s in metrics.per_conversation.items()},
        "workload_throughput": {name: asdict(rates) for name, rates in metrics.workload_throughput.items()},
        "cached_tokens_counted_by": metrics.cached_counted_by,
        "client": None if cost is None else {**asdict(cost), "was_bottleneck": cost.was_bottleneck},
        **({"workers": [asdict(worker) for worker in result.workers]} if result.workers else {}),
        **({"repeats": result.repeats.as_dict()} if result.repeats else {}),
        **({"distortion": result.distortion.as_dict()} if result.distortion else {}),
        **({"mismatches": result.mismatches.as_dict()} if result.mismatches else {}),
        "notes": list(result.notes),
        **({"slo": verdicts_json(verdicts)} if verdicts else {}),
    }
    return content


def summary_csv(metrics: Metrics) -> str:
    """Return profile_export_aiperf.csv: a row a metric with statistics, a blank line, a row a single value."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("Metric", *CSV_STATISTICS))
    figures: dict[str, Summary | Level] = {PER_REQUEST[tag].heading: summary for tag, summary in metrics.per_request.items()}
    figures |= {OVER_TIME[tag].heading: level for tag, level in metrics.over_time.items()}
    for heading in sorted(figures):
        rows.writerow((heading, *(getattr(figures[heading], name, "") for name in CSV_STATISTICS)))
    rows.writerow(())
    rows.writerow(("Metric", "Value"))
    for tag in sorted(metrics.whole_run):
        rows.writerow((WHOLE_RUN[tag].heading, metrics.whole_run[tag]))
    return text.getvalue()


def _group_json(key: str, group: RequestGroup) -> dict[str, Any]:
    content: dict[str, Any] = {
        key: group.key,
        "request_count": group.ok,
        "error_request_count": group.failed,
        "cancelled_request_count": group.cancelled,
    }
    content |= {tag: PER_REQUEST[tag].entry(summary) for tag, summary in group.per_request.items()}
    if group.cached_pct is not None:
        content["usage_prompt_cache_read_pct"] = {"unit": "%", "avg": group.cached_pct}
    return content


def slices_json(slices: Sequence[Slice], input_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the slices for JSON.

    timeslice_start_s and _end_s are ours: seconds since the first request, in cluster time.
    """
    return {
        "timeslices": [
            {
                "timeslice_index": one.index,
                "timeslice_start_s": one.start_s,
                "timeslice_end_s": one.end_s,
                **{spec.tag: {"unit": spec.unit, **figures} for spec, figures in _metrics(one)},
            }
            for one in slices
        ],
        "input_config": input_config,
    }


def slices_csv(slices: Sequence[Slice]) -> str:
    """Return one row a figure: slice, metric, unit, statistic, value."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("Timeslice", "Metric", "Unit", "Stat", "Value"))
    for one in slices:
        for spec, figures in _metrics(one):
            rows.writerows((one.index, spec.title, spec.unit, name, value) for name, value in figures.items())
    return text.getvalue()


def _metrics(one: Slice) -> Iterator[tuple[Spec, dict[str, float]]]:
    for tag, summary in one.metrics.per_request.items():
        yield PER_REQUEST[tag], summary.as_dict()
    for tag, level in one.metrics.over_time.items():
        yield OVER_TIME[tag], level.as_dict()
    for tag, value in one.metrics.whole_run.items():
        yield WHOLE_RUN[tag], {"avg": value}
