"""The metrics a run reports: tag, title and unit of each, as AIPerf names them. docs/metrics.md defines them in words."""

from __future__ import annotations

from dataclasses import dataclass


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


def _by_tag(*specs: tuple[str, str, str]) -> dict[str, Spec]:
    return {tag: Spec(tag, title, unit) for tag, title, unit in specs}


# One value per request that has it; summarised over the run.
PER_REQUEST = _by_tag(
    ("time_to_first_token", "Time to First Token", "ms"),
    ("time_to_second_token", "Time to Second Token", "ms"),
    ("time_to_first_output_token", "Time to First Output Token", "ms"),
    ("request_latency", "Request Latency", "ms"),
    ("inter_token_latency", "Inter Token Latency", "ms"),
    ("inter_chunk_latency", "Inter Chunk Latency", "ms"),
    ("output_token_throughput_per_user", "Output Token Throughput Per User", "tokens/sec/user"),
    ("e2e_output_token_throughput", "E2E Output Token Throughput", "tokens/sec/user"),
    ("prefill_throughput_per_user", "Prefill Throughput Per User", "tokens/sec/user"),
    ("input_sequence_length", "Input Sequence Length", "tokens"),
    ("output_sequence_length", "Output Sequence Length", "tokens"),
    ("output_token_count", "Output Token Count", "tokens"),
    ("reasoning_token_count", "Reasoning Token Count", "tokens"),
    ("usage_prompt_tokens", "Usage Prompt Tokens", "tokens"),
    ("usage_completion_tokens", "Usage Completion Tokens", "tokens"),
    ("usage_total_tokens", "Usage Total Tokens", "tokens"),
    ("usage_reasoning_tokens", "Usage Reasoning Tokens", "tokens"),
    ("usage_prompt_cache_read_tokens", "Usage Prompt Cache Read Tokens", "tokens"),
)

# One value for the whole run.
WHOLE_RUN = _by_tag(
    ("benchmark_duration", "Benchmark Duration", "sec"),
    ("request_count", "Request Count", "requests"),
    ("error_request_count", "Error Request Count", "requests"),
    ("cancelled_request_count", "Cancelled Request Count", "requests"),
    ("completed_request_count", "Completed Request Count", "requests"),
    ("request_error_rate", "Request Error Rate", "%"),
    ("request_throughput", "Request Throughput", "requests/sec"),
    ("input_token_throughput", "Input Token Throughput", "tokens/sec"),
    ("output_token_throughput", "Output Token Throughput", "tokens/sec"),
    ("total_token_throughput", "Total Token Throughput", "tokens/sec"),
    ("total_isl", "Total Input Sequence Length", "tokens"),
    ("total_osl", "Total Output Sequence Length", "tokens"),
    ("total_output_tokens", "Total Output Tokens", "tokens"),
    ("total_reasoning_tokens", "Total Reasoning Tokens", "tokens"),
    ("total_usage_prompt_tokens", "Total Usage Prompt Tokens", "tokens"),
    ("total_usage_completion_tokens", "Total Usage Completion Tokens", "tokens"),
    ("total_usage_total_tokens", "Total Usage Total Tokens", "tokens"),
    ("total_usage_reasoning_tokens", "Total Usage Reasoning Tokens", "tokens"),
    ("total_usage_prompt_cache_read_tokens", "Total Usage Prompt Cache Read Tokens", "tokens"),
    ("overall_usage_prompt_cache_read_pct", "Overall Usage Prompt Cache Read %", "%"),
)

# Totals are the sums of per-request metrics over the requests that have them.
TOTALS = {
    "total_isl": "input_sequence_length",
    "total_osl": "output_sequence_length",
    "total_output_tokens": "output_token_count",
    "total_reasoning_tokens": "reasoning_token_count",
    "total_usage_prompt_tokens": "usage_prompt_tokens",
    "total_usage_completion_tokens": "usage_completion_tokens",
    "total_usage_total_tokens": "usage_total_tokens",
    "total_usage_reasoning_tokens": "usage_reasoning_tokens",
    "total_usage_prompt_cache_read_tokens": "usage_prompt_cache_read_tokens",
}
