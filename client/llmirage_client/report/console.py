"""The report on the screen: tables that a stranger can read, and every reason to doubt them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from llmirage_client.measure.metrics import Group, Metrics, compute
from llmirage_client.measure.record import RunResult
from llmirage_client.report.client_health import client_warnings
from llmirage_client.report.numbers import count, duration, number
from llmirage_client.report.secrets import hide_in_text
from llmirage_shared.statistics import Summary

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

_PLAIN_WIDTH = 100  # where there is no terminal to ask
_WIDE = 96  # columns that the latency table with min and max needs
_ERRORS_SHOWN = 10
_TURNS_SHOWN = 20

_LATENCIES = (
    ("time_to_first_token", "Time to first token (TTFT)"),
    ("inter_token_latency", "Time per output token (TPOT)"),
    ("inter_chunk_latency", "Gap between chunks (ITL)"),
    ("request_latency", "Whole request (latency)"),
)
# A rule under the head and nothing else, in ASCII, so that a saved report reads the same everywhere.
_LINES = "    \n    \n -- \n    \n    \n    \n    \n    \n"
_BRANCH_WORDS = {
    "children_spawned": "child conversations started",
    "children_completed": "children that reached their last turn",
    "children_errored": "children that ended in an error",
    "children_truncated": "children cut short by a limit such as --request-count",
    "parents_suspended": "parents that waited for children",
    "parents_resumed": "parents that went on after their children",
    "parents_failed_due_to_child_error": "parents stopped because a child failed",
    "joins_suppressed": "waits that ended without the parent going on",
}


def render(
    result: RunResult,
    *,
    metrics: Metrics | None = None,
    files: Sequence[Path] = (),
    stream: TextIO | None = None,
) -> None:
    """Print the report. metrics: those of this result, if computed already. files: what was written, to be named at the end.

    On a terminal the tables have lines and colour and fit its width; elsewhere they are plain ASCII without control codes.
    """
    measured = compute(result) if metrics is None else metrics
    out = sys.stdout if stream is None else stream
    console = _console(out)
    with console.capture() as captured:
        for block in _blocks(result, measured, files, console.width):
            console.print(block)
    text = "\n".join(line.rstrip() for line in captured.get().split("\n"))
    encoding = getattr(out, "encoding", None) or "utf-8"
    out.write(text.encode(encoding, "replace").decode(encoding))
    out.flush()


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    if stream.isatty():
        return Console(file=stream, highlight=False, markup=False, emoji=False)
    width = os.environ.get("COLUMNS", "")
    return Console(
        file=stream,
        width=int(width) if width.isdecimal() and int(width) > 0 else _PLAIN_WIDTH,
        color_system=None,
        force_terminal=False,
        highlight=False,
        markup=False,
        emoji=False,
    )


def _blocks(result: RunResult, metrics: Metrics, files: Sequence[Path], width: int) -> list[RenderableType]:
    blocks: list[RenderableType] = ["", _heading(result, metrics)]
    if metrics.per_request:
        blocks += ["", _latency_table(metrics, width), "", _throughput_table(metrics)]
    if len(metrics.by_depth) > 1:
        blocks += ["", _group_table("By agent depth (0: roots, 1: their children)", "depth", metrics.by_depth)]
    if 1 < len(metrics.by_turn) <= _TURNS_SHOWN:
        blocks += ["", _group_table("By turn of the conversation (0: its first request)", "turn", metrics.by_turn)]
    if result.branch_stats is not None:
        blocks += ["", _branch_table(result)]
    if metrics.errors:
        blocks += ["", _error_table(metrics)]
    notes = [*result.notes, *_reading_notes(result, metrics), *client_warnings(result, metrics)]
    if notes:
        blocks += ["", *(f"Note: {note}" for note in notes)]
    if files:
        blocks += ["", "Written to " + str(files[0].parent) + ": " + ", ".join(f.name for f in files)]
    return blocks


def _heading(result: RunResult, metrics: Metrics) -> str:
    values = metrics.whole_run
    lines = [f"{result.model or 'unnamed model'} at {hide_in_text(result.url)}"]
    setting = [f"endpoint {result.endpoint}", "streamed" if result.streaming else "not streamed"]
    for option, word in (("concurrency", "concurrency"), ("request_rate", "requests/s asked for")):
        if (value := result.options.get(option)) is not None:
            setting.append(f"{word} {value}")
    workload = f"workload {result.workload_path}" + (f" ({result.workload_format})" if result.workload_format else "")
    lines.append(", ".join([workload, *setting]))
    counted = [f"{count(values['request_count'])} requests ok", f"{count(values['error_request_count'])} failed"]
    if values["cancelled_request_count"]:
        counted.append(f"{count(values['cancelled_request_count'])} cancelled")
    wall_s = result.end_s - result.start_s
    took = f"in {duration(wall_s * result.speed)}"
    if result.speed != 1:
        took += f" of cluster time ({duration(wall_s)} here, at speed {result.speed:g}; all times below are the cluster's)"
    lines.append(", ".join(counted) + " " + took)
    if result.cancelled:
        why = f": {result.cancel_reason}" if result.cancel_reason else ""
        lines.append(f"The run was stopped before its end{why}. The figures are of the requests that finished.")
    if not metrics.per_request:
        lines.append("No request succeeded, so there is nothing to measure.")
    return "\n".join(lines)


def _table(title: str, *columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        show_header=any(columns),
        box=box.Box(_LINES, ascii=True),
        pad_edge=False,
    )
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", overflow="fold", no_wrap=index > 0)
    return table


def _latency_table(metrics: Metrics, width: int) -> Table:
    statistics = {"mean": "avg", "p50": "p50", "p90": "p90", "p99": "p99", "min": "min", "max": "max"}
    if width < _WIDE:
        del statistics["min"], statistics["max"]
    table = _table("Latency in ms", "", *statistics, "requests")
    for tag, words in _LATENCIES:
        summary = metrics.per_request.get(tag)
        if summary is None:
            continue
        counted = f"{count(summary.count)} gaps" if tag == "inter_chunk_latency" else count(summary.count)
        table.add_row(words, *(number(getattr(summary, field)) for field in statistics.values()), counted)
    return table


def _throughput_table(metrics: Metrics) -> Table:
    table = _table("Throughput and tokens", "", "")
    values, summaries = metrics.whole_run, metrics.per_request
    for tag, words, unit in (
        ("request_throughput", "Requests finished", "/s"),
        ("output_token_throughput", "Output tokens", "/s"),
        ("total_token_throughput", "Input and output tokens", "/s"),
    ):
        if tag in values:
            table.add_row(words, f"{number(values[tag])}{unit}")
    per_user = summaries.get("output_token_throughput_per_user")
    if per_user is not None:
        table.add_row("Output tokens of one stream, mean", f"{number(per_user.avg)}/s")
    for tag, words, source in (
        ("input_sequence_length", "Input tokens a request", metrics.input_counted_by),
        ("output_sequence_length", "Output tokens a request", metrics.output_counted_by),
    ):
        summary = summaries.get(tag)
        if summary is not None:
            by = {"server": "counted by the server", "client": "counted here", "mixed": "counted by server or here"}
            table.add_row(f"{words}, {by.get(source, '')}", _spread(summary))
    cached = values.get("overall_usage_prompt_cache_read_pct")
    table.add_row("Input tokens found in the server's prefix cache", "not reported" if cached is None else f"{cached:.1f} %")
    return table


def _spread(summary: Summary) -> str:
    if summary.min == summary.max:
        return count(summary.min)
    return f"mean {number(summary.avg)}, {count(summary.min)} to {count(summary.max)}"


def _group_table(title: str, key: str, groups: Sequence[Group]) -> Table:
    title += ": medians in ms, mean tokens, share of input tokens cached"
    table = _table(title, key, "ok", "failed", "TTFT", "latency", "input", "output", "cached")
    for group in groups:
        table.add_row(
            str(group.key),
            count(group.ok),
            count(group.failed),
            "-" if group.ttft_ms is None else number(group.ttft_ms.p50),
            "-" if group.latency_ms is None else number(group.latency_ms.p50),
            "-" if group.input_tokens is None else number(group.input_tokens.avg),
            "-" if group.output_tokens is None else number(group.output_tokens.avg),
            "-" if group.cached_pct is None else f"{group.cached_pct:.1f} %",
        )
    return table


def _branch_table(result: RunResult) -> Table:
    assert result.branch_stats is not None
    table = _table("Branches (branch_stats)", "", "", "")
    table.columns[2].justify = "left"
    for name, value in asdict(result.branch_stats).items():
        table.add_row(name, count(value), _BRANCH_WORDS[name])
    return table


def _error_table(metrics: Metrics) -> Table:
    table = _table("Errors", "what the endpoint or the connection said", "status", "type", "requests")
    for group in metrics.errors[:_ERRORS_SHOWN]:
        error = group.error
        table.add_row(
            _one_line(error.message), "-" if error.code is None else str(error.code), error.type, count(group.count)
        )
    hidden = metrics.errors[_ERRORS_SHOWN:]
    if hidden:
        table.add_row(f"... and {len(hidden)} more kinds", "", "", count(sum(g.count for g in hidden)))
    return table


def _one_line(text: str, most: int = 200) -> str:
    """No line breaks, no control characters: an endpoint's words must not draw on the terminal."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return plain if len(plain) <= most else plain[: most - 3] + "..."


def _reading_notes(result: RunResult, metrics: Metrics) -> list[str]:
    notes = []
    if metrics.per_request and "time_to_first_token" not in metrics.per_request:
        notes.append("Replies came in one piece, so TTFT, TPOT and ITL cannot be measured; --streaming measures them.")
    if metrics.output_counted_by in ("client", "mixed"):
        notes.append(
            "The server did not count the output tokens of every reply (no usage): there each streamed event counts as one."
        )
    return notes
