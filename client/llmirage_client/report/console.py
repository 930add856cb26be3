"""Reports in the terminal: tables of a run or of two side by side, and notes on what limits their validity."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from llmirage_client.measure.breakdowns import LAST_WINDOW_S, RequestGroup
from llmirage_client.measure.columns import BRANCH_MODES
from llmirage_client.measure.comparison import Comparison, Difference
from llmirage_client.measure.metrics import ErrorGroup, Metrics, compute
from llmirage_client.measure.record import BranchStats, ClientCost, RunResult
from llmirage_client.measure.run_folder import RECORDS_FILE
from llmirage_client.measure.slo import headline, verdicts_of
from llmirage_client.report.output_files import hide_in_text
from llmirage_client.report.screen import (
    Block,
    ScreenTable,
    bold,
    count,
    duration,
    fairness_line,
    group_cells,
    known,
    number,
    percent,
    plain_table,
    print_blocks,
    statistic,
    styled,
    unbroken,
    warning,
)
from llmirage_shared.plural import plural
from llmirage_shared.statistics import Summary

_LATENCIES = (
    ("time_to_first_token", "First token (TTFT)"),
    ("first_turn_time_to_first_token", "- of first turns"),
    ("subsequent_turn_time_to_first_token", "- of later turns"),
    ("inter_token_latency", "Per output token (TPOT)"),
    ("inter_chunk_latency", "Between chunks (ITL)"),
    ("request_latency", "Request latency"),
    ("effective_latency", "- from its due time"),
)
_SEEN_LATE = 1.05  # the latency from the due time is worth a row when its mean is so many times the request's own
_CONVERSATIONS = (
    ("conversation_latency", "Conversation latency, s", 1e-3),
    ("conversation_ttfat", "First token of the last answer, s", 1e-3),
    ("conversation_decode_throughput", "Decode throughput, tokens/s", 1.0),
    ("conversation_cache_hit_pct", "Prefix cache hit rate, %", 1.0),
    ("conversation_eligible_cache_hit_pct", "- of eligible tokens, %", 1.0),
)
_BRANCH_WORDS = {
    "children_spawned": "child conversations started",
    "children_completed": "children that reached their last turn",
    "children_errored": "children that ended in an error",
    "children_truncated": "children cut short by a limit such as --request-count",
    "parents_suspended": "parents that waited for children",
    "parents_resumed": "parents that continued after their children",
    "parents_failed_due_to_child_error": "parents stopped because a child failed",
    "joins_suppressed": "joins that ended without the parent continuing",
    "children_delayed": "children whose first turn has a delay",
    "graphs_admitted": "orchestrators that started",
    "graphs_completed_to_end": "orchestrators that completed their last round",
}


def latency_table(metrics: Metrics) -> ScreenTable:
    """Return the table of latencies."""
    statistics = {"mean": "avg", "p50": "p50", "p90": "p90", "p99": "p99", "min": "min", "max": "max"}
    table = plain_table("", *statistics, "requests", ends=1)
    for tag, words in _LATENCIES:
        summary = metrics.per_request.get(tag)
        if summary is None or (tag == "effective_latency" and not _seen_late(metrics)):
            continue
        counted = f"{count(summary.count)} gaps" if tag == "inter_chunk_latency" else count(summary.count)
        table.add_row(words, *(number(getattr(summary, field)) for field in statistics.values()), counted)
    return table


def _seen_late(metrics: Metrics) -> bool:
    due, sent = (metrics.per_request.get(tag) for tag in ("effective_latency", "request_latency"))
    return due is not None and sent is not None and due.avg > _SEEN_LATE * sent.avg


def conversation_table(metrics: Metrics) -> ScreenTable:
    """Return the table of whole conversations."""
    table = plain_table("", "mean", "p50", "p90", "p99", "max", "conversations", ends=1)
    for tag, words, factor in _CONVERSATIONS:
        summary = metrics.per_conversation.get(tag)
        if summary is not None:
            figures = (summary.avg, summary.p50, summary.p90, summary.p99, summary.max)
            table.add_row(words, *(number(factor * value) for value in figures), count(summary.count))
    return table


def token_rate_table(metrics: Metrics) -> ScreenTable:
    """Return the table of token rates over time."""
    table = plain_table("", "overall", "last 30 s", "after the first fifth")
    for name, words in (
        ("total_prompt", "Input tokens/s"),
        ("new_prompt", "- computed"),
        ("cached_prompt", "- cached"),
        ("completion", "Output tokens/s"),
    ):
        rates = metrics.workload_throughput.get(name)
        if rates is not None and (metrics.cached_counted_by == "server" or name in ("total_prompt", "completion")):
            table.add_row(words, number(rates.overall), number(rates.last_window), number(rates.steady_state))
    return table


def throughput_table(metrics: Metrics) -> ScreenTable:
    """Return the table of throughputs and totals."""
    table = plain_table("", "")
    values, summaries = metrics.whole_run, metrics.per_request
    for tag, words, unit in (
        ("request_throughput", "Successful requests", "/s"),
        ("output_token_throughput", "Output tokens", "/s"),
        ("total_token_throughput", "Input and output tokens", "/s"),
        ("goodput", "Goodput (requests that met every limit)", "/s"),
    ):
        if tag in values:
            table.add_row(words, f"{number(values[tag])}{unit}")
    per_user = summaries.get("output_token_throughput_per_user")
    if per_user is not None:
        table.add_row("Output tokens per user, mean", f"{number(per_user.avg)}/s")
    for tag, words, source in (
        ("input_sequence_length", "Input tokens per request", metrics.input_counted_by),
        ("output_sequence_length", "Output tokens per request", metrics.output_counted_by),
    ):
        summary = summaries.get(tag)
        if summary is not None:
            by = {
                "server": "counted by the server",
                "client": "counted by the client",
                "mixed": "counted by server or client",
            }
            table.add_row(f"{words}, {by.get(source, '')}", _spread(summary))
    cached = values.get("overall_usage_prompt_cache_read_pct")
    table.add_row("Prefix cache hit rate (input tokens)", "not reported" if cached is None else percent(cached))
    return table


def _spread(summary: Summary) -> str:
    if summary.min == summary.max:
        return count(summary.min)
    return f"mean {number(summary.avg)}, {count(summary.min)} to {count(summary.max)}"


def group_table(key: str, groups: Sequence[RequestGroup], names: Mapping[int, str] | None = None) -> ScreenTable:
    """Return a table with a row a group of requests."""
    table = plain_table(key, "ok", "failed", "TTFT p50", "latency p50", "tokens in", "tokens out", "cached")
    for group in groups:
        table.add_row(
            str(group.key) if names is None else names[group.key],
            *group_cells(group, ("time_to_first_token", "p50"), ("request_latency", "p50")),
        )
    return table


def tenant_table(groups: Sequence[RequestGroup]) -> ScreenTable:
    """Return a table with a row a tenant, class or priority."""
    table = plain_table("", "ok", "failed", "TTFT p50", "p99", "TPOT p50", "p99", "latency p50", "tokens", "good")
    whole = sum(group.tokens for group in groups)
    times = [(tag, name) for tag in ("time_to_first_token", "inter_token_latency") for name in ("p50", "p99")]
    for group in groups:
        figures = [statistic(group.per_request.get(tag), name) for tag, name in (*times, ("request_latency", "p50"))]
        tokens = percent(100 * group.tokens / whole) if whole else "-"
        good = known(group.good_share, lambda share: percent(100 * share))
        table.add_row(group.name or "(none)", count(group.ok), count(group.failed), *figures, tokens, good)
    return table


def branch_table(stats: BranchStats) -> ScreenTable:
    """Return the table of forks, spawns and joins."""
    table = plain_table("", "", "", words=(2,))
    for name, value in asdict(stats).items():
        table.add_row(name, count(value), _BRANCH_WORDS[name])
    return table


_TENANT_TITLES = {
    "tenant": "By tenant; times in ms",
    "class": "By service class; times in ms",
    "priority": "By priority (lower is served first); times in ms",
}
_TURNS_SHOWN = 20
_GROUP_WORDS = "; times in ms, mean tokens"


def render(
    result: RunResult, *, metrics: Metrics | None = None, files: Sequence[Path] = (), stream: TextIO | None = None
) -> None:
    """Print the report. metrics: those of this result, if already computed. files: what was written; named at the end."""
    print_blocks(run_blocks(result, compute(result) if metrics is None else metrics, files), stream)


def run_blocks(result: RunResult, metrics: Metrics, files: Sequence[Path]) -> list[Block]:
    """Return the report."""
    tables: list[tuple[str, ScreenTable]] = []
    if metrics.per_request:
        tables.append(("Latency in ms", latency_table(metrics)))
        tables.append(("Throughput and tokens", throughput_table(metrics)))
    if "subsequent_turn_time_to_first_token" in metrics.per_request or len(metrics.by_turn) > 1:
        tables.append(("By conversation", conversation_table(metrics)))
    if metrics.workload_throughput and metrics.whole_run.get("benchmark_duration", 0.0) > LAST_WINDOW_S:
        tables.append(("Tokens per second over the run", token_rate_table(metrics)))
    tables += [(_TENANT_TITLES[kind], tenant_table(groups)) for kind, groups in metrics.by_tenants.items()]
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

    reasons = (styled(line, "red") for line in failures(metrics.errors))
    blocks: list[Block] = ["", *_verdicts(result, metrics), _heading(result, metrics), *reasons]
    for title, table in tables:
        if table.rows:  # empty if no conversation succeeded
            blocks += ["", bold(title), table]
        if table.rows and title == _TENANT_TITLES["tenant"]:
            blocks.append(fairness_line(metrics.fairness))
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
    """Return the place of the files, and the command that shows them as a page.

    Without records only the simulation itself does.
    """
    folder = files[0].parent
    lines: list[Block] = [f"Written to {folder}: {', '.join(file.name for file in files)}"]
    if any(file.name == RECORDS_FILE for file in files):
        lines.append(unbroken(f"HTML report: llmirage report {shlex.quote(str(folder))} --open"))
    else:
        lines.append("HTML report: the same command with --open, or with --set records=true for `llmirage report`")
    return lines


def _verdicts(result: RunResult, metrics: Metrics) -> list[Block]:
    """Return the verdicts on --slo, which stand first."""
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


def failures(errors: Sequence[ErrorGroup], most: int = 10) -> Iterator[str]:
    """Yield a line for each of the most frequent errors."""
    for group in errors[:most]:
        error = group.error
        kind = error.type if error.code is None else f"{error.code}, {error.type}"
        yield f"{count(group.count)} failed ({kind}): {error.one_line(200)}"
    if hidden := errors[most:]:
        yield f"{count(sum(g.count for g in hidden))} failed with {plural(len(hidden), 'more kind')} of errors"


def _first_notes(result: RunResult) -> list[str]:
    return [*filter(None, [result.long_schedule]), *result.judged_notes]


def reading_notes(result: RunResult, metrics: Metrics) -> list[str]:
    """Return notes that limit or explain the metrics of this run."""
    notes = []
    warm_up = sum(r.phase != "profiling" for r in result.records)
    if warm_up:
        notes.append(warm_up_note(warm_up))
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


def warm_up_note(requests: int) -> str:
    """Return the note on requests that are in no figure."""
    return f"{plural(requests, 'warm-up request')} not counted."


def client_warnings(result: RunResult, metrics: Metrics) -> list[str]:
    """Return warnings about the client, or each of its workers, by the limits of metrics.client_cost."""
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


_WORDS = {
    "time_to_first_token": "TTFT",
    "first_turn_time_to_first_token": "TTFT of first turns",
    "subsequent_turn_time_to_first_token": "TTFT of later turns",
    "inter_token_latency": "TPOT",
    "request_latency": "Latency",
    "effective_latency": "Latency from due time",
    "input_sequence_length": "Input tokens",
    "output_sequence_length": "Output tokens",
    "request_error_rate": "Failed requests",
    "overall_usage_prompt_cache_read_pct": "Prefix cache hit rate",
    "request_throughput": "Requests",
    "output_token_throughput": "Output tokens",
    "total_token_throughput": "All tokens",
}


def print_comparison(
    baseline: str, run: str, comparison: Comparison, warnings: list[str], confidence: float, tolerance: float | None = None
) -> None:
    """Print one table, then the other differences.

    tolerance: of --fail-if-worse. Without control codes unless on a terminal.
    """
    table = plain_table(*difference_heads(confidence), ends=1)
    for one in comparison.differences:
        table.add_row(*difference_cells(one))
    trees = " and ".join(f"{n:,}" for n in comparison.conversations)
    how = "drawn in pairs" if comparison.paired else "drawn separately, because they differ"
    blocks: list[Block] = [
        unbroken(f"\nbaseline: {baseline}\nrun:      {run}\n"),
        table,
        f"\nBounds: from {trees} conversations with their children, {how}, and from parts of each run: 10, or 30 for rates.",
    ]
    judged = sum(one.beyond_noise is not None for one in comparison.differences)
    by_chance = judged * (100 - confidence) / 100
    if by_chance >= 0.5:
        blocks.append(f"Of {judged} figures, {by_chance:.0f} or so may be beyond these bounds by chance.")
    blocks += [f"Too few: {why}." for why in dict.fromkeys(d.why_not for d in comparison.differences if d.why_not)]
    share = tolerance or 0.0
    if tolerance is not None and comparison.judged:
        worse = [f"{_name(one)} by {one.percent or 0.0:+.1f} %" for one in comparison.worse(share)]
        found = f"worse: {', '.join(worse)}" if worse else f"none of {len(comparison.judged)} figures is worse"
        blocks.append(bold(f"Beyond chance and a tolerance of {100 * share:g} %, {found}."))
    if seen := [
        (_name(one), comparison.seen(one, share))
        for one in comparison.judged
        if one.statistic in ("avg", "p50", "at_equal_load")
    ]:
        sizes = ", ".join(f"{name} {percent:.1f} %" for name, percent in seen if percent is not None)
        blocks.append(f"A worsening of this size would have been found 9 times in 10: {sizes}.")
    print_blocks([*blocks, *(warning(f"Note: {text}") for text in warnings)])


def difference_heads(confidence: float) -> list[str]:
    """Return the notes on a comparison. confidence: in percent."""
    return ["", "baseline", "run", "change", f"{confidence:g} % bounds", "verdict"]


def difference_cells(one: Difference) -> list[str]:
    """Return the cells of one difference: values, difference, percent, bounds."""
    percent = "" if one.percent is None else f"{one.percent:+.1f} %"
    bounds = "-" if one.low is None or one.high is None else f"{_signed(one.low)} to {_signed(one.high)}"
    unit = one.unit.removeprefix("requests").removeprefix("tokens").replace("sec", "s")
    name = _name(one) + (f", {unit}" if unit else "")
    return [name, number(one.baseline), number(one.value), percent or _signed(one.difference), bounds, _verdict(one)]


def _name(one: Difference) -> str:
    return f"{_WORDS.get(one.tag, one.title)} {one.statistic.replace('_', ' ')}".strip()


def _verdict(one: Difference) -> str:
    if one.beyond_noise is None:
        return "too few"
    if not one.beyond_noise:
        return "within noise"
    return "differs" if one.better is None else "better" if one.better else "worse"


def _signed(value: float) -> str:
    return ("+" if value > 0 else "-" if value < 0 else "") + number(abs(value))
