"""A run as its page sees it: rows by their start, series over its time, and the summary at the top of the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import PurePath
from typing import Any

import numpy as np

from llmirage_client.measure.columns import Columns, columns_of
from llmirage_client.measure.metrics import Metrics, compute
from llmirage_client.measure.record import Record, RunResult
from llmirage_client.measure.request_metrics import request_columns
from llmirage_client.measure.slo import headline, verdicts_of
from llmirage_client.report.console import client_warnings, failures
from llmirage_client.report.html.charts import round_up
from llmirage_client.report.html.page import Banner, Card
from llmirage_client.report.output_files import hide_in_text
from llmirage_client.report.screen import count, duration, number
from llmirage_shared.plural import plural, rounded
from llmirage_shared.statistics import Floats, ratio


@dataclass(frozen=True, slots=True)
class RunView:
    """One run. Only its measured requests, in order of their start.

    values: request_columns of the rows, NaN where a request has no such metric. origin_s: the first start, on the run's
    clock. records: of the rows; empty where a run has none (a simulation that kept columns only).
    """

    name: str
    result: RunResult
    metrics: Metrics
    columns: Columns
    values: dict[str, Floats]
    origin_s: float
    records: list[Record]

    def since_start_s(self, times: Floats) -> Floats:
        """Return cluster time since the first request."""
        return (times - self.origin_s) * self.result.speed

    def value(self, tag: str) -> Floats:
        """Return a metric of every row; all NaN when no request has it."""
        found = self.values.get(tag)
        return np.full(len(self.columns), np.nan) if found is None else found

    def has(self, tag: str) -> bool:
        return tag in self.values

    @property
    def start_s(self) -> Floats:
        return self.since_start_s(self.columns.start_s)

    @property
    def end_s(self) -> Floats:
        return self.since_start_s(self.columns.end_s)

    @property
    def cached_share(self) -> Floats:
        """The share of each request's prompt tokens that the server found in its cache; NaN where unknown."""
        prompt, cached = self.value("usage_prompt_tokens"), self.value("usage_prompt_cache_read_tokens")
        return ratio(np.minimum(cached, prompt), prompt)


def view_run(result: RunResult, name: str = "") -> RunView:
    """Return the view of a run. name: of the run among several."""
    records = sorted((r for r in result.records if r.phase == "profiling"), key=lambda r: r.exchange.start_s)
    columns = columns_of(records)
    return RunView(
        name=name or result.model or "run",
        result=result,
        metrics=compute(result),
        columns=columns,
        values=request_columns(columns, result.speed),
        origin_s=float(columns.start_s[0]) if records else result.start_s,
        records=records,
    )


def names_of(paths: list[str]) -> list[str]:
    """Return the last part of each path, with as many parts before it as it takes to tell them apart."""
    parts = [PurePath(p).parts or (p,) for p in paths]
    kept = 1
    while kept < 4 and len({p[-kept:] for p in parts}) < len(set(parts)):
        kept += 1
    return ["/".join(p[-kept:]) for p in parts]


_POINTS = 120
_WINDOWS = 30  # of a run: a window is that part of it
_FEWEST = {50: 5, 90: 10, 99: 100}  # requests in a window for its percentile to mean something


@dataclass(frozen=True, slots=True)
class Rolling:
    """percentiles[p][i]: of the values within half a window of at_s[i]; NaN where they are too few."""

    at_s: Floats
    window_s: float
    percentiles: dict[int, Floats]


def rolling(times_s: Floats, values: Floats) -> Rolling:
    """Return percentiles over a window that moves along. A percentile that no window has enough values for is left out."""
    known = np.isfinite(values)
    times, kept = times_s[known], values[known]
    order = np.argsort(times, kind="stable")
    times, kept = times[order], kept[order]
    if times.size < 2 or times[-1] <= times[0]:
        return Rolling(times, 0.0, {})
    span = float(times[-1] - times[0])
    window = span / min(_WINDOWS, max(3.0, times.size / 20))
    at = np.linspace(times[0], times[-1], _POINTS)
    first = np.searchsorted(times, at - window / 2, side="left")
    last = np.searchsorted(times, at + window / 2, side="right")
    found = {p: np.full(at.size, np.nan) for p in _FEWEST}
    for i, (a, b) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
        wanted = [p for p, fewest in _FEWEST.items() if b - a >= fewest]
        if wanted:
            for p, value in zip(wanted, np.percentile(kept[a:b], wanted), strict=True):
                found[p][i] = value
    return Rolling(at, window, {p: v for p, v in found.items() if np.isfinite(v).any()})


def bins(end_s: float) -> Floats:
    """Return edges of equal bins with a width people would choose, from 0 to past end_s."""
    if end_s <= 0:
        return np.array([0.0, 1.0])
    width = round_up(end_s / _POINTS)
    return np.arange(0.0, end_s + width, width)


