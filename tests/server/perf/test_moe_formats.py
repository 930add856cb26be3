"""Experts in mxfp4 with 8-bit activations, and more ranks than divide the experts."""

from __future__ import annotations

import pytest

from llmirage_server.perf.deployment import Deployment
from llmirage_server.perf.steps.step_model import StepBatch


@pytest.mark.parametrize(("engine", "gpu", "activations"), [
    ("trtllm", "b200_sxm", "mxfp4_fp8"), ("sglang", "gb200", "mxfp4_fp8"),
    ("vllm", "b200_sxm", "mxfp4"), ("trtllm", "h100_sxm", "mxfp4"),
])  # fmt: skip
def test_gpt_oss_runs_with_8_bit_activations_where_engine_and_gpu_do(engine: str, gpu: str, activations: str) -> None:
    lines = Deployment.create("openai/gpt-oss-120b", gpu, engine=engine).roofline.provenance()
    assert any(line.startswith(f"fitted: moe {activations}, ") for line in lines)


def test_a_mixture_whose_experts_do_not_divide_has_copies_of_some() -> None:
    whole, copies = (Deployment.create("deepseek-ai/DeepSeek-V3", "h200_sxm", engine="sglang", dp=n, ep=n) for n in (64, 48))
    assert copies.memory.weights_bytes > whole.memory.weights_bytes
    assert copies.step_model().stages_s([StepBatch((), [1000] * 8)] * 48)[0] > 0
