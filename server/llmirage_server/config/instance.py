"""The settings of instances: what is imitated and how it serves. A cluster file may give each pool its own."""

# ruff: noqa: RUF009  what declares a setting is dataclasses.field with a fixed form of metadata

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from llmirage_server.cluster.lifecycle.autoscaler import TARGETS
from llmirage_server.config.engine_args import EngineArgs, read_engine_args
from llmirage_server.config.lora import modules_problem, read_modules
from llmirage_server.perf.catalogue.dtypes import MoeBackend
from llmirage_server.perf.speculation import SpeculativeMethod, length_problem, rates_problem
from llmirage_server.perf.steps.step_model import PerfModel
from llmirage_shared.settings import ConfigError, at_call, make_plain, settings_of, under

# The headings of the help, in its order.
GROUPS = (
    *("Model and hardware", "Parallelism", "Engine", "KV cache", "Speculative decoding"),
    *("Time", "Cluster", "Autoscaling", "Replies and API", "Recordings", "Access", "Faults"),
)
_model, _parallel, _engine, _kv, _speculation, _time, _, _scaling, _replies, _, _, _ = map(under, GROUPS)

MOST_INSTANCES = 10_000


def _numbers(given: Any) -> tuple[float, ...]:
    """Parse a list, one number, or a text with commas between them. Raises ValueError."""
    parts = given.split(",") if isinstance(given, str) else given if isinstance(given, list | tuple) else [given]
    try:
        return tuple([float(part) for part in parts])
    except (TypeError, ValueError):
        raise ValueError(f"must be numbers, not {given!r}") from None


# What counts where nothing is given: with a model's name one instance of it as published, else the demonstration cluster.
_PLAIN: dict[str, Any] = {"gpu": "h100_sxm", "instances": 1, "weights": "auto", "tensor_parallel_size": 1}
_DEMO: dict[str, Any] = _PLAIN | {"model": "Qwen/Qwen3-30B-A3B-Instruct-2507", "instances": 2, "weights": "fp8"}