def output_rate(view: RunView, edges: Floats) -> Floats:
    """Return output tokens per second in each bin, by arrival.

    A reply's tokens are shared evenly among its content events.
    """
    columns, osl = view.columns, view.value("output_sequence_length")
    if columns.stamps_s is None:
        seen = np.isfinite(osl) & np.isfinite(columns.last_s)
        stamps, tokens = columns.last_s[seen], osl[seen]
    else:
        share = np.divide(osl, columns.events, out=np.zeros(osl.size), where=(columns.events > 0) & np.isfinite(osl))
        stamps, tokens = columns.stamps_s, np.repeat(share, columns.events)
    counted, _ = np.histogram(view.since_start_s(stamps), edges, weights=tokens)
    return counted / np.diff(edges)


def mean_active(starts_s: Floats, ends_s: Floats, edges: Floats) -> Floats:
    """Return the mean number of open intervals in each bin. Intervals with a NaN do not count."""
    known = np.isfinite(starts_s) & np.isfinite(ends_s)

    def reached(moments: Floats) -> Floats:
        """Return the sum over all moments before t of t less the moment, at every edge."""
        ordered = np.sort(moments)
        sums = np.concatenate([[0.0], np.cumsum(ordered)])
        before = np.searchsorted(ordered, edges)
        reach: Floats = edges * before - sums[before]
        return reach

    return np.maximum(np.diff(reached(starts_s[known]) - reached(ends_s[known])) / np.diff(edges), 0.0)


# The settings that make the load, in the order they are said.
_LOAD = (
    "concurrency", "concurrency_ramp_duration", "request_rate", "request_rate_series", "arrival_pattern",
    "arrival_smoothness", "request_rate_ramp_duration", "user_centric_rate", "num_users", "fixed_schedule",
    "fixed_schedule_speedup", "isl", "osl", "requests", "num_conversations", "request_count", "duration",
    "benchmark_duration", "inter_turn_delay_cap_seconds", "request_cancellation_rate", "warmup_request_count", "goodput",
)  # fmt: skip
_ONLY_WITH = {"arrival_pattern": "request_rate"}


def facts(view: RunView) -> dict[str, str]:
    """Return workload, endpoint and time of the run."""
    result = view.result
    endpoint = [hide_in_text(result.url)] if result.url else []
    endpoint += [f"{result.endpoint} API", "streamed" if result.streaming else "not streamed"]
    kind = result.workload_format if result.workload_format != result.workload_path else ""
    workload = result.workload_path + (f" ({kind})" if kind else "")
    found = {
        "Model": result.model or "unnamed",
        "Endpoint": ", ".join(endpoint),
        "Workload": workload,
        "Cluster": cluster_text(result.deployment),
        "Price": price_text(result.deployment),
        "Load": load_text(result.options),
        "When": when(result),
        "llmirage": result.version or version("llmirage"),
    }
    return {name: text for name, text in found.items() if text}


_PARALLEL = (
    ("TP", "tensor_parallel_size"),
    ("PP", "pipeline_parallel_size"),
    ("DP", "data_parallel_size"),
    ("EP", "expert_parallel_size"),
)


def cluster_text(pools: Sequence[Mapping[str, Any]]) -> str:
    """Describe the serving cluster, pool by pool, as far as it is known."""
    texts = []
    for pool in pools:
        gpu, each = pool.get("gpu"), pool.get("gpus_per_instance")
        gpus = f"{each}x {gpu}" if gpu and each else gpu
        instances = pool.get("instances")
        sizes = [f"{short}{size}" for short, name in _PARALLEL if (size := pool.get(name)) and (size > 1 or short == "TP")]
        parts = [
            f"{plural(instances, 'instance')} of {gpus}" if instances and gpus else gpus,
            " ".join(sizes),
            pool.get("weights") and f"{pool['weights']} weights",
            pool.get("kv_cache_dtype") and f"{pool['kv_cache_dtype']} KV",
            pool.get("engine"),
            pool.get("router") and f"router {pool['router']}",
        ]
        said = ", ".join(str(part) for part in parts if part)
        texts.append(f"{pool['model']}: {said}" if len(pools) > 1 and pool.get("model") and said else said)
    return "; ".join(text for text in texts if text)


def price_text(pools: Sequence[Mapping[str, Any]]) -> str:
    """Return the price of the GPUs of all pools; empty unless it is known of each."""
    prices = [price for pool in pools if isinstance(price := pool.get("usd_per_h"), list) and len(price) == 2]
    if not prices or len(prices) < len(pools):
        return ""
    low, high = (sum(price[end] for price in prices) for end in (0, 1))
    amount = f"{low:,.2f}" if low == high else f"{low:,.2f} to {high:,.2f}"
    return f"{amount} USD/h (on-demand prices of the catalogue)"


