"""The operations a stage is made of, what all of them need to know, and the groups in which reports show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from llmirage_server.perf.catalogue.constants import Constants
from llmirage_server.perf.catalogue.dtypes import WeightDtype
from llmirage_server.perf.catalogue.gpus import GpuSpec
from llmirage_server.perf.catalogue.models import Formats
from llmirage_server.perf.engines.engine import Engine
from llmirage_server.perf.kernels.attention import DecodeAttention, PrefillAttention
from llmirage_server.perf.kernels.kernel import Elementwise, Gemm, TokenKernel
from llmirage_server.perf.parallelism import Parallelism
from llmirage_server.perf.steps.step_model import StepBatch

# What a TokenOp counts: all tokens of the rank; tokens of all ranks that share the experts; tokens of the prompt chunks;
# these and the cached ones before them; tokens of the decoding sequences; all sequences; rows whose logits are wanted.
Count = Literal["tokens", "group", "new", "expanded", "decode_tokens", "sequences", "rows"]
COUNTS: tuple[Count, ...] = ("tokens", "group", "new", "expanded", "decode_tokens", "sequences", "rows")


@dataclass(frozen=True, slots=True)
class TokenOp:
    """`calls` launches of a kernel whose time follows from one count."""

    name: str
    calls: int
    kernel: TokenKernel
    count: Count = "tokens"
    launches: int = 1  # that an engine does one by one for a call, without a CUDA graph


@dataclass(frozen=True, slots=True)
class PrefillOp:
    """`calls` launches of attention over the prompt chunks; every query sees `window` keys at most (0: all)."""

    name: str
    calls: int
    kernel: PrefillAttention
    window: int = 0
    launches: int = 1


@dataclass(frozen=True, slots=True)
class DecodeOp:
    """`calls` launches of attention of the decoding sequences, `mixed` times slower in a step that has prompt chunks too."""

    name: str
    calls: int
    kernel: DecodeAttention
    window: int = 0
    mixed: float = 1.0


Op = TokenOp | PrefillOp | DecodeOp


@dataclass(frozen=True, slots=True)
class Setting:
    """The GPUs, engine and formats with which the layers of one model run."""

    gpu: GpuSpec
    constants: Constants
    engine: Engine
    parallel: Parallelism
    formats: Formats
    matrices: WeightDtype  # the format of projections that name none
    kv_dtype: str
    hidden: int
    queries: int = 1  # tokens of each decoding sequence

    def gemm(
        self,
        name: str,
        calls: int,
        n: int,
        k: int,
        count: Count = "tokens",
        dtype: WeightDtype | None = None,
        follows: bool = False,
    ) -> TokenOp:
        """Return a projection of `k` values to `n`.

        follows: directly after a norm or an attention, which some engines let write activations in nvfp4.

        fp8 stands for checkpoints with static scales of activations (NVIDIA ModelOpt, llm-compressor), which engines apply
        in the kernel before: TensorRT-LLM always, vLLM by its fusion passes.
        """
        dtype = dtype or self.matrices
        fused_cast = dtype.kernel_dtype == "fp8"
        kernel = Gemm(self.gpu, self.constants, dtype, n, k, fused_cast=fused_cast)
        written = fused_cast or (follows and dtype.kernel_dtype == "nvfp4" and self.engine.writes_nvfp4)
        return TokenOp(name, calls, kernel, count, launches=1 if written else 1 + dtype.quantises)

    def elementwise(
        self,
        name: str,
        calls: int,
        bytes_per_token: float,
        count: Count = "tokens",
        fused_tokens: float = 0.0,
        launches: int = 1,
        parts: int = 1,
    ) -> TokenOp:
        """Return a kernel that reads and writes `bytes_per_token`; up to `fused_tokens` another kernel does it.

        launches: kernels that it is without a CUDA graph; within one they overlap. parts: operations in a row that it is,
        each a kernel where the engine does not compile them.
        """
        kernels = 1 if self.engine.compiles else parts
        kernel = Elementwise(self.gpu, bytes_per_token / kernels, fused_tokens=fused_tokens)
        return TokenOp(name, calls * kernels, kernel, count, launches=launches)


_OTHER = "norms, sampling and other"
_KINDS = (
    ("attention", ("prefill attention", "decode attention", "sparse index", "gated delta, ", "state space, ")),
    ("experts", ("experts",)),
    ("communication", ("all-reduce", "all-gather", "reduce-scatter", "dispatch", "combine", "hand-over", "pipeline")),
    ("host", ("host",)),
    (_OTHER, ("norm", "embedding", "rotary", "activation", "sampling", "gate", "convolution", "latent norms")),
)


@cache
def operation_kind(operation: str) -> str:
    """Return the group of an operation; one in no other is a matrix product."""
    name = operation.removeprefix("draft ")
    for kind, words in _KINDS:
        if kind == _OTHER:
            if any(word in name for word in words) and "projection" not in name and not name.endswith("gate and up"):
                return kind
        elif any(name.startswith(word) or word in name for word in words):
            return kind
    return "matrix products"


class StepShares:
    """Shares of the time of steps by group of operations, from samples: each step that is looked at counts the same."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}

    def look(self, step_model: Any, batches: Sequence[StepBatch]) -> bool:
        """Take one step of these batches apart; False if it is empty or its model has no operations."""
        look = getattr(step_model, "operations", None)
        operations = look(batches) if look else []
        if not operations:
            return False
        whole_s = sum([operation.seconds for operation in operations]) or 1.0
        for operation in operations:
            kind = operation_kind(operation.name)
            self._sums[kind] = self._sums.get(kind, 0.0) + operation.seconds / whole_s
        return True

    def shares(self) -> dict[str, float]:
        """They add up to 1, the largest first; empty without a step."""
        whole = sum(self._sums.values()) or 1.0
        return {name: amount / whole for name, amount in sorted(self._sums.items(), key=lambda entry: -entry[1])}
