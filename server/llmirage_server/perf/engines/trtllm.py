"""TensorRT-LLM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from llmirage_server.perf.catalogue.dtypes import MoeBackend, WeightDtype
from llmirage_server.perf.catalogue.gpus import GpuSpec
from llmirage_server.perf.engines.engine import Engine, Tiers
from llmirage_server.perf.parallelism import NODE_GPUS, Parallelism


@dataclass(frozen=True, kw_only=True)
class Trtllm(Engine):
    """TensorRT-LLM 1.x. The KV cache gets utilization x (memory - weights - peak activations - reserve)."""

    name: str = "trtllm"
    title: str = "TensorRT-LLM"
    version: str = "1.3.0rc20"
    max_num_seqs: Tiers = field(default_factory=lambda: {0: 2048})
    max_num_batched_tokens: Tiers = field(default_factory=lambda: {0: 8192})
    block_size: int = 32
    gpu_memory_utilization: float | None = 0.9
    reserve_gib: float = 2.0
    fuses_norms: bool = True
    front_end_ms: float = 15.0
    tokenize_ms: float = 0.0  # nothing published
    host_step_ms: float = 0.3
    handoff_ms: float = 40.0  # not known: SGLang's. KV goes when the prefill has finished (NVIDIA/TensorRT-LLM#9212)
    launch_us: float = 55.0

    base: ClassVar[str] = "trtllm"
    source: ClassVar[str] = (
        "tensorrt_llm/llmapi/llm_args.py of TensorRT-LLM 1.x: max_batch_size 2048, max_num_tokens 8192, tokens_per_block "
        "32, free_gpu_memory_fraction 0.9, overlap scheduler on; all-reduce with residual and norm fused; experts under "
        "attention data parallelism: all-gather of quantized tokens and reduce-scatter, unless ranks outnumber a token's "
        "experts on multi-node NVLink (_torch/modules/fused_moe/fused_moe_cutlass.py); experts in nvfp4 by CUTLASS unless "
        "moe_config says otherwise (_torch/model_config.py, resolve_moe_backend); windows are not reclaimed where "
        "max_attention_window is not set (_torch/pyexecutor/resource_manager.py)"
    )
    scheduler: ClassVar[str] = "trtllm"
    kv_pool: ClassVar[str] = "share of free"
    flags: ClassVar[Mapping[str, str]] = {
        "gpu_memory_utilization": "free_gpu_memory_fraction",
        "max_num_batched_tokens": "max_num_tokens",
        "max_num_seqs": "max_batch_size",
        "block_size": "tokens_per_block",
    }
    # all-reduces in its own kernel: 16 MB between two GPUs, 8 MB among more (CustomAllReduceHelper.max_workspace_size_auto)
    fused_mib: ClassVar[Mapping[str, Mapping[int, float]]] = {arch: {2: 15.26, 4: 7.63} for arch in ("hopper", "blackwell")}
    writes_nvfp4: ClassVar[bool] = True  # AllReduceFusionOp.RESIDUAL_RMS_NORM_QUANT_NVFP4, attention's out_scale
    whole_windows: ClassVar[bool] = True
    routes_in_experts: ClassVar[bool] = True
    beside_tokens: ClassVar[int] = 2048  # within CUDA graphs (do_multi_stream), of max_batch_size at most
    gathers_quantized: ClassVar[bool] = True

    # what NVIDIA's tests expect of peak memory on eight GPUs beyond weights and activations (tests/integration/defs/
    # test_e2e.py: DeepSeek-R1 under attention data parallelism 6.5 GiB, Mixtral-8x7B 5.6, DeepSeek-V3 4.4)
    _reserve_doubling_gib: ClassVar[float] = 1.2

    def kv_dtype_on(self, gpu: GpuSpec, weights: str) -> str:
        """Return fp8 for ModelOpt's checkpoints, which ask for it, where the GPU has it."""
        return "fp8" if weights in ("fp8", "nvfp4") and "fp8" in gpu.flops else "bf16"

    def unused_bytes(self, gpu: int, utilization: float, weights: int, activations: int, reserve: int) -> int:
        free = max(0, gpu - reserve - weights - activations)
        return free - int(free * utilization)

    def most_running(self, max_num_seqs: int, stages: int) -> int:
        """Return max_batch_size, which is that of a micro-batch, for each pipeline stage."""
        return max_num_seqs * stages

    def expert_weights(
        self, weights: WeightDtype, gpu: GpuSpec, backend: MoeBackend, native: str, parallel: Parallelism
    ) -> WeightDtype:
        return weights if backend == "trtllm" else replace(weights, expert_kernels="cutlass")

    def sends_to_experts(self, gpu: GpuSpec, parallel: Parallelism, per_token: int) -> bool:
        """Return if NVLink spans nodes and a token has fewer experts than there are ranks."""
        return gpu.link_gpus > NODE_GPUS and parallel.stage_gpus > per_token
