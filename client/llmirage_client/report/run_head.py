"""What is known of a run when it starts: the head of its summary, and alone in a file beside the records."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from llmirage_client.measure.record import RunResult
from llmirage_client.report.secrets import hide_in_options, hide_in_text

SCHEMA_VERSION = "1.4"  # of AIPerf's summary, whose structure this one follows


def run_head(result: RunResult, benchmark_id: str, start_unix_ns: int) -> dict[str, Any]:
    """JSON-able, without secrets. Of the result only what describes the run; its records do not matter."""
    made_by = result.version or version("llmirage")
    return {
        "schema_version": SCHEMA_VERSION,
        "benchmark_id": benchmark_id,
        "input_config": {
            "models": {"items": [{"name": result.model}]},
            "endpoint": {"urls": [hide_in_text(result.url)], "type": result.endpoint, "streaming": result.streaming},
            "datasets": [{"name": "main", "type": "file", "path": result.workload_path, "format": result.workload_format}],
            "options": hide_in_options(result.options),
        },
        "start_time": datetime.fromtimestamp(start_unix_ns / 1e9, UTC).isoformat(timespec="microseconds"),
        "llmirage": {"version": made_by, "speed": result.speed, "start_unix_ns": start_unix_ns},
    }
