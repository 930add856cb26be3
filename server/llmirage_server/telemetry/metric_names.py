"""Under which names each engine exposes what is known of its instances.

Names, kinds, labels and buckets are those of vLLM's v1/metrics/loggers.py, SGLang's
srt/observability/metrics_collector.py and TensorRT-LLM's metrics/collector.py.
What the simulated cluster does not know has no family here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from llmirage_server.cluster.snapshots import STEP_TOKENS
from llmirage_server.telemetry.scrape import CacheSettings, Standing

Value = float | Mapping[str, float]  # one, or one for each value of a label


@dataclass(slots=True, frozen=True)
class MetricFamily:
    """One name with one sample for each instance, or for each model that instances serve."""

    name: str
    help: str
    value: Callable[[Standing], Value]
    label: str = ""  # by whose values there are several
    each: Literal["instance", "model"] = "instance"
    of_drafts: bool = False  # of instances alone that draft tokens

    @property
    def kind(self) -> Literal["gauge", "counter"]:
        return "counter" if self.name.endswith("_total") else "gauge"


@dataclass(slots=True, frozen=True)
class HistogramFamily:
    """A histogram of one measure of requests (`_measured` in scrape.py has them), or of `step_tokens`."""

    name: str
    help: str
    measure: str
    bounds: Sequence[float]
    each: Literal["instance", "model"] = "instance"


@dataclass(slots=True, frozen=True)
class EngineNames:
    """All families of one engine, and the labels of their samples."""

    prefix: str
    samples: tuple[MetricFamily, ...]
    histograms: tuple[HistogramFamily, ...]
    instance_labels: Callable[[str, int], Mapping[str, str]]  # by model and index
    model_labels: Mapping[str, str] = field(default_factory=dict)  # beside the model's name
    cache_labels: Callable[[CacheSettings, int, int], Mapping[str, str]] | None = None  # by the blocks, and the index
    role_label: str = ""  # that names the half of the work of disaggregated instances

    @property
    def measures(self) -> dict[str, Sequence[float]]:
        return {family.measure: family.bounds for family in self.histograms}


def one_two_five(most: int) -> list[int]:
    """1, 2, 5, 10, 20, 50 ... up to `most`."""
    bounds: list[int] = []
    power = 1
    while True:
        for digit in (1, 2, 5):
            if digit * power > most:
                return bounds
            bounds.append(digit * power)
        power *= 10


_TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
           160.0, 640.0, 2560.0)  # fmt: skip
_ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_REQUEST_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
              1920.0, 7680.0)  # fmt: skip
_TOKENS = tuple(one_two_five(1_000_000))


def _draft_counters(each: Literal["instance", "model"]) -> Iterator[MetricFamily]:
    """Yield the families that vLLM and TensorRT-LLM share."""
    for name, help, value in (
        ("draft", "Draft tokens.", lambda at: at.steps.draft_tokens),
        ("accepted", "Accepted draft tokens.", lambda at: at.steps.accepted_tokens),
    ):
        yield MetricFamily(f"spec_decode_num_{name}_tokens_total", help, value, each=each, of_drafts=True)


_VLLM = EngineNames(
    "vllm:",
    (
        MetricFamily("num_requests_running", "Requests in the batch of the engine.", lambda at: at.running),
        MetricFamily("num_requests_waiting", "Requests that wait to be processed.", lambda at: at.waiting),
        MetricFamily(
            "num_requests_waiting_by_reason",
            "Waiting requests: for room (capacity), or for KV that is on its way (deferred).",
            lambda at: at.waiting_by_reason,
            "reason",
        ),
        MetricFamily(
            "engine_sleep_state",
            "1 for the state that the engine is in: awake, or asleep at level 1 or 2.",
            lambda at: at.sleep_states,
            "sleep_state",
        ),
        MetricFamily("kv_cache_usage_perc", "Share of the KV memory in use: 1 is all of it.", lambda at: at.kv_share),
        MetricFamily("prompt_tokens_total", "Prompt tokens of requests.", lambda at: at.so_far("prompt_tokens")),
        MetricFamily(
            "prompt_tokens_cached_total",
            "Prompt tokens of requests that were found in a cache.",
            lambda at: at.so_far("cached_tokens"),
        ),
        MetricFamily(
            "prompt_tokens_by_source_total", "Prompt tokens by where their KV came from.", lambda at: at.by_source, "source"
        ),
        MetricFamily("generation_tokens_total", "Generated tokens.", lambda at: at.so_far("generation_tokens")),
        MetricFamily("num_preemptions_total", "Preemptions.", lambda at: at.preemptions),
        MetricFamily("prefix_cache_queries_total", "Prefix cache queries, in tokens.", lambda at: at.queried),
        MetricFamily("prefix_cache_hits_total", "Prefix cache hits, in tokens.", lambda at: at.hits),
        MetricFamily("external_prefix_cache_queries_total", "Tokens looked up in KV tiers.", lambda at: at.external_queries),
        MetricFamily("external_prefix_cache_hits_total", "Tokens found in KV tiers.", lambda at: at.external_hits),
        MetricFamily("mm_cache_queries_total", "Images and sounds of requests.", lambda at: at.media_queries),
        MetricFamily("mm_cache_hits_total", "Images and sounds that an earlier request had, too.", lambda at: at.media_hits),
        MetricFamily(
            "estimated_flops_per_gpu_total", "Estimated floating-point operations of one GPU.", lambda at: at.estimated_flops
        ),
        MetricFamily(
            "estimated_read_bytes_per_gpu_total",
            "Estimated bytes that one GPU read from its memory.",
            lambda at: at.estimated_read_bytes,
        ),
        MetricFamily(
            "estimated_write_bytes_per_gpu_total",
            "Estimated bytes that one GPU wrote to its memory.",
            lambda at: at.estimated_write_bytes,
        ),
        MetricFamily("request_success_total", "Requests by what ended them.", lambda at: at.by_reason, "finished_reason"),
        MetricFamily(
            "spec_decode_num_drafts_total",
            "Drafts: of one sequence in one step.",
            lambda at: at.steps.drafts,
            of_drafts=True,
        ),
        *_draft_counters("instance"),
        MetricFamily(
            "spec_decode_num_accepted_tokens_per_pos_total",
            "Accepted draft tokens by their position in the draft.",
            lambda at: {str(position): count for position, count in enumerate(at.steps.accepted_by_position)},
            "position",
            of_drafts=True,
        ),
    ),
    (
        HistogramFamily(
            "iteration_tokens_total",
            "Tokens of a step that brings tokens: the generated ones, and those computed of prompts that it ends.",
            "step_tokens",
            STEP_TOKENS,
        ),
        HistogramFamily("time_to_first_token_seconds", "Time to first token in seconds.", "ttft_s", _TTFT_S),
        HistogramFamily(
            "inter_token_latency_seconds",
            "Inter-token latency in seconds; each token counts with its request's mean.",
            "itl_s",
            _ITL_S,
        ),
        HistogramFamily(
            "request_time_per_output_token_seconds", "Mean time per output token of a request in seconds.", "tpot_s", _ITL_S
        ),
        HistogramFamily("e2e_request_latency_seconds", "End-to-end latency of a request in seconds.", "e2e_s", _REQUEST_S),
        HistogramFamily(
            "request_queue_time_seconds", "Time of a request before its first step in seconds.", "queue_s", _REQUEST_S
        ),
        HistogramFamily(
            "request_inference_time_seconds",
            "Time of a request from its first step to its last token in seconds.",
            "inference_s",
            _REQUEST_S,
        ),
        HistogramFamily(
            "request_prefill_time_seconds",
            "Time of a request from its first step to its first token in seconds.",
            "prefill_s",
            _REQUEST_S,
        ),
        HistogramFamily(
            "request_decode_time_seconds",
            "Time of a request from its first to its last token in seconds.",
            "decode_s",
            _REQUEST_S,
        ),
        HistogramFamily("request_prompt_tokens", "Prompt tokens of a request.", "prompt_tokens", _TOKENS),
        HistogramFamily("request_generation_tokens", "Generated tokens of a request.", "generation_tokens", _TOKENS),
        HistogramFamily(
            "request_prefill_kv_computed_tokens", "Prompt tokens of a request that no cache had.", "computed_tokens", _TOKENS
        ),
        HistogramFamily("request_params_max_tokens", "Most tokens that a request may generate.", "max_tokens", _TOKENS),
        HistogramFamily("request_params_n", "Replies to a prompt.", "n", (1, 2, 5, 10, 20)),
        HistogramFamily("request_max_num_generation_tokens", "Tokens of the longest reply to a prompt.", "longest", _TOKENS),
    ),
    lambda model, index: {"engine": str(index), "model_name": model},
    cache_labels=lambda cache, blocks, index: {
        "block_size": str(cache.block_size),
        "cache_dtype": cache.dtype,
        "enable_prefix_caching": str(cache.enable_prefix_caching),
        "engine": str(index),
        "gpu_memory_utilization": str(cache.gpu_memory_utilization),
        "num_gpu_blocks": str(blocks),
    },
)

# What SGLang's scheduler tells has the ranks as labels, what its tokenizer process tells has not.
_SGLANG_TTFT_S = (0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400)
_SGLANG_ITL_S = (0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6,
                 0.8, 1, 2, 4, 6, 8)  # fmt: skip
_SGLANG_QUEUE_S = (0, 0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 10, 15, 20, 30, 40, 50, 60, 70, 80, 90, 100, 200, 300, 400, 500, 600,
                   700, 800, 900, 1000, 1200, 1400, 1600, 1800, 2000, 2500, 3000)  # fmt: skip
_RETRACTIONS = (*range(11), 15, 20, 25, 30, 40, 50, 75, 100)


def _by_source(at: Standing) -> Value:
    """Return cached tokens by source; with several tiers, the source of a prompt's tokens is not known."""
    tiers = any(state.tiers for state in at.states)
    return {"total" if tiers else "device": at.ended["cached_tokens"]}


