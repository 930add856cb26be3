"""Cells that several tables of runs share; "-" where a run has no such figure."""

from __future__ import annotations

from llmirage_client.measure.metrics import Metrics
from llmirage_client.report.numbers import known, percent, statistic


def rate_cells(metrics: Metrics) -> list[str]:
    """Requests and output tokens per second."""
    return [known(metrics.whole_run.get(tag)) for tag in ("request_throughput", "output_token_throughput")]


def latency_cells(metrics: Metrics) -> list[str]:
    """p50 and p99 of TTFT, TPOT and latency, ms."""
    tags = ("time_to_first_token", "inter_token_latency", "request_latency")
    return [statistic(metrics.per_request.get(tag), name) for tag in tags for name in ("p50", "p99")]


def cached_cell(metrics: Metrics) -> str:
    return known(metrics.whole_run.get("overall_usage_prompt_cache_read_pct"), percent)
