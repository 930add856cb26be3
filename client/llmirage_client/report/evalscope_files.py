"""trace_summary.json, workload_throughput.json and the rest, with evalscope's field names and definitions.

Times are in seconds of cluster time but for the columns that say ms. docs/artifacts.md says where we mean something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from llmirage_client.measure.breakdowns import LAST_WINDOW_S, WARM_UP_FRACTION, Timeline, cached_or_estimated, timeline
from llmirage_client.measure.columns import Columns
from llmirage_client.measure.metrics import conversations
from llmirage_client.measure.request_metrics import chunk_gaps_ms, request_columns
from llmirage_shared.statistics import Floats, ratio

TIMELINE_JSON = "workload_timeline.json"

_SUMMARY_STATISTICS = ("mean", "min", "p50", "p90", "p95", "p99", "max")
_PERCENTILES = (("min", 0), *((f"{p}%", p) for p in (1, 5, 10, 25, 50, 75, 90, 95, 99)), ("max", 100))
_RATE_NAMES = {
    "total_prompt": "Total Prompt tok/s",
    "new_prompt": "New Prompt tok/s",
    "cached_prompt": "Cached Prompt tok/s",
    "completion": "Completion tok/s",
}


# Formats that evalscope runs as conversations only, whatever their lengths.
_OF_CONVERSATIONS = frozenset(("custom_multi_turn", "share_gpt", "random_multi_turn", "swe_smith", "trie"))


def evalscope_files(
    columns: Columns, speed: float = 1.0, options: Mapping[str, Any] | None = None, workload_format: str = ""
) -> dict[str, Any]:
    """Return content by file name, of the requests that are measured; none when none succeeded.

    options: the run's settings, for concurrency and rate.
    trace_summary.json is there when a conversation has more than one turn or, in this format, might have, as in evalscope.
    """
    columns = columns.rows(columns.measured)
    if not columns.ok.any():
        return {}
    run = _Columns(columns, speed, workload_format in _OF_CONVERSATIONS)
    files: dict[str, Any] = {}
    if run.multi_turn:
        files["trace_summary.json"] = _trace_summary(run)
    line = timeline(columns, run.prompt, run.completion, run.cached, speed)
    files["workload_throughput.json"] = _workload_throughput(line, run.cached_by)
    files[TIMELINE_JSON] = _workload_timeline(line)
    files["benchmark_summary.json"] = _benchmark_summary(run, options or {})
    files["benchmark_percentile.json"] = _benchmark_percentile(run)
    return files


class _Columns:
    """Data shared by several files. Requests end with their last byte: evalscope's latency includes the usage."""

    def __init__(self, columns: Columns, speed: float, conversations_only: bool) -> None:
        self.columns, self.speed = columns, speed
        self.multi_turn = conversations_only or bool((columns.turn_index > 0).any())
        metrics = request_columns(columns, speed)
        empty = np.full(len(columns), np.nan)
        self.prompt = metrics.get("input_sequence_length", empty)
        self.completion = metrics.get("output_sequence_length", empty)
        reported = metrics.get("usage_prompt_cache_read_tokens")
        self.cached, self.cached_by = cached_or_estimated(columns, self.prompt, self.completion, reported)
        self.latency_s = np.where(columns.ok, columns.end_s - columns.start_s, np.nan) * speed
        first_s = np.where(columns.ok, columns.first_s - columns.start_s, np.nan) * speed
        self.ttft_s = np.where(columns.streamed, first_s, self.latency_s)
        further = self.completion - 1
        several = columns.ok & columns.streamed & (further > 0)
        decode_s = self.latency_s - self.ttft_s
        self.tpot_s = np.divide(decode_s, further, out=empty.copy(), where=several)


def _trace_summary(run: _Columns) -> dict[str, Any]:
    """Return the figures of finished conversations; others are only counted."""
    every = conversations(run.columns, run.prompt, run.completion, run.cached, run.speed, to_last_byte=True)
    rows = every.those(every.whole)
    values = {
        "Latency (s)": rows.latency_s,
        "First-Turn TTFT (s)": rows.first_turn_ttft_s,
        "TTFAT (s)": rows.ttfat_s,
        "Decode TPS": rows.decode_tokens_per_s,
        "Cache Hit Rate (%)": 100 * rows.cache_hit,
        "Eligible Cache Hit Rate (%)": 100 * rows.eligible_cache_hit,
    }
    return {
        "n_traces": int(rows.turns.size),
        "n_abandoned": int(every.turns.size - rows.turns.size),
        "cached_tokens_counted_by": run.cached_by,
        "rows": [{"metric": name, **_statistics(column)} for name, column in values.items()],
    }


def _statistics(values: Floats) -> dict[str, float | None]:
    """Null where no conversation has the figure; conversations that do not have it are in none of the statistics."""
    values = values[~np.isnan(values)]
    if not values.size:
        return dict.fromkeys(_SUMMARY_STATISTICS)
    p50, p90, p95, p99 = (float(v) for v in np.percentile(values, (50, 90, 95, 99)))
    found = (float(values.mean()), float(values.min()), p50, p90, p95, p99, float(values.max()))
    return dict(zip(_SUMMARY_STATISTICS, found, strict=True))


