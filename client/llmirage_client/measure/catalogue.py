"""The metrics a run reports: tag, title and unit of each, as AIPerf names them. docs/metrics.md defines them in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from llmirage_shared.extensions import find_extension, installed


class Figures(Protocol):
    """Several statistics of a metric: a Summary or a Level."""

    def as_dict(self) -> dict[str, float]: ...


@dataclass(slots=True, frozen=True)
class Spec:
    """tag: the key in files. title: the name in the CSV. unit: of the exported figures."""

    tag: str
    title: str
    unit: str

    @property
    def heading(self) -> str:
        """The title with its unit, where the title does not already say what is counted."""
        return self.title if self.unit == "requests" else f"{self.title} ({self.unit})"

    def entry(self, value: float | Figures) -> dict[str, Any]:
        """Return the entry of JSON files: the unit with the statistics, or with the one value of a whole run."""
        return {"unit": self.unit, **({"avg": value} if isinstance(value, float | int) else value.as_dict())}


@dataclass(frozen=True)
class Metric(Spec):
    """A metric of single requests of the user's own: an extension.

    value: of the columns of a frame of the requests by name (`ttft_ms`, `osl`, `ok`, `turn`, ...; NaN where a request has
    none), an array with one value a request, NaN for none. tag: its name, unlike those of the catalogue.
    """

    value: Callable[[Mapping[str, npt.NDArray[Any]]], npt.ArrayLike]


def _by_tag(*specs: tuple[str, str, str]) -> dict[str, Spec]:
    return {tag: Spec(tag, title, unit) for tag, title, unit in specs}


_USAGE = tuple(
    (f"usage_{name}", f"Usage {name.replace('_', ' ').title()}", "tokens")
    for name in (
        "prompt_tokens", "completion_tokens", "total_tokens", "reasoning_tokens", "prompt_cache_read_tokens",
        "prompt_cache_write_tokens", "prompt_cache_miss_tokens", "prompt_audio_tokens", "completion_audio_tokens",
        "accepted_prediction_tokens", "rejected_prediction_tokens",
    )
)  # fmt: skip

# One value per request that has it; summarised over the run.
PER_REQUEST = _by_tag(
    ("time_to_first_token", "Time to First Token", "ms"),
    ("first_turn_time_to_first_token", "First-Turn Time to First Token", "ms"),
    ("subsequent_turn_time_to_first_token", "Subsequent-Turn Time to First Token", "ms"),
    ("time_to_second_token", "Time to Second Token", "ms"),
    ("time_to_first_output_token", "Time to First Output Token", "ms"),
    ("request_latency", "Request Latency", "ms"),
    ("decode_duration", "Decode Duration", "ms"),
    ("full_decode_duration", "Full Decode Duration", "ms"),
    ("inter_token_latency", "Inter Token Latency", "ms"),
    ("full_response_inter_token_latency", "Full-Response Inter Token Latency", "ms"),
    ("inter_chunk_latency", "Inter Chunk Latency", "ms"),
    ("credit_to_start_latency", "Credit to Start Latency", "ms"),
    ("effective_latency", "Effective Latency", "ms"),
    ("http_req_waiting", "HTTP Waiting (TTFB)", "ms"),
    ("http_req_receiving", "HTTP Receiving", "ms"),
    ("http_req_duration", "HTTP Duration (excl. conn)", "ms"),
    ("output_token_throughput_per_user", "Output Token Throughput Per User", "tokens/sec/user"),
    (
        "full_response_output_token_throughput_per_user",
        "Full-Response Output Token Throughput Per User",
        "tokens/sec/user",
    ),
    ("e2e_output_token_throughput", "E2E Output Token Throughput", "tokens/sec/user"),
    ("prefill_throughput_per_user", "Prefill Throughput Per User", "tokens/sec/user"),
    ("input_sequence_length", "Input Sequence Length", "tokens"),
    ("output_sequence_length", "Output Sequence Length", "tokens"),
    ("output_token_count", "Output Token Count", "tokens"),
    ("reasoning_token_count", "Reasoning Token Count", "tokens"),
    ("osl_mismatch_diff_pct", "OSL Mismatch Diff %", "%"),
    ("error_isl", "Error Input Sequence Length", "tokens"),
    ("usage_prompt_tokens_diff_pct", "Usage Prompt Diff %", "%"),
    ("usage_completion_tokens_diff_pct", "Usage Completion Diff %", "%"),
    *_USAGE,
)

# One value per conversation that has it; summarised over the run. AIPerf has no such metrics.
PER_CONVERSATION = _by_tag(
    ("conversation_latency", "Conversation Latency", "ms"),
    ("conversation_first_turn_ttft", "Conversation First-Turn TTFT", "ms"),
    ("conversation_ttfat", "Conversation Time to First Answer Token", "ms"),
    ("conversation_decode_throughput", "Conversation Decode Throughput", "tokens/sec/user"),
    ("conversation_turns", "Conversation Turns", "turns"),
    ("conversation_cache_hit_pct", "Conversation Cache Hit Rate", "%"),
    ("conversation_eligible_cache_hit_pct", "Conversation Eligible Cache Hit Rate", "%"),
)

# A level that changes over the run; its statistics are weighted by time.
OVER_TIME = _by_tag(
    ("effective_concurrency", "Effective Concurrency", "requests"),
    ("effective_prefill_concurrency", "Effective Prefill Concurrency", "requests"),
    ("effective_decode_concurrency", "Effective Decode Concurrency", "requests"),
    ("effective_prefill_throughput", "Effective Prefill Throughput", "tokens/sec"),
    ("effective_decode_throughput", "Effective Decode Throughput", "tokens/sec"),
    ("effective_total_throughput", "Effective Total Throughput", "tokens/sec"),
    ("effective_prefill_throughput_per_user", "Effective Prefill Throughput Per User", "tokens/sec/user"),
    ("effective_decode_throughput_per_user", "Effective Decode Throughput Per User", "tokens/sec/user"),
    ("active_prefill_throughput", "Active Prefill Throughput", "tokens/sec"),
    ("active_decode_throughput", "Active Decode Throughput", "tokens/sec"),
    ("active_total_throughput", "Active Total Throughput", "tokens/sec"),
    ("active_prefill_throughput_per_user", "Active Prefill Throughput Per User", "tokens/sec/user"),
    ("active_decode_throughput_per_user", "Active Decode Throughput Per User", "tokens/sec/user"),
    ("tokens_in_flight", "Tokens In Flight", "tokens"),
)

# Totals are the sums of per-request metrics over the requests that have them.
TOTALS = {
    "total_isl": "input_sequence_length",
    "total_osl": "output_sequence_length",
    "total_output_tokens": "output_token_count",
    "total_reasoning_tokens": "reasoning_token_count",
    "total_error_isl": "error_isl",
    **{f"total_{tag}": tag for tag, _, _ in _USAGE},
}

# One value for the whole run.
WHOLE_RUN = _by_tag(
    ("benchmark_duration", "Benchmark Duration", "sec"),
    ("request_count", "Request Count", "requests"),
    ("error_request_count", "Error Request Count", "requests"),
    ("cancelled_request_count", "Cancelled Request Count", "requests"),
    ("completed_request_count", "Completed Request Count", "requests"),
    ("conversation_count", "Conversation Count", "conversations"),
    ("request_error_rate", "Request Error Rate", "%"),
    ("request_throughput", "Request Throughput", "requests/sec"),
    ("input_token_throughput", "Input Token Throughput", "tokens/sec"),
    ("output_token_throughput", "Output Token Throughput", "tokens/sec"),
    ("total_token_throughput", "Total Token Throughput", "tokens/sec"),
    ("good_request_count", "Good Request Count", "requests"),
    ("good_request_fraction", "Good Request Fraction", "ratio"),
    ("goodput", "Goodput", "requests/sec"),
    ("osl_mismatch_count", "OSL Mismatch Count", "requests"),
    ("usage_discrepancy_count", "Usage Discrepancy Count", "requests"),
    ("replay_sched_lag_p50", "Replay Schedule Lag p50", "ms"),
    ("replay_sched_lag_p90", "Replay Schedule Lag p90", "ms"),
    ("replay_sched_lag_p99", "Replay Schedule Lag p99", "ms"),
    ("replay_sched_degraded", "Replay Schedule Degraded", "0/1"),
    ("total_isl", "Total Input Sequence Length", "tokens"),
    ("total_osl", "Total Output Sequence Length", "tokens"),
    ("total_output_tokens", "Total Output Tokens", "tokens"),
    ("total_reasoning_tokens", "Total Reasoning Tokens", "tokens"),
    ("total_error_isl", "Total Error Input Sequence Length", "tokens"),
    *((f"total_{tag}", f"Total {title}", unit) for tag, title, unit in _USAGE),
    ("overall_usage_prompt_cache_read_pct", "Overall Usage Prompt Cache Read %", "%"),
)

# What users may write for a tag in an objective, the same in --goodput, --slo and --find-max.
SHORT_NAMES: Mapping[str, str] = {
    "ttft": "time_to_first_token",
    "ttst": "time_to_second_token",
    "ttfo": "time_to_first_output_token",
    "ttfat": "conversation_ttfat",
    "tpot": "inter_token_latency",
    "itl": "inter_chunk_latency",
    "latency": "request_latency",
    "e2e": "request_latency",
    "e2e_latency": "request_latency",
    "e2el": "request_latency",
    "isl": "input_sequence_length",
    "osl": "output_sequence_length",
    "tps_per_user": "output_token_throughput_per_user",
    "error_rate": "request_error_rate",
    "errors": "error_request_count",
    "requests": "request_count",
    "duration": "benchmark_duration",
    "throughput": "request_throughput",
    "rps": "request_throughput",
    "tps": "output_token_throughput",
    "output_throughput": "output_token_throughput",
    "cache_hit_rate": "overall_usage_prompt_cache_read_pct",
}


def own_metrics(names: Iterable[str] = ()) -> list[Metric]:
    """Return the metrics that are extensions: the installed ones and these; the catalogue has them from then on.

    Raises ValueError for a name that stands for none.
    """
    found = []
    for name in dict.fromkeys((*installed("metric"), *names)):
        metric = find_extension("metric", name)
        if not isinstance(metric, Metric):
            raise ValueError(f"metric {name!r}: it must be an llmirage.Metric, not {metric!r}")
        known = PER_REQUEST.get(metric.tag) or PER_CONVERSATION.get(metric.tag) or WHOLE_RUN.get(metric.tag)
        if known is not None and not isinstance(known, Metric):
            raise ValueError(f"metric {name!r}: there is a metric {metric.tag!r} already")
        PER_REQUEST[metric.tag] = metric
        found.append(metric)
    return found


def own_metrics_problem(names: tuple[str, ...]) -> str | None:
    """Return why these are no metrics; None if they are."""
    try:
        own_metrics(names)
    except ValueError as error:
        return str(error)
    return None


_FRAME_WORDS = {long: short for short, long in reversed([*SHORT_NAMES.items()])}


def frame_name(tag: str, statistic: str = "") -> str:
    """Return the name that our frames have for a metric of requests, as in summaries: `ttft_ms`, `ttft_p99_ms`."""
    spec = PER_REQUEST.get(tag) or PER_CONVERSATION.get(tag)
    if spec is None or spec.unit != "ms":
        return "_".join(filter(None, [_FRAME_WORDS.get(tag, tag), statistic]))
    name = next((tag.removesuffix(long) + short for long, short in _FRAME_WORDS.items() if tag.endswith(long)), tag)
    return "_".join(filter(None, [name, statistic, "ms"]))
