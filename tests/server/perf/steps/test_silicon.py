"""Step times from aiconfigurator-core's tables: a stand-in for the package always, the package where it is installed."""

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from llmirage_server.perf import DeploymentError
from llmirage_server.perf.deployment import Deployment
from llmirage_server.perf.engines.lookup import find_engine
from llmirage_server.perf.steps import silicon
from llmirage_server.perf.steps.silicon import SiliconStep
from llmirage_server.perf.steps.step_model import StepBatch

ENGINE = find_engine("vllm")


class Tables:
    """1 us for each token in the shared part; 1 us for each new token of prefill; 1 ns for each decoded token's context."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(
        self, ctx_tokens: int, gen_tokens: int, isl: int, osl: int, prefix: int
    ) -> tuple[float, float, float, float]:
        self.calls += 1
        shared = 1e-3 * (ctx_tokens + gen_tokens)
        prefill = 1e-3 * ctx_tokens / -(-isl // ctx_tokens) if ctx_tokens else 0.0
        decode = 1e-6 * gen_tokens * isl
        return shared + prefill + decode, shared, prefill, decode


def host_s(gpu_s: float, rows: int) -> float:
    return ENGINE.host_s(gpu_s, rows)


def test_a_decode_step_is_the_shared_part_and_attention_over_the_mean_context() -> None:
    gpu_s = (4 + 4 * 1.6) * 1e-6
    assert SiliconStep(Tables(), ENGINE).step_s([], [1500, 1700, 1600, 1600]) == pytest.approx(gpu_s + host_s(gpu_s, 4))


def test_each_chunk_pays_for_its_own_attention() -> None:
    gpu_s = (512 + 100 + 512 + 100) * 1e-6  # the tables divide by ceil(isl / new tokens), which must not shorten a chunk
    step = SiliconStep(Tables(), ENGINE)
    assert step.step_s([(512, 1024), (100, 0)], []) == pytest.approx(gpu_s + host_s(gpu_s, 2))


def test_an_empty_step_takes_no_time() -> None:
    step = SiliconStep(Tables(), ENGINE, ranks=2)
    assert step.step_s([], []) == 0.0
    assert list(step.stages_s([StepBatch(), StepBatch()])) == [0.0]


def test_the_busiest_rank_sets_the_pace() -> None:
    step = SiliconStep(Tables(), ENGINE, ranks=2)
    busy = StepBatch(decode_contexts=[1600] * 8)
    alone = step.step_s([], [1600] * 8)
    assert step.stages_s([StepBatch(decode_contexts=[160]), busy])[0] == pytest.approx(alone + ENGINE.dp_sync_ms * 1e-3)


def test_a_table_is_asked_once_for_contexts_that_round_to_the_same() -> None:
    tables = Tables()
    step = SiliconStep(tables, ENGINE)
    for context in range(1600, 1607):
        step.step_s([], [context] * 4)
    assert tables.calls == 1


def test_a_hole_in_the_tables_is_a_deployment_error() -> None:
    def hole(*args: int) -> tuple[float, float, float, float]:
        raise RuntimeError("no rows for this shape\nand a long story")

    with pytest.raises(DeploymentError, match=r"has no measurements for it: no rows for this shape$"):
        SiliconStep(hole, ENGINE).step_s([], [100])


def test_without_the_package_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ModuleType:
        raise ImportError(f"No module named {name!r}")

    deployment = Deployment.create("meta-llama/Llama-3.1-8B-Instruct", "h100_sxm", perf_model="silicon")
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(DeploymentError, match=r"needs the package aiconfigurator-core: pip install 'llmirage\[silicon\]'"):
        deployment.step_model()


def test_pipeline_stages_are_refused() -> None:
    deployment = Deployment.create("meta-llama/Llama-3.1-8B-Instruct", "h100_sxm", pp=2, perf_model="silicon")
    with pytest.raises(DeploymentError, match="neither pipeline stages nor speculation; use perf_model roofline"):
        deployment.step_model()


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B"),
        ("meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Meta-Llama-3.1-70B"),
        ("Qwen/Qwen3-235B-A22B-FP8", "Qwen/Qwen3-235B-A22B"),
    ],
)
def test_an_architecture_is_found_under_the_name_the_package_has_for_it(tmp_path: Path, asked: str, found: str) -> None:
    folder = tmp_path / "model_configs"
    folder.mkdir()
    for name in ("meta-llama--Meta-Llama-3.1-8B", "meta-llama--Meta-Llama-3.1-70B", "Qwen--Qwen3-235B-A22B"):
        (folder / f"{name}_config.json").touch()
    (folder / "nvidia--Qwen3-235B-A22B-NVFP4_hf_quant_config.json").touch()
    assert silicon._bundled_model(asked, (), tmp_path) == found
    with pytest.raises(DeploymentError, match="aiconfigurator-core has no configuration of Qwen/Qwen3-8B"):
        silicon._bundled_model("Qwen/Qwen3-8B", (), tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("aiconfigurator_core") is None, reason="the extra silicon is not installed")
def test_the_package_answers_as_the_adapter_expects() -> None:
    def deploy(perf_model: str, **options: str | int) -> Deployment:
        name = "meta-llama/Llama-3.1-70B-Instruct"
        return Deployment.create(name, "h200_sxm", engine="trtllm", tp=4, weights="bf16", perf_model=perf_model, **options)  # type: ignore[arg-type]

    tables, roofline = deploy("silicon").step_model(), deploy("roofline").step_model()
    for prefill, decode in (([], [2000] * 32), ([(2048, 0)], []), ([(512, 2048)], [1000] * 16)):
        assert tables.step_s(prefill, decode) == pytest.approx(roofline.step_s(prefill, decode), rel=0.25)
    with pytest.raises(DeploymentError, match="has no measurements for it"):
        Deployment.create("meta-llama/Llama-3.1-8B-Instruct", "rtx_4090", perf_model="silicon").step_model()
