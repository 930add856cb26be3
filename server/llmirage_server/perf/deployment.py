"""One instance: which model, on which GPUs, split how, in which formats; and what follows from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from llmirage_server.perf.catalogue import find_gpu, find_model
from llmirage_server.perf.dtypes import KV_DTYPE_BYTES, WEIGHT_DTYPES, WeightDtype
from llmirage_server.perf.errors import DeploymentError
from llmirage_server.perf.gpus import GIB, GpuSpec
from llmirage_server.perf.memory import RESERVE_BYTES, MemoryBudget, activation_bytes_per_rank, weights_bytes_per_rank
from llmirage_server.perf.models import ModelSpec
from llmirage_server.perf.parallelism import parallelism_problems
from llmirage_server.perf.step import RooflineStep

_Spec = TypeVar("_Spec")

MIN_KV_TOKENS = 1024  # an instance with less than this much KV cache is not worth starting


@dataclass(frozen=True)
class Deployment:
    """One instance of a model. Build it with `create`, which refuses what cannot work."""

    model: ModelSpec
    gpu: GpuSpec
    tp: int
    ep: int
    weight_dtype: str
    kv_dtype: str
    gpu_memory_utilization: float
    max_num_batched_tokens: int
    max_num_seqs: int

    @classmethod
    def create(
        cls,
        model: str,
        gpu: str,
        *,
        tp: int = 1,
        ep: int = 1,
        weights: str = "fp8",
        kv_cache_dtype: str = "bf16",
        gpu_memory_utilization: float = 0.9,
        max_num_batched_tokens: int = 8192,
        max_num_seqs: int = 256,
    ) -> Deployment:
        """Look up and check everything. Raises DeploymentError, with all problems or with the arithmetic that fails."""
        problems: list[str] = []
        found_model = _try(find_model, model, problems)
        found_gpu = _try(find_gpu, gpu, problems)
        if weights == "auto" and found_model is not None:
            weights = found_model.native_weights
        if weights not in WEIGHT_DTYPES and weights != "auto":
            problems.append(f"unknown weight format {weights!r}; choices: auto, {', '.join(WEIGHT_DTYPES)}")
        if kv_cache_dtype not in KV_DTYPE_BYTES:
            problems.append(f"unknown KV cache format {kv_cache_dtype!r}; choices: {', '.join(KV_DTYPE_BYTES)}")
        for name, value in (
            ("max_num_batched_tokens", max_num_batched_tokens),
            ("max_num_seqs", max_num_seqs),
            ("tp", tp),
            ("ep", ep),
        ):
            if value < 1:
                problems.append(f"{name} is {value}, but must be at least 1")
        if not 0 < gpu_memory_utilization <= 1:
            problems.append(f"gpu_memory_utilization is {gpu_memory_utilization}, but must be above 0 and at most 1")
        if problems or found_model is None or found_gpu is None:
            raise DeploymentError(problems)
        problems = parallelism_problems(found_model, found_gpu, tp, ep)
        if kv_cache_dtype == "fp8" and "fp8" not in found_gpu.rates:
            problems.append(f"{found_gpu.name} has no fp8 arithmetic for an fp8 KV cache; choices: bf16")
        if problems:
            raise DeploymentError(problems)
        deployment = cls(
            found_model,
            found_gpu,
            tp,
            ep,
            weights,
            kv_cache_dtype,
            gpu_memory_utilization,
            max_num_batched_tokens,
            max_num_seqs,
        )
        deployment._check_memory()
        return deployment

    def _check_memory(self) -> None:
        """Refuse an instance without room for a KV cache."""
        if self._fits():
            return
        memory = self.memory
        window = f" + sliding-window KV {memory.window_bytes / GIB:.1f} GiB" if memory.window_bytes else ""
        raise DeploymentError(
            [
                f"{self.describe()} does not fit: weights {memory.weights_bytes / GIB:.1f} GiB + activations "
                f"{memory.activation_bytes / GIB:.1f} GiB + reserve {memory.reserve_bytes / GIB:.1f} GiB{window} "
                f"{'>' if memory.kv_bytes < 0 else 'leave no room for KV cache in'} "
                f"{self.gpu_memory_utilization:.2f} x {self.gpu.memory_bytes / GIB:.1f} GiB = "
                f"{memory.usable_bytes / GIB:.1f} GiB per GPU; {self._what_would_fit()}"
            ]
        )

    def _fits(self) -> bool:
        return self.memory.kv_tokens >= MIN_KV_TOKENS

    def _what_would_fit(self) -> str:
        """The smallest tensor-parallel size that fits, as the end of a sentence."""
        for tp in range(self.tp + 1, self.gpu.link_gpus + 1):
            if not parallelism_problems(self.model, self.gpu, tp, self.ep) and replace(self, tp=tp)._fits():
                return f"it needs tp {tp}"
        return f"no tp up to {self.gpu.link_gpus} fits: use a smaller weight format or a GPU with more memory"

    @property
    def gpus(self) -> int:
        """GPUs of one instance."""
        return self.tp

    @property
    def max_model_len(self) -> int:
        """Tokens of the architecture's own context length."""
        return self.model.max_model_len

    @property
    def _weights(self) -> WeightDtype:
        return WEIGHT_DTYPES[self.weight_dtype].on(self.gpu.rates)

    @cached_property
    def memory(self) -> MemoryBudget:
        """Where the memory of each GPU goes."""
        kv = KV_DTYPE_BYTES[self.kv_dtype]
        return MemoryBudget(
            gpu_bytes=self.gpu.memory_bytes,
            utilization=self.gpu_memory_utilization,
            weights_bytes=weights_bytes_per_rank(self.model, self._weights, self.tp),
            activation_bytes=activation_bytes_per_rank(
                self.model, self.tp, self.ep, self.max_num_batched_tokens, self.max_num_seqs
            ),
            reserve_bytes=RESERVE_BYTES,
            window_bytes=self.model.window_bytes_per_sequence(kv, self.tp) * self.max_num_seqs,
            kv_bytes_per_token=self.model.kv_bytes_per_token(kv, self.tp),
        )

    def step_model(self) -> RooflineStep:
        """How long a step of this instance takes."""
        return RooflineStep(
            self.model, self.gpu, tp=self.tp, ep=self.ep, weights=self._weights, kv_bytes=KV_DTYPE_BYTES[self.kv_dtype]
        )

    def ttft_s(self, prompt_tokens: int) -> float:
        """Seconds until the first token of one user's prompt on an idle instance, in chunks of max_num_batched_tokens."""
        step, chunk = self.step_model(), self.max_num_batched_tokens
        return sum(step.step_s([(min(chunk, prompt_tokens - done), done)], []) for done in range(0, prompt_tokens, chunk))

    def tpot_s(self, context_tokens: int) -> float:
        """Seconds between the tokens of one user on an otherwise idle instance."""
        return self.step_model().step_s([], [context_tokens])

    def describe(self) -> str:
        """One line for a banner."""
        parallel = f", ep {self.ep}" if self.ep > 1 else ""
        widened = " (weight-only)" if self._weights.compute != WEIGHT_DTYPES[self.weight_dtype].compute else ""
        formats = f"{self.weight_dtype} weights{widened}, {self.kv_dtype} KV"
        return f"{self.model.name} on {self.gpus}x {self.gpu.name}{parallel}, {formats}"


def _try(find: Callable[[str], _Spec], name: str, problems: list[str]) -> _Spec | None:
    try:
        return find(name)
    except DeploymentError as error:
        problems.extend(error.problems)
        return None
