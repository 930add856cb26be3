"""The head of a run's page: workload and cluster, trustworthiness, key figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from llmirage_client.measure.metrics import Metrics
from llmirage_client.measure.record import RunResult
from llmirage_client.measure.slo import headline, verdicts_of
from llmirage_client.report.console import client_warnings, failures
from llmirage_client.report.html.page import Banner, Card
from llmirage_client.report.html.run_view import RunView
from llmirage_client.report.numbers import count, duration, number
from llmirage_client.report.secrets import hide_in_text
from llmirage_shared.plural import plural, rounded

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