# What SGLang and TensorRT-LLM both tell.
_PROMPT_TOKENS = MetricFamily(
    "prompt_tokens_total", "Prompt tokens of requests that have ended.", lambda at: at.ended["prompt_tokens"], each="model"
)
_GENERATED_TOKENS = MetricFamily(
    "generation_tokens_total",
    "Generated tokens of requests that have ended.",
    lambda at: at.ended["generation_tokens"],
    each="model",
)

_SGLANG = EngineNames(
    "sglang:",
    (
        MetricFamily("num_running_reqs", "Requests in the running batch.", lambda at: at.running),
        MetricFamily("num_queue_reqs", "Requests in the waiting queue.", lambda at: at.waiting),
        MetricFamily("num_used_tokens", "Tokens of KV in use.", lambda at: at.kv_used),
        MetricFamily("max_total_num_tokens", "Tokens of KV that there is room for.", lambda at: at.kv_total),
        MetricFamily("token_usage", "Share of the KV memory in use: 1 is all of it.", lambda at: at.kv_share),
        MetricFamily("cache_hit_rate", "Share of all prompt tokens that the prefix cache had.", lambda at: at.hit_rate),
        MetricFamily(
            "gen_throughput",
            "Tokens per second: the mean rates of all requests under way together.",
            lambda at: at.begun.get("tokens_per_s", 0.0),
        ),
        MetricFamily("num_retracted_requests_total", "Preemptions.", lambda at: at.preemptions),
        MetricFamily(
            "spec_accept_length",
            "Mean tokens of a verification of drafts, the model's own included.",
            lambda at: at.steps.acceptance_length,
        ),
        MetricFamily("spec_accept_rate", "Share of draft tokens that were accepted.", lambda at: at.acceptance_rate),
        _PROMPT_TOKENS,
        _GENERATED_TOKENS,
        MetricFamily(
            "cached_tokens_total",
            "Prompt tokens of requests that have ended which were found in a cache.",
            _by_source,
            "cache_source",
            each="model",
        ),
        MetricFamily(
            "num_requests_total",
            "Requests with a whole reply.",
            lambda at: at.ended["stop"] + at.ended["length"],
            each="model",
        ),
        MetricFamily("num_aborted_requests_total", "Requests that were left.", lambda at: at.ended["abort"], each="model"),
    ),
    (
        HistogramFamily(
            "queue_time_seconds", "Time of a request before its first step in seconds.", "queue_s", _SGLANG_QUEUE_S
        ),
        HistogramFamily("time_to_first_token_seconds", "Time to first token in seconds.", "ttft_s", _SGLANG_TTFT_S, "model"),
        HistogramFamily(
            "inter_token_latency_seconds",
            "Inter-token latency in seconds; each token counts with its request's mean.",
            "itl_s",
            _SGLANG_ITL_S,
            "model",
        ),
        HistogramFamily(
            "e2e_request_latency_seconds",
            "End-to-end latency of a request in seconds.",
            "e2e_s",
            (*_SGLANG_TTFT_S, 600, 1200, 1800, 2400),
            "model",
        ),
        HistogramFamily(
            "num_retractions", "How often a request was taken out of the batch.", "preemptions", _RETRACTIONS, "model"
        ),
    ),
    lambda model, index: {
        "dp_rank": str(index),
        "engine_type": "unified",
        "model_name": model,
        "moe_ep_rank": "0",
        "pp_rank": "0",
        "tp_rank": "0",
    },
    {"engine_type": "unified"},
    lambda cache, blocks, index: {"num_pages": str(blocks), "page_size": str(cache.block_size)},
    "engine_type",
)

