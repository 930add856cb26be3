"""The catalogue is complete, finds what users write, and says what it does not know."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmirage_server.perf import DeploymentError
from llmirage_server.perf.catalogue import yaml_files as data_file_module
from llmirage_server.perf.catalogue.gpus import FITTED, LINK_KINDS, GpuSpec
from llmirage_server.perf.catalogue.lookup import find_gpu, find_model, list_gpus, list_models, model_names
from llmirage_server.perf.catalogue.yaml_files import DataFile, data_file

FITTED_KEYS = {"b300_sxm", "gb300", "h100_sxm", "h200_sxm", "b200_sxm", "gb200", "a100_sxm", "l40s", "rtx_pro_6000_server"}
FIGURES = {"memory_mib", "bandwidth_tb_per_s", "tflops", "sm", "tdp_w", "price_usd_per_h", "node_link_gb_per_s"}


@pytest.mark.parametrize("gpu", list_gpus(), ids=lambda g: g.key)
def test_every_gpu_has_sources_and_plausible_figures(gpu: GpuSpec) -> None:
    assert gpu.source
    assert set(gpu.unverified) <= FIGURES
    assert gpu.flops["bf16"] <= gpu.flops.get("fp8", math.inf) <= gpu.flops.get("fp4", math.inf)
    assert 10 * 2**30 < gpu.memory_bytes < 400 * 2**30
    assert 0.1e12 < gpu.bandwidth_bytes_per_s < 10e12
    assert gpu.link in LINK_KINDS
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


@pytest.mark.parametrize("name", ["Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b", "Qwen3-30B-A3B"])
def test_a_model_goes_by_its_full_or_short_name(name: str) -> None:
    assert find_model(name).name == "Qwen/Qwen3-30B-A3B"


@pytest.mark.parametrize(
    ("checkpoint", "name", "weights"),
    [
        ("Qwen/Qwen3-30B-A3B-FP8", "Qwen/Qwen3-30B-A3B", "fp8_block"),
        ("qwen3-32b-awq", "Qwen/Qwen3-32B", "int4"),
        ("nvidia/DeepSeek-V3.1-NVFP4", "deepseek-ai/DeepSeek-V3.1", "nvfp4"),
    ],
)
def test_a_checkpoint_is_the_model_in_its_own_format(checkpoint: str, name: str, weights: str) -> None:
    model = find_model(name)
    assert model.native_weights != weights
    assert find_model(checkpoint) == replace(model, native_weights=weights)


def test_names_are_unique() -> None:
    for model in list_models():
        assert all(find_model(n) is model for n in (model.name, *model.aliases))
    names = [n.casefold() for model in model_names() for n in model]
    assert len(set(names)) == len(names)
    for gpu in list_gpus():
        assert all(find_gpu(n) is gpu for n in (gpu.key, gpu.name, *gpu.aliases))


def test_a_near_miss_is_suggested() -> None:
    with pytest.raises(DeploymentError, match=r"unknown model 'qwen3-30b'; did you mean Qwen/Qwen3-30B-A3B or"):
        find_model("qwen3-30b")
    with pytest.raises(DeploymentError, match=r"did you mean meta-llama/Llama-3.1-8B-Instruct"):
        find_model("lama-3.1-8b")
    with pytest.raises(DeploymentError, match=r"unknown GPU 'h1000'; did you mean h100_sxm"):
        find_gpu("h1000")


def test_a_name_in_other_words_is_recognised() -> None:
    for name, meant in (
        ("deepseek", "deepseek-ai/DeepSeek-V2-Lite-Chat or deepseek-ai/DeepSeek-V2.5 or deepseek-ai/DeepSeek-V3"),
        ("kimi k2", "moonshotai/Kimi-K2-Instruct or moonshotai/Kimi-K2-Instruct-0905 or moonshotai/Kimi-K2-Thinking"),
        ("R1 Distill Qwen 14B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B"),
    ):
        with pytest.raises(DeploymentError, match=re.escape(f"unknown model {name!r}; did you mean {meant}")):
            find_model(name)
    with pytest.raises(DeploymentError, match=r"unknown GPU 'a100 40'; did you mean a100_40gb_sxm or"):
        find_gpu("a100 40")


def test_a_wild_guess_says_what_there_is() -> None:
    with pytest.raises(DeploymentError, match=r"choices: h100_sxm, h200_sxm, .*mi355x, tpu_v5e, .*, or a YAML file"):
        find_gpu("zzz")
    with pytest.raises(DeploymentError, match=r"unknown model 'zzz'; `llmirage catalog models` lists"):
        find_model("zzz")


@pytest.mark.parametrize(
    ("name", "feature"),
    [("DeepSeek-V4-Pro", "attention to a compressed context"), ("moonshotai/Kimi-K3", "Kimi delta attention")],
)
def test_a_known_architecture_that_is_not_covered_is_no_typo(name: str, feature: str) -> None:
    with pytest.raises(DeploymentError, match=f"is known but not supported: .*{feature}"):
        find_model(name)


@pytest.mark.parametrize(("name", "key"), [("models.yaml", "models"), ("gpus.yaml", "gpus")])
def test_entries_read_one_by_one_are_those_of_the_whole_file(name: str, key: str) -> None:
    file = data_file(name, key)
    whole = yaml.safe_load(Path(data_file_module.__file__).with_name("data").joinpath(name).read_text())
    assert whole == {**file.head(), key: {entry: file.entry(entry) for entry in file.names}}
    for entry, values in whole[key].items():
        title = [values["name"]] if "name" in values else []
        assert file.aliases(entry) == [*title, *values.get("aliases", [])]
        assert file.checkpoints(entry) == values.get("checkpoints", {})


def test_finding_one_entry_parses_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    load = yaml.load

    def noting(text: str, Loader: Any) -> Any:
        parsed.append(text)
        return load(text, Loader)

    monkeypatch.setattr(yaml, "load", noting)
    assert DataFile("models.yaml", "models").entry("openai/gpt-oss-20b")["hidden"] == 2880
    assert len(parsed) == 1
    assert "gpt-oss-120b" not in parsed[0]
