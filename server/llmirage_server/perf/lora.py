"""LoRA adapters: how large they are, how long they take to load, and what their low-rank products add to a step.

Beside each projection of attention and of a dense MLP, two kernels run (punica's shrink and expand, or segmented GEMMs): the
inputs times A, then times B. Each reads the weights of every adapter of the batch once. vLLM's kernels work on slots of
`max_lora_rank` whatever an adapter's own rank; SGLang's know each one's. Tensor parallelism shards one of the two factors.

Not modelled: adapters of experts, of embeddings and of lm_head; products that overlap with the projection beside them.
"""

from __future__ import annotations

from collections.abc import Sequence

from llmirage_server.perf.catalogue.constants import constants_for
from llmirage_server.perf.catalogue.dtypes import WeightDtype
from llmirage_server.perf.catalogue.gpus import DISK_GB_PER_S, DISK_LATENCY_S, PCIE_LATENCY_S, GpuSpec
from llmirage_server.perf.catalogue.models import ModelSpec, formats_of
from llmirage_server.perf.engines.engine import Engine
from llmirage_server.perf.kernels.kernel import Elementwise, Gemm
from llmirage_server.perf.parallelism import ONE_GPU, Parallelism
from llmirage_server.perf.steps.model_ops import layer_ops
from llmirage_server.perf.steps.operations import Setting, TokenOp

# Projections that take an adapter, and the matrices of which engines make one: each has an A of its own.
_SLICES = {
    "qkv projection": 3, "q and kv down projection": 2, "q up projection": 1, "output projection": 1,
    "mlp gate and up": 2, "mlp up": 1, "mlp down": 1,
}  # fmt: skip
_WEIGHT_BYTES = 2  # bf16; sums between the two kernels are float32


class LoraCosts:
    """Sizes and times of adapters on the GPUs of one instance."""

    def __init__(
        self,
        model: ModelSpec,
        gpu: GpuSpec,
        engine: Engine,
        weights: WeightDtype,
        parallel: Parallelism,
        max_rank: int,
    ) -> None:
        formats, constants = formats_of(model, weights), constants_for(gpu, engine.base)

        def projections(split: Parallelism) -> list[tuple[int, int, int, int]]:
            """Return calls, slices, inputs and outputs of each kind of projection on one rank."""
            setting = Setting(gpu, constants, engine, split, formats, formats.mlp, "bf16", model.hidden)
            return [
                (op.calls, _SLICES[op.name], op.kernel.k, op.kernel.n)
                for op in layer_ops(setting, model.groups)
                if op.name in _SLICES and isinstance(op, TokenOp) and isinstance(op.kernel, Gemm)
            ]

        here = projections(parallel)
        self._padded_rank = max_rank if engine.base == "vllm" else 0
        self._weights = _weights(here)  # of all stages, for each unit of rank
        self._whole_weights = _weights(projections(ONE_GPU))
        self._token_bytes = sum([calls * (2 * inputs + 4 * outputs) for calls, _, inputs, outputs in here])
        self._token_rank_bytes = sum([calls * 8 * slices for calls, slices, _, _ in here])
        self._kernels = Elementwise(gpu, 1.0, launches=2 * sum([calls for calls, *_ in here]))
        self._flops = gpu.flops["bf16"] * constants.of("gemm", "bf16")["compute"]
        self._host_bytes_per_s = gpu.host_bytes_per_s
        self._stages = parallel.pp

    def slot_bytes(self, rank: int) -> int:
        return _WEIGHT_BYTES * rank * self._weights // self._stages

    def step_s(self, adapters: Sequence[tuple[int, int]]) -> float:
        """Return what a step takes longer. adapters: rank and tokens of each."""
        moved = flops = 0.0
        for own_rank, tokens in adapters:
            rank = self._padded_rank or own_rank
            moved += _WEIGHT_BYTES * rank * self._weights + tokens * (self._token_bytes + rank * self._token_rank_bytes)
            flops += 2.0 * tokens * rank * self._weights
        return self._kernels.floor + max(self._kernels.slope * moved, flops / self._flops)

    def load_s(self, rank: int, from_disk: bool) -> float:
        """Return the time until an adapter is in GPU memory, from host memory or from disk."""
        to_gpu = PCIE_LATENCY_S + self.slot_bytes(rank) / self._host_bytes_per_s
        if not from_disk:
            return to_gpu
        return DISK_LATENCY_S + _WEIGHT_BYTES * rank * self._whole_weights / (DISK_GB_PER_S * 1e9) + to_gpu


def _weights(projections: Sequence[tuple[int, int, int, int]]) -> int:
    return sum([calls * (slices * inputs + outputs) for calls, slices, inputs, outputs in projections])