def _workload_throughput(line: Timeline, cached_by: str) -> dict[str, Any]:
    rates = line.rates()
    return {
        "n_samples": int(line.t_s.size),
        "wall_time_s": round(line.wall_time_s, 4),
        "last_window_s": LAST_WINDOW_S,
        "warmup_frac": WARM_UP_FRACTION,
        "cached_tokens_counted_by": cached_by,
        "rows": [{"metric": name, **asdict(rates[key])} for key, name in _RATE_NAMES.items() if key in rates],
    }


def _workload_timeline(line: Timeline) -> dict[str, Any]:
    points = zip(
        line.t_s.round(6).tolist(),
        line.completion.astype(np.int64).tolist(),
        line.new_prompt.astype(np.int64).tolist(),
        line.cached_prompt.astype(np.int64).tolist(),
        strict=True,
    )
    names = ("t", "cum_completion", "cum_new_prompt", "cum_cached_prompt")
    return {"wall_start": line.wall_start_s, "points": [dict(zip(names, point, strict=True)) for point in points]}


def _benchmark_summary(run: _Columns, options: Mapping[str, Any]) -> dict[str, Any]:
    columns, ok = run.columns, run.columns.ok
    counted = ~columns.cancelled
    duration_s = 0.0
    if counted.any():
        duration_s = float(columns.end_s[counted].max() - columns.start_s[counted].min()) * run.speed
    streamed = ok & columns.streamed
    # A failed reply has no form; it counts as what was asked for.
    as_stream = counted & (columns.streamed | (~ok & bool(options.get("streaming", True))))
    content: dict[str, Any] = {
        "Test Duration (s)": round(duration_s, 4),
        "Concurrency": options.get("concurrency") or -1,
        "Request Rate (req/s)": float(options.get("request_rate") or -1.0),
        "Total Requests": int(counted.sum()),
        "Success Requests": int(ok.sum()),
        "Failed Requests": int((counted & ~ok).sum()),
        "Stream Requests": int(as_stream.sum()),
        "Non-Stream Requests": int((counted & ~as_stream).sum()),
        "Req Throughput (req/s)": _per_s(ok.sum(), duration_s),
        "Avg Latency (s)": _mean(run.latency_s, 4),
        "Avg Input Tokens": _mean(run.prompt, 4),
        "Input Throughput (tok/s)": _per_s(np.nansum(run.prompt), duration_s),
        "Output Throughput (tok/s)": _per_s(np.nansum(run.completion), duration_s),
        "Total Throughput (tok/s)": _per_s(np.nansum(run.completion) + np.nansum(run.prompt), duration_s),
        "Avg TTFT (ms)": _mean(np.where(streamed if streamed.any() else ok, run.ttft_s, np.nan) * 1e3, 2),
        "Avg TPOT (ms)": _mean(run.tpot_s * 1e3, 2),
        "Avg ITL (ms)": _mean(chunk_gaps_ms(columns, run.speed), 2),
        "Avg Output Tokens": _mean(run.completion, 4),
    }
    hits, prompts = np.nansum(np.minimum(run.cached, run.prompt)), np.nansum(run.prompt)
    if run.multi_turn:
        content["Avg Turns/Request"] = _mean(np.where(ok, columns.turn_index + 1.0, np.nan), 4)
    if prompts and (run.multi_turn or run.cached_by != "estimated"):
        content["KV Cache Hit Rate (%)"] = round(float(100 * hits / prompts), 4)
    if run.multi_turn:
        first = columns.turn_index == 0
        content["Avg First-Turn TTFT (ms)"] = _mean(np.where(first, run.ttft_s, np.nan) * 1e3, 2)
    if (columns.turn_index > 0).any():
        content["Avg Subsequent-Turn TTFT (ms)"] = _mean(np.where(first, np.nan, run.ttft_s) * 1e3, 2)
    return content


def _benchmark_percentile(run: _Columns) -> list[dict[str, Any]]:
    streamed = run.columns.streamed
    columns = {
        "Latency (s)": run.latency_s,
        "TTFT (ms)": np.where(streamed, run.ttft_s, np.nan) * 1e3,
        "ITL (ms)": chunk_gaps_ms(run.columns, run.speed),
        "TPOT (ms)": run.tpot_s * 1e3,
        "Input tokens": run.prompt,
        "Output tokens": run.completion,
        "Output (tok/s)": ratio(run.completion, run.latency_s),
        "Total (tok/s)": ratio(run.prompt + run.completion, run.latency_s),
        "Decode (tok/s)": ratio(np.ones(len(run.columns)), run.tpot_s),
    }
    ranked = {name: np.sort(values[~np.isnan(values)]) for name, values in columns.items()}
    return [
        {"Percentiles": label, **{name: _nearest_rank(values, p) for name, values in ranked.items()}}
        for label, p in _PERCENTILES
    ]


def _nearest_rank(ranked: Floats, percent: int) -> float | None:
    if not ranked.size:
        return None
    place = max(int(np.ceil(ranked.size * percent / 100)) - 1, 0)
    return round(float(ranked[min(place, ranked.size - 1)]), 4)


def _mean(values: Floats, digits: int) -> float | None:
    values = values[~np.isnan(values)]
    return round(float(values.mean()), digits) if values.size else None


def _per_s(amount: float, duration_s: float) -> float | None:
    return round(float(amount) / duration_s, 4) if duration_s > 0 else None