@dataclass(frozen=True, kw_only=True)
class InstanceSettings:
    """One model on one kind of GPU under one engine. Names are vLLM's where the meaning is the same. Raises ConfigError.

    The first four and tensor_parallel_size get their values when it is made; assumed: the names of those not given.
    """

    model: str = _model(
        None,
        "Model to simulate: a name from `llmirage catalog models`, a YAML file, or a Hugging Face config.json.",
        unset="Qwen/Qwen3-30B-A3B-Instruct-2507, a demonstration: two instances, fp8 weights",
        usual=True,
        names=at_call("llmirage_server.perf.engines.lookup:model_names"),
    )
    gpu: str = _model(
        None,
        "GPU to simulate: a name from `llmirage catalog gpus`, or a YAML file.",
        unset="h100_sxm",
        usual=True,
        names=at_call("llmirage_server.perf.engines.lookup:gpu_names"),
    )
    instances: int = _model(
        None,
        "Number of replicas, each on its own GPUs.",
        hidden=("num_instances",),
        unset="1; 2 without --model",
        least=1,
        most=MOST_INSTANCES,
        usual=True,
    )
    weights: str = _model(
        None,
        "Weight format: auto (as the model is published), bf16, fp8, fp8_block, int8, int4, mxfp4 or nvfp4.",
        metavar="FORMAT",
        unset="auto; fp8 without --model",
        usual=True,
    )
    perf_model: PerfModel = _model(
        "roofline", "Source of step times: the built-in roofline model, or measured tables (extra `silicon`)."
    )

    tensor_parallel_size: int = _parallel(
        None,
        "Tensor parallelism: GPUs that share each layer.",
        short="tp",
        hidden=("tp_size",),
        unset="1",
        least=1,
        usual=True,
    )
    pipeline_parallel_size: int = _parallel(
        1,
        "Pipeline parallelism: stages that the layers are split into.",
        short="pp",
        hidden=("pp_size",),
        least=1,
        flag=True,
    )
    data_parallel_size: int = _parallel(
        1,
        "Attention data parallelism: ranks of one instance, each with its own KV cache and batch; they share the experts.",
        short="dp",
        hidden=("dp_size",),
        least=1,
        flag=True,
    )
    expert_parallel_size: int = _parallel(
        1,
        "Expert parallelism: ranks over which whole experts are distributed.",
        short="ep",
        hidden=("ep_size",),
        least=1,
        flag=True,
    )
    peer_to_peer: bool | None = _parallel(
        None,
        "Whether the GPUs of an instance copy to each other directly, or through the host's memory.",
        unset="as the catalogue has the GPU",
    )
    data_parallel_balance: str | None = _parallel(
        None,
        "How requests are assigned to attention ranks: least loaded, in turn, or longest cached prefix.",
        choices=("load", "round_robin", "prefix"),
        unset="the engine's",
    )

    engine: str | None = _engine(
        None,
        "Serving engine: vllm, sglang, trtllm, an older version of one (vllm@0.12), or a YAML file; it gives the scheduler, "
        "defaults and measured constants.",
        unset="vllm, but with KV blocks of 1 token",
        usual=True,
        names=at_call("llmirage_server.perf.engines.lookup:engine_names"),
    )
    engine_args: str | None = _engine(
        None,
        "Command line of a real server, or its arguments, as it stands: sets what has an effect, and lists what has not.",
        metavar="COMMAND",
        unset="none",
        flag=True,
    )
    moe_backend: MoeBackend = _engine(
        "auto",
        "Kernels of experts, where several were measured. vLLM, mxfp4: auto (Triton's) or marlin (VLLM_MXFP4_USE_MARLIN). "
        "TensorRT-LLM, nvfp4: auto (CUTLASS's), cutlass or trtllm (moe_config.backend).",
        carried=True,
    )
    max_num_seqs: int | None = _engine(
        None,
        "Most sequences running at once on an instance.",
        hidden=("max_running_requests", "max_batch_size"),
        unset="the engine's",
        least=1,
        flag=True,
    )
    max_num_batched_tokens: int | None = _engine(
        None,
        "Most tokens of one engine step.",
        hidden=("chunked_prefill_size", "max_num_tokens"),
        unset="the engine's",
        least=1,
        flag=True,
    )
    max_model_len: int | None = _engine(
        None,
        "Longest request: prompt and reply, in tokens.",
        hidden=("context_length", "max_seq_len"),
        unset="the model's limit, or what memory allows",
        least=1,
        flag=True,
    )
    enable_chunked_prefill: bool = _engine(True, "Compute long prompts in chunks over several steps.", carried=True)
    long_prefill_token_threshold: int = _engine(
        0, "Most tokens of one prompt in one step; 0: no limit (vllm).", least=0, carried=True
    )
    schedule_policy: str | None = _engine(
        None,
        "Order of waiting requests: fcfs (all engines), priority (vllm), or lpm (sglang: longest cached prefix first).",
        choices=("fcfs", "priority", "lpm"),
        hidden=("scheduling_policy",),
        unset="the engine's",
        carried=True,
    )
    schedule_conservativeness: float | None = _engine(
        None,
        "Scales the memory that running requests reserve for their output; higher values admit fewer requests (sglang).",
        metavar="FACTOR",
        unset="1",
        above=0,
        carried=True,
    )
    max_prefill_tokens: int | None = _engine(
        None,
        "No further prompt is added to a step once it has this many prompt tokens (sglang).",
        unset="16384",
        least=1,
        carried=True,
    )
    async_scheduling: bool | None = _engine(
        None,
        "Form a step while the one before it runs: a request that comes meanwhile waits for the next but one.",
        unset="the engine's",
        carried=True,
    )
    scheduler_recv_interval: int | None = _engine(
        None, "Decoding steps from one look at new requests to the next (sglang).", unset="1", least=1, carried=True
    )
    prefill_schedule_interval: int = _engine(
        1, "With --dp, prompts only in every N-th step of the ranks that have no backlog (vllm).", least=1
    )
    prefill_decode_interval: int = _engine(0, "Decoding steps after each step with prompts (sglang).", least=0)
    batch_wait_timeout_iters: int = _engine(
        0, "Most steps that prompts wait, while others decode, for a full one by the ratio that follows (trtllm).", least=0
    )
    batch_wait_max_tokens_ratio: float = _engine(
        0.0, "Share of --max-num-batched-tokens at which prompts do not wait for a fuller step (trtllm).", least=0, most=1
    )
    attention_dp_enable_balance: bool = _engine(False, "With --dp, prompts on all ranks at a time (trtllm).")
    attention_dp_timeout_iters: int = _engine(
        50, "Most steps that a balanced rank waits for prompts of the others (trtllm).", least=0
    )
    attention_dp_batching_wait_iters: int = _engine(
        10, "Steps that balanced ranks wait for more prompts when all have some (trtllm).", least=0
    )
    stream_interval: int = _engine(1, "Tokens of a streamed chunk; the first token goes out at once.", least=1, carried=True)
    enable_mixed_chunk: bool = _engine(False, "Run prompt chunks and decodes in the same step (sglang).", carried=True)
    capacity_scheduler_policy: str | None = _engine(
        None,
        "Admit only requests that are guaranteed to finish, or as many as fit now (trtllm).",
        choices=("guaranteed_no_evict", "max_utilization"),
        unset="guaranteed_no_evict",
    )

    lora_modules: tuple[str, ...] = _engine(
        (),
        "LoRA adapters that are there from the start: NAME=PATH, or vLLM's JSON; several between commas.",
        metavar="NAME=PATH",
        hidden=("lora_paths",),
        unset="none",
        read=read_modules,
        check=modules_problem,
    )
    enable_lora: bool = _engine(
        False, "Take LoRA adapters at run time, too (/v1/load_lora_adapter).", unset="with lora_modules"
    )
    max_loras: int | None = _engine(
        None,
        "Most LoRA adapters in a batch, each with a slot in GPU memory.",
        hidden=("max_loras_per_batch",),
        unset="1; 8 for sglang",
        least=1,
    )
    max_cpu_loras: int | None = _engine(
        None, "Most LoRA adapters in host memory.", hidden=("max_loaded_loras",), unset="max_loras", least=1
    )
    max_lora_rank: int = _engine(16, "Rank that a slot has room for.", least=1, most=512)

    kv_cache_dtype: str = _kv(
        "auto",
        "KV cache format: auto (bf16; TensorRT-LLM: fp8 with fp8 or nvfp4 weights), bf16 or fp8.",
        metavar="FORMAT",
        carried=True,
    )
    gpu_memory_utilization: float | None = _kv(
        None,
        "Share of GPU memory that may be used, by the engine's own definition.",
        hidden=("mem_fraction_static", "free_gpu_memory_fraction"),
        unset="the engine's",
        above=0,
        most=1,
        flag=True,
    )
    num_gpu_blocks_override: int | None = _kv(
        None, "Number of KV blocks of an instance.", unset="as many as fit in memory", least=1, carried=True
    )
    block_size: int | None = _kv(
        None,
        "Tokens per KV block, the unit of prefix matching and of memory allocation.",
        hidden=("page_size", "tokens_per_block"),
        unset="the engine's; 1 when no engine is named, so that cached_tokens is exact",
        least=1,
        carried=True,
    )
    enable_prefix_caching: bool = _kv(
        True,
        "Keep the KV of finished requests, for later requests with the same prefix.",
        hidden=("enable_block_reuse",),
        flag="serve simulate calibrate",
        carried=True,
    )
    host_kv_gib: float = _kv(
        0.0, "Host memory of an instance for KV evicted from its GPUs.", hidden=("kv_offloading_size",), least=0
    )
    host_kv_gb_per_s: float | None = _kv(
        None, "Bandwidth of loading KV from host memory.", unset="the GPUs' PCIe bandwidth", above=0
    )
    disk_kv_gib: float = _kv(0.0, "Disk space of an instance for KV evicted from host memory.", least=0)
    disk_kv_gb_per_s: float | None = _kv(None, "Bandwidth of loading KV from disk.", unset="5, one NVMe drive", above=0)

    num_speculative_tokens: int = _speculation(
        0,
        "Draft tokens per step and sequence.",
        hidden=("speculative_num_steps", "max_draft_len"),
        least=0,
        most=64,
        flag=True,
    )
    acceptance_rate: float | None = _speculation(
        None,
        "Probability that a draft token is accepted, given that those before it were.",
        unset="as published for the model and method, else 0.7",
        least=0,
        most=1,
        flag="simulate size calibrate",
    )
    acceptance_length: float | None = _speculation(
        None,
        "The same as the mean tokens that a step brings, the model's own included.",
        hidden=("synthetic_acceptance_length", "simulate_acc_len"),
        unset="by --acceptance-rate",
        least=1,
    )
    acceptance_rates: tuple[float, ...] | None = _speculation(
        None,
        "The same as the share of first draft tokens that are accepted, of second ones, and so on.",
        hidden=("synthetic_acceptance_rates",),
        unset="by --acceptance-rate",
        read=_numbers,
        several=True,
        least=0,
        most=1,
    )
    speculative_method: SpeculativeMethod | None = _speculation(
        None,
        "Source of draft tokens: the model's own multi-token prediction layers, an EAGLE-3 head, a draft model, or the text "
        "so far.",
        unset="draft_model if one is named, else mtp",
    )
    draft_model: str | None = _speculation(
        None,
        "The draft model, with the same kinds of names as --model.",
        hidden=("speculative_model", "speculative_draft_model_path"),
        unset="none",
        carried=True,
    )

    ttft_ms: float | None = _time(
        None,
        "Fixed time to first token, instead of the performance model.",
        short="ttft",
        unset="computed",
        least=0,
        usual="serve",
        flag="serve simulate",
    )
    itl_ms: float | None = _time(
        None,
        "Fixed time between tokens, instead of the performance model.",
        short="itl",
        unset="computed",
        least=0,
        usual="serve",
        flag="serve simulate",
    )

    scale_on_queue: float | None = _scaling(
        None, "Scale the number of instances to N waiting requests per instance.", unset="off", above=0
    )
    scale_on_concurrency: float | None = _scaling(
        None, "Scale to N requests per instance, waiting or running.", unset="off", above=0
    )
    scale_on_kv: float | None = _scaling(None, "Scale to this KV cache usage.", unset="off", above=0, most=1)
    scale_on_rate: float | None = _scaling(None, "Scale to N requests per second per instance.", unset="off", above=0)
    scale_on_ttft_ms: float | None = _scaling(
        None, "Scale to this time to first token, of `scale_percentile`.", metavar="MS", unset="off", above=0
    )
    scale_on_itl_ms: float | None = _scaling(
        None, "Scale to this mean time between tokens, of `scale_percentile`.", metavar="MS", unset="off", above=0
    )
    scale_percentile: float = _scaling(90.0, "Percentile of requests for these two.", above=0, most=100)
    scale_advisory: bool = _scaling(False, "Log decisions and carry none out; all instances are there at the start.")
    min_instances: int = _scaling(1, "Fewest instances under autoscaling; --instances is the most.", least=0)
    initial_instances: int | None = _scaling(None, "Instances at the start.", unset="min_instances", least=0)
    start_up_s: float = _scaling(
        60.0, "Time from starting an instance until it takes requests.", aliases=("startup_s",), least=0
    )
    scale_interval_s: float = _scaling(15.0, "Time between scaling decisions.", above=0)
    scale_up_after_s: float = _scaling(0.0, "Start instances only after they were needed for S seconds.", least=0)
    scale_down_after_s: float = _scaling(300.0, "Stop instances only after they were not needed for S seconds.", least=0)

    served_model_name: tuple[str, ...] = _replies(
        (),
        "Model name in the API; may be repeated.",
        hidden=("served_model_names",),
        unset="the model's",
        check=lambda names: None if all(names) else "must not be empty",
        flag="serve",
        carried=True,
    )

    assumed: tuple[str, ...] = dataclasses.field(default=(), compare=False, repr=False)
    args_read: EngineArgs | None = dataclasses.field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.engine_args is not None:
            self._take_engine_args(self.engine_args)
        meant = _DEMO if self.model is None else _PLAIN
        unsaid = [name for name in meant if getattr(self, name) is None]
        for name in unsaid:
            object.__setattr__(self, name, meant[name])
        object.__setattr__(self, "assumed", (*self.assumed, *unsaid))
        make_plain(self)
        problems = list(self._problems())
        if problems:
            raise ConfigError(problems)

    def _take_engine_args(self, text: str) -> None:
        """Set what a real server's command line says. What is given beside it must agree, but for the model."""
        known = settings_of(InstanceSettings)
        read = read_engine_args(text, self.engine, known)
        problems = [f"engine_args: {problem}" for problem in read.problems]
        for name, value in read.settings.items():
            given = getattr(self, name)
            if given == known[name].default:
                object.__setattr__(self, name, value)
            elif given != value and name != "model":  # there it is a place on the server's disk as often as a name
                problems.append(f"engine_args sets {name} to {value}, but {name} is given as {given}")
        if problems:
            raise ConfigError(problems)
        object.__setattr__(self, "args_read", read)

    @property
    def scales(self) -> bool:
        """If instances come and go with the load."""
        return any(getattr(self, f"scale_on_{target}") is not None for target in TARGETS)

    @property
    def fixed_times(self) -> bool:
        """If fixed times replace the performance model."""
        return self.ttft_ms is not None or self.itl_ms is not None

    @property
    def drafter(self) -> SpeculativeMethod:
        """The drafter, given or not."""
        return self.speculative_method or ("mtp" if self.draft_model is None else "draft_model")

    @property
    def engine_name(self) -> str:
        """The engine that counts, named or not."""
        return self.engine or DEFAULT_ENGINE

    @property
    def kv_block_size(self) -> int | None:
        """Tokens of a KV block; None: the engine's own.

        Without a named engine it is 1: cached tokens are then exact to the token. Who counts
        blocks means the engine's.
        """
        unnamed = self.engine is None and self.num_gpu_blocks_override is None
        return 1 if self.block_size is None and unnamed else self.block_size

    @property
    def takes_lora(self) -> bool:
        """True if requests may name LoRA adapters."""
        return self.enable_lora or bool(self.lora_modules)

    def _problems(self) -> Iterator[str]:
        for name, about in settings_of(type(self)).items():
            yield from (f"{name} {problem}" for problem in about.problems(getattr(self, about.field)))
        yield from self._scaling_problems()
        if self.draft_model is not None and self.drafter != "draft_model":
            yield f"a draft_model and speculative_method {self.speculative_method} exclude each other"
        yield from self._acceptance_problems()
        slots = self.max_loras or 1
        if self.max_cpu_loras is not None and self.max_cpu_loras < slots:
            yield f"max_cpu_loras {self.max_cpu_loras} is less than max_loras {slots}"
        if self.num_speculative_tokens and self.speculative_method == "draft_model" and self.draft_model is None:
            yield "speculative_method draft_model needs a draft_model"

    def _acceptance_problems(self) -> Iterator[str]:
        given = [name for name in ACCEPTANCE if getattr(self, name) is not None]
        if len(given) > 1:
            yield f"{' and '.join(given)} exclude each other"
        drafts = self.num_speculative_tokens
        if not drafts:
            return
        if self.acceptance_length is not None and (problem := length_problem(self.acceptance_length, drafts)):
            yield f"acceptance_length {problem}"
        if self.acceptance_rates is not None and (problem := rates_problem(self.acceptance_rates, drafts)):
            yield f"acceptance_rates {problem}"

    def _scaling_problems(self) -> Iterator[str]:
        if not self.scales:
            return
        if self.min_instances > self.instances:
            yield f"min_instances {self.min_instances} is more than instances, the most there can be: {self.instances}"
        elif self.initial_instances is not None and not self.min_instances <= self.initial_instances <= self.instances:
            yield f"initial_instances must be from {self.min_instances} to {self.instances}, not {self.initial_instances}"
        if self.scale_on_kv is not None and self.fixed_times:
            yield "fixed times (ttft_ms, itl_ms) have no KV memory: remove them or scale_on_kv"


DEFAULT_ENGINE = "vllm"
ACCEPTANCE = ("acceptance_rate", "acceptance_length", "acceptance_rates")
