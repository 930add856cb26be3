"""The report on the screen: tables that a stranger can read, and every reason to doubt them."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from llmirage_client.measure.columns import BRANCH_MODES
from llmirage_client.measure.metrics import Metrics, compute
from llmirage_client.measure.record import RunResult
from llmirage_client.measure.workload_throughput import LAST_WINDOW_S
from llmirage_client.report.client_health import client_warnings
from llmirage_client.report.numbers import count, duration, plural
from llmirage_client.report.secrets import hide_in_text
from llmirage_client.report.tables import (
    branch_mode_table,
    branch_table,
    conversation_table,
    error_table,
    group_table,
    latency_table,
    throughput_table,
    token_rate_table,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

_PLAIN_WIDTH = 100  # where there is no terminal to ask
_TURNS_SHOWN = 20
_GROUP_WORDS = "; times in ms, mean tokens"


def render(
    result: RunResult,
    *,
    metrics: Metrics | None = None,
    files: Sequence[Path] = (),
    stream: TextIO | None = None,
) -> None:
    """Print the report. metrics: those of this result, if computed already. files: what was written, to be named at the end.

    The tables fit the width of the terminal, with bold titles; elsewhere (a pipe, a file) there are no control codes and the
    width is COLUMNS or 100. They are drawn in ASCII, so that a saved report reads the same everywhere.
    """
    measured = compute(result) if metrics is None else metrics
    out = sys.stdout if stream is None else stream
    console, drawn = console_for(out)
    for block in _blocks(result, measured, files, console.width):
        console.print(block)
    write_drawn(drawn, out)


def write_drawn(drawn: io.StringIO, out: TextIO) -> None:
    """Write what a console drew, without blanks at line ends; characters that the stream cannot carry become "?"."""
    text = "\n".join(line.rstrip() for line in drawn.getvalue().split("\n"))
    encoding = getattr(out, "encoding", None) or "utf-8"
    try:
        out.write(text.encode(encoding, "replace").decode(encoding))
        out.flush()
    except BrokenPipeError:  # the reader has seen enough, as `| head` has
        pass


def console_for(stream: TextIO) -> tuple[Console, io.StringIO]:
    """A console for what the stream is, and the text it draws into."""
    from rich.console import Console

    terminal = stream.isatty()
    drawn = io.StringIO()
    console = Console(
        file=drawn,
        width=_width(stream),
        force_terminal=terminal,
        color_system="auto" if terminal else None,
        highlight=False,
        markup=False,
        emoji=False,
    )
    return console, drawn


def _width(stream: TextIO) -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(stream.fileno()).columns or _PLAIN_WIDTH
    return _PLAIN_WIDTH


def _blocks(result: RunResult, metrics: Metrics, files: Sequence[Path], width: int) -> list[RenderableType]:
    from rich.text import Text

    tables: list[tuple[str, Table]] = []
    if metrics.per_request:
        tables.append(("Latency in ms", latency_table(metrics, width)))
        tables.append(("Throughput and tokens", throughput_table(metrics)))
    if "subsequent_turn_time_to_first_token" in metrics.per_request or len(metrics.by_turn) > 1:
        tables.append(("By conversation", conversation_table(metrics)))
    if metrics.workload_throughput and metrics.whole_run.get("benchmark_duration", 0.0) > LAST_WINDOW_S:
        tables.append(("Tokens per second over the run", token_rate_table(metrics)))
    if len(metrics.by_depth) > 1:
        tables.append(
            ("By agent depth (0: roots, 1: their children)" + _GROUP_WORDS, group_table("depth", metrics.by_depth))
        )
    if any(BRANCH_MODES[group.key] == "fork" for group in metrics.by_branch_mode):
        tables.append(
            ("By branch (forks continue their parent, spawns start afresh)" + _GROUP_WORDS, branch_mode_table(metrics))
        )
    if 1 < len(metrics.by_turn) <= _TURNS_SHOWN:
        tables.append(("By turn (0: first request of a conversation)" + _GROUP_WORDS, group_table("turn", metrics.by_turn)))
    if result.branch_stats is not None and any(asdict(result.branch_stats).values()):
        tables.append(("Branches (branch_stats)", branch_table(result.branch_stats)))
    if metrics.errors:
        tables.append(("Errors", error_table(metrics.errors)))

    blocks: list[RenderableType] = ["", _heading(result, metrics)]
    for title, table in tables:
        if table.row_count:  # of conversations without one that went well there is nothing to tell
            blocks += ["", Text(title, style="bold"), table]
    notes = [*result.notes, *reading_notes(result, metrics), *client_warnings(result, metrics)]
    if notes:
        blocks += ["", *(Text(f"Note: {note}", style="yellow") for note in notes)]
    if files:
        blocks += ["", "Written to " + str(files[0].parent) + ": " + ", ".join(f.name for f in files)]
    return blocks


def _heading(result: RunResult, metrics: Metrics) -> str:
    values = metrics.whole_run
    lines = [(result.model or "unnamed model") + (f" at {hide_in_text(result.url)}" if result.url else "")]
    setting = [f"endpoint {result.endpoint}", "streamed" if result.streaming else "not streamed"]
    for option, word in (("concurrency", "concurrency"), ("request_rate", "requests/s asked for")):
        if (value := result.options.get(option)) is not None:
            setting.append(f"{word} {value}")
    workload = f"workload {result.workload_path}" + (f" ({result.workload_format})" if result.workload_format else "")
    lines.append(", ".join([workload, *setting]))
    counted = [f"{plural(values['request_count'], 'request')} ok", f"{count(values['error_request_count'])} failed"]
    if values["cancelled_request_count"]:
        counted.append(f"{count(values['cancelled_request_count'])} cancelled")
    took_s = values.get("benchmark_duration", (result.end_s - result.start_s) * result.speed)
    took = f"in {duration(took_s)}"
    if result.speed != 1:
        here = duration(took_s / result.speed)
        took += f" of cluster time ({here} here, at speed {result.speed:g}; all times below are the cluster's)"
    lines.append(", ".join(counted) + " " + took)
    if result.cancelled:
        why = f": {result.cancel_reason}" if result.cancel_reason else ""
        lines.append(f"The run was stopped before its end{why}. The figures are of the requests that finished.")
    if not metrics.per_request:
        lines.append("No request succeeded, so there is nothing to measure.")
    return "\n".join(lines)


def reading_notes(result: RunResult, metrics: Metrics) -> list[str]:
    """What a reader of the figures must know to understand them."""
    notes = []
    warm_up = sum(r.phase != "profiling" for r in result.records)
    if warm_up:
        notes.append(f"These figures leave out {plural(warm_up, 'warm-up request')}.")
    if metrics.per_request and "time_to_first_token" not in metrics.per_request:
        notes.append("Replies came in one piece, so TTFT, TPOT and ITL cannot be measured; --streaming measures them.")
    gaps = metrics.per_request.get("inter_chunk_latency")
    if gaps is not None and gaps.p25 == 0.0:
        notes.append(
            "At least a quarter of the chunks arrived in one piece with the chunk before them, so the ITL row is about "
            "reads of the network more than about tokens; TPOT is not affected."
        )
    skipped = sum(r.exchange.skipped_events for r in result.records)
    if skipped:
        notes.append(
            f"{plural(skipped, 'event')} of streamed replies could not be read as JSON; what they said is left out."
        )
    retried = [r.exchange.retries for r in result.records if r.exchange.retries]
    if retried:
        notes.append(
            f"{plural(len(retried), 'request')} went out again, {sum(retried)} times in all; times count from the first."
        )
    if metrics.output_counted_by in ("client", "mixed"):
        notes.append(
            "The server did not count the output tokens of every reply (no usage): there each streamed event counts as one."
        )
    return notes
