"""The verdicts of size: from the bands of measured runs."""

import math
from dataclasses import replace

import pytest

from llmirage_client.measure.slo import Verdict, parse_slo
from llmirage_client.simulator.deployments import InstanceShape, Quantity, band_of_cluster, bands_json
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.size.early_stopping import Interval
from llmirage_client.size.error_margin import error_margin, margins_of_answer
from llmirage_client.size.sizing import Capacity
from llmirage_client.size.trial import Trial
from llmirage_client.sweep.file import StudyPoint
from llmirage_client.sweep.report import band_lines
from llmirage_client.sweep.sweep import Row

LLAMA = ClusterConfig(model="meta-llama/Llama-3.1-8B-Instruct", gpu="h100_sxm", engine="trtllm", weights="bf16")


def factors(quantity: Quantity) -> tuple[float, float]:
    band = band_of_cluster(LLAMA)
    return band.factors[quantity][50], band.factors[quantity][90]


@pytest.mark.parametrize("quantity", ["tpot", "ttft"])
def test_confidence_changes_at_the_ends_of_the_bands(quantity: Quantity) -> None:
    half, most = factors(quantity)
    objective = parse_slo(f"{quantity}_avg<10ms")[0]
    values_ms = (10 / most * 0.999, 10 / most * 1.001, 10 / half * 0.999, 10 / half * 1.001)
    found = [error_margin(Verdict(objective, value_ms), LLAMA).confidence for value_ms in values_ms]
    assert found == ["safe", "marginal", "marginal", "not proven"]


def test_what_must_be_large_is_judged_at_the_lower_end() -> None:
    _, most = factors("tpot")
    faster = parse_slo("tps_per_user_p50>100")[0]
    assert error_margin(Verdict(faster, 100 * most * 1.001), LLAMA).confidence == "safe"
    assert error_margin(Verdict(faster, 100 * most * 0.999), LLAMA).confidence == "marginal"
    _, most = factors("throughput")
    rate = parse_slo("output_token_throughput>100")[0]
    margin = error_margin(Verdict(rate, 100 * most * 1.001), LLAMA)
    assert margin.confidence == "safe"
    assert margin.most == pytest.approx((100.1, 100.1 * most**2))


def test_what_was_never_measured_counts_one_step_less() -> None:
    verdict = Verdict(parse_slo("tpot_avg<1s")[0], 1.0)
    assert error_margin(verdict, LLAMA).confidence == "safe"
    unmeasured = error_margin(verdict, ClusterConfig(model="Qwen/Qwen3-8B", gpu="h100_pcie", weights="bf16"))
    assert unmeasured.confidence == "marginal"
    assert "no measured runs of H100 PCIe; band from all others" in unmeasured.about
    assert unmeasured.lowered == "Verdicts are one step lower than the bands say: nothing like it was measured."


def test_without_a_band_nothing_is_proven() -> None:
    errors = Verdict(parse_slo("error_rate<1%")[0], 0.0)
    assert error_margin(errors, LLAMA).confidence == "not proven"
    fixed = ClusterConfig(ttft_ms=10, itl_ms=1)
    margin = error_margin(Verdict(parse_slo("tpot_avg<1s")[0], 1.0), fixed)
    assert (margin.confidence, margin.band_text) == ("not proven", "unknown")
    assert margin.about == "Band: times of the user's own have no band."


def test_a_band_is_the_noise_widened_at_both_ends() -> None:
    half, most = factors("ttft")
    verdict = Verdict(parse_slo("ttft_avg<1s")[0], 100.0)
    margin = error_margin(verdict, LLAMA, noise=Interval(80.0, 150.0))
    assert margin.half == pytest.approx((80 / half, 150 * half))
    assert margin.most == pytest.approx((80 / most, 150 * most))
    worse = Verdict(parse_slo("ttft_avg<1s")[0], 1000 / most * 0.999)
    assert error_margin(worse, LLAMA).confidence == "safe"
    assert error_margin(worse, LLAMA, noise=Interval(900 / most, 1000 / most * 1.001)).confidence == "marginal"


