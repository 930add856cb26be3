"""A GPU or a model of the user's own comes from a small YAML file, or a message for every line that is wrong."""

import re
from pathlib import Path

import pytest

from llmirage_server.perf import DeploymentError
from llmirage_server.perf.catalogue.constants import constants_for
from llmirage_server.perf.catalogue.gpus import GPU_KEYS
from llmirage_server.perf.catalogue.layers import Dense, Gqa, LayerGroup, Mla, Moe, SparseIndex
from llmirage_server.perf.catalogue.lookup import find_gpu, find_model
from llmirage_server.perf.catalogue.models import GROUP_KEYS
from llmirage_server.perf.deployment import Deployment

GPU = """\
name: H100 SXM at 500 W
memory_mib: 81559
bandwidth_tb_per_s: 3.35
tflops: {bf16: 800, fp8: 1600}
sm: 132
link: nvlink
link_gb_per_s: 450
link_gpus: 8
constants_of: h800
"""
MODEL = """\
hidden: 7168
vocab: 129280
max_model_len: 163840
native_weights: fp8_block
groups:
  - count: 3
    leading: true
    mla: {heads: 128, q_rank: 1536, kv_rank: 512, nope_dim: 128, rope_dim: 64, v_dim: 128,
          index: {heads: 64, head_dim: 128, top_k: 2048}}
    dense: {width: 18432}
  - count: 58
    gqa: {heads: 64, kv_heads: 8, head_dim: 128, window: 512}
    moe: {experts: 256, per_token: 8, width: 2048, shared_width: 2048}
"""


def write(folder: Path, text: str, name: str = "mine.yaml") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def refusal(path: str, what: str) -> list[str]:
    """The problems, each without the path of the file."""
    with pytest.raises(DeploymentError) as caught:
        find_gpu(path) if what == "gpu" else find_model(path)
    assert all(problem.startswith(path) for problem in caught.value.problems)
    return [problem.removeprefix(path) for problem in caught.value.problems]


def test_a_gpu_of_ones_own(tmp_path: Path) -> None:
    gpu = find_gpu(write(tmp_path, GPU))
    assert (gpu.key, gpu.name, gpu.flops) == ("custom:mine", "H100 SXM at 500 W", {"bf16": 800e12, "fp8": 1600e12})
    assert gpu.constants_of == "h100_sxm"  # what serves the H800
    assert gpu.confidence == "transferred: those measured on H100 SXM, as mine.yaml asks; about 30 % band"
    assert (gpu.node_link_bytes_per_s, gpu.node_link_latency_s) == (50e9, 5e-6)
    assert gpu.source == str(tmp_path / "mine.yaml")
    measured = constants_for(find_gpu("h100_sxm"), "vllm").of("gemm", "bf16")
    assert constants_for(gpu, "vllm").of("gemm", "bf16") == measured
    assert Deployment.create("Llama-3.1-8B", str(tmp_path / "mine.yaml")).gpu == gpu


def test_a_gpu_without_a_twin_takes_what_its_kind_has_in_common(tmp_path: Path) -> None:
    text = GPU.replace("constants_of: h800\n", "price_usd_per_h: 2\n")
    gpu = find_gpu(write(tmp_path, text))
    assert (gpu.constants_of, gpu.price_usd_per_h) == (None, (2.0, 2.0))
    assert gpu.confidence == "transferred: pooled fits of the measured NVLink GPUs; about 30 % band"
    card = find_gpu(write(tmp_path, text.replace("nvlink", "pcie").replace("h: 2", "h: [1, 3]")))
    assert card.price_usd_per_h == (1.0, 3.0)
    assert "pooled fits of the measured PCIe cards" in card.confidence


def test_every_problem_of_a_gpu_file_is_told_with_its_line(tmp_path: Path) -> None:
    text = """\
memory_mib: 80 GB
bandwith_tb_per_s: 3.35
tflops: {bf16: -1, fp16: 800}
sm: 132.5
link: nvlnk
link_gb_per_s: 450
price_usd_per_h: [3, 2]
colour: green
"""
    assert refusal(write(tmp_path, text), "gpu") == [
        ":1: memory_mib: must be a positive number",
        ":2: bandwith_tb_per_s: unknown key; did you mean bandwidth_tb_per_s?",
        ":3: tflops.bf16: must be a positive number",
        ":3: tflops.fp16: unknown key; did you mean bf16?",
        ":4: sm: must be a positive integer",
        ":5: link: must be one of nvlink, pcie, infinity-fabric, ici",
        ":7: price_usd_per_h: must be a positive number, or a list of the lowest and the highest",
        ":8: colour: unknown key; known: base, name, memory_mib, bandwidth_tb_per_s, tflops, sm, link, link_gb_per_s, "
        "link_gpus, peer_to_peer, node_link_gb_per_s, node_link_latency_us, host_gb_per_s, arch, tdp_w, "
        "price_usd_per_h, constants_of, source",
        ":1: link_gpus: missing",
    ]


