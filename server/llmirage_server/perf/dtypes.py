"""Number formats of weights and KV cache: bytes in memory and which tensor-core rate they run at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ComputeClass = Literal["bf16", "fp8", "fp4"]


@dataclass(frozen=True, slots=True)
class WeightDtype:
    """How the matrix weights of a model are stored and multiplied."""

    name: str
    weight_bytes: float  # per weight, block scales included
    activation_bytes: float  # per input activation of a GEMM
    compute: ComputeClass  # tensor-core rate it wants
    experts_only: bool = False  # on a mixture of experts, only the experts are stored so; the rest is bf16

    def on(self, rates: frozenset[str]) -> WeightDtype:
        """Return the format as a GPU with these rates runs it.

        Without the tensor-core rate it wants, weights stay small in memory and are widened to bf16 in the kernel
        (weight-only quantisation, as vLLM's Marlin kernels do).
        """
        if self.compute in rates:
            return self
        return WeightDtype(self.name, self.weight_bytes, 2.0, "bf16", self.experts_only)


# Bytes: fp8 1; nvfp4 4 bits + one fp8 scale per 16; mxfp4 4 bits + one 8-bit exponent per 32; int4 4 bits (group scales
# of 128 weights, 3 %, left out). mxfp4 is gpt-oss's own format: experts only, activations in bf16.
WEIGHT_DTYPES: dict[str, WeightDtype] = {
    "bf16": WeightDtype("bf16", 2.0, 2.0, "bf16"),
    "fp8": WeightDtype("fp8", 1.0, 1.0, "fp8"),
    "nvfp4": WeightDtype("nvfp4", 0.5625, 0.5625, "fp4"),
    "mxfp4": WeightDtype("mxfp4", 0.53125, 2.0, "bf16", experts_only=True),
    "int4": WeightDtype("int4", 0.5, 2.0, "bf16"),
}

KV_DTYPE_BYTES: dict[str, int] = {"bf16": 2, "fp8": 1}
