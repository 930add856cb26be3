"""A serving engine: the fields that a user may change, and the rules that an engine may replace."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import log2
from typing import Any, ClassVar, Literal

from llmirage_server.perf.catalogue.dtypes import MoeBackend, WeightDtype
from llmirage_server.perf.catalogue.gpus import GIB, GpuSpec
from llmirage_server.perf.catalogue.models import ModelSpec
from llmirage_server.perf.parallelism import Parallelism

Activations = Literal["bf16", "fp8"]
Overlap = Literal["layers", "chunks", "none"]
Tiers = Mapping[float, int]


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One serving engine in one version.

    Time of a step = max(GPU time, hidden host time) + exposed host time: the engines prepare a step while the GPU works on
    the one before. `host_*` is exposed, `hidden_*` is the shortest step that the host can keep up with.
    """

    name: str
    title: str
    version: str
    max_num_seqs: Tiers  # default, from so much GPU memory (GiB) on
    max_num_batched_tokens: Tiers
    block_size: int  # tokens
    gpu_memory_utilization: float | None  # None: by a rule
    reserve_gib: float  # CUDA context, graphs, communicators
    fuses_norms: bool  # the kernel of an all-reduce over NVLink does the norm after it, up to a size
    async_scheduling: bool = True  # a step is formed while the one before it runs; if not, vLLM's host hides nothing
    front_end_ms: float  # HTTP, tokenizer, detokenizer: once a request, before the first token
    # of the front end for a request, while others wait: one thread (vllm-project/vllm#25301) or process does so
    # (sgl-project/sglang#6553), 421 requests a second for texts of 100 characters (dphnAI/sonar#1359, a fork of vLLM)
    tokenize_ms: float = 2.4
    output_token_us: float = 0.0  # of the front end for each token that goes out: requests wait behind them
    host_step_ms: float
    host_sequence_us: float = 4.0
    hidden_step_ms: float = 1.5
    hidden_sequence_us: float = 8.0
    speculative_sequence_us: float = 0.0  # exposed, of a step for each sequence whose drafts it verifies
    dp_sync_ms: float = 0.5  # attention data parallelism: agreeing on the next step
    handoff_ms: float  # from a prefill to its decode instance, beside the transfer and the waiting for steps
    launch_us: float  # of the host for each kernel of a step with prompts, without CUDA graphs
    prefill_in_place: float = 1.12  # long prompts within a running server / their kernels measured one by one
    mxfp4_activations: Activations = "fp8"  # of experts in mxfp4, on GPUs that multiply in fp4
    decode_scale: float = 1.0  # measured / modelled GPU time of decoding
    prefill_scale: float = 1.0

    base: ClassVar[str]  # name of the engine, whose kernels and scheduler it has
    scheduler: ClassVar[str]
    source: ClassVar[str]
    kv_pool: ClassVar[str]  # what the KV cache gets, in words
    flags: ClassVar[Mapping[str, str]]  # our name of a limit -> the engine's
    versions: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # fields up to and with a version, the oldest first
    kv_overlap: ClassVar[Overlap] = "none"  # what of a prompt's KV goes to a decode instance while the rest is computed
    kv_timeout_s: ClassVar[float] = 480.0  # KV waits for an outside router: vLLM's VLLM_NIXL_ABORT_REQUEST_TIMEOUT
    mixed_attention: ClassVar[bool] = False  # prompt chunks and decodes share one launch of attention
    beside_tokens: ClassVar[int] = 0  # up to so many in a step the shared expert has a stream of its own
    compiles: ClassVar[bool] = False  # elementwise operations that follow each other are one kernel (torch.compile)
    routes_in_experts: ClassVar[bool] = False  # the choice of experts is part of their kernels as measured
    writes_nvfp4: ClassVar[bool] = False  # norms and attention write activations in nvfp4 for the product after them
    fused_mib: ClassVar[Mapping[str, Mapping[int, float]]] = {}  # largest fused all-reduce: by arch and ranks
    whole_windows: ClassVar[bool] = False  # layers of sliding windows keep the whole context in the KV cache
    gathers_quantized: ClassVar[bool] = False  # tokens that all experts' ranks gather are in the format of the experts

    # --- defaults ---

    def tier(self, tiers: Tiers, gpu: GpuSpec) -> int:
        """Return the default of a limit on a GPU, of those by its memory."""
        return tiers[max(least for least in tiers if least <= gpu.memory_bytes / GIB)]

    def kv_dtype_on(self, gpu: GpuSpec, weights: str) -> str:
        """Return the format of the KV cache that `auto` means: NVIDIA's checkpoints in nvfp4 ask for fp8 (ModelOpt).

        SGLang: configure_kv_cache_dtype; vLLM from 0.14 on (vllm-project/vllm#30785). Where the GPU has no fp4, it runs
        those of others (llm-compressor), which ask for nothing.
        """
        return "fp8" if weights == "nvfp4" and gpu.has_fp4 else "bf16"

    def utilization_on(self, gpu: GpuSpec, chunk_tokens: int, max_num_seqs: int, parallel: Parallelism) -> float:
        """Return the default of gpu_memory_utilization, in the engine's own meaning."""
        assert self.gpu_memory_utilization is not None
        return self.gpu_memory_utilization

    def block_tokens(self, model: ModelSpec, kv_dtype_bytes: int, tp: int) -> int:
        """Return the tokens of a KV block where the user does not say."""
        return self.block_size

    def most_running(self, max_num_seqs: int, stages: int) -> int:
        """Return the sequences that may run at once, if memory allows."""
        return max_num_seqs

    def expert_weights(
        self, weights: WeightDtype, gpu: GpuSpec, backend: MoeBackend, native: str, parallel: Parallelism
    ) -> WeightDtype:
        """Return the format of weights with the kernels that experts run on. native: format of the model's publisher."""
        return weights

    def is_before(self, *version: int) -> bool:
        return version_numbers(self.version) < version

    # --- memory ---

    def reserve_bytes(self, gpus: int) -> int:
        """Return what CUDA context, graphs and communicators take of each of an instance's GPUs."""
        return int((self.reserve_gib + self._reserve_doubling_gib * log2(gpus)) * GIB)

    _reserve_doubling_gib: ClassVar[float] = 0.0  # more with each doubling of an instance's GPUs

    def unused_bytes(self, gpu: int, utilization: float, weights: int, activations: int, reserve: int) -> int:
        """Return the bytes of a GPU's memory that the engine leaves alone, of what it takes for itself in bytes."""
        raise NotImplementedError

    # --- times ---

    def host_s(self, gpu_s: float, rows: int) -> float:
        """Return the seconds that the host adds to a decoding step of `gpu_s` with `rows` sequences."""
        exposed_s, hidden_s = self.host_parts_s(rows)
        return exposed_s + max(0.0, hidden_s - gpu_s)

    def host_parts_s(self, rows: int) -> tuple[float, float]:
        """Return the host's exposed and hidden seconds of a step with `rows` sequences."""
        exposed_s = self.host_step_ms * 1e-3 + self.host_sequence_us * 1e-6 * rows
        return exposed_s, self.hidden_step_ms * 1e-3 + self.hidden_sequence_us * 1e-6 * rows

    def captured_tokens(self, max_num_seqs: int) -> int:
        """Return the most tokens of a step with prompts that replays CUDA graphs between attentions; 0: no such graphs."""
        return 0

    def fused_norm_tokens(self, gpu: GpuSpec, ranks: int, hidden: int) -> float:
        """Return up to how many tokens (of bf16) a norm after an all-reduce over NVLink is part of its kernel."""
        limits = {of: mib for of, mib in self.fused_mib.get(gpu.arch, {}).items() if of <= ranks}
        return limits[max(limits)] * 2**20 / (2.0 * hidden) if self.fuses_norms and limits else 0.0

    def sends_to_experts(self, gpu: GpuSpec, parallel: Parallelism, per_token: int) -> bool:
        """Return if tokens of data-parallel ranks within a node are sent to their experts' ranks, not gathered on all."""
        return False

    def launch_us_on(self, gpu: GpuSpec) -> float:
        """Return the host's microseconds for each kernel of a step with prompts."""
        return self.launch_us

    def prefill_in_place_on(self, gpu: GpuSpec) -> float:
        """Return by how much kernels are slower in long prompts of a running server than one by one."""
        return 1.0 if gpu.profiled else self.prefill_in_place

    def on(self, gpu: GpuSpec) -> Engine:
        return self

    @property
    def front_end_ttft_s(self) -> float:
        """Seconds that HTTP and tokenization add to the time to the first token."""
        return self.front_end_ms * 1e-3


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the numbers that a version begins with: of 1.0.0rc3 they are (1, 0, 0)."""
    numbers = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(map(int, numbers[1].split("."))) if numbers else ()
