"""The figures of MLPerf Endpoints' agentic rules: what counts is issued while every slot has work.

As mlcommons/endpoints has them (metrics_aggregator/metrics_table.py, metrics/report.py). Its `qps` counts failed turns and
those that were not sent after a failure, so that failures raise it; `successful_qps` counts successful ones only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llmirage_client.measure.arrays import Floats
from llmirage_client.measure.columns import Columns
from llmirage_client.measure.request_metrics import request_columns
from llmirage_client.measure.submission import PerformanceWindow

MLPERF = "mlperf-agentic"
_PERCENTILES = (99.9, 99, 97, 95, 90, 80, 75, 50, 25, 10, 5, 1)
_LATENCIES = {"ttft": "time_to_first_token", "tpot": "inter_token_latency", "latency": "request_latency"}  # in ms
_NS_PER_S, _NS_PER_MS = 1e9, 1e6


def performance_of(columns: Columns, window: PerformanceWindow, speed: float) -> dict[str, Any]:
    """Return the figures of the turns issued within the window, by MLPerf's names, times in ns of cluster time.

    A run that ended before its window did counts as a whole, and is not complete.
    """
    start_s = columns.start_s[columns.measured].min(initial=np.inf)
    end_s = np.inf if window.end_s is None else window.end_s
    counted = columns.rows(columns.measured & (columns.start_s < end_s))
    over_s = counted.end_s[~np.isnan(counted.end_s)].max(initial=-np.inf)
    duration_s = max(float(over_s - start_s), 0.0) * speed if len(counted) else 0.0
    values = request_columns(counted, speed) if len(counted) else {}
    lengths = values.get("output_sequence_length", np.empty(0))
    completed, successful = len(counted) - int(counted.cancelled.sum()) + window.unsent, int(counted.ok.sum())

    def per_s(count: float) -> float:
        return count / duration_s if duration_s else 0.0

    return {
        "n_samples_issued": len(counted) + window.unsent,
        "n_samples_completed": completed,
        "n_samples_failed": completed - successful,
        "n_samples_unsent": window.unsent,
        "duration_ns": round(duration_s * _NS_PER_S),
        "complete": window.end_s is not None,
        "qps": per_s(completed),
        "successful_qps": per_s(successful),
        "tps": per_s(float(np.nansum(lengths))),
        **{name: _distribution(values.get(tag, np.empty(0)) * _NS_PER_MS) for name, tag in _LATENCIES.items()},
        "osl": _distribution(lengths),
    }


def _distribution(values: Floats) -> dict[str, Any] | None:
    """Return the figures of those values that are numbers; None without any."""
    sample = values[~np.isnan(values)]
    if not sample.size:
        return None
    percentiles = np.percentile(sample, _PERCENTILES).tolist()
    return {
        "total": float(sample.sum()),
        "min": float(sample.min()),
        "max": float(sample.max()),
        "median": float(np.median(sample)),
        "avg": float(sample.mean()),
        "std_dev": float(sample.std()),
        "percentiles": {f"{p:g}": value for p, value in zip(_PERCENTILES, percentiles, strict=True)},
    }
