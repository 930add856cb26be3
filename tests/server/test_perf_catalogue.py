"""The catalogue is complete, finds what users write, and says what it does not know."""

from __future__ import annotations

import math
import re

import pytest

from llmirage_server.perf.catalogue import find_gpu, find_model, list_gpus, list_models
from llmirage_server.perf.errors import DeploymentError
from llmirage_server.perf.gpus import FITTED, LINK_KINDS, GpuSpec
from llmirage_server.perf.models import ModelSpec, model_from_yaml


FITTED_KEYS = {"h100_sxm", "h200_sxm", "b200_sxm", "gb200", "a100_sxm", "l40s", "rtx_pro_6000_server"}
FIGURES = {"memory_mib", "bandwidth_tb_per_s", "tflops", "sm", "tdp_w", "price_usd_per_h", "node_link_gb_per_s"}


@pytest.mark.parametrize("gpu", list_gpus(), ids=lambda g: g.key)
def test_every_gpu_has_sources_and_plausible_figures(gpu: GpuSpec) -> None:
    assert gpu.source
    assert set(gpu.unverified) <= FIGURES
    assert gpu.flops["bf16"] <= gpu.flops.get("fp8", math.inf) <= gpu.flops.get("fp4", math.inf)
    assert 10 * 2**30 < gpu.memory_bytes < 400 * 2**30
    assert 0.1e12 < gpu.bandwidth_bytes_per_s < 10e12
    assert gpu.link_kind in LINK_KINDS
    assert gpu.link_gpus >= 1
    assert 1e9 < gpu.node_link_bytes_per_s < gpu.link_bytes_per_s * 2
    assert gpu.node_link_latency_s == pytest.approx(5e-6)
    assert gpu.tdp_w is None or 50 < gpu.tdp_w < 2000
    if gpu.price_usd_per_h:
        low, high = gpu.price_usd_per_h
        assert 0 < low <= high < 20


def test_the_catalogue_of_gpus_is_wide() -> None:
    names = {gpu.key for gpu in list_gpus()}
    assert len(names) >= 24
    assert names >= FITTED_KEYS | {"a10g", "l4", "rtx_4090", "rtx_5090", "mi300x", "mi325x", "mi355x", "gb300"}
    assert names >= {"tpu_v5e", "tpu_v5p", "tpu_v6e"}


def test_confidence_says_whose_kernels_were_measured() -> None:
    fitted = {gpu.key for gpu in list_gpus() if gpu.confidence == FITTED}
    assert fitted == FITTED_KEYS == {gpu.key for gpu in list_gpus() if gpu.constants_of == gpu.key}
    for gpu in list_gpus():
        assert gpu.constants_of in FITTED_KEYS | {None}
        if gpu.key not in FITTED_KEYS:
            assert re.search(r"^transferred: .* [2-6]0 % band$", gpu.confidence)


@pytest.mark.parametrize("model", list_models(), ids=lambda m: m.name)
def test_every_model_has_a_source_and_consistent_shapes(model: ModelSpec) -> None:
    assert model.source
    assert model.heads % model.kv_heads == 0
    assert 0 < model.experts_per_token <= model.experts or (model.experts == model.experts_per_token == 0)
    assert all(group.count > 0 for group in model.groups)
    assert model.dense is None or model.dense.width
    assert model.moe is None or model.moe.width
    assert model.max_model_len >= 32_768


@pytest.mark.parametrize(
    ("name", "total_b", "active_b"),
    [
        ("Qwen3-30B-A3B", 30.5, 3.3),
        ("Qwen3-0.6B", 0.596, None),
        ("Qwen3-8B", 8.19, None),
        ("Qwen3-32B", 32.8, None),
        ("Qwen3-235B-A22B", 235.1, 22.2),
        ("Qwen3-Coder-480B", 480.2, 35.5),
        ("Llama-3.1-8B", 8.03, None),
        ("Llama-3.1-70B", 70.6, None),
        ("Llama-3.1-405B", 405.9, None),
        ("Mixtral-8x7B", 46.7, 12.9),
        ("Mixtral-8x22B", 140.6, 39.1),
        ("gpt-oss-20b", 20.9, None),
        ("gpt-oss-120b", 116.8, None),
        ("MiniMax-M2.5", 229.0, None),
    ],
)
def test_parameter_counts_are_the_published_ones(name: str, total_b: float, active_b: float | None) -> None:
    model = find_model(name)
    assert model.parameters / 1e9 == pytest.approx(total_b, rel=0.01)
    if active_b:
        assert model.active_parameters / 1e9 == pytest.approx(active_b, rel=0.02)
    else:
        assert model.active_parameters <= model.parameters


