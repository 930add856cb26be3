"""The report in the terminal: tables, and notes on what limits their validity."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from llmirage_client.measure.columns import BRANCH_MODES
from llmirage_client.measure.metrics import Metrics, compute
from llmirage_client.measure.mismatch import mismatches_of
from llmirage_client.measure.record import ClientCost, RunResult
from llmirage_client.measure.run_folder import RECORDS_FILE
from llmirage_client.measure.slo import headline, verdicts_of
from llmirage_client.measure.workload_throughput import LAST_WINDOW_S
from llmirage_client.report.numbers import count, duration, plural
from llmirage_client.report.screen import Block, Screen, ScreenTable, bold, styled, unbroken, warning
from llmirage_client.report.secrets import hide_in_text
from llmirage_client.report.tables import (
    branch_table,
    conversation_table,
    error_table,
    group_table,
    latency_table,
    throughput_table,
    token_rate_table,
)

_TURNS_SHOWN = 20
_GROUP_WORDS = "; times in ms, mean tokens"


def render(
    result: RunResult, *, metrics: Metrics | None = None, files: Sequence[Path] = (), stream: TextIO | None = None
) -> None:
    """Print the report. metrics: those of this result, if already computed. files: what was written; named at the end."""
    measured = compute(result) if metrics is None else metrics
    screen = Screen(stream)
    screen.print(*run_blocks(result, measured, files, screen.width))
    screen.close()


def run_blocks(result: RunResult, metrics: Metrics, files: Sequence[Path], width: int) -> list[Block]:
    """The report, for a screen of so many characters."""
    tables: list[tuple[str, ScreenTable]] = []
    if metrics.per_request:
        tables.append(("Latency in ms", latency_table(metrics, width)))
        tables.append(("Throughput and tokens", throughput_table(metrics)))
    if "subsequent_turn_time_to_first_token" in metrics.per_request or len(metrics.by_turn) > 1:
        tables.append(("By conversation", conversation_table(metrics)))
    if metrics.workload_throughput and metrics.whole_run.get("benchmark_duration", 0.0) > LAST_WINDOW_S:
        tables.append(("Tokens per second over the run", token_rate_table(metrics)))
    if len(metrics.by_depth) > 1:
        title = "By agent depth (0: roots, 1: their children)"
        tables.append((title + _GROUP_WORDS, group_table("depth", metrics.by_depth)))
    if any(BRANCH_MODES[group.key] == "fork" for group in metrics.by_branch_mode):
        title = "By branch (forks inherit their parent's history, spawns start a new one)"
        tables.append((title + _GROUP_WORDS, group_table("branch", metrics.by_branch_mode, dict(enumerate(BRANCH_MODES)))))
    if 1 < len(metrics.by_turn) <= _TURNS_SHOWN:
        tables.append(("By turn (0: first request of a conversation)" + _GROUP_WORDS, group_table("turn", metrics.by_turn)))
    if result.branch_stats is not None and any(asdict(result.branch_stats).values()):
        tables.append(("Branches (branch_stats)", branch_table(result.branch_stats)))
    if metrics.errors:
        tables.append(("Errors", error_table(metrics.errors)))

    blocks: list[Block] = ["", *_verdicts(result, metrics), _heading(result, metrics)]
    for title, table in tables:
        if table.rows:  # empty if no conversation succeeded
            blocks += ["", bold(title), table]
    first = _first_notes(result)
    notes = [
        *(note for note in result.notes if note not in first),
        *reading_notes(result, metrics),
        *client_warnings(result, metrics),
    ]
    if notes:
        blocks += ["", *(warning(f"Note: {note}") for note in notes)]
    if files:
        blocks += ["", *written_lines(files)]
    return blocks


def written_lines(files: Sequence[Path]) -> list[Block]:
    """Where the files are, and the command that shows them as a page; without records only the simulation itself does."""
    folder = files[0].parent
    lines: list[Block] = [f"Written to {folder}: {', '.join(file.name for file in files)}"]
    if any(file.name == RECORDS_FILE for file in files):
        lines.append(unbroken(f"HTML report: llmirage report {shlex.quote(str(folder))} --open"))
    else:
        lines.append("HTML report: the same command with --open, or with --records for `llmirage report`")
    return lines


def _verdicts(result: RunResult, metrics: Metrics) -> list[Block]:
    """What --slo asks, answered before anything else."""
    verdicts = verdicts_of(result.options, metrics)
    met = all(verdict.met for verdict in verdicts)
    lines = [styled(f"  {verdict}", "green" if verdict.met else "red") for verdict in verdicts]
    return [styled(headline(verdicts), f"bold {'green' if met else 'red'}"), *lines, ""] if verdicts else []


def _heading(result: RunResult, metrics: Metrics) -> str:
    values = metrics.whole_run
    lines = [(result.model or "unnamed model") + (f" at {hide_in_text(result.url)}" if result.url else "")]
    setting = [f"endpoint {result.endpoint}", "streamed" if result.streaming else "not streamed"]
    for option, word in (("concurrency", "concurrency"), ("request_rate", "request rate")):
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
        took += f" of cluster time ({here} real time at speed {result.speed:g}; all times below are cluster time)"
    lines.append(", ".join(counted) + " " + took)
    if result.cancelled:
        why = f": {result.cancel_reason}" if result.cancel_reason else ""
        lines.append(f"The run was interrupted{why}. The metrics cover the requests that finished.")
    lines += [f"Note: {note}" for note in _first_notes(result)]
    if not metrics.per_request:
        lines.append("No request succeeded: there are no metrics.")
    return "\n".join(lines)


def _first_notes(result: RunResult) -> list[str]:
    found = (mismatches_of(result.records), result.repeats, result.distortion)
    return [note for one in found if one is not None for note in one.notes]


def reading_notes(result: RunResult, metrics: Metrics) -> list[str]:
    """Notes on how the metrics of this run are to be read."""
    notes = []
    warm_up = sum(r.phase != "profiling" for r in result.records)
    if warm_up:
        notes.append(f"{plural(warm_up, 'warm-up request')} not counted.")
    answered = metrics.whole_run.get("request_count")
    if answered and metrics.per_request and "time_to_first_token" not in metrics.per_request:
        notes.append("Replies were not streamed: TTFT, TPOT and ITL need --streaming.")
    gaps = metrics.per_request.get("inter_chunk_latency")
    if gaps is not None and gaps.p25 == 0.0:
        notes.append(
            "At least a quarter of the chunks arrived together with the previous chunk, so ITL shows network reads "
            "rather than tokens; TPOT is not affected."
        )
    skipped = sum(r.exchange.skipped_events for r in result.records)
    if skipped:
        notes.append(f"{plural(skipped, 'event')} of streamed replies were not valid JSON and were skipped.")
    retried = [r.exchange.retries for r in result.records if r.exchange.retries]
    if retried:
        notes.append(
            f"{plural(len(retried), 'request')} retried, {sum(retried)} times in all; times count from the first attempt."
        )
    if metrics.output_counted_by in ("client", "mixed"):
        notes.append("Some replies carry no usage: each of their streamed events counts as one output token.")
    return notes


def client_warnings(result: RunResult, metrics: Metrics) -> list[str]:
    """Warnings about the client, or each of its workers, empty when it kept up; see measure.client_cost for when not."""
    if result.workers:
        return [
            warning
            for worker in result.workers
            if worker.cost is not None
            for warning in _warnings(f"Worker {worker.number} on {worker.host}", worker.cost, result.speed)
        ]
    return [] if metrics.client is None else _warnings("This client", metrics.client, result.speed)


def _warnings(who: str, cost: ClientCost, speed: float) -> list[str]:
    warnings = []
    if cost.late:
        timers, sends = cost.timers_late_p95_ms or 0.0, cost.sends_late_p95_ms or 0.0
        late = (
            f"5 % of its requests left {sends:.0f} ms or more after they were due"
            if sends > timers
            else f"5 % of its timers fired {timers:.0f} ms or more after they were due"
        )
        warnings.append(
            f"{who} was late: {late}, so measured times may be too long by about that much. "
            "Use a less busy machine, a lower load" + (" or a lower --speed on the server." if speed > 1 else ".")
        )
    if cost.busy:
        warnings.append(
            f"{who} used {100 * (cost.cpu_share or 0.0):.0f} % of a CPU core, its limit: the endpoint "
            "may be faster than measured. Lower the load, or use more workers (--executor, docs/scaling.md)."
        )
    return warnings
