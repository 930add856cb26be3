"""SGLang."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from llmirage_server.perf.catalogue.dtypes import MoeBackend, WeightDtype
from llmirage_server.perf.catalogue.gpus import GIB, MIB, GpuSpec
from llmirage_server.perf.engines.engine import Engine, Overlap, Tiers
from llmirage_server.perf.parallelism import Parallelism

# Milliseconds that ROCm images from 0.5.3 to 0.5.11 add to each step on gfx942: the mean of what ROCm/aiter#1930 measured on
# MI300X with 4 to 32 clients (6.7 to 16.3). Products of fp8 blocks went through Triton (sgl-project/sglang#13617, #14043)
# without a tuned configuration for q_a and kv_a of DeepSeek.
_ROCM_STEP_MS = 11.7

_FUSED_TOKENS = 2048.0  # FUSE_ALLREDUCE_MAX_BATCH_SIZE of sglang/srt/layers/communicator.py


@dataclass(frozen=True, kw_only=True)
class Sglang(Engine):
    """SGLang 0.5. The KV cache gets utilization x (memory - reserve), less weights; activations live in the rest."""

    name: str = "sglang"
    title: str = "SGLang"
    version: str = "0.5.14"
    max_num_seqs: Tiers = field(default_factory=lambda: {0: 256, 35: 1024, 70: 2048})
    max_num_batched_tokens: Tiers = field(default_factory=lambda: {0: 2048, 35: 4096, 60: 8192, 160: 16384})
    block_size: int = 1
    gpu_memory_utilization: float | None = None
    reserve_gib: float = 1.0
    fuses_norms: bool = False  # --enable-flashinfer-allreduce-fusion
    front_end_ms: float = 10.0
    # 45.9 of vLLM's front end (inference-sim/inference-sim, BLIS): with 2,048 clients decode instances are limited there
    # too (lmsys.org/blog/2026-05-28-mori)
    output_token_us: float = 46.0
    host_step_ms: float = 0.0
    host_sequence_us: float = 16.0
    # no overlap hides it (speculative/eagle_worker.py); 15 runs of DeepSeek-R1 with MTP on B200
    speculative_sequence_us: float = 75.0
    # medians of TTFT of DeepSeek-R1 on MI355X with 4 to 16 clients are 36 to 80 ms higher with separate instances of the
    # same size (MoRI against one instance), less the transfer and a wait for a step
    handoff_ms: float = 40.0
    launch_us: float = 40.0

    base: ClassVar[str] = "sglang"
    source: ClassVar[str] = (
        "sglang/srt/server_args.py of SGLang 0.5: page_size 1, chunked_prefill_size by GPU memory, mem_fraction_static from "
        "what it sets apart for activations and CUDA graphs; overlap scheduler on"
    )
    scheduler: ClassVar[str] = "sglang"
    kv_pool: ClassVar[str] = "share of free at start"
    flags: ClassVar[Mapping[str, str]] = {
        "gpu_memory_utilization": "mem_fraction_static",
        "max_num_batched_tokens": "chunked_prefill_size",
        "max_num_seqs": "max_running_requests",
        "block_size": "page_size",
    }
    kv_overlap: ClassVar[Overlap] = "chunks"  # sgl-project/sglang#28529
    kv_timeout_s: ClassVar[float] = 300.0  # SGLANG_DISAGGREGATION_WAITING_TIMEOUT

    # The same command serves MiniMax-M2.5 on eight H100 and on eight B200: first tokens after 80 and 116 ms, 70 and 106 of
    # them launching. Kernels for Blackwell come from FlashInfer and TensorRT-LLM, whose wrappers choose among tactics.
    _blackwell_launch: ClassVar[float] = 1.5

    def utilization_on(self, gpu: GpuSpec, chunk_tokens: int, max_num_seqs: int, parallel: Parallelism) -> float:
        """Return mem_fraction_static (ServerArgs): what is left after metadata, activations and CUDA graphs.

        MiB set apart: 512 + 1.5 a token of the chunk + 2 a sequence of the largest graph + 128 a GPU, 3 more a sequence and
        rank under attention data parallelism; at least 10 GiB on GPUs of more than 60.
        """
        if self.gpu_memory_utilization is not None:
            return self.gpu_memory_utilization
        mib = gpu.memory_bytes / MIB
        graph = min(max_num_seqs, 512 if parallel.tp >= 4 or gpu.memory_bytes > 60 * GIB else 160)
        apart = 512 + 1.5 * max(chunk_tokens, 2048) + 2 * graph + 128 * parallel.tp * parallel.pp
        if parallel.dp > 1:
            apart += 3 * graph * parallel.dp
        if mib > 60 * 1024:
            apart = max(apart, 10 * 1024)
        return round(max(0.1, (mib - apart) / mib), 3)

    def unused_bytes(self, gpu: int, utilization: float, weights: int, activations: int, reserve: int) -> int:
        """Return what the share leaves beyond activations; the pool shrinks where they need more, as a careful user does."""
        return max(0, gpu - reserve - int((gpu - reserve) * utilization) - activations)

    def expert_weights(
        self, weights: WeightDtype, gpu: GpuSpec, backend: MoeBackend, native: str, parallel: Parallelism
    ) -> WeightDtype:
        """Return the format; mxfp4 of a model not trained in it is W4A4 on AMD's GPUs (AMD Quark).

        Before AITER had FlyDSL's kernels of experts (lmsys.org/blog/2026-05-28-mori), theirs took as long as with 8-bit
        activations: DeepSeek-R1 by InferenceMAX, 0.5.6 to 0.5.9 against 0.5.12.
        """
        quantised_by_amd = gpu.vendor == "amd" and weights.name == "mxfp4" and native != "mxfp4"
        if quantised_by_amd and gpu.has_fp4 and not self.is_before(0, 5, 10):
            return weights.with_fp4_activations
        return weights

    def fused_norm_tokens(self, gpu: GpuSpec, ranks: int, hidden: int) -> float:
        return _FUSED_TOKENS if self.fuses_norms and gpu.arch in ("hopper", "blackwell") else 0.0

    def launch_us_on(self, gpu: GpuSpec) -> float:
        return self.launch_us * (self._blackwell_launch if gpu.arch == "blackwell" else 1.0)

    def on(self, gpu: GpuSpec) -> Engine:
        """Return the engine with what ROCm images of its version add on AMD's GPUs."""
        if gpu.arch != "gfx942" or self.is_before(0, 5, 3) or not self.is_before(0, 5, 12):
            return self
        return replace(self, host_step_ms=self.host_step_ms + _ROCM_STEP_MS)
