"""Experts in mxfp4 with 8-bit activations, and more ranks than divide the experts."""

import pytest

from llmirage_server.perf import DeploymentError
from llmirage_server.perf.catalogue.dtypes import MoeBackend
from llmirage_server.perf.deployment import Deployment
from llmirage_server.perf.steps.step_model import StepBatch


@pytest.mark.parametrize(("engine", "gpu", "activations"), [
    ("trtllm", "b200_sxm", "mxfp4_fp8"), ("sglang", "gb200", "mxfp4_fp8"),
    ("vllm", "b200_sxm", "mxfp4"), ("trtllm", "h100_sxm", "mxfp4"),
])  # fmt: skip
def test_gpt_oss_runs_with_8_bit_activations_where_engine_and_gpu_do(engine: str, gpu: str, activations: str) -> None:
    lines = Deployment.create("openai/gpt-oss-120b", gpu, engine=engine).roofline.provenance()
    assert any(line.startswith(f"fitted: moe {activations}, ") for line in lines)


@pytest.mark.parametrize(("model", "gpu", "engine", "kernels"), [
    ("deepseek-ai/DeepSeek-R1", "mi355x", "sglang", "nvfp4"),
    ("deepseek-ai/DeepSeek-R1", "mi355x", "sglang@0.5.10", "nvfp4"),
    ("deepseek-ai/DeepSeek-R1", "mi355x", "sglang@0.5.9", "mxfp4"),
    ("deepseek-ai/DeepSeek-R1", "mi355x", "sglang@0.5.2", "mxfp4"),
    ("openai/gpt-oss-120b", "mi355x", "sglang", "mxfp4"),
    ("deepseek-ai/DeepSeek-R1", "mi300x", "sglang", "mxfp4"),
])  # fmt: skip
def test_amds_checkpoints_in_mxfp4_multiply_with_4_bit_activations(model: str, gpu: str, engine: str, kernels: str) -> None:
    made = Deployment.create(model, gpu, engine=engine, tp=8, weights="mxfp4")
    assert any(line.startswith(f"transferred: moe {kernels} ") for line in made.roofline.provenance())


def test_experts_with_4_bit_activations_answer_long_prompts_sooner_and_weigh_the_same() -> None:
    older, newer = (
        Deployment.create("deepseek-ai/DeepSeek-R1", "mi355x", engine=f"sglang@{version}", tp=8, weights="mxfp4")
        for version in ("0.5.9", "0.5.10")
    )
    assert newer.memory.weights_bytes == older.memory.weights_bytes
    prompt = [StepBatch([(8000, 0)], [])]
    assert newer.step_model().stages_s(prompt)[0] < 0.8 * older.step_model().stages_s(prompt)[0]


@pytest.mark.parametrize(("version", "gpu", "tp", "padded"), [
    ("0.11", "h200_sxm", 4, False), ("0.11.1", "h100_sxm", 4, True), ("0.12", "h200_sxm", 4, True),
    ("0.12", "h200_sxm", 8, False), ("0.12", "b200_sxm", 4, False), ("0.13", "h200_sxm", 4, False),
])  # fmt: skip
def test_vllm_0_12_decodes_with_padded_experts_on_hopper(version: str, gpu: str, tp: int, padded: bool) -> None:
    made = Deployment.create("Qwen/Qwen3-235B-A22B-FP8", gpu, engine=f"vllm@{version}", tp=tp, ep=tp)
    plain = Deployment.create("Qwen/Qwen3-235B-A22B-FP8", gpu, engine="vllm@0.14", tp=tp, ep=tp)
    experts = [next(line.seconds for line in each.roofline.explain([StepBatch((), [1000] * 4)]) if line.name == "experts")
               for each in (made, plain)]  # fmt: skip
    assert (experts[0] > 1.5 * experts[1]) is padded
    assert padded or experts[0] == experts[1]