_PREFILL_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)
_CACHED = (0, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_TRTLLM = EngineNames(
    "trtllm_",
    (
        MetricFamily(
            "request_success_total",
            "Requests with a whole reply, by what ended them.",
            lambda at: {reason: at.ended[reason] for reason in ("stop", "length")},
            "finished_reason",
            "model",
        ),
        MetricFamily("num_requests_running", "Requests in batches.", lambda at: at.running, each="model"),
        MetricFamily("num_requests_waiting", "Requests in queues.", lambda at: at.waiting, each="model"),
        MetricFamily(
            "num_requests_completed_total",
            "Requests with a whole reply.",
            lambda at: at.ended["stop"] + at.ended["length"],
            each="model",
        ),
        MetricFamily("kv_cache_hit_rate", "Share of prompt tokens that were reused.", lambda at: at.hit_rate, each="model"),
        MetricFamily("kv_cache_utilization", "Share of the KV memory in use.", lambda at: at.kv_share, each="model"),
        _PROMPT_TOKENS,
        MetricFamily(
            "prompt_cached_tokens_total",
            "Prompt tokens of requests that have ended which were reused.",
            lambda at: at.ended["cached_tokens"],
            each="model",
        ),
        _GENERATED_TOKENS,
        *_draft_counters("model"),
        MetricFamily(
            "spec_decode_acceptance_length",
            "Mean tokens of a verification of drafts, the model's own included.",
            lambda at: at.steps.acceptance_length,
            each="model",
            of_drafts=True,
        ),
    ),
    (
        HistogramFamily("e2e_request_latency_seconds", "End-to-end latency in seconds.", "e2e_s", _REQUEST_S, "model"),
        HistogramFamily("time_to_first_token_seconds", "Time to first token in seconds.", "ttft_s", _TTFT_S, "model"),
        HistogramFamily("time_per_output_token_seconds", "Mean time per output token.", "tpot_s", _ITL_S, "model"),
        HistogramFamily("request_queue_time_seconds", "Time before the first step.", "queue_s", _REQUEST_S, "model"),
        HistogramFamily(
            "request_prefill_time_seconds", "From the first step to the first token.", "prefill_s", _PREFILL_S, "model"
        ),
        HistogramFamily("request_decode_time_seconds", "From the first to the last token.", "decode_s", _REQUEST_S, "model"),
        HistogramFamily(
            "request_inference_time_seconds", "From the first step to the last token.", "inference_s", _REQUEST_S, "model"
        ),
        HistogramFamily(
            "prompt_cached_tokens_per_request", "Reused prompt tokens of a request.", "cached_tokens", _CACHED, "model"
        ),
    ),
    lambda model, index: {"model_name": model},
    {"engine_type": "undefined"},
)

ENGINE_NAMES: Mapping[str, EngineNames] = {"openai": _VLLM, "vllm": _VLLM, "sglang": _SGLANG, "trtllm": _TRTLLM}
