"""Number formats of weights and KV cache: bytes in memory and which tensor-core rate they run at."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

ComputeClass = Literal["bf16", "fp8", "fp4", "int8"]
ExpertKernels = Literal["", "marlin", "cutlass", "deepgemm"]
MoeBackend = Literal["auto", "marlin", "cutlass", "trtllm"]  # kernels of experts that a user may ask for


@dataclass(frozen=True, slots=True)
class WeightDtype:
    """Storage and multiplication of the matrix weights of a model."""

    name: str
    weight_bytes: float  # per weight, block scales included
    activation_bytes: float  # per input activation of a GEMM
    compute: ComputeClass  # tensor-core rate it wants
    experts_only: bool = False  # on a mixture of experts, only the experts are stored so; the rest is bf16
    expert_kernels: ExpertKernels = ""  # of experts, where the engine has several

    def on(self, rates: Collection[str]) -> WeightDtype:
        """Return the format as a GPU with these rates runs it.

        Without the tensor-core rate it wants, weights stay small in memory and are widened to bf16 in the kernel
        (weight-only quantisation, as vLLM's Marlin kernels do).
        """
        if self.compute in rates:
            return self
        return replace(self, activation_bytes=2.0, compute="bf16")

    @property
    def with_fp8_activations(self) -> WeightDtype:
        """4-bit weights multiplied with 8-bit activations, by block scales in both (W4A8)."""
        return replace(self, activation_bytes=1.03125, compute="fp8")

    @property
    def with_fp4_activations(self) -> WeightDtype:
        """4-bit weights multiplied with 4-bit activations, by block scales in both (W4A4)."""
        return replace(self, activation_bytes=self.weight_bytes, compute="fp4")

    def expert_shape(self, hidden: int, width: int) -> tuple[int, int]:
        """Hidden size and width of an expert's matrices as they lie in memory.

        Marlin wants multiples of 256 and 128 (vllm/model_executor/layers/quantization/mxfp4.py).
        """
        return (-(-hidden // 256) * 256, -(-width // 128) * 128) if self.expert_kernels == "marlin" else (hidden, width)

    @property
    def quantises(self) -> bool:
        return self.activation_bytes < 2.0

    @property
    def kernel_dtype(self) -> str:
        """The dtype under which constants of its kernels are kept: a widened format runs weight-only kernels."""
        if self.compute == "bf16" and self.name in ("fp8", "fp8_block", "int8"):
            return "int8_weight_only"
        if self.expert_kernels == "marlin" or (self.compute == "bf16" and self.name == "nvfp4"):
            return "int4"
        if self.name == "mxfp4" and self.compute != "bf16":
            return f"mxfp4_{self.compute}"
        return self.name

    @property
    def expert_dtype(self) -> str:
        """The same for the kernels of experts. TensorRT-LLM has two for nvfp4, CUTLASS's and its own."""
        cutlass = self.expert_kernels == "cutlass" and self.kernel_dtype == "nvfp4"
        return "nvfp4_cutlass" if cutlass else self.kernel_dtype


# Bytes: fp8 and int8 1 (scales per tensor or channel are nothing); fp8_block a float32 scale per 128 x 128 weights
# (DeepSeek-V3); int4 4 bits and a bf16 scale and zero point per group of 128 (AWQ, GPTQ); mxfp4 4 bits and an 8-bit exponent
# per 32 (OCP microscaling); nvfp4 4 bits and an fp8 scale per 16. mxfp4 is gpt-oss's own format: experts only, activations
# in bf16. Activations of fp8_block carry a float32 scale per 128.
WEIGHT_DTYPES: dict[str, WeightDtype] = {
    "bf16": WeightDtype("bf16", 2.0, 2.0, "bf16"),
    "fp8": WeightDtype("fp8", 1.0, 1.0, "fp8"),
    "fp8_block": WeightDtype("fp8_block", 1.000244140625, 1.03125, "fp8"),
    "int8": WeightDtype("int8", 1.0, 1.0, "int8"),
    "int4": WeightDtype("int4", 0.53125, 2.0, "bf16"),
    "mxfp4": WeightDtype("mxfp4", 0.53125, 2.0, "bf16", experts_only=True),
    "nvfp4": WeightDtype("nvfp4", 0.5625, 0.5625, "fp4"),
}

BF16 = WEIGHT_DTYPES["bf16"]
KV_DTYPE_BYTES: dict[str, int] = {"bf16": 2, "fp8": 1}