def test_a_mixture_whose_experts_do_not_divide_has_copies_of_some() -> None:
    whole, copies = (Deployment.create("deepseek-ai/DeepSeek-V3", "h200_sxm", engine="sglang", dp=n, ep=n) for n in (64, 48))
    assert copies.memory.weights_bytes > whole.memory.weights_bytes
    assert copies.step_model().stages_s([StepBatch((), [1000] * 8)] * 48)[0] > 0


def test_marlin_runs_experts_in_mxfp4_as_it_does_4_bit_ones_on_padded_matrices() -> None:
    def made(backend: MoeBackend) -> Deployment:
        return Deployment.create("openai/gpt-oss-120b", "h100", tp=2, max_num_batched_tokens=8192, moe_backend=backend)

    plain, marlin = made("auto"), made("marlin")
    experts = 128 * 36 * 3 * 2880 * 2880 * 0.53125 / 2
    padded = (3072 / 2880) * (1536 / 1440)
    assert marlin.memory.weights_bytes - plain.memory.weights_bytes == pytest.approx(experts * (padded - 1), rel=1e-3)
    # reading few weights well, multiplying many tokens slowly
    assert marlin.tpot_s(1000) < plain.tpot_s(1000)
    assert marlin.ttft_s(8000) > 1.3 * plain.ttft_s(8000)


@pytest.mark.parametrize(
    ("engine", "model", "weights"), [("sglang", "openai/gpt-oss-120b", "auto"), ("vllm", "Qwen/Qwen3-30B-A3B", "fp8")]
)
def test_marlin_is_refused_where_no_kernels_of_it_were_measured(engine: str, model: str, weights: str) -> None:
    with pytest.raises(DeploymentError, match="moe_backend marlin: measured beside other kernels only under vLLM"):
        Deployment.create(model, "h100", tp=4, engine=engine, weights=weights, moe_backend="marlin")


def test_marlin_is_what_runs_nvfp4_where_the_gpu_does_not_multiply_it() -> None:
    auto, marlin = (
        Deployment.create("Qwen/Qwen3-30B-A3B", "h100", weights="nvfp4", moe_backend=backend)
        for backend in ("auto", "marlin")
    )
    assert marlin.tpot_s(1000) == pytest.approx(auto.tpot_s(1000), rel=0.02)  # matrices of whole blocks need no padding
    with pytest.raises(DeploymentError, match=r"moe_backend marlin: .* in nvfp4 where the GPU does not multiply it"):
        Deployment.create("Qwen/Qwen3-30B-A3B", "b200", weights="nvfp4", moe_backend="marlin")


def test_tensorrt_llm_runs_experts_in_nvfp4_by_cutlass_unless_told_otherwise() -> None:
    def step_s(backend: MoeBackend, engine: str = "trtllm", gpu: str = "b200_sxm") -> float:
        made = Deployment.create("Qwen/Qwen3-30B-A3B", gpu, engine=engine, weights="nvfp4", moe_backend=backend)
        return made.step_model().step_s([], [1000] * 256)

    assert step_s("auto") == step_s("cutlass") > 1.15 * step_s("trtllm")
    assert step_s("auto", gpu="rtx_pro_6000_server") == step_s("cutlass", gpu="rtx_pro_6000_server")


@pytest.mark.parametrize(
    ("gpu", "engine", "weights", "backend", "why"),
    [
        ("b200_sxm", "vllm", "nvfp4", "cutlass", "measured beside other kernels only under TensorRT-LLM"),
        (
            "b200_sxm",
            "trtllm",
            "fp8",
            "trtllm",
            "measured beside other kernels only under TensorRT-LLM, for experts in nvfp4",
        ),
        ("rtx_pro_6000_server", "trtllm", "nvfp4", "trtllm", "are for B200 and its kin, not for RTX PRO 6000"),
    ],
)
def test_other_kernels_of_experts_are_refused_where_nobody_measured_them(
    gpu: str, engine: str, weights: str, backend: MoeBackend, why: str
) -> None:
    with pytest.raises(DeploymentError, match=f"moe_backend {backend}: .*{why}"):
        Deployment.create("Qwen/Qwen3-30B-A3B", gpu, engine=engine, weights=weights, moe_backend=backend)
