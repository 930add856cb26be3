"""Figures as text for the screen and pages, alone and as cells of tables; files have them in full."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from llmirage_client.measure.breakdowns import RequestGroup
from llmirage_client.measure.metrics import Metrics
from llmirage_shared.statistics import Summary


def number(value: float) -> str:
    """Return three digits or more, with no more decimals than anyone reads."""
    size = abs(value)
    decimals = 2 if size < 100 else 1 if size < 10_000 else 0
    return f"{value:,.{decimals}f}"


def count(value: float) -> str:
    """Return a whole number with thousands separators."""
    return f"{round(value):,}"


def percent(value: float) -> str:
    """Return a percentage with one decimal."""
    return f"{value:.1f} %"


def known(value: float | None, form: Callable[[float], str] = number) -> str:
    """Return the figure; "-" where there is none."""
    return "-" if value is None else form(value)


def statistic(summary: Summary | None, name: str) -> str:
    """Return one figure of a summary; "-" where there is none."""
    return "-" if summary is None else number(getattr(summary, name))


_FAIR_WORDS = {"tokens": "tokens", "time_to_first_token": "mean TTFT", "good_request_fraction": "requests within limits"}


def fairness_line(fairness: Mapping[str, float]) -> str:
    """Return Jain's indices over the tenants. fairness: as Metrics has it."""
    indices = ", ".join(f"{_FAIR_WORDS[name]} {index:.3f}" for name, index in fairness.items())
    return f"Jain's index of fairness among tenants (1: equal): {indices}"


def duration(seconds: float) -> str:
    """Return seconds below two minutes, then minutes, then hours."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def rate_cells(metrics: Metrics) -> list[str]:
    """Return requests and output tokens per second."""
    return [known(metrics.whole_run.get(tag)) for tag in ("request_throughput", "output_token_throughput")]


def latency_cells(metrics: Metrics) -> list[str]:
    """Return p50 and p99 of TTFT, TPOT and latency, ms."""
    tags = ("time_to_first_token", "inter_token_latency", "request_latency")
    return [statistic(metrics.per_request.get(tag), name) for tag in tags for name in ("p50", "p99")]


def group_cells(group: RequestGroup, *times: tuple[str, str]) -> list[str]:
    """Return the cells of a group: ok, failed, these statistics of times, mean tokens in and out, cached share."""
    wanted = (*times, ("input_sequence_length", "avg"), ("output_sequence_length", "avg"))
    figures = [statistic(group.per_request.get(tag), name) for tag, name in wanted]
    return [count(group.ok), count(group.failed), *figures, known(group.cached_pct, percent)]


def cached_cell(metrics: Metrics) -> str:
    """Return the share of prompt tokens found in the cache."""
    return known(metrics.whole_run.get("overall_usage_prompt_cache_read_pct"), percent)
