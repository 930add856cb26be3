"""The tables of the report on the screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from llmirage_client.measure.groups import RequestGroup
from llmirage_client.measure.metrics import ErrorGroup, Metrics
from llmirage_client.measure.record import BranchStats
from llmirage_client.report.numbers import count, group_cells, known, number, percent
from llmirage_client.report.screen import ScreenTable, plain_table
from llmirage_shared.statistics import Summary

_WIDE = 96  # columns that the latency table with min and max needs
_ERRORS_SHOWN = 10
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
    "children_delayed": "children whose start was delayed",
    "graphs_admitted": "orchestrators that started",
    "graphs_completed_to_end": "orchestrators that completed their last round",
}


def latency_table(metrics: Metrics, width: int) -> ScreenTable:
    statistics = {"mean": "avg", "p50": "p50", "p90": "p90", "p99": "p99", "min": "min", "max": "max"}
    if width < _WIDE:
        del statistics["min"], statistics["max"]
    table = plain_table("", *statistics, "requests")
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
    table = plain_table("", "mean", "p50", "p90", "p99", "max", "conversations")
    for tag, words, factor in _CONVERSATIONS:
        summary = metrics.per_conversation.get(tag)
        if summary is not None:
            figures = (summary.avg, summary.p50, summary.p90, summary.p99, summary.max)
            table.add_row(words, *(number(factor * value) for value in figures), count(summary.count))
    return table


def token_rate_table(metrics: Metrics) -> ScreenTable:
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
    table = plain_table(key, "ok", "failed", "TTFT p50", "latency p50", "tokens in", "tokens out", "cached")
    for group in groups:
        table.add_row(
            str(group.key) if names is None else names[group.key],
            *group_cells(group, ("time_to_first_token", "p50"), ("request_latency", "p50")),
        )
    return table


def branch_table(stats: BranchStats) -> ScreenTable:
    table = plain_table("", "", "", words=(2,))
    for name, value in asdict(stats).items():
        table.add_row(name, count(value), _BRANCH_WORDS[name])
    return table


def error_table(errors: Sequence[ErrorGroup]) -> ScreenTable:
    table = plain_table("error", "status", "type", "requests")
    for group in errors[:_ERRORS_SHOWN]:
        error = group.error
        table.add_row(error.one_line(200), known(error.code, str), error.type, count(group.count))
    hidden = errors[_ERRORS_SHOWN:]
    if hidden:
        table.add_row(f"... and {len(hidden)} more kinds", "", "", count(sum(g.count for g in hidden)))
    return table
