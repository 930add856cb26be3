"""The operations a stage is made of, and what all of them need to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from llmirage_server.perf.catalogue.constants import Constants
from llmirage_server.perf.catalogue.dtypes import WEIGHT_DTYPES, WeightDtype
from llmirage_server.perf.catalogue.gpus import GpuSpec
from llmirage_server.perf.catalogue.models import Formats
from llmirage_server.perf.engines.engine import Engine
from llmirage_server.perf.kernels import elementwise, gemm
from llmirage_server.perf.kernels.kernel import DecodeKernel, PrefillKernel, TokenKernel
from llmirage_server.perf.parallelism import Parallelism

# What a TokenOp counts: all tokens of the rank; tokens of all ranks that share the experts; tokens of the prompt chunks;
# these and the cached ones before them; tokens of the decoding sequences; all sequences; rows whose logits are wanted.
Count = Literal["tokens", "group", "new", "expanded", "decode_tokens", "sequences", "rows"]
COUNTS: tuple[Count, ...] = ("tokens", "group", "new", "expanded", "decode_tokens", "sequences", "rows")

BF16 = WEIGHT_DTYPES["bf16"]


@dataclass(frozen=True, slots=True)
class TokenOp:
    """`calls` launches of a kernel whose time follows from one count."""

    name: str
    calls: int
    kernel: TokenKernel
    count: Count = "tokens"
    slowed: bool = True  # whether long prompts slow it down in place
    launches: int = 1  # that an engine does one by one for a call, without a CUDA graph


@dataclass(frozen=True, slots=True)
class PrefillOp:
    """`calls` launches of attention over the prompt chunks; every query sees `window` keys at most (0: all)."""

    name: str
    calls: int
    kernel: PrefillKernel
    window: int = 0
    launches: int = 1


@dataclass(frozen=True, slots=True)
class DecodeOp:
    """`calls` launches of attention of the decoding sequences, `mixed` times slower in a step that has prompt chunks too."""

    name: str
    calls: int
    kernel: DecodeKernel
    window: int = 0
    mixed: float = 1.0


Op = TokenOp | PrefillOp | DecodeOp


@dataclass(frozen=True, slots=True)
class Setting:
    """Where and how the layers of one model run."""

    gpu: GpuSpec
    constants: Constants
    engine: Engine
    parallel: Parallelism
    formats: Formats
    matrices: WeightDtype  # the format of projections that name none
    kv_dtype: str
    hidden: int
    skew: float  # of the routing of tokens to experts: power of the law (kernels/moe.py)
    queries: int = 1  # tokens of each decoding sequence

    @property
    def wide(self) -> bool:
        return self.parallel.is_wide

    def kernels(self, parts: int) -> int:
        """Return how many kernels so many elementwise operations are that follow each other."""
        return 1 if self.engine.compiles else parts

    def gemm(
        self, name: str, calls: int, n: int, k: int, count: Count = "tokens", dtype: WeightDtype | None = None
    ) -> TokenOp:
        """A projection of `k` values to `n`.

        fp8 stands for checkpoints with static scales of activations (NVIDIA ModelOpt, llm-compressor), which engines apply
        in the kernel before: TensorRT-LLM always, vLLM by its fusion passes.
        """
        dtype = dtype or self.matrices
        fused_cast = dtype.kernel_dtype == "fp8"
        kernel = gemm.gemm(self.gpu, self.constants, dtype, n, k, fused_cast=fused_cast)
        return TokenOp(name, calls, kernel, count, launches=1 if fused_cast else 1 + dtype.quantises)

    def elementwise(
        self,
        name: str,
        calls: int,
        bytes_per_token: float,
        count: Count = "tokens",
        fused_tokens: float = 0.0,
        launches: int = 1,
    ) -> TokenOp:
        """A kernel that reads and writes so many bytes for each token; up to `fused_tokens` another kernel does it.

        launches: kernels that it is without a CUDA graph; within one they overlap.
        """
        kernel = elementwise.elementwise(self.gpu, bytes_per_token, fused_tokens=fused_tokens)
        return TokenOp(name, calls, kernel, count, launches=launches)
