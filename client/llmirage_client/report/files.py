"""The files of a run, in the layout and with the names that AIPerf's users and tools know, and objectives as JUnit XML."""

from __future__ import annotations

import csv
import html
import io
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from llmirage_client.measure.breakdowns import Level, RequestGroup
from llmirage_client.measure.catalogue import OVER_TIME, PER_CONVERSATION, PER_REQUEST, WHOLE_RUN, Spec
from llmirage_client.measure.columns import BRANCH_MODES, Columns, columns_of
from llmirage_client.measure.metrics import Metrics, Slice, compute, compute_columns, time_slices
from llmirage_client.measure.record import RunResult
from llmirage_client.measure.request_metrics import all_request_columns
from llmirage_client.measure.run_folder import RECORDS_FILE
from llmirage_client.measure.slo import Verdict, verdicts_json, verdicts_of
from llmirage_client.report.evalscope_files import TIMELINE_JSON, evalscope_files
from llmirage_client.report.otel import METRICS_FILE, SPANS_FILE, metric_lines, span_lines
from llmirage_client.report.output_files import (
    hide_in_command,
    hide_in_text,
    json_bytes,
    write_json,
    write_text,
    write_whole,
)
from llmirage_client.report.records_file import (
    EVENTS_FILE,
    RecordWriter,
    RunClock,
    error_details,
    event_lines,
    record_line,
    remove_earlier_run,
    run_head,
)
from llmirage_shared.statistics import Summary

CSV_STATISTICS = ("avg", "min", "max", "sum", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "std")


def _metrics_json(metrics: Metrics) -> dict[str, Any]:
    """Return the metrics of a phase, by tag."""
    content = {tag: WHOLE_RUN[tag].entry(value) for tag, value in metrics.whole_run.items()}
    content |= {tag: PER_REQUEST[tag].entry(summary) for tag, summary in metrics.per_request.items()}
    return content | {tag: OVER_TIME[tag].entry(level) for tag, level in metrics.over_time.items()}


def _replay_json(result: RunResult, phase: str) -> dict[str, Any]:
    """Return the metrics of a phase that only runs over recorded trees have."""
    content: dict[str, Any] = {}
    if result.replay is None:
        return content
    if (hits := result.replay.theoretical_prefix_cache_hit(phase)) is not None:
        content["theoretical_prefix_cache_hit"] = hits
    if phase == "profiling" and result.replay.lanes:
        content["context_overflow_count"] = {"unit": "requests", "avg": float(result.replay.context_overflows)}
    return content


def _warm_up(result: RunResult, columns: Columns) -> dict[str, Any] | None:
    """Return the metrics of the warm-up of a scenario."""
    rows = columns.rows(~columns.measured)
    if result.replay is None or not result.replay.lanes or not len(rows):
        return None
    rows = replace(rows, measured=~rows.measured)
    found = all_request_columns(rows, result.speed, result.options)
    return _metrics_json(compute_columns(rows, result.speed, metrics=found))