def when(result: RunResult) -> str:
    """Return the start of a run and its duration."""
    took_s = (result.end_s - result.start_s) * result.speed
    text = f"{datetime.fromtimestamp(result.start_unix_s, UTC):%Y-%m-%d %H:%M:%S} UTC, for {duration(took_s)}"
    if result.speed != 1:
        text += f" of cluster time ({duration(took_s / result.speed)} real time at speed {result.speed:g})"
    return text


def time_span(results: Iterable[RunResult]) -> str:
    """Return the time from the first start to the last end of several runs."""
    spans = [(r.start_unix_s, r.start_unix_s + (r.end_s - r.start_s)) for r in results]
    first, last = (datetime.fromtimestamp(t, UTC) for t in (min(s for s, _ in spans), max(e for _, e in spans)))
    return f"{first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S} UTC"


def load_text(options: Mapping[str, Any]) -> str:
    """Return the settings of the load that were given, in the words of the command line."""
    said = []
    for name in _LOAD:
        value = options.get(name)
        if value in (None, False, 0, "") or (name in _ONLY_WITH and options.get(_ONLY_WITH[name]) is None):
            continue
        words = name.replace("_", " ")
        said.append(words if value is True else f"{words} {value:g}" if isinstance(value, float) else f"{words} {value}")
    return ", ".join(said) or ("one conversation after the other" if "concurrency" in options else "")


def verdicts(view: RunView) -> list[Banner]:
    """Return the verdict on objectives, then on failures, completeness and the client, the worst first."""
    found = [_outcome(view.metrics)]
    result = view.result
    if result.cancelled:
        why = f" ({result.cancel_reason})" if result.cancel_reason else ""
        found.append(
            Banner(
                "warn",
                f"The run was cut short{why}",
                ["All figures here are of what finished before that; what was still to come is in none of them."],
            )
        )
    if warnings := client_warnings(result, view.metrics):
        found.append(Banner("warn", "The client was a bottleneck: the endpoint may be faster than this", warnings))
    found.sort(key=lambda v: ("bad", "warn", "good").index(v.state))
    if judged := verdicts_of(result.options, view.metrics):
        met = all(verdict.met for verdict in judged)
        found.insert(0, Banner("good" if met else "bad", headline(judged), [str(verdict) for verdict in judged]))
    return found


def _outcome(metrics: Metrics) -> Banner:
    values = metrics.whole_run
    ok, failed = values.get("request_count", 0), values.get("error_request_count", 0)
    cancelled = values.get("cancelled_request_count", 0)
    extra = [f"{plural(cancelled, 'request')} cancelled by this client, in no figure of latency."] if cancelled else []
    extra = [*failures(metrics.errors, 3), *extra]
    if not ok:
        nothing = f"{count(failed)} of {plural(failed, 'request')} failed" if failed else "No request was finished"
        return Banner("bad", f"{nothing}: there is nothing to measure", extra)
    if failed:
        share = 100 * failed / (ok + failed)
        extra.append("Latencies are of the requests that succeeded.")
        return Banner("bad", f"{count(failed)} of {plural(ok + failed, 'request')} failed ({rounded(share, 2)} %)", extra)
    return Banner("good", f"All {plural(ok, 'request')} succeeded" if ok > 1 else "The one request succeeded", extra)


def cards(view: RunView) -> list[Card]:
    """Return the cards of the key figures; a metric without data has none."""
    metrics, found = view.metrics, []
    values = metrics.whole_run
    failed = values.get("error_request_count", 0)
    found.append(Card("Requests", count(values.get("request_count", 0)), "ok", f"{count(failed)} failed"))
    for tag, label in (
        ("time_to_first_token", "TTFT, median"),
        ("inter_token_latency", "TPOT, median"),
        ("request_latency", "Request latency, median"),
    ):
        summary = metrics.per_request.get(tag)
        if summary is not None:
            found.append(Card(label, number(summary.p50), "ms", f"p90 {number(summary.p90)}, p99 {number(summary.p99)}"))
    for tag, label, unit in (
        ("output_token_throughput", "Output tokens", "/s"),
        ("total_token_throughput", "Input and output tokens", "/s"),
        ("request_throughput", "Request throughput", "/s"),
        ("goodput", "Goodput", "requests/s"),
    ):
        if tag in values:
            found.append(Card(label, number(values[tag]), unit))
    level = metrics.over_time.get("effective_concurrency")
    if level is not None:
        found.append(Card("In flight, on average", number(level.avg), "requests", f"at most {count(level.max)}"))
    cached = values.get("overall_usage_prompt_cache_read_pct")
    if cached is not None:
        found.append(Card("Prompt tokens cached", f"{cached:.1f}", "%", "found in the prefix cache"))
    return found
