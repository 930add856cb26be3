"""Which band a deployment gets: from the committed data, by what is known of it."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from llmirage_server.perf import bands
from llmirage_server.perf.bands import QUANTITIES, UNKNOWN, Band, band_of, family_of, strata, strata_of
from llmirage_server.perf.deployment import Deployment


def group(scale: float, concurrency: float = 64, isl: float = 8192, runs: int = 10) -> dict[str, Any]:
    return {"runs": runs, "concurrency": concurrency, "isl": isl, "scale": dict.fromkeys(QUANTITIES, scale)}


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    found: dict[str, Any] = {
        "levels": {quantity: {"": [1.0, 3.0], "trtllm": [1.5, 2.0]} for quantity in QUANTITIES},
        "seen": {quantity: [0.5, 2.0] for quantity in QUANTITIES},
        "beyond": {quantity: [2.0, 2.5] for quantity in QUANTITIES},
        "groups": {
            "": group(0.3, runs=30),
            "measured": group(0.2),
            "measured dense": group(0.15),
            "measured dense vllm": group(0.12),
            "measured dense vllm h100_sxm": group(0.1, concurrency=32),
            "measured dense vllm h100_sxm fp8": group(0.2),
            "measured dense vllm h100_sxm fp8 Llama-3.1": group(0.2),
            "transferred": group(0.5),
        },
    }
    monkeypatch.setattr(bands, "_data", lambda: found)
    return found


def deployment(gpu: str = "h100_sxm", engine: str = "vllm", **settings: Any) -> Deployment:
    return Deployment.create("meta-llama/Llama-3.1-8B-Instruct", gpu, engine=engine, **settings)


def half_width(band: Band) -> float:
    factor = band.factors["tpot"][50]
    known = band.interval("tpot", 100.0, 50)
    assert known == (pytest.approx((100.0 / factor, 100.0 * factor)) if band.factors["tpot"][90] <= UNKNOWN else None)
    return factor


def test_the_narrowest_group_with_runs_counts(data: dict[str, Any]) -> None:
    own = band_of(deployment())
    assert half_width(own) == pytest.approx(2.718281828**0.1)
    assert own.interval("ttft", 10.0, 90) == pytest.approx((10 / 2.718281828**0.3, 10 * 2.718281828**0.3))
    assert (own.caution, own.measured) == ("", True)
    assert own.about == "of 30 measured runs, 10 of them of dense models, vllm, h100_sxm (docs/accuracy.md)"
    other = band_of(deployment("h200_sxm"))
    assert half_width(other) == pytest.approx(2.718281828**0.12)
    assert other.caution == "no measured runs of H200 SXM; band from all others"
    engine = band_of(deployment(engine="sglang"))
    assert half_width(engine) == pytest.approx(2.718281828**0.15)
    assert engine.caution == "no measured runs of dense models under SGLang"
    assert not engine.measured
    assert half_width(band_of(deployment(engine="trtllm@1.0"))) == pytest.approx(2.718281828 ** (1.5 * 0.15))


def test_kernels_of_another_gpu_have_the_band_of_such_gpus(data: dict[str, Any]) -> None:
    band = band_of(deployment("mi300x"))
    assert half_width(band) == pytest.approx(2.718281828**0.5)
    assert "no measured runs of MI300X" in band.caution


def test_a_gpu_that_nobody_measured_has_at_least_the_band_of_its_kernels(data: dict[str, Any]) -> None:
    data["groups"]["transferred"] = group(0.01)
    tpu = band_of(deployment("tpu_v6e"))
    assert tpu.interval("tpot", 10.0, 90) == pytest.approx((10 / 1.6, 16))
    assert tpu.interval("tpot", 10.0, 50) == pytest.approx((10 / 1.6 ** (1 / 3), 10 * 1.6 ** (1 / 3)))
    assert tpu.caution == "no measured runs of TPU v6e; band from all others, at least the 60 % of its kernels"
    data["groups"]["transferred dense vllm mi300x"] = group(0.01)
    assert half_width(band_of(deployment("mi300x"))) == pytest.approx(2.718281828**0.01)  # it has runs of its own


def test_beyond_the_measured_loads_a_band_is_wider(data: dict[str, Any]) -> None:
    assert half_width(band_of(deployment(), concurrency=32, isl=8192)) == pytest.approx(2.718281828**0.1)
    twice = band_of(deployment(), concurrency=64, isl=9000)
    assert half_width(twice) == pytest.approx(2.718281828**0.2)
    assert twice.caution == (
        "64 requests in flight, measured were at most 32; 9,000 tokens of a prompt, measured were at most 8,192"
    )
    assert twice.measured
    widths = {load: half_width(band_of(deployment(), concurrency=load)) for load in (48, 90.50966799, 128)}
    # between the measured doublings by the logarithm of the load
    expected = {48: 0.1 * (1 + 0.5849625), 90.50966799: 0.225, 128: 0.25}
    assert widths == {load: pytest.approx(2.718281828**width) for load, width in expected.items()}
    assert band_of(deployment(), concurrency=129).factor("tpot", 90) is None  # further than anybody measured


def test_groups_go_from_wide_to_narrow() -> None:
    names = ["", "measured", "measured moe", "measured moe sglang", "measured moe sglang b200_sxm"]
    names += [f"{names[-1]} fp8", f"{names[-1]} fp8 Qwen3"]
    assert strata("measured", "moe", "sglang", "b200_sxm", "fp8", "Qwen3") == names
    found = strata_of(Deployment.create("openai/gpt-oss-120b", "mi355x", engine="vllm"))
    assert found[-1] == "transferred moe vllm mi355x mxfp4 gpt-oss"


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("Qwen/Qwen3.5-397B-A17B", "Qwen3.5"),
        ("Qwen/Qwen3-235B-A22B-FP8", "Qwen3"),
        ("meta-llama/Meta-Llama-3.1-70B", "Llama-3.1"),
        ("deepseek-ai/DeepSeek-R1-0528", "DeepSeek-R1"),
        ("moonshotai/Kimi-K2.5", "Kimi-K2.5"),
        ("zai-org/GLM-5", "GLM-5"),
        ("acme/m", "m"),
    ],
)
def test_sizes_of_a_model_are_one_family(model: str, family: str) -> None:
    assert family_of(model) == family


def test_a_family_that_was_measured_has_the_levels_of_such_and_another_says_so(data: dict[str, Any]) -> None:
    measured = band_of(deployment(weights="fp8"))
    assert half_width(measured) == pytest.approx(2.718281828 ** (0.5 * 0.2))
    assert (
        measured.about
        == "of 30 measured runs, 10 of them of dense models, vllm, h100_sxm, fp8, Llama-3.1 (docs/accuracy.md)"
    )
    other = band_of(Deployment.create("Qwen/Qwen3-8B", "h100_sxm", engine="vllm", weights="fp8"))
    assert half_width(other) == pytest.approx(2.718281828**0.2)
    assert other.caution == "no measured runs of the family Qwen3; band from other families"
    assert not other.measured


def test_tables_of_others_and_drafts_are_named(data: dict[str, Any]) -> None:
    assert "the roofline model" in band_of(replace(deployment(), perf_model="silicon")).caution


def test_the_committed_data_have_a_band_for_every_quantity() -> None:
    band = band_of(deployment())
    for quantity in QUANTITIES:
        assert 1 < band.factors[quantity][50] < band.factors[quantity][90] < 100


def test_a_gpu_whose_kernels_were_fitted_on_mixtures_of_experts_says_so_of_dense_models() -> None:
    band = band_of(deployment("mi300x"))
    assert not band.measured
    assert "no measured runs of dense models on MI300X, whose kernels were fitted on others alone" in band.caution
    assert band_of(deployment("h100_sxm")).measured


def test_data_are_read_when_a_figure_is_asked_for() -> None:
    code = "import llmirage_server.commands.step_report, llmirage_client.simulate.report; "
    code += "from llmirage_server.perf.bands import _data; print(_data.cache_info().currsize)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "0\n"