def summary_json(
    result: RunResult, metrics: Metrics, cli_command: str, benchmark_id: str = "", warm_up: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the content of profile_export_aiperf.json. What AIPerf has no place for is under the key "llmirage".

    warm_up: metrics of the warm-up, where they are wanted.
    """
    clock = RunClock(result.start_s, result.start_unix_s, result.speed)
    head = run_head(result, benchmark_id, clock.start_unix_ns)
    content: dict[str, Any] = {key: head.pop(key) for key in ("schema_version", "benchmark_id")}
    content |= _metrics_json(metrics)
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
    content |= _replay_json(result, "profiling")
    if result.replay is not None and result.replay.lanes:
        content["warmup_metrics"] = {**warm_up, **_replay_json(result, "warmup")} if warm_up else {}
    if result.submission is not None:
        content["metadata"] = result.submission.metadata()
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
        **{
            f"by_{kind}": [_group_json(kind, one) | {kind: one.name} for one in groups]
            for kind, groups in metrics.by_tenants.items()
        },
        **({"fairness": dict(metrics.fairness)} if "tenant" in metrics.by_tenants else {}),
        "conversations": {tag: PER_CONVERSATION[tag].entry(s) for tag, s in metrics.per_conversation.items()},
        "workload_throughput": {name: asdict(rates) for name, rates in metrics.workload_throughput.items()},
        "cached_tokens_counted_by": metrics.cached_counted_by,
        "client": None if cost is None else {**asdict(cost), "was_bottleneck": cost.was_bottleneck},
        **({"workers": [asdict(worker) for worker in result.workers]} if result.workers else {}),
        **({"repeats": result.repeats.as_dict()} if result.repeats else {}),
        **({"cache": result.cache.as_dict()} if result.cache else {}),
        **({"distortion": result.distortion.as_dict()} if result.distortion else {}),
        **({"replay": asdict(result.replay)} if result.replay else {}),
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
    if group.good is not None:
        content["good_request_count"] = group.good
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
    text.write("Timeslice,Metric,Unit,Stat,Value\n")
    for one in slices:
        for spec, figures in _metrics(one):
            before = f"{one.index},{_csv_fields(spec.title, spec.unit)},"
            text.writelines([f"{before}{name},{value}\n" for name, value in figures.items()])
    return text.getvalue()


@cache
def _csv_fields(*fields: str) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(fields)
    return text.getvalue()


def _metrics(one: Slice) -> Iterator[tuple[Spec, dict[str, float]]]:
    for tag, summary in one.metrics.per_request.items():
        yield PER_REQUEST[tag], summary.as_dict()
    for tag, level in one.metrics.over_time.items():
        yield OVER_TIME[tag], level.as_dict()
    for tag, value in one.metrics.whole_run.items():
        yield WHOLE_RUN[tag], {"avg": value}


SLICES_JSON = "profile_export_aiperf_timeslices.json"
SLICES_CSV = "profile_export_aiperf_timeslices.csv"
SUMMARY_JSON = "profile_export_aiperf.json"
SUMMARY_CSV = "profile_export_aiperf.csv"
INPUTS_JSON = "inputs.json"


def write_artifacts(
    result: RunResult,
    directory: Path | str,
    *,
    metrics: Metrics | None = None,
    columns: Columns | None = None,
    records: RecordWriter | None = None,
    command: Sequence[str] | None = None,
    each_request: bool = True,
) -> list[Path]:
    """Write every file of the run into `directory`, made if need be, and return their paths.

    metrics, columns: those of this result, if they are computed already. records: the writer that followed the run; it is
    closed here and its file kept when it wrote every record, else the file is written anew. command: the words of the
    command line that made the run (default: this process's), kept in the summary without its secrets. each_request: False
    leaves out the files that grow with the number of requests: records, timeline and inputs. With columns, the result then
    needs no records.
    A file appears whole or not at all. Raises OSError when that fails.
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    if records is None:
        remove_earlier_run(folder)
        (folder / RECORDS_FILE).unlink(missing_ok=True)
    measured = compute(result) if metrics is None else metrics
    words = ["llmirage", *sys.argv[1:]] if command is None else command
    benchmark_id = str(uuid.uuid4()) if records is None else records.benchmark_id
    columns = columns_of(result.records) if columns is None else columns
    others = evalscope_files(columns, result.speed, result.options, result.workload_format)
    slices = _slices(result, columns)
    summary = summary_json(result, measured, hide_in_command(words), benchmark_id, _warm_up(result, columns))

    paths = [folder / SUMMARY_JSON, folder / SUMMARY_CSV]
    if each_request:
        paths.append(folder / RECORDS_FILE)
        _finish_records(result, paths[2], records)  # first: all else can be computed from them
    else:
        others.pop(TIMELINE_JSON, None)
    write_json(paths[0], summary)
    write_text(paths[1], summary_csv(measured))
    for name, content in others.items():
        paths.append(folder / name)
        write_json(paths[-1], content, indent=None if name == TIMELINE_JSON else 2)
    if slices:
        paths += [folder / SLICES_JSON, folder / SLICES_CSV]
        write_json(paths[-2], slices_json(slices, summary["input_config"]), indent=None)
        write_text(paths[-1], slices_csv(slices))
    if result.inputs and result.submission is not None and result.submission.performance is not None and each_request:
        paths.append(folder / EVENTS_FILE)
        write_whole(paths[-1], lambda file: file.writelines(event_lines(result)))
    if result.options.get("otel") and result.records and each_request:
        paths += [folder / SPANS_FILE, folder / METRICS_FILE]
        write_whole(paths[-2], lambda file: file.writelines(span_lines(result)))
        write_whole(paths[-1], lambda file: file.writelines(metric_lines(result)))
    if result.inputs and each_request:
        paths.append(folder / INPUTS_JSON)
        write_whole(paths[-1], lambda file: file.writelines(_inputs(result.inputs)))
    return paths


def _slices(result: RunResult, columns: Columns) -> list[Slice]:
    slice_s = result.options.get("slice_duration")
    if not isinstance(slice_s, (int, float)):
        return []
    try:
        return time_slices(columns, slice_s, result.speed)
    except ValueError as error:  # nothing to lose a run for
        result.notes.append(f"--slice-duration: {error}; they are not written.")
        return []


def _finish_records(result: RunResult, path: Path, writer: RecordWriter | None) -> None:
    if writer is not None:
        writer.close()
        if writer.problem is None and writer.path == path:
            return
        if isinstance(writer.problem, FileNotFoundError):
            result.notes.append(f"{writer.path} was removed during the run; it is written anew.")
    clock = RunClock(result.start_s, result.start_unix_s, result.speed)
    write_whole(path, lambda file: file.writelines(record_line(r, clock) for r in result.records))


def _inputs(inputs: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """Yield the content of inputs.json, a line a body, because together the bodies may not fit in memory."""
    yield b'{"data":['
    for number, session in enumerate(inputs):
        yield b",\n" if number else b"\n"
        yield b'{"session_id":' + json_bytes(session["session_id"]) + b',"payloads":['
        for place, payload in enumerate(session["payloads"]):
            yield b",\n" if place else b"\n"
            yield json_bytes(payload)
        yield b"]}"
    yield b"\n]}\n"


def suite_name(result: RunResult) -> str:
    """Return the name of the test suite: workload, model and URL."""
    return f"{result.workload_path} on {result.model or 'unnamed model'}" + (f" at {result.url}" if result.url else "")


def write_junit(place: str, name: str, verdicts: Sequence[tuple[str, Verdict]]) -> None:
    """Write the file. name: of the suite. verdicts: each with what stands before the objective. Raises OSError."""
    missed = sum(not verdict.met for _, verdict in verdicts)
    counts = f'tests="{len(verdicts)}" failures="{missed}" errors="0"'
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f"<testsuites {counts}>"]
    lines.append(f'<testsuite name="{html.escape(hide_in_text(name))}" {counts}>')
    for before, verdict in verdicts:
        case = f'<testcase classname="llmirage.slo" name="{html.escape(before + verdict.objective.text)}"'
        measured = html.escape(verdict.measured)
        if verdict.met:
            lines.append(f"{case}><system-out>{measured}</system-out></testcase>")
        else:
            lines.append(
                f'{case}><failure type="missed" message="{measured}">{html.escape(str(verdict))}</failure></testcase>'
            )
    write_text(Path(place), "\n".join([*lines, "</testsuite>", "</testsuites>"]) + "\n")
