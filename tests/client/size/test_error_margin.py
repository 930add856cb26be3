"""The verdicts of size: from the errors in docs/accuracy.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from llmirage_client.measure.slo import Verdict, parse_slo
from llmirage_client.simulator.accuracy import METRICS, _data, band_of
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.size.error_margin import error_margin

PAGE = Path(__file__).parents[3] / "docs" / "accuracy.md"
LLAMA = ClusterConfig(model="meta-llama/Llama-3.1-8B-Instruct", gpu="h100_sxm", engine="trtllm", weights="bf16")


def test_the_data_are_the_figures_of_the_page() -> None:
    text = PAGE.read_text()
    for heading, group in (("### By deployment", "deployments"), ("### By model", "models"), ("### By GPU", "gpus")):
        part = text.partition(heading + "\n")[2].partition("\n#")[0]
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("| ")]
        shown = {row[0]: row[1:] for row in rows if row[1].isdigit()}
        data = _data()[group]
        assert shown.keys() == data.keys()
        for name, (runs, *cells) in shown.items():
            assert int(runs) == data[name]["runs"]
            figures = [float(figure) for cell in cells for figure in re.split(" / ", cell)]
            assert figures == [figure for metric in METRICS for figure in data[name][metric]]


def test_a_measured_deployment_has_its_own_errors() -> None:
    band = band_of(LLAMA)
    assert band is not None
    assert band.of == "Llama-3.1-8B-Instruct bf16 h100_sxm trtllm tp1"
    own = _data()["deployments"][band.of]
    assert (band.errors["tpot"].median, band.errors["tpot"].p90) == (own["tpot"][0] / 100, own["tpot"][1] / 100)
    assert band.caution == ""


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.3-70B-Instruct"])
def test_others_have_the_larger_errors_of_their_model_and_gpu(name: str) -> None:
    """A model of the same architecture as a measured one counts as that one."""
    band = band_of(ClusterConfig(model=name, gpu="h200_sxm", engine="sglang", weights="fp8", tensor_parallel_size=2))
    assert band is not None
    gpu = _data()["gpus"]["h200_sxm"]
    assert band.errors["tpot"].p90 >= gpu["tpot"][1] / 100
    assert band.of.endswith("anywhere and of all models on h200_sxm")


def test_what_was_never_measured_gives_no_confidence() -> None:
    verdict = Verdict(parse_slo("tpot_avg<1s")[0], 1.0)
    assert (
        error_margin(verdict, ClusterConfig(model="Qwen/Qwen3-8B", gpu="mi300x", weights="bf16")).confidence == "not proven"
    )
    assert (
        error_margin(verdict, ClusterConfig(model="Qwen/Qwen3-8B", weights="bf16")).confidence == "marginal"
    )  # the model is new
    assert error_margin(verdict, LLAMA).confidence == "safe"
    errors = Verdict(parse_slo("error_rate<1%")[0], 0.0)
    assert error_margin(errors, LLAMA).confidence == "not proven"


def test_confidence_changes_where_the_errors_are() -> None:
    band = band_of(LLAMA)
    assert band is not None
    error = band.errors["tpot"]
    objective = parse_slo("tpot_avg<10ms")[0]
    found = [
        error_margin(Verdict(objective, value_ms), LLAMA).confidence
        for value_ms in (10 * (1 - error.p90) - 0.01, 10 * (1 - error.median) - 0.01, 10 * (1 - error.median) + 0.01)
    ]
    assert found == ["safe", "marginal", "not proven"]
    faster = parse_slo("tps_per_user_p50>100")[0]
    assert error_margin(Verdict(faster, 100 * (1 + error.p90) + 1), LLAMA).confidence == "safe"
