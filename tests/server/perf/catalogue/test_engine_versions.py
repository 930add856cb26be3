"""Engines by version: older ones differ where their entry says so, later ones are the newest known."""

from dataclasses import replace
from pathlib import Path

import pytest

from llmirage_server.perf import DeploymentError
from llmirage_server.perf.catalogue.lookup import find_gpu
from llmirage_server.perf.deployment import Deployment
from llmirage_server.perf.engines.lookup import find_engine


def test_a_version_up_to_the_listed_one_has_its_differences() -> None:
    newest = find_engine("vllm")
    for version in ("0.13", "0.13.2", "0.12", "0.9", "v0.11.2"):
        assert not find_engine(f"vllm@{version}").async_scheduling
    for version in ("0.14", "0.19.0", "1.0"):
        assert find_engine(f"vLLM@{version}").async_scheduling == newest.async_scheduling is True
    assert find_engine("trtllm@1.0.0rc3").launch_us == find_engine("trtllm").launch_us


def test_older_images_of_sglang_take_longer_for_a_step_on_mi300x_alone() -> None:
    versions = ("0.5.2", "0.5.3", "0.5.11", "0.5.12")
    extra = {
        gpu: [find_engine(f"sglang@{each}").on(find_gpu(gpu)).host_step_ms for each in versions]
        for gpu in ("mi300x", "mi325x", "mi355x", "b200_sxm")
    }
    none = [0, 0, 0, 0]
    assert extra == {"mi300x": [0, 11.7, 11.7, 0], "mi325x": [0, 11.7, 11.7, 0], "mi355x": none, "b200_sxm": none}
    old, new = (
        Deployment.create("deepseek-r1", "mi300x", engine=f"sglang@{each}", tp=8).step_model().step_s([], [1000] * 16)
        for each in ("0.5.9", "0.5.12")
    )
    assert old - new == pytest.approx(11.7e-3)


def test_launching_takes_half_as_long_again_on_blackwell_under_sglang_alone() -> None:
    for name, ratio in (("sglang", 1.5), ("vllm", 1.0), ("trtllm", 1.0)):
        engine = replace(find_engine(name), launch_us=100.0)
        assert [engine.launch_us_on(find_gpu(gpu)) for gpu in ("h200_sxm", "b300_sxm")] == [100.0, 100.0 * ratio]
    launched_s = {
        gpu: Deployment.create("llama-3.1-8b", gpu, engine="sglang", tp=8).step_model().step_s([(16, 0)], [])
        for gpu in ("h200_sxm", "b200_sxm")
    }
    assert launched_s["b200_sxm"] == pytest.approx(1.5 * launched_s["h200_sxm"], rel=0.01)


def test_a_version_needs_a_number() -> None:
    with pytest.raises(DeploymentError, match=r"unknown version 'nightly' of vLLM: .*vllm@0\.13"):
        find_engine("vllm@nightly")
    with pytest.raises(DeploymentError, match="unknown version '' of SGLang"):
        find_engine("sglang@")


def test_an_engine_file_may_start_from_a_version(tmp_path: Path) -> None:
    file = tmp_path / "old.yaml"
    file.write_text("base: vllm@0.11\nhost_step_ms: 2\n")
    engine = find_engine(str(file))
    assert (engine.base, engine.host_step_ms) == ("vllm", 2)
    assert engine.async_scheduling == find_engine("vllm@0.11").async_scheduling is False
    file.write_text("base: vllm@nightly\n")
    with pytest.raises(DeploymentError, match="unknown version 'nightly'"):
        find_engine(str(file))


def test_a_version_is_named_in_reports() -> None:
    assert (find_engine("trtllm@1.0").name, find_engine("trtllm@1.0").title) == ("trtllm@1.0", "TensorRT-LLM 1.0")


def launched(made: Deployment) -> tuple[int, int]:
    """Kernels of a step with prompts, launched one by one, and those between CUDA graphs of the rest."""
    engine = replace(made.engine, launch_us=1e6)
    step = replace(made, engine=engine).step_model()
    return round(step.step_s([(4096, 0)], [])), round(step.step_s([(8, 0)], []))


def test_launching_counts_the_kernels_of_a_step() -> None:
    """Llama: two norms, four products, rotary embedding and cache, attention, activation; the ends have four more."""
    model = "Llama-3.1-8B"
    sglang = Deployment.create(model, "h100", engine="sglang")
    assert launched(sglang) == (32 * 10 + 4, 32 * 10 + 4)
    static = Deployment.create(model, "h100", engine="sglang", weights="fp8")
    blocks = Deployment.create(model, "h100", engine="sglang", weights="fp8_block")
    assert launched(static) == launched(sglang)  # norms and activations write what the products read
    assert launched(blocks)[0] == launched(sglang)[0] + 32 * 4  # a cast before each product
    split = Deployment.create(model, "h100", engine="sglang", tp=2)
    assert launched(split)[0] == launched(sglang)[0] + 32 * 2 + 2  # all-reduces, of the embedding too; the logits gathered
    assert launched(Deployment.create(model, "h100", engine="vllm")) == (32 * 10 + 4, 32 * 2 + 1)


