"""size --disaggregated: separate prefill and decode instances."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from invoked import json_of, refusal, text_of

from llmirage_client.load.options import RunOptions
from llmirage_client.measure.slo import parse_slo
from llmirage_client.simulator.bounds import Bounds, Lengths
from llmirage_client.simulator.deployments import InstanceShape, PoolShape
from llmirage_client.simulator.engine import ClusterConfig, plan_of
from llmirage_client.size.error_margin import margins_of_answer
from llmirage_client.size.pools import PoolSizing, size_pools
from llmirage_client.size.sizing import CapacitySearch, Terms
from llmirage_client.size.traffic import Traffic, synthetic_source, tpot_limit_s
from llmirage_client.size.trial import Trials

BASE = ClusterConfig(model="meta-llama/Llama-3.1-8B", gpu="h100_sxm", engine="vllm", weights="bf16")
ONE, TWO = (InstanceShape("h100_sxm", "vllm", "bf16", tp) for tp in (1, 2))
SLO = "ttft_p95<800ms, tpot_p95<15ms"
LENGTHS = Lengths(4000.0, 4000.0, 100.0)


def trials(amount: float, slo: str = SLO) -> Trials:
    source = synthetic_source("4000", "100", "1", "0", 0, 0)
    return Trials(Traffic(source, "request_rate", amount, RunOptions(seed=0)), parse_slo(slo), 100)


def sized(amount: float, judged: Trials) -> PoolSizing:
    return size_pools(BASE, [ONE, TWO], judged, Terms({}, "gpus", 64, 1))


@given(st.floats(0.0, 1.0), st.integers(2, 200))
def test_more_instances_are_never_fewer_of_a_pool(share: float, instances: int) -> None:
    shape = PoolShape(ONE, TWO, share)
    fewer, more = shape.counts(instances), shape.counts(instances + 1)
    assert sum(fewer) == instances
    assert min(fewer) >= 1
    assert fewer[0] <= more[0]
    assert fewer[1] <= more[1]
    assert sum(shape.gpus_of(instances).values()) == fewer[0] + 2 * fewer[1]


def test_bounds_of_pools_are_those_of_their_instances() -> None:
    alone, config = Bounds(ONE.config(BASE, 1)), PoolShape(ONE, TWO, 0.6).config(BASE, 5)
    bounds = Bounds(config)
    prefill, decode = alone.prefill_requests_per_s(LENGTHS), Bounds(TWO.config(BASE, 1)).decode_requests_per_s(LENGTHS)
    assert bounds.most_requests_per_s(LENGTHS) == pytest.approx(min(3 * prefill, 2 * decode))
    transfer = bounds.transfer(LENGTHS)
    per_token = plan_of(config)[0].deployment.kv_bytes_per_token
    assert per_token == 2 * 32 * 8 * 128 * 2  # K and V, layers, KV heads, head size, bytes of bf16
    assert transfer.bytes == 4000 * per_token
    assert transfer.link_s == pytest.approx(transfer.bytes / 50e9)  # a card of 400 Gb/s
    unloaded_s, here_s = alone.ttft_s(4000, 4000), bounds.ttft_s(4000, 4000)
    assert here_s == pytest.approx(unloaded_s + transfer.latency_s)


def test_a_limit_of_the_time_between_tokens_makes_decode_batches_smaller() -> None:
    bounds = Bounds(ONE.config(BASE, 1))
    limits = (0.007, 0.01, 0.02, math.inf)
    rates = [bounds.decode_requests_per_s(LENGTHS, limit_s) or 0.0 for limit_s in limits]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]
    assert tpot_limit_s(parse_slo("tpot_p95<15ms, latency_p95<1s, ttft_p99<1s"), LENGTHS) == pytest.approx(0.01)


@pytest.fixture(scope="module")
def answer() -> tuple[Trials, PoolSizing]:
    judged = trials(20.0)
    return judged, sized(20.0, judged)


def test_no_cheaper_split_of_the_same_shapes_meets_the_objectives(answer: tuple[Trials, PoolSizing]) -> None:
    judged, found = answer
    shape, gpus = found.answer.capacity.shape, found.answer.gpus
    assert isinstance(shape, PoolShape)
    assert found.answer.capacity.trial.met
    cheaper = [
        (prefill, decode)
        for prefill in range(1, gpus)
        for decode in range(1, gpus)
        if prefill * shape.prefill.gpus + decode * shape.decode.gpus < gpus
    ]
    assert cheaper
    for prefill, decode in cheaper:
        instances = prefill + decode
        search = CapacitySearch(PoolShape(shape.prefill, shape.decode, prefill / instances), BASE, judged)
        assert (search.least or math.inf) > instances or not search.decide(instances).met


def test_pools_are_never_called_safe_without_measured_ones(answer: tuple[Trials, PoolSizing]) -> None:
    assert "safe" not in {margin.confidence for margin in margins_of_answer(answer[1].answer.capacity)}


def test_each_ratio_is_bound_by_the_part_that_carries_least(answer: tuple[Trials, PoolSizing]) -> None:
    found = answer[1]
    assert len(found.ratios) > 1
    assert [one.trial.met for one in found.ratios].count(True) >= 1
    for one in found.ratios:
        assert one.carries[one.bound] == min(one.carries.values())
        assert one.use == pytest.approx(20.0 / one.carries[one.bound])
        if one.use > 1.2:
            assert not one.trial.met
    most = found.ratios[-1]
    assert most.carries["prefill"] > found.ratios[0].carries["prefill"]
    assert found.transfer is not None


def test_more_instances_of_pools_never_lower_goodput() -> None:
    judged, shape = trials(24.0), PoolShape(ONE, ONE, 0.7)
    loads = [judged.run(shape.config(BASE, count), 24.0, to_the_end=True).load for count in (5, 7, 10)]
    assert loads == sorted(loads, reverse=True)


ARGS = (
    "size",
    "--model",
    "llama-3.1-8b",
    "--isl",
    "1000",
    "--osl",
    "20",
    "--slo",
    "ttft_p90<2s",
    "--requests",
    "60",
    "--disaggregated",
)


def test_the_command_tells_of_both(tmp_path: Path) -> None:
    page = tmp_path / "size.html"
    found = json_of(*ARGS, "--request-rate", "10", "--tps", "1", "--html", str(page))
    assert found["answer"]["gpus"] == 1
    pools = found["disaggregated"]
    assert pools["answer"]["prefill_instances"] == pools["answer"]["decode_instances"] == 1
    assert pools["answer"]["prefill"]["tp"] == 1
    assert {row["bound_by"] for row in pools["ratios"]} <= {"prefill", "transfer", "decode"}
    assert "Separate prefill and decode" in page.read_text()
    text = text_of(*ARGS, "--request-rate", "10", "--tps", "1")
    assert "Separate pools cost 100% more than 1 x h100_sxm TP1" in text


def test_the_link_of_a_cluster_file_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "pools.yaml"
    file.write_text(
        "model: llama-3.1-8b\npools:\n  - {name: p, role: prefill}\n  - {name: d, role: decode}\n"
        "kv_transfer: {bandwidth_gb_per_s: 1}\n"
    )
    transfer = json_of(*ARGS, "--request-rate", "2", "--tps", "1", "--cluster", str(file))["disaggregated"]["kv_transfer"]
    assert transfer["link_s"] == pytest.approx(transfer["bytes"] / 1e9)


def test_spread_experts_beyond_a_node_are_among_the_candidates() -> None:
    found = json_of(*ARGS, "--model", "Qwen/Qwen3-30B-A3B", "--request-rate", "1")
    assert {16, 32} <= set(found["searched"]["ep"])


def test_max_rate_and_pools_exclude_each_other() -> None:
    assert "--disaggregated finds numbers of instances" in refusal(*ARGS, "--max-rate")