def test_a_gpu_file_may_say_only_what_differs_from_another(tmp_path: Path) -> None:
    gpu = find_gpu(write(tmp_path, "base: h100\nmemory_mib: 95830\ntflops: {bf16: 800}\n"))
    h100 = find_gpu("h100_sxm")
    assert (gpu.key, gpu.name, gpu.aliases) == ("custom:mine", "H100 SXM (mine)", ())
    assert gpu.memory_bytes == 95830 * 2**20
    assert gpu.flops == {"bf16": 800e12, "fp8": 1979e12, "int8": 1979e12}
    assert (gpu.bandwidth_bytes_per_s, gpu.link_gpus) == (h100.bandwidth_bytes_per_s, h100.link_gpus)
    assert gpu.constants_of == "h100_sxm"
    assert gpu.source == f"{tmp_path / 'mine.yaml'}, else {h100.source}"
    renamed = find_gpu(write(tmp_path, "base: rtx_4090\nname: with a bridge\npeer_to_peer: true\nsource: lspci\n"))
    assert (renamed.name, renamed.peer_to_peer, renamed.source) == ("with a bridge", True, "lspci")


def test_the_base_of_a_gpu_file_is_in_the_catalogue_and_the_rest_is_checked(tmp_path: Path) -> None:
    (problem,) = refusal(write(tmp_path, "name: x\nbase: h1000\n"), "gpu")
    assert problem.startswith(":2: base: unknown GPU 'h1000'; did you mean ")
    assert refusal(write(tmp_path, "base: h100\nsm: many\n"), "gpu") == [":2: sm: must be a positive integer"]


def test_constants_of_is_a_gpu_of_the_catalogue(tmp_path: Path) -> None:
    (problem,) = refusal(write(tmp_path, GPU.replace("h800", "h1000")), "gpu")
    assert problem.startswith(":9: constants_of: unknown GPU 'h1000'; did you mean ")


def test_a_model_of_ones_own(tmp_path: Path) -> None:
    model = find_model(write(tmp_path, MODEL))
    index = SparseIndex(heads=64, head_dim=128, top_k=2048)
    assert model.name == "mine"
    assert model.native_weights == "fp8_block"
    assert model.groups == (
        LayerGroup(3, Mla(128, 1536, 512, 128, 64, 128, index), Dense(18432), leading=True),
        LayerGroup(58, Gqa(64, 8, 128, window=512), Moe(256, 8, 2048, shared_width=2048)),
    )
    assert model.confidence == "transferred: no sparse attention was measured; windows of 512 tokens were not measured"


def test_every_problem_of_a_model_file_is_told_with_its_line(tmp_path: Path) -> None:
    text = """\
hidden: 4096
vocab: yes
native_weights: fp7
groups:
  - count: 32
    gqa: {heads: 32, kv_head: 8, head_dim: 128}
    mlp: {width: 14336}
  - 5
"""
    assert refusal(write(tmp_path, text), "model") == [
        ":2: vocab: must be a positive integer",
        ":3: native_weights: must be one of bf16, fp8, fp8_block, int8, int4, mxfp4, nvfp4",
        ":6: groups[0].gqa.kv_head: unknown key; did you mean kv_heads?",
        ":7: groups[0].mlp: unknown key; did you mean mla?",
        ":8: groups[1]: must be a mapping of count, leading, gqa, mla, gated_delta, mamba2, dense, moe",
        ":1: max_model_len: missing",
    ]


def test_groups_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    text = """\
hidden: 64
vocab: 100
max_model_len: 4096
groups:
  - {count: 1}
  - count: 1
    gqa: {heads: 6, kv_heads: 4, head_dim: 16}
    dense: {width: 64}
    moe: {experts: 4, per_token: 5, width: 64}
"""
    assert refusal(write(tmp_path, text), "model") == [
        ":5: groups[0]: needs one of gqa, mla, gated_delta, mamba2, dense, moe",
        ":6: groups[1]: has dense and moe, but may have one of dense, moe",
        ":7: groups[1].gqa.kv_heads: 4 does not divide the 6 heads",
        ":9: groups[1].moe.per_token: 5 is more than the 4 experts",
    ]


@pytest.mark.parametrize("what", ["gpu", "model"])
def test_what_is_no_mapping_is_refused(tmp_path: Path, what: str) -> None:
    (problem,) = refusal(str(tmp_path / "nowhere.yaml"), what)
    assert problem == ": cannot be read: No such file or directory"
    (problem,) = refusal(write(tmp_path, "- 1\n"), what)
    assert f":1: a {what.replace('gpu', 'GPU')} file is a list of `key: value` lines" in problem
    (problem,) = refusal(write(tmp_path, "a: [1\n"), what)
    assert ": not valid YAML: " in problem
    (problem,) = refusal(write(tmp_path, "a: 2026-13-45\n"), what)
    assert ": not valid YAML: " in problem


def test_the_files_of_the_documentation_are_good(tmp_path: Path) -> None:
    page = (Path(__file__).parents[4] / "docs" / "own-gpu-or-model.md").read_text()
    gpu_text, changed_text, model_text = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    gpu, model = find_gpu(write(tmp_path, gpu_text)), find_model(write(tmp_path, model_text))
    assert {key.split(":")[0] for key in gpu_text.splitlines()[1:]} == set(GPU_KEYS) - {"base"}
    changed = find_gpu(write(tmp_path, changed_text))
    assert (changed.memory_bytes, changed.flops) == (95830 * 2**20, find_gpu("h100").flops)
    assert gpu.constants_of == "h100_sxm"
    assert (model.name, model.layers, model.mtp_layers) == ("acme/mixture-100b", 48, 1)
    for kind, key in GROUP_KEYS.items():
        for field in key.keys or {}:
            assert f"`{field}`" in page, (kind, field)