def test_a_step_that_graphs_were_captured_for_launches_little() -> None:
    """vLLM captures up to two tokens a sequence, 512 at most; what stays is attention, layer by layer."""
    for seqs, captured in ((32, 64), (1024, 512)):
        new = Deployment.create("Qwen/Qwen3-0.6B", "b200_sxm", max_num_seqs=seqs)
        eager_s = new.model.layers * 12 * new.engine.launch_us * 1e-6
        assert new.ttft_s(captured) < 0.6 * eager_s < eager_s <= new.ttft_s(captured + 1)
    with_decodes = new.step_model()
    assert with_decodes.step_s([(500, 0)], [100] * 12) < eager_s <= with_decodes.step_s([(500, 0)], [100] * 13)


def test_layers_of_linear_attention_launch_more_kernels() -> None:
    """Of 40 layers 30. Measured on an H100 PCIe: no prompt of more than 64 tokens in less than 77 ms, front end included."""
    hybrid = Deployment.create("Qwen/Qwen3.5-35B-A3B", "h100_pcie", weights="nvfp4", max_num_seqs=32)
    assert (hybrid.model.linear_layers, hybrid.model.layers) == (30, 40)
    eager, captured = launched(hybrid)
    assert eager > 40 * 20
    assert captured == 30 * 16 + 10 * 2 + 1


def test_prefill_of_kernels_profiled_in_place_is_not_scaled_again() -> None:
    engine = find_engine("vllm")
    scales = {gpu: engine.prefill_in_place_on(find_gpu(gpu)) for gpu in ("h100_sxm", "b200_sxm", "rtx_5090", "rtx_4090")}
    assert scales == pytest.approx({"h100_sxm": 1.12, "b200_sxm": 1.4, "rtx_5090": 1.12, "rtx_4090": 1.0})
    assert replace(engine, prefill_in_place=1.0).prefill_in_place_on(find_gpu("b200_sxm")) == 1.0


def test_without_asynchronous_scheduling_the_gpu_waits_for_the_host_of_vllm() -> None:
    def decode_s(engine: str, pp: int, overlapping: bool) -> float:
        made = Deployment.create("llama-3.1-70b", "h100", engine=engine, tp=8, pp=pp)
        return replace(made, engine=replace(made.engine, async_scheduling=overlapping)).step_model().step_s([], [100] * 10)

    added = {
        (name, pp): decode_s(name, pp, False) - decode_s(name, pp, True) for name in ("vllm", "trtllm") for pp in (1, 2)
    }
    hidden_s = find_engine("vllm").host_parts_s(10)[1]
    assert added == {("vllm", 1): pytest.approx(hidden_s), ("vllm", 2): 0, ("trtllm", 1): 0, ("trtllm", 2): 0}


@pytest.mark.parametrize(
    ("engine", "weights", "gpu", "kv"),
    [
        ("trtllm", "fp8", "h100_sxm", "fp8"),
        ("trtllm@1.0", "nvfp4", "b200_sxm", "fp8"),
        ("trtllm", "bf16", "h100_sxm", "bf16"),
        ("trtllm", "fp8", "a100_sxm", "bf16"),  # which has no fp8 arithmetic
        ("vllm", "fp8", "h100_sxm", "bf16"),
        ("vllm@0.14", "nvfp4", "b200_sxm", "fp8"),
        ("vllm@0.13", "nvfp4", "b200_sxm", "bf16"),
        ("vllm", "nvfp4", "h100_sxm", "bf16"),
        ("sglang", "nvfp4", "b200_sxm", "fp8"),
    ],
)
def test_kv_of_checkpoints_that_ask_for_it_is_in_fp8(engine: str, weights: str, gpu: str, kv: str) -> None:
    made = Deployment.create("meta-llama/Llama-3.1-8B-Instruct", gpu, engine=engine, weights=weights)
    assert made.kv_dtype == kv


def test_deepseek_in_fp8_fits_four_b200() -> None:
    Deployment.create(
        "deepseek-ai/DeepSeek-R1", "b200_sxm", engine="sglang", tp=4, kv_cache_dtype="fp8", gpu_memory_utilization=0.95
    )


def test_gpt_oss_runs_with_8_bit_activations_where_the_engine_does() -> None:
    def step_s(engine: str, gpu: str) -> float:
        return Deployment.create("openai/gpt-oss-120b", gpu, engine=engine).tpot_s(1000)

    assert step_s("trtllm", "b200_sxm") < 5e-3  # with 16-bit ones twice that
    fits = Deployment.create("openai/gpt-oss-120b", "b200_sxm", engine="trtllm").roofline.provenance()
    assert any("moe mxfp4_fp8" in line for line in fits)
