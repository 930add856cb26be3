"""vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from llmirage_server.perf.catalogue.dtypes import MoeBackend, WeightDtype
from llmirage_server.perf.catalogue.gpus import GpuSpec
from llmirage_server.perf.catalogue.models import ModelSpec, cache_bytes
from llmirage_server.perf.engines.engine import Activations, Engine, Tiers
from llmirage_server.perf.parallelism import Parallelism


@dataclass(frozen=True, kw_only=True)
class Vllm(Engine):
    """vLLM V1. The KV cache gets utilization x memory, less weights, peak activations and the reserve."""

    name: str = "vllm"
    title: str = "vLLM"
    version: str = "0.24.0"
    # EngineArgs.get_batch_defaults for the OpenAI server
    max_num_seqs: Tiers = field(default_factory=lambda: {0: 256, 70: 1024})
    max_num_batched_tokens: Tiers = field(default_factory=lambda: {0: 2048, 70: 8192})
    block_size: int = 16
    gpu_memory_utilization: float | None = 0.9
    # 1.4: an RTX 4090 instance of 2,588 blocks; 1.0 for CUDA graphs, which profiling counts from 0.21 on (1.01 to 1.05 GiB
    # logged by gpt-oss-120b and Qwen3.6-35B-A3B)
    reserve_gib: float = 2.4
    fuses_norms: bool = True
    front_end_ms: float = 10.0
    host_step_ms: float = 0.5
    # 197 ms from the prefill's token to the client's, 29 of transfer, 58 of computing it again and waiting for a step
    # (vllm-project/vllm#51919); the NIXL connector pulls when the prefill has finished
    handoff_ms: float = 110.0
    launch_us: float = 30.0
    mxfp4_activations: Activations = "bf16"

    base: ClassVar[str] = "vllm"
    source: ClassVar[str] = (
        "vllm/engine/arg_utils.py, vllm/config and vllm/v1 of vLLM 0.19: block_size 16, all2all_backend "
        "allgather_reducescatter, async_scheduling on from 0.14, pass_config.fuse_allreduce_rms on; reserve from logged "
        "memory; front end from 15 measured H100 load points (8.1 to 9.2 ms)"
    )
    scheduler: ClassVar[str] = "vllm"
    kv_pool: ClassVar[str] = "share of all"
    flags: ClassVar[Mapping[str, str]] = {
        name: name for name in ("gpu_memory_utilization", "max_num_batched_tokens", "max_num_seqs", "block_size")
    }
    versions: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "0.13": {"async_scheduling": False, "reserve_gib": 1.4},
        "0.20": {"reserve_gib": 1.4},
    }
    mixed_attention: ClassVar[bool] = True
    compiles: ClassVar[bool] = True
    # fi_allreduce_fusion_max_size_mb (PassConfig, 0.16 and later)
    fused_mib: ClassVar[Mapping[str, Mapping[int, float]]] = {
        "hopper": {2: 64, 4: 2, 8: 1},
        "blackwell": {2: 64, 4: 32, 8: 1},
    }
    beside_tokens: ClassVar[int] = 256  # VLLM_SHARED_EXPERTS_STREAM_TOKEN_THRESHOLD

    _captured_tokens: ClassVar[int] = 512  # of the largest piecewise CUDA graph
    _blackwell_excess: ClassVar[float] = 10 / 3  # of the slowdown of long prompts, over NVLink

    def kv_dtype_on(self, gpu: GpuSpec, weights: str) -> str:
        """Return the format that a checkpoint asks for, which older versions do not read."""
        return "bf16" if self.is_before(0, 14) else super().kv_dtype_on(gpu, weights)

    def unused_bytes(self, gpu: int, utilization: float, weights: int, activations: int, reserve: int) -> int:
        return gpu - int(gpu * utilization)

    def block_tokens(self, model: ModelSpec, kv_dtype_bytes: int, tp: int) -> int:
        """Return the tokens of a block, which has one size in bytes for attention and for recurrent states.

        It holds as many tokens as fill a state, in steps of 16 (vllm/model_executor/models/config.py: "Setting attention
        block size to 1056 tokens" for Qwen3.5-35B).
        """
        state = max([group.attention.state_bytes(tp) for group in model.groups if group.attention], default=0)
        token = max([cache_bytes(group, kv_dtype_bytes, tp) // group.count for group in model.groups])
        if not state or not token:
            return self.block_size
        return max(self.block_size, -(-state // (16 * token)) * 16)

    def expert_weights(
        self, weights: WeightDtype, gpu: GpuSpec, backend: MoeBackend, native: str, parallel: Parallelism
    ) -> WeightDtype:
        """Return the format; from 0.11.1 on Hopper runs experts in fp8 blocks by DeepGEMM, which 0.13 tells to skip padding.

        Scales in powers of two, the default since, take DeepGEMM for decoding too (vllm-project/vllm#26197); rows without a
        token were not marked before vllm-project/vllm#30494; eight ranks have Triton's kernels (vllm-project/vllm#29346).
        """
        if backend == "marlin":
            return replace(weights, expert_kernels="marlin")
        padded = gpu.arch == "hopper" and not self.is_before(0, 11, 1) and self.is_before(0, 13) and parallel.tp != 8
        return replace(weights, expert_kernels="deepgemm") if padded and weights.name == "fp8_block" else weights

    def captured_tokens(self, max_num_seqs: int) -> int:
        return min(self._captured_tokens, 2 * max_num_seqs)

    def prefill_in_place_on(self, gpu: GpuSpec) -> float:
        excess = self._blackwell_excess if gpu.arch == "blackwell" and gpu.link == "nvlink" else 1.0
        return 1.0 + excess * (super().prefill_in_place_on(gpu) - 1.0)

    def host_parts_s(self, rows: int) -> tuple[float, float]:
        """Return the host's exposed and hidden seconds; without asynchronous scheduling the GPU waits for all of it."""
        exposed_s, hidden_s = super().host_parts_s(rows)
        return (exposed_s, hidden_s) if self.async_scheduling else (exposed_s + hidden_s, 0.0)

    def tier(self, tiers: Tiers, gpu: GpuSpec) -> int:
        if gpu.key.startswith("a100") and len(tiers) > 1:
            return tiers[0]  # the A100 has the limits of a small GPU, whatever its memory
        return super().tier(tiers, gpu)