def test_dense_and_shared_layers_of_a_mixture_are_counted() -> None:
    shape = {
        "layers": 10,
        "hidden": 64,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "vocab": 100,
        "max_model_len": 1,
        "source": "-",
    }
    mixed = {"experts": 8, "experts_per_token": 2, "moe_intermediate": 32, "shared_intermediate": 48}
    mixture = model_from_yaml("m", {**shape, **mixed, "intermediate": 256, "first_dense_layers": 2, "moe_every": 2})
    assert (mixture.moe_layers, mixture.dense_layers) == (4, 6)
    expected = (
        10 * 64 * 16 * (2 * 4 + 2 * 2)  # q and output, k and v
        + 6 * 3 * 64 * 256
        + 4 * (8 * 3 * 64 * 32 + 3 * 64 * 48 + 64 * 8)
        + 2 * 100 * 64
        + 10 * 2 * 64
        + 64
    )
    assert mixture.parameters == expected
    assert expected - mixture.active_parameters == 4 * 6 * 3 * 64 * 32


@pytest.mark.parametrize(
    "name", ["h100", "H100 SXM", "h100_sxm", "H100-SXM", "  h100", "NVIDIA H100 80GB HBM3", "nvidia h100"]
)
def test_a_gpu_goes_by_many_names(name: str) -> None:
    assert find_gpu(name).key == "h100_sxm"


@pytest.mark.parametrize(
    ("driver", "key"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100_sxm"),
        ("NVIDIA A100 80GB PCIe", "a100_pcie"),
        ("NVIDIA GeForce RTX 4090", "rtx_4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx_pro_6000_server"),
        ("AMD Instinct MI300X", "mi300x"),
        ("g5", "a10g"),
    ],
)
def test_a_gpu_goes_by_what_its_driver_or_cloud_calls_it(driver: str, key: str) -> None:
    assert find_gpu(driver).key == key


@pytest.mark.parametrize("name", ["Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b", "Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B-FP8"])
def test_a_model_goes_by_its_full_or_short_name(name: str) -> None:
    assert find_model(name).name == "Qwen/Qwen3-30B-A3B"


def test_names_are_unique() -> None:
    for model in list_models():
        assert all(find_model(n) is model for n in (model.name, *model.aliases))
    for gpu in list_gpus():
        assert all(find_gpu(n) is gpu for n in (gpu.key, gpu.name, *gpu.aliases))


def test_a_near_miss_is_suggested() -> None:
    with pytest.raises(DeploymentError, match=r"unknown model 'qwen3-30b'; did you mean Qwen/Qwen3-30B-A3B or"):
        find_model("qwen3-30b")
    with pytest.raises(DeploymentError, match=r"did you mean meta-llama/Llama-3.1-8B-Instruct"):
        find_model("lama-3.1-8b")
    with pytest.raises(DeploymentError, match=r"unknown GPU 'h1000'; did you mean h100_sxm"):
        find_gpu("h1000")


def test_a_wild_guess_lists_the_choices() -> None:
    with pytest.raises(DeploymentError, match=r"choices: h100_sxm, h200_sxm, .*mi355x"):
        find_gpu("zzz")
    with pytest.raises(DeploymentError, match=r"choices: .*Qwen/Qwen3-30B-A3B, "):
        find_model("zzz")


@pytest.mark.parametrize(
    ("name", "feature"),
    [
        ("DeepSeek-V3", "multi-head latent attention"),
        ("Qwen/Qwen3.5-27B", "linear attention"),
        ("llama-4-scout-17b-16e-instruct", "chunked"),
    ],
)
def test_a_known_architecture_that_is_not_covered_is_no_typo(name: str, feature: str) -> None:
    with pytest.raises(DeploymentError, match=f"is known but not supported: .*{feature}"):
        find_model(name)
