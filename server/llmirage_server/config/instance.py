"""The settings of instances: what is imitated and how it serves. A cluster file may give each pool its own."""

# ruff: noqa: RUF009  `setting` is dataclasses.field with a fixed form of metadata

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal

from llmirage_server.config.settings import About, ConfigError, setting
from llmirage_shared.plain_numbers import make_plain

# The headings of the help, in its order.
GROUPS = MODEL, PARALLEL, ENGINE, KV, SPECULATION, TIME, CLUSTER, SCALING, REPLIES, ACCESS = (
    "Model and hardware",
    "Parallelism",
    "Engine",
    "KV cache",
    "Speculative decoding",
    "Time",
    "Cluster",
    "Autoscaling",
    "Replies and API",
    "Access",
)

MOST_INSTANCES = 10_000

PerfModel = Literal["roofline", "silicon"]
SpeculativeMethod = Literal["mtp", "draft_model"]


@dataclass(frozen=True, kw_only=True)
class InstanceSettings:
    """One model on one kind of GPU under one engine. Names are vLLM's where the meaning is the same. Raises ConfigError."""

    model: str = setting(
        "Qwen/Qwen3-30B-A3B",
        MODEL,
        "Model to imitate: a name of `llmirage catalog models`, a YAML file, or a config.json.",
        metavar="NAME",
    )
    gpu: str = setting(
        "h100_sxm", MODEL, "GPU to imitate: a name of `llmirage catalog gpus`, or a YAML file.", metavar="NAME"
    )
    instances: int = setting(
        2,
        MODEL,
        "Replicas of the model, each on its own GPUs.",
        metavar="N",
        aliases=("num_instances",),
        least=1,
        most=MOST_INSTANCES,
    )
    weights: str = setting(
        "fp8",
        MODEL,
        "Format of the weights: auto (as the model is published), bf16, fp8, fp8_block, int8, int4, mxfp4 or nvfp4.",
        metavar="FORMAT",
    )
    perf_model: PerfModel = setting(
        "roofline",
        MODEL,
        "What gives step times: the built-in roofline, or the measured tables of the extra `silicon`.",
        choices=("roofline", "silicon"),
    )

    tensor_parallel_size: int = setting(
        1, PARALLEL, "GPUs that share each layer.", metavar="N", aliases=("tp", "tp_size"), least=1
    )
    pipeline_parallel_size: int = setting(
        1, PARALLEL, "Stages that the layers are split into.", metavar="N", aliases=("pp", "pp_size"), least=1
    )
    data_parallel_size: int = setting(
        1,
        PARALLEL,
        "Attention ranks of one instance, with a KV cache and a batch each; experts are shared.",
        metavar="N",
        aliases=("dp", "dp_size"),
        least=1,
    )
    expert_parallel_size: int = setting(
        1, PARALLEL, "Ranks that whole experts are spread over.", metavar="N", aliases=("ep", "ep_size"), least=1
    )
    data_parallel_balance: str | None = setting(
        None,
        PARALLEL,
        "Which attention rank gets a request: the least load, in turn, or the longest cached prefix.",
        choices=("load", "round_robin", "prefix"),
        unset="the engine's",
    )

    engine: str | None = setting(
        None,
        ENGINE,
        "Serving engine whose scheduler, defaults and measured constants count: vllm, sglang, trtllm, or a YAML file.",
        metavar="NAME",
        unset="vllm, but with KV blocks of 1 token",
    )
    max_num_seqs: int | None = setting(
        None,
        ENGINE,
        "Sequences that an instance runs at once.",
        metavar="N",
        aliases=("max_running_requests", "max_batch_size"),
        unset="the engine's",
        least=1,
    )
    max_num_batched_tokens: int | None = setting(
        None,
        ENGINE,
        "Tokens of one engine step.",
        metavar="N",
        aliases=("chunked_prefill_size", "max_num_tokens"),
        unset="the engine's",
        least=1,
    )
    max_model_len: int | None = setting(
        None,
        ENGINE,
        "Longest request in tokens.",
        metavar="N",
        aliases=("context_length", "max_seq_len"),
        unset="what architecture and memory allow",
        least=1,
    )
    enable_chunked_prefill: bool = setting(True, ENGINE, "Split long prompts over several steps.")
    long_prefill_token_threshold: int = setting(
        0, ENGINE, "Most tokens of one prompt in one step; 0: no such limit (vllm).", metavar="N", least=0
    )
    schedule_policy: str | None = setting(
        None,
        ENGINE,
        "Order of waiting requests: fcfs everywhere, priority (vllm), lpm (sglang: longest cached prefix first).",
        choices=("fcfs", "priority", "lpm"),
        aliases=("scheduling_policy",),
        unset="the engine's",
    )
    schedule_conservativeness: float | None = setting(
        None,
        ENGINE,
        "How much room a new request must find for its reply; higher retracts less (sglang).",
        metavar="FACTOR",
        unset="1",
        above=0,
    )
    max_prefill_tokens: int | None = setting(
        None,
        ENGINE,
        "Prompt tokens of one step beyond which no further prompt joins (sglang).",
        metavar="N",
        unset="16384",
        least=1,
    )
    enable_mixed_chunk: bool = setting(False, ENGINE, "Let prompt chunks share a step with decoding (sglang).")
    capacity_scheduler_policy: str | None = setting(
        None,
        ENGINE,
        "Admit what can surely finish, or as much as fits now (trtllm).",
        choices=("guaranteed_no_evict", "max_utilization"),
        unset="guaranteed_no_evict",
    )

    kv_cache_dtype: str = setting("auto", KV, "Format of the KV cache: auto, bf16 or fp8.", metavar="FORMAT")
    gpu_memory_utilization: float | None = setting(
        None,
        KV,
        "Share of a GPU's memory that may be used, as the engine counts it.",
        metavar="SHARE",
        aliases=("mem_fraction_static", "free_gpu_memory_fraction"),
        unset="the engine's",
        above=0,
        most=1,
    )
    num_gpu_blocks_override: int | None = setting(
        None, KV, "KV blocks of an instance.", metavar="N", unset="what memory holds", least=1
    )
    block_size: int | None = setting(
        None,
        KV,
        "Tokens of a KV block: the unit in which prefixes are found and memory is taken.",
        metavar="N",
        aliases=("page_size", "tokens_per_block"),
        unset="the engine's; 1 when no engine is named, so that cached_tokens is exact",
        least=1,
    )
    enable_prefix_caching: bool = setting(
        True,
        KV,
        "Keep the KV of finished prefixes for requests that share them.",
        aliases=("enable_block_reuse",),
    )
    host_kv_gib: float = setting(
        0.0,
        KV,
        "Host memory of an instance that takes KV evicted from the GPUs.",
        metavar="GIB",
        aliases=("kv_offloading_size",),
        least=0,
    )
    host_kv_gb_per_s: float | None = setting(
        None, KV, "How fast KV comes back from host memory, GB/s.", metavar="RATE", unset="PCIe of the GPUs", above=0
    )
    disk_kv_gib: float = setting(
        0.0, KV, "Disk of an instance that takes KV evicted from host memory.", metavar="GIB", least=0
    )
    disk_kv_gb_per_s: float | None = setting(
        None, KV, "How fast KV comes back from disk, GB/s.", metavar="RATE", unset="5, one NVMe drive", above=0
    )

    num_speculative_tokens: int = setting(
        0,
        SPECULATION,
        "Tokens drafted for each step and sequence.",
        metavar="N",
        aliases=("speculative_num_draft_tokens", "max_draft_len"),
        least=0,
        most=64,
    )
    acceptance_rate: float | None = setting(
        None,
        SPECULATION,
        "Chance that a drafted token is accepted, given that those before it were.",
        metavar="P",
        unset="0.7",
        least=0,
        most=1,
    )
    speculative_method: SpeculativeMethod | None = setting(
        None,
        SPECULATION,
        "Who drafts: the model's own multi-token layers, or a small model.",
        choices=("mtp", "draft_model"),
        unset="draft_model if one is named, else mtp",
    )
    draft_model: str | None = setting(
        None,
        SPECULATION,
        "The small model.",
        metavar="NAME",
        aliases=("speculative_model", "speculative_draft_model_path"),
        unset="none",
    )

    ttft_ms: float | None = setting(
        None,
        TIME,
        "Fixed time to the first token.",
        metavar="MS",
        aliases=("ttft",),
        unset="the physics",
        least=0,
    )
    itl_ms: float | None = setting(
        None, TIME, "Fixed time between tokens.", metavar="MS", aliases=("itl",), unset="the physics", least=0
    )

    scale_on_queue: float | None = setting(
        None, SCALING, "Start and stop instances so that each has N requests waiting.", metavar="N", unset="not", above=0
    )
    scale_on_concurrency: float | None = setting(
        None, SCALING, "So that each has N requests, waiting or running.", metavar="N", unset="not", above=0
    )
    scale_on_kv: float | None = setting(
        None, SCALING, "So that this share of each one's KV memory is in use.", metavar="SHARE", unset="not", above=0, most=1
    )
    scale_on_rate: float | None = setting(
        None, SCALING, "So that each gets N requests a second.", metavar="N", unset="not", above=0
    )
    min_instances: int = setting(
        1, SCALING, "The fewest instances that autoscaling leaves; the most are --instances.", metavar="N", least=0
    )
    initial_instances: int | None = setting(
        None, SCALING, "Instances at the beginning.", metavar="N", unset="min_instances", least=0
    )
    start_up_s: float = setting(
        60.0, SCALING, "Until a new instance takes requests.", metavar="S", aliases=("startup_s",), least=0
    )
    scale_interval_s: float = setting(15.0, SCALING, "Between two looks at the load.", metavar="S", above=0)
    scale_up_after_s: float = setting(
        0.0, SCALING, "Start instances when they were wanted for so long.", metavar="S", least=0
    )
    scale_down_after_s: float = setting(
        300.0, SCALING, "Stop instances when none was wanted more for so long.", metavar="S", least=0
    )

    served_model_name: tuple[str, ...] = setting(
        (),
        REPLIES,
        "Name shown to clients; may be repeated.",
        metavar="NAME",
        aliases=("served_model_names",),
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
        for field in fields(self):
            about = field.metadata.get("about")
            if isinstance(about, About):
                yield from about.problems(field.name, getattr(self, field.name))
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
