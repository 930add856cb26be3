"""The settings of instances: what is imitated and how it serves. A cluster file may give each pool its own."""

# ruff: noqa: RUF009  what declares a setting is dataclasses.field with a fixed form of metadata

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from llmirage_shared.plain_numbers import make_plain
from llmirage_shared.settings import ConfigError, settings_of, under

# The headings of the help, in its order.
GROUPS = (
    *("Model and hardware", "Parallelism", "Engine", "KV cache", "Speculative decoding"),
    *("Time", "Cluster", "Autoscaling", "Replies and API", "Access"),
)
_model, _parallel, _engine, _kv, _speculation, _time, _, _scaling, _replies, _ = map(under, GROUPS)

MOST_INSTANCES = 10_000

PerfModel = Literal["roofline", "silicon"]
SpeculativeMethod = Literal["mtp", "draft_model"]


@dataclass(frozen=True, kw_only=True)
class InstanceSettings:
    """One model on one kind of GPU under one engine. Names are vLLM's where the meaning is the same. Raises ConfigError."""

    model: str = _model(
        "Qwen/Qwen3-30B-A3B", "Model to imitate: a name of `llmirage catalog models`, a YAML file, or a config.json."
    )
    gpu: str = _model("h100_sxm", "GPU to imitate: a name of `llmirage catalog gpus`, or a YAML file.")
    instances: int = _model(
        2, "Replicas of the model, each on its own GPUs.", hidden=("num_instances",), least=1, most=MOST_INSTANCES
    )
    weights: str = _model(
        "fp8",
        "Format of the weights: auto (as the model is published), bf16, fp8, fp8_block, int8, int4, mxfp4 or nvfp4.",
        metavar="FORMAT",
    )
    perf_model: PerfModel = _model(
        "roofline", "What gives step times: the built-in roofline, or the measured tables of the extra `silicon`."
    )

    tensor_parallel_size: int = _parallel(1, "GPUs that share each layer.", short="tp", hidden=("tp_size",), least=1)
    pipeline_parallel_size: int = _parallel(
        1, "Stages that the layers are split into.", short="pp", hidden=("pp_size",), least=1
    )
    data_parallel_size: int = _parallel(
        1,
        "Attention ranks of one instance, with a KV cache and a batch each; experts are shared.",
        short="dp",
        hidden=("dp_size",),
        least=1,
    )
    expert_parallel_size: int = _parallel(
        1, "Ranks that whole experts are spread over.", short="ep", hidden=("ep_size",), least=1
    )
    data_parallel_balance: str | None = _parallel(
        None,
        "Which attention rank gets a request: the least load, in turn, or the longest cached prefix.",
        choices=("load", "round_robin", "prefix"),
        unset="the engine's",
    )

    engine: str | None = _engine(
        None,
        "Serving engine whose scheduler, defaults and measured constants count: vllm, sglang, trtllm, or a YAML file.",
        unset="vllm, but with KV blocks of 1 token",
    )
    max_num_seqs: int | None = _engine(
        None,
        "Sequences that an instance runs at once.",
        hidden=("max_running_requests", "max_batch_size"),
        unset="the engine's",
        least=1,
    )
    max_num_batched_tokens: int | None = _engine(
        None, "Tokens of one engine step.", hidden=("chunked_prefill_size", "max_num_tokens"), unset="the engine's", least=1
    )
    max_model_len: int | None = _engine(
        None,
        "Longest request in tokens.",
        hidden=("context_length", "max_seq_len"),
        unset="what architecture and memory allow",
        least=1,
    )
    enable_chunked_prefill: bool = _engine(True, "Split long prompts over several steps.")
    long_prefill_token_threshold: int = _engine(
        0, "Most tokens of one prompt in one step; 0: no such limit (vllm).", least=0
    )
    schedule_policy: str | None = _engine(
        None,
        "Order of waiting requests: fcfs everywhere, priority (vllm), lpm (sglang: longest cached prefix first).",
        choices=("fcfs", "priority", "lpm"),
        hidden=("scheduling_policy",),
        unset="the engine's",
    )
    schedule_conservativeness: float | None = _engine(
        None,
        "How much room a new request must find for its reply; higher retracts less (sglang).",
        metavar="FACTOR",
        unset="1",
        above=0,
    )
    max_prefill_tokens: int | None = _engine(
        None, "Prompt tokens of one step beyond which no further prompt joins (sglang).", unset="16384", least=1
    )
    enable_mixed_chunk: bool = _engine(False, "Let prompt chunks share a step with decoding (sglang).")
    capacity_scheduler_policy: str | None = _engine(
        None,
        "Admit what can surely finish, or as much as fits now (trtllm).",
        choices=("guaranteed_no_evict", "max_utilization"),
        unset="guaranteed_no_evict",
    )

    kv_cache_dtype: str = _kv("auto", "Format of the KV cache: auto, bf16 or fp8.", metavar="FORMAT")
    gpu_memory_utilization: float | None = _kv(
        None,
        "Share of a GPU's memory that may be used, as the engine counts it.",
        hidden=("mem_fraction_static", "free_gpu_memory_fraction"),
        unset="the engine's",
        above=0,
        most=1,
    )
    num_gpu_blocks_override: int | None = _kv(None, "KV blocks of an instance.", unset="what memory holds", least=1)
    block_size: int | None = _kv(
        None,
        "Tokens of a KV block: the unit in which prefixes are found and memory is taken.",
        hidden=("page_size", "tokens_per_block"),
        unset="the engine's; 1 when no engine is named, so that cached_tokens is exact",
        least=1,
    )
    enable_prefix_caching: bool = _kv(
        True, "Keep the KV of finished prefixes for requests that share them.", hidden=("enable_block_reuse",)
    )
    host_kv_gib: float = _kv(
        0.0, "Host memory of an instance that takes KV evicted from the GPUs.", hidden=("kv_offloading_size",), least=0
    )
    host_kv_gb_per_s: float | None = _kv(
        None, "How fast KV comes back from host memory, GB/s.", unset="PCIe of the GPUs", above=0
    )
    disk_kv_gib: float = _kv(0.0, "Disk of an instance that takes KV evicted from host memory.", least=0)
    disk_kv_gb_per_s: float | None = _kv(None, "How fast KV comes back from disk, GB/s.", unset="5, one NVMe drive", above=0)

    num_speculative_tokens: int = _speculation(
        0,
        "Tokens drafted for each step and sequence.",
        hidden=("speculative_num_draft_tokens", "max_draft_len"),
        least=0,
        most=64,
    )
    acceptance_rate: float | None = _speculation(
        None, "Chance that a drafted token is accepted, given that those before it were.", unset="0.7", least=0, most=1
    )
    speculative_method: SpeculativeMethod | None = _speculation(
        None,
        "Who drafts: the model's own multi-token layers, or a small model.",
        unset="draft_model if one is named, else mtp",
    )
    draft_model: str | None = _speculation(
        None, "The small model.", hidden=("speculative_model", "speculative_draft_model_path"), unset="none"
    )

    ttft_ms: float | None = _time(None, "Fixed time to the first token.", short="ttft", unset="the physics", least=0)
    itl_ms: float | None = _time(None, "Fixed time between tokens.", short="itl", unset="the physics", least=0)

    scale_on_queue: float | None = _scaling(
        None, "Start and stop instances so that each has N requests waiting.", unset="not", above=0
    )
    scale_on_concurrency: float | None = _scaling(
        None, "So that each has N requests, waiting or running.", unset="not", above=0
    )
    scale_on_kv: float | None = _scaling(
        None, "So that this share of each one's KV memory is in use.", unset="not", above=0, most=1
    )
    scale_on_rate: float | None = _scaling(None, "So that each gets N requests a second.", unset="not", above=0)
    min_instances: int = _scaling(1, "The fewest instances that autoscaling leaves; the most are --instances.", least=0)
    initial_instances: int | None = _scaling(None, "Instances at the beginning.", unset="min_instances", least=0)
    start_up_s: float = _scaling(60.0, "Until a new instance takes requests.", hidden=("startup_s",), least=0)
    scale_interval_s: float = _scaling(15.0, "Between two looks at the load.", above=0)
    scale_up_after_s: float = _scaling(0.0, "Start instances when they were wanted for so long.", least=0)
    scale_down_after_s: float = _scaling(300.0, "Stop instances when none was wanted more for so long.", least=0)

    served_model_name: tuple[str, ...] = _replies(
        (),
        "Name shown to clients; may be repeated.",
        hidden=("served_model_names",),
        unset="the model's",
        check=lambda names: None if all(names) else "must not be empty",
    )

    def __post_init__(self) -> None:
        make_plain(self)
        problems = list(self._problems())
        if problems:
            raise ConfigError(problems)

    @property
    def scales(self) -> bool:
        """Whether instances come and go with the load."""
        targets = (self.scale_on_queue, self.scale_on_concurrency, self.scale_on_kv, self.scale_on_rate)
        return any(target is not None for target in targets)

    @property
    def fixed_times(self) -> bool:
        """Whether fixed times replace the performance model."""
        return self.ttft_ms is not None or self.itl_ms is not None

    @property
    def drafter(self) -> SpeculativeMethod:
        """Who drafts, said or not."""
        return self.speculative_method or ("mtp" if self.draft_model is None else "draft_model")

    @property
    def engine_name(self) -> str:
        """The engine that counts, named or not."""
        return self.engine or DEFAULT_ENGINE

    @property
    def kv_block_size(self) -> int | None:
        """Tokens of a KV block; None: the engine's own.

        Without a named engine it is 1: whoever asks for no particular engine is told cached tokens to the token. Who counts
        blocks means the engine's.
        """
        unnamed = self.engine is None and self.num_gpu_blocks_override is None
        return 1 if self.block_size is None and unnamed else self.block_size

    def _problems(self) -> Iterator[str]:
        for name, about in settings_of(type(self)).items():
            yield from (f"{name} {problem}" for problem in about.problems(getattr(self, about.field)))
        yield from self._scaling_problems()
        if self.draft_model is not None and self.speculative_method == "mtp":
            yield "a draft_model and speculative_method mtp exclude each other"
        if self.num_speculative_tokens and self.speculative_method == "draft_model" and self.draft_model is None:
            yield "speculative_method draft_model needs a draft_model"

    def _scaling_problems(self) -> Iterator[str]:
        if not self.scales:
            return
        if self.min_instances > self.instances:
            yield f"min_instances {self.min_instances} is more than instances, the most there can be: {self.instances}"
        elif self.initial_instances is not None and not self.min_instances <= self.initial_instances <= self.instances:
            yield f"initial_instances must be from {self.min_instances} to {self.instances}, not {self.initial_instances}"
        if self.scale_on_kv is not None and self.fixed_times:
            yield "fixed times (ttft_ms, itl_ms) have no KV memory: scale_on_kv needs the physics"


DEFAULT_ENGINE = "vllm"
