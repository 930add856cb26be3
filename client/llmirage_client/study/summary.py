"""The figures of a simulation that people and scripts compare: what `llmirage simulate --json` prints."""

from __future__ import annotations

from typing import Any

from llmirage_client.measure.metrics import Metrics

_TIMES = {
    "ttft_ms": "time_to_first_token",
    "tpot_ms": "inter_token_latency",
    "itl_ms": "inter_chunk_latency",
    "latency_ms": "request_latency",
}


def summary_of(metrics: Metrics) -> dict[str, Any]:
    """ttft_ms, tpot_ms, itl_ms and latency_ms as {mean, p50, p90, p99}, None where no request has one; rates and counts.

    tpot_ms is the mean gap of each request's tokens, itl_ms every single gap.
    """
    summary: dict[str, Any] = {}
    for name, tag in _TIMES.items():
        found = metrics.per_request.get(tag)
        summary[name] = found and {"mean": found.avg, "p50": found.p50, "p90": found.p90, "p99": found.p99}
    whole = metrics.whole_run
    cached = whole.get("overall_usage_prompt_cache_read_pct")
    summary |= {
        "output_tok_per_s": whole.get("output_token_throughput", 0.0),
        "total_tok_per_s": whole.get("total_token_throughput", 0.0),
        "requests": int(whole.get("request_count", 0)),
        "failed_requests": int(whole.get("error_request_count", 0)),
        "duration_s": whole.get("benchmark_duration", 0.0),
        "cached_token_share": None if cached is None else cached / 100.0,
    }
    return summary
