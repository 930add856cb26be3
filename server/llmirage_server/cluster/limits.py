"""Limits and options of one engine's scheduler, under one name for all engines."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from llmirage_server.perf.speculation import rates_problem

Times = npt.NDArray[np.float64]

Role = Literal["both", "prefill", "decode"]
"""The part of the work that an instance does."""

FirstToken = Literal["prefill", "admission", "decode"]
"""The moment at which the first token of a disaggregated request is reported: as the prefill ends; as the decode instance
admits it; at the end of its first step there, which computes the token again."""

SCHEDULERS: dict[str, tuple[str, ...]] = {  # each with its `schedule_policy`s, the default first
    "vllm": ("fcfs", "priority"),
    "sglang": ("fcfs", "lpm"),
    "trtllm": ("fcfs",),
}
CAPACITY_SCHEDULER_POLICIES = ("guaranteed_no_evict", "max_utilization")
DATA_PARALLEL_BALANCES = ("load", "round_robin", "prefix")

_AT_LEAST_ONE = (
    "kv_tokens", "max_num_seqs", "max_num_batched_tokens", "page_size", "max_model_len", "max_prefill_tokens",
    "scheduler_recv_interval", "prefill_schedule_interval",
)  # fmt: skip
_AT_LEAST_ZERO = (
    "long_prefill_token_threshold", "num_speculative_tokens", "prefill_decode_interval", "batch_wait_timeout_iters",
    "attention_dp_timeout_iters", "attention_dp_batching_wait_iters", "max_loras", "max_cpu_loras",
)  # fmt: skip
ONLY_OF = {
    "long_prefill_token_threshold": "vllm",
    "max_prefill_tokens": "sglang",
    "enable_mixed_chunk": "sglang",
    "schedule_conservativeness": "sglang",
    "capacity_scheduler_policy": "trtllm",
    "scheduler_recv_interval": "sglang",
    "recurrent_states": "vllm",
    "prefill_schedule_interval": "vllm",
    "prefill_decode_interval": "sglang",
    "batch_wait_timeout_iters": "trtllm",
    "batch_wait_max_tokens_ratio": "trtllm",
    "attention_dp_enable_balance": "trtllm",
    "attention_dp_timeout_iters": "trtllm",
    "attention_dp_batching_wait_iters": "trtllm",
}


@dataclass(frozen=True, slots=True)
class StreamInterval:
    """Grouping of a reply's tokens: the first token by itself, then chunks of `tokens`, and the rest at the end.

    from_start: chunks end at whole intervals counted from the reply's first token: 1, n, 2n. Otherwise they are counted from
        the second token: 1, n + 1, 2n + 1.

    vLLM (v1/engine/output_processor.py) and SGLang (managers/scheduler_components, stream_output) do the latter,
    TensorRT-LLM (_torch/pyexecutor/py_executor.py, _handle_responses) the former.
    """

    tokens: int
    from_start: bool = False

    def ends(self, sent: int, produced: int, total: int) -> list[int]:
        """Return the ends of the chunks sent once `produced` of `total` tokens exist and `sent` of them have been sent."""
        first = sent + self.tokens - (sent - (not self.from_start)) % self.tokens
        ends = list(range(first, produced + 1, self.tokens))
        if not sent and produced and first != 1:
            ends.insert(0, 1)
        if sent < produced == total and (not ends or ends[-1] != total):
            ends.append(total)
        return ends

    def seen_s(self, times_s: Times, total: int) -> Times:
        """Return when clients receive tokens produced at `times_s`, for those that have been sent. total: see `ends`."""
        ends = np.array(self.ends(0, len(times_s), total), dtype=np.int64)
        return np.repeat(times_s[ends - 1], np.diff(ends, prepend=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Limits of one scheduler: of an instance, or of each rank of one with attention data parallelism.

    Where engines use different words, vLLM's is the name here.

    kv_tokens: KV capacity in tokens (`Deployment.memory.kv_tokens`, or the user's own figure); rounded down to whole pages.
        vLLM num_gpu_blocks_override * block_size, SGLang max_total_tokens, TensorRT-LLM kv_cache_config.max_tokens.
    max_num_seqs: sequences in the batch. SGLang max_running_requests, TensorRT-LLM max_batch_size.
    max_num_batched_tokens: tokens of one step, prompt chunks and decoding sequences together. TensorRT-LLM max_num_tokens.
        For the sglang scheduler, the chunked_prefill_size: prompt tokens of one step.
    page_size: tokens of a KV block and of a page of the radix tree: vLLM block_size (16), SGLang page_size (1), TensorRT-LLM
        tokens_per_block (32). With 1, prefixes match to the token.
    enable_prefix_caching: SGLang: not disable_radix_cache; TensorRT-LLM: enable_block_reuse.
    enable_chunked_prefill: SGLang: chunked_prefill_size is not -1; TensorRT-LLM: enable_chunked_context.
    max_model_len: maximum of prompt and output tokens together; None: the capacity of the KV cache. SGLang context_length,
        TensorRT-LLM max_seq_len.
    scheduler: the engine whose rules apply (cluster/schedulers/): vllm, sglang or trtllm.
    schedule_policy: order of waiting requests: fcfs, priority (vllm: its scheduling_policy), lpm (sglang: longest prefix
        match).
    long_prefill_token_threshold: (vllm) maximum tokens of one prompt in one step; 0: no limit.
    max_prefill_tokens: (sglang) prompt tokens of one step beyond which no further prompt joins.
    enable_mixed_chunk: (sglang) decoding sequences run in the same step as prompt chunks.
    schedule_conservativeness: (sglang) scale of the share of the allowed output that is reserved for running requests.
    capacity_scheduler_policy: (trtllm) guaranteed_no_evict or max_utilization.
    async_scheduling: a step is formed while the one before it runs, so that requests that arrive meanwhile wait for the next
        but one. SGLang: not disable_overlap_schedule; TensorRT-LLM: not disable_overlap_scheduler.
    scheduler_recv_interval: (sglang) decoding steps between two polls for new requests.
    prefill_schedule_interval: (vllm) with data-parallel ranks, prompts are computed in every n-th step.
    prefill_decode_interval: (sglang) steps without prompts after each step with prompts.
    batch_wait_timeout_iters, batch_wait_max_tokens_ratio: (trtllm) steps for which prompts wait while other sequences
        decode, unless a step with them reaches this share of its token limit; either one alone has no effect.
    attention_dp_enable_balance: (trtllm) attention ranks compute prompts together: attention_dp_config.enable_balance.
    attention_dp_timeout_iters, attention_dp_batching_wait_iters: (trtllm) steps to wait for prompts of all ranks, and for
        further prompts once all ranks have some.
    stream: grouping of a reply's tokens into messages; None: each token is sent by itself.
    recurrent_states: (vllm) linear attention layers keep a state, of which prefix caching stores those at the end of a
        prompt's chunks: chunks end at whole pages, one of them at the last whole page (mamba_cache_mode align).
    max_loras, max_cpu_loras: adapters of a batch, each in GPU memory, and those in host memory; 0: there are none. SGLang
        max_loras_per_batch, max_loaded_loras.
    num_speculative_tokens: draft tokens of each decoding sequence in each step; 0: no speculation.
    acceptance_rate: probability that a draft token is accepted given that all before it were.
    acceptance_rates: by position, the probability that a draft token and all before it are accepted; instead of
        acceptance_rate.
    speculation_seed: seed of the acceptance of drafts, beside the request and its progress.
    first_token: on instances that only prefill or decode: when the first token is reported.
    data_parallel_balance: rank selection for a request: least `load` (4 * waiting + running), in turn (`round_robin`) or
        longest cached `prefix`; None: the engine's own, round_robin for sglang, else load. TensorRT-LLM counts a waiting
        request once (_balance_requests_across_ranks of _torch/pyexecutor).

    Raises ValueError naming every invalid limit.
    """

    kv_tokens: int
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    page_size: int = 1
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    max_model_len: int | None = None
    scheduler: str = "vllm"
    schedule_policy: str = "fcfs"
    long_prefill_token_threshold: int = 0
    max_prefill_tokens: int = 16384
    enable_mixed_chunk: bool = False
    schedule_conservativeness: float = 1.0
    capacity_scheduler_policy: str = "guaranteed_no_evict"
    async_scheduling: bool = False
    scheduler_recv_interval: int = 1
    prefill_schedule_interval: int = 1
    prefill_decode_interval: int = 0
    batch_wait_timeout_iters: int = 0
    batch_wait_max_tokens_ratio: float = 0.0
    attention_dp_enable_balance: bool = False
    attention_dp_timeout_iters: int = 50
    attention_dp_batching_wait_iters: int = 10
    stream: StreamInterval | None = None
    recurrent_states: bool = False
    max_loras: int = 0
    max_cpu_loras: int = 0
    num_speculative_tokens: int = 0
    acceptance_rate: float = 0.0
    acceptance_rates: tuple[float, ...] = ()
    speculation_seed: int = 0
    data_parallel_balance: str | None = None
    first_token: FirstToken = "prefill"

    def __post_init__(self) -> None:
        problems = [*self._numbers(), *self._choices()] or [*self._contradictions()]
        if problems:
            raise ValueError("; ".join(problems))

    @property
    def kv_capacity_tokens(self) -> int:
        """`kv_tokens` in whole pages."""
        return self.kv_tokens - self.kv_tokens % self.page_size

    @property
    def max_request_tokens(self) -> int:
        """Maximum of prompt plus output tokens of a request that an instance can finish.

        The KV of the last output token is never computed, so it takes one token less of the cache than it has. Without
        chunked prefill a whole prompt, or what a preempted sequence must recompute, goes through in one step; SGLang lets a
        prompt of any length through when it is the only one of its step.
        """
        tokens = self.kv_capacity_tokens
        if not self.enable_chunked_prefill and self.scheduler != "sglang":
            tokens = min(tokens, self.max_num_batched_tokens)
        return tokens + 1 if self.max_model_len is None else min(tokens + 1, self.max_model_len)

    def _numbers(self) -> list[str]:
        problems = []
        for least, names in ((1, _AT_LEAST_ONE), (0, _AT_LEAST_ZERO)):
            for name in names:
                value: int | None = getattr(self, name)
                if value is not None and value < least:
                    problems.append(f"{name} must be at least {least}, not {value}")
        if not 0 < self.schedule_conservativeness < float("inf"):
            problems.append(f"schedule_conservativeness must be a number above 0, not {self.schedule_conservativeness}")
        if not 0 <= self.batch_wait_max_tokens_ratio <= 1:
            problems.append(f"batch_wait_max_tokens_ratio must be between 0 and 1, not {self.batch_wait_max_tokens_ratio}")
        if not 0 <= self.acceptance_rate <= 1:
            problems.append(f"acceptance_rate must be between 0 and 1, not {self.acceptance_rate}")
        if self.acceptance_rates and (problem := rates_problem(self.acceptance_rates, self.num_speculative_tokens)):
            problems.append(f"acceptance_rates {problem}")
        return problems

    def _choices(self) -> list[str]:
        problems = []
        if self.scheduler not in SCHEDULERS:
            problems.append(f"unknown scheduler {self.scheduler!r}: choose one of {', '.join(SCHEDULERS)}")
        elif self.schedule_policy not in SCHEDULERS[self.scheduler]:
            wanted = [name for name, policies in SCHEDULERS.items() if self.schedule_policy in policies]
            choices = " or ".join(SCHEDULERS[self.scheduler])
            problems.append(
                f"schedule_policy {self.schedule_policy} needs the {wanted[0]} scheduler: {self.scheduler} has {choices}"
                if wanted
                else f"unknown schedule_policy {self.schedule_policy!r}: the {self.scheduler} scheduler has {choices}"
            )
        for name, known in (
            ("capacity_scheduler_policy", CAPACITY_SCHEDULER_POLICIES),
            ("data_parallel_balance", DATA_PARALLEL_BALANCES),
            ("first_token", get_args(FirstToken)),
        ):
            value = getattr(self, name)
            if value not in known and value != _DEFAULTS[name]:
                problems.append(f"unknown {name} {value!r}: choose one of {', '.join(known)}")
        return problems

    def _contradictions(self) -> list[str]:
        problems = []
        if self.page_size > self.kv_tokens:
            problems.append(f"page_size {self.page_size} is larger than the KV cache of {self.kv_tokens} tokens")
        if self.scheduler == "vllm" and self.max_num_batched_tokens < self.max_num_seqs:
            problems.append(
                f"max_num_batched_tokens {self.max_num_batched_tokens} is smaller than max_num_seqs "
                f"{self.max_num_seqs}: every running sequence needs one token of each step"
            )
        if self.scheduler != "sglang" and self.max_num_batched_tokens <= self.num_speculative_tokens:
            problems.append(
                f"max_num_batched_tokens {self.max_num_batched_tokens} leaves no room for num_speculative_tokens "
                f"{self.num_speculative_tokens} and the token that they follow"
            )
        if self.enable_mixed_chunk and self.num_speculative_tokens:
            problems.append("enable_mixed_chunk and num_speculative_tokens exclude each other, as they do in SGLang")
        if self.scheduler != "vllm" and self.enable_chunked_prefill and self.max_num_batched_tokens < self.page_size:
            problems.append(
                f"max_num_batched_tokens {self.max_num_batched_tokens} is smaller than page_size {self.page_size}: "
                f"the {self.scheduler} scheduler cuts prompts into whole pages"
            )
        problems += [
            f"{name} needs the {owner} scheduler, not {self.scheduler}"
            for name, owner in ONLY_OF.items()
            if self.scheduler != owner and getattr(self, name) != _DEFAULTS[name]
        ]
        return problems


_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(EngineLimits) if field.default is not MISSING}