def test_a_noise_that_few_requests_leave_open_is_no_band() -> None:
    margin = error_margin(Verdict(parse_slo("ttft_p99<1s")[0], 1.0), LLAMA, noise=Interval(-math.inf, math.inf))
    assert (margin.confidence, margin.band_text, margin.most) == ("not proven", "unknown", None)
    assert margin.about == "Band: too few requests to know the noise of time_to_first_token_p99."


def test_a_band_past_a_factor_of_ten_is_unknown_whether_of_noise_or_of_errors() -> None:
    """A thousand times the figure says nothing of it."""
    _, most = factors("ttft")
    verdict = Verdict(parse_slo("ttft_p99<100s")[0], 1000.0)
    for noise in (Interval(900.0, 9.5e6), Interval(50.0, 1000.0)):
        margin = error_margin(verdict, LLAMA, noise=noise)
        assert (margin.confidence, margin.band_text, margin.half) == ("not proven", "unknown", None)
    near = error_margin(verdict, LLAMA, noise=Interval(900.0, 9.9 * 1000 / most))
    assert near.most is not None


def test_simulations_and_sweeps_know_no_band_past_ten_either() -> None:
    near, far = (band_of_cluster(LLAMA, concurrency) for concurrency in (8, 20_000))
    figures = {
        "ttft_ms": {"mean": 100.0},
        "tpot_ms": {"mean": 20.0},
        "latency_ms": {"mean": 500.0},
        "output_tok_per_s": 10.0,
    }
    known, unknown = bands_json(near, figures), bands_json(far, figures)
    assert known["ttft_ms"]["90"][1] == 100.0 * near.factors["ttft"][90]
    assert far.factors["ttft"][90] > 10
    assert unknown["ttft_ms"] == {"50": None, "90": None}
    point = StudyPoint(1, {}, LLAMA, {})
    rows = [Row(point, "ok", "", {"ttft_factor_90": factor}, {}, 0.0) for factor in (2.0, None, 3.5)]
    assert "TTFT 2.00 to 3.50 (unknown at 1 point)" in next(band_lines(rows))
    assert "TTFT unknown" in next(band_lines(rows[1:2]))


def test_separate_pools_say_that_none_were_measured(capsys: pytest.CaptureFixture[str]) -> None:
    from llmirage_server.config.cluster import PoolConfig

    pools = tuple(PoolConfig(name=role, role=role, model=LLAMA.model, gpu="h100_sxm") for role in ("prefill", "decode"))
    band = band_of_cluster(ClusterConfig(pools=pools))
    assert "separate prefill and decode pools" in band.caution
    assert not band.measured


@pytest.mark.parametrize(
    ("most", "slo", "counted", "confidence"),
    [
        (6, "tpot_avg<30ms", 84, "safe"),
        (7, "tpot_avg<30ms", 800, "marginal"),
        (6, "tpot_p99<30ms", 300, "safe"),
        (6, "tpot_p99<30ms", 299, "marginal"),
        (6, "tpot_p50<30ms", 84, "safe"),
    ],
)
def test_an_answer_that_may_need_more_or_has_few_requests_is_not_safe(
    most: int, slo: str, counted: int, confidence: str
) -> None:
    [objective] = parse_slo(slo)
    verdict = Verdict(objective, 10.0)
    config = replace(LLAMA, instances=6)
    trial = Trial(config, "concurrency", 60, (verdict,), None, 1000, counted, {"users": 60.0}, (None,), None)
    capacity = Capacity(InstanceShape("h100_sxm", "trtllm", "bf16"), 6, trial, 6, most)
    [margin] = margins_of_answer(capacity)
    assert (margin.confidence, margin.lowered is None) == (confidence, confidence == "safe")


def test_far_from_all_that_was_measured_no_band_is_known() -> None:
    objective = parse_slo("ttft_p99<2s")[0]
    near, far = (error_margin(Verdict(objective, 400.0), LLAMA, concurrency) for concurrency in (8, 20_000))
    assert near.most is not None
    assert (far.confidence, far.most, far.band_text) == ("not proven", None, "unknown")
    assert "20,000 requests in flight, measured were at most" in far.about
