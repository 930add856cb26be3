"""size: the cheapest deployment, and what must hold of it whatever the noise of single simulations."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmirage_client.load.options import RunOptions
from llmirage_client.measure.slo import Verdict, parse_slo
from llmirage_client.simulator.bounds import Bounds, Lengths
from llmirage_client.simulator.deployments import InstanceShape, shapes
from llmirage_client.simulator.engine import ClusterConfig, ConfigError
from llmirage_client.size.early_stopping import Interval
from llmirage_client.size.max_rate import max_rates, user_grid
from llmirage_client.size.sizing import Goal, Sizing, Terms, size
from llmirage_client.size.traffic import Kind, RequestSource, Traffic, missed_unloaded, synthetic_source
from llmirage_client.size.trial import Trial, Trials
from llmirage_shared.statistics import Ints

BASE = ClusterConfig(model="meta-llama/Llama-3.1-8B", gpu="h100_sxm", weights="bf16")
PRICES = {"h100_sxm": 3.0, "b200_sxm": 7.0}
SHAPES = [InstanceShape(gpu, None, "bf16", tp) for gpu, tp in (("h100_sxm", 1), ("h100_sxm", 2), ("b200_sxm", 1))]
NOISY = 40  # requests: few enough for percentiles to jump


def trials(
    slo: str,
    amount: float,
    kind: Kind = "request_rate",
    requests: int = NOISY,
    lengths: tuple[str, str] = ("1000", "60"),
    turns: tuple[str, str] = ("1", "0"),
    seed: int = 0,
) -> Trials:
    """turns: their number, and seconds between them."""
    traffic = Traffic(synthetic_source(*lengths, *turns, 0, seed), kind, amount, RunOptions(seed=seed))
    return Trials(traffic, parse_slo(slo), requests)


def sized(
    slo: str, amount: float, tried: Sequence[InstanceShape] = SHAPES, kind: Kind = "request_rate", goal: Goal = "cost"
) -> Sizing:
    return size(BASE, tried, trials(slo, amount, kind), Terms(PRICES, goal, 10_000, 0))


def cost(sizing: Sizing) -> float:
    return math.inf if sizing.answer is None else sizing.answer.usd_per_h or 0.0


CHUNKED = [
    {
        "num_speculative_tokens": 3,
        "speculative_method": "draft_model",
        "draft_model": "llama-3.2-1b",
        "acceptance_rate": 0.8,
    },
    {"engine": "vllm", "stream_interval": 10},
]


@pytest.mark.parametrize("settings", CHUNKED)
def test_a_time_per_token_is_judged_by_tokens_where_several_come_at_once(settings: dict[str, Any]) -> None:
    """The noise lies around the figure that is shown, and one instance suffices for next to no traffic."""
    base = ClusterConfig(model="meta-llama/Llama-3.1-8B", gpu="h100_sxm", weights="bf16", **settings)
    answer = size(base, SHAPES[:1], trials("tpot_p95<9ms", 0.1), Terms(PRICES, "gpus", 100, 0)).answer
    assert answer.gpus == 1
    [verdict], [noise] = answer.capacity.trial.verdicts, answer.capacity.trial.intervals
    assert noise.low <= verdict.value <= noise.high


@pytest.mark.parametrize("requests", [NOISY, 10 * NOISY])
def test_tokens_per_second_are_those_of_the_answered_requests(requests: int) -> None:
    """However few requests are measured: their last replies end after the last of them was sent, and the load goes on."""
    config = SHAPES[0].config(BASE, 2)
    at_rate = trials("ttft_p99<10s", 8.0, requests=requests).run(config, 8.0, to_the_end=True)
    assert at_rate.figures["output_tok_per_s"] == pytest.approx(60 * at_rate.rates.delivered)
    of_users = trials("output_throughput>1", 30.0, "concurrency", requests).run(config, 30.0, to_the_end=True)
    littles = 30 * 60 / of_users.figures["latency_ms"]["mean"] * 1e3
    assert of_users.figures["output_tok_per_s"] == of_users.verdicts[0].value == pytest.approx(littles, rel=0.02)
    assert of_users.figures["output_tok_per_s_per_gpu"] == of_users.figures["output_tok_per_s"] / 2


SLOS = st.tuples(st.integers(30, 90), st.integers(6, 20))
FEW = settings(max_examples=max(3, settings.default.max_examples // 4), suppress_health_check=[HealthCheck.too_slow])


@FEW
@given(SLOS, st.sampled_from([3.0, 11.0, 40.0]))
def test_doubling_the_traffic_never_needs_fewer_gpus(limits: tuple[int, int], rate: float) -> None:
    slo = f"ttft_p95<{limits[0]}ms, tpot_mean<{limits[1]}ms"
    one, two = (sized(slo, amount, SHAPES[:2], goal="gpus") for amount in (rate, 2 * rate))
    if two.answer is not None:
        assert one.answer.gpus <= two.answer.gpus


@FEW
@given(SLOS, st.integers(0, 40), st.integers(0, 8), st.sampled_from([5.0, 30.0]))
def test_a_stricter_objective_never_costs_less(limits: tuple[int, int], ttft_ms: int, tpot_ms: int, rate: float) -> None:
    strict = f"ttft_p95<{limits[0]}ms, tpot_mean<{limits[1]}ms"
    lax = f"ttft_p95<{limits[0] + ttft_ms}ms, tpot_mean<{limits[1] + tpot_ms}ms"
    assert cost(sized(lax, rate)) <= cost(sized(strict, rate))


def test_large_traffic_is_judged_by_sampled_instances_and_stays_monotone() -> None:
    short = [trials("ttft_p95<200ms", amount, lengths=("1000", "4")) for amount in (1600.0, 3200.0)]
    answers = [size(BASE, SHAPES[:1], one, Terms(PRICES, "cost", 10_000, 0)).answer for one in short]
    assert all(answer is not None and answer.capacity.sampled for answer in answers)
    few, many = (answer.gpus for answer in answers if answer is not None)
    assert few <= many <= min(number for number in user_grid(1000) if number >= 2 * few)  # numbers that are tried


def test_the_answer_is_the_cheapest_of_all_that_do() -> None:
    sizing = sized("ttft_p95<200ms, tpot_mean<15ms", 12.0)
    assert sizing.answer.capacity.trial.met
    assert sizing.answer.usd_per_h == PRICES[sizing.answer.capacity.shape.gpu] * sizing.answer.gpus
    alone = [sized("ttft_p95<200ms, tpot_mean<15ms", 12.0, [shape]) for shape in SHAPES]
    assert cost(sizing) == min(map(cost, alone))


def test_what_one_user_alone_misses_is_not_simulated() -> None:
    judged = trials("ttft_p99<1ms", 5.0)
    sizing = size(BASE, SHAPES, judged, Terms(PRICES, "cost", 10_000, 0))
    assert sizing.answer is None
    assert judged.effort.simulations == 0
    assert len(sizing.given_up) == len(SHAPES)
    search = sizing.given_up[0]
    assert search.reason.startswith("unloaded: ttft_p99<1ms cannot be met, at best it is ")
    assert search.nearest.load > 1


def test_what_has_no_interval_is_beyond_doubt_too_and_is_simulated_once() -> None:
    judged = trials("error_rate<1%", 20.0)
    assert size(BASE, SHAPES, judged, Terms(PRICES, "cost", 10_000, 0)).answer is not None
    assert judged.effort.simulations == 1


def test_more_gpus_than_allowed_are_no_answer() -> None:
    judged = trials("ttft_p99<300ms", 500.0)
    sizing = size(BASE, SHAPES[:1], judged, Terms(PRICES, "gpus", 4))
    assert sizing.answer is None
    assert sizing.left[0].shape == SHAPES[0]
    assert (sizing.left[0].least or 0) > 4
    assert judged.effort.simulations == 1
    assert sizing.nearest[1] == 4
    assert sizing.nearest[2].load > 1


def test_users_at_once_need_no_rate() -> None:
    sizing = sized("tpot_mean<12ms", 48, SHAPES[:1], "concurrency", "gpus")
    assert 1 <= sizing.answer.gpus <= 8


def test_the_most_a_cluster_carries_meets_and_the_next_load_misses_and_a_stricter_objective_is_carried_no_further() -> None:
    amounts = []
    for slo in ("ttft_p95<60ms", "ttft_p95<120ms"):
        found = max_rates(BASE, SHAPES[:1], trials(slo, 1.0), 1)[0]
        assert found.trial.met
        assert not found.beyond.met
        assert found.beyond.amount == pytest.approx(found.trial.amount * 1.02, rel=0.01)
        amounts.append(found.trial.amount)
    assert amounts == sorted(amounts)


def test_what_several_seeds_say_that_is_carried_lies_in_the_bands_of_all() -> None:
    """Just beyond capacity a queue grows so slowly that a few hundred requests hardly wait."""
    bands = []
    for seed in range(2):
        judged = trials("ttft_p95<1s", 1.0, requests=100, lengths=("2000", "100"), seed=seed)
        found = max_rates(BASE, SHAPES[:1], judged, 1)[0]
        assert found.trial.counted >= 800
        assert found.between[0] < found.trial.amount < found.between[1]
        bands.append(found.between)
    assert max(low for low, _ in bands) <= min(high for _, high in bands)


def test_overload_without_a_limit_on_waiting_is_no_answer() -> None:
    """Every request is answered in the end, at a fair pace: but more and more of them wait."""
    few = trials("tpot_p99<10s", 25.0, requests=400, lengths=("2000", "100"))
    config = SHAPES[0].config(BASE, 1)
    carried = few.bounds(config).most_requests_per_s(Lengths(2000, 2000, 100))
    assert "load is not sustained" in few.run(config, 1.5 * carried).reason


def test_bounds_are_never_beaten() -> None:
    for shape in SHAPES:
        config = shape.config(BASE, 1)
        bounds = Bounds(config)
        trial = trials("ttft_p99<100s", 1.0, "concurrency").run(config, 1)
        ttft_s, tpot_s = bounds.ttft_s(1000, 1000), bounds.tpot_s(1000)
        assert ttft_s * 1e3 <= trial.figures["ttft_ms"]["p50"] <= 1.2 * ttft_s * 1e3
        assert tpot_s * 1e3 <= trial.figures["tpot_ms"]["p50"] <= 1.2 * tpot_s * 1e3


def test_shapes_are_those_that_fit() -> None:
    possible, refused = shapes(ClusterConfig(model="meta-llama/Llama-3.1-70B"), ["h100_sxm"], weights=["bf16"])
    assert [shape.tp for shape in possible] == [2, 4, 8]
    assert [one.shape.tp for one in refused] == [1]
    assert "does not fit" in refused[0].reason
    experts, _ = shapes(ClusterConfig(model="deepseek-ai/DeepSeek-R1"), ["b200_sxm"], weights=["auto"])
    assert {shape.split for shape in experts} >= {"TP8", "TP8 EP8", "TP1 DP8 EP8"}
    deep, _ = shapes(ClusterConfig(model="deepseek-ai/DeepSeek-R1"), ["h100_sxm"], weights=["auto"])
    assert [shape.split for shape in deep] == ["TP8 PP2", "TP8 PP2 EP8", "TP1 PP2 DP8 EP8"]


def test_pipelines_are_tried_where_no_instance_of_one_node_has_room_for_a_request() -> None:
    of = (ClusterConfig(model="moonshotai/Kimi-K2-Instruct"), ["h200_sxm"])
    short, _ = shapes(*of)
    assert "TP8" in [shape.split for shape in short]
    long, refused = shapes(*of, longest=120_000)
    assert long
    assert all(shape.pp > 1 for shape in long)
    assert refused[0].shape.split == "TP8"  # the nearest leads
    assert "a request of 120,000 tokens can never finish: max_model_len is" in refused[0].reason
    assert shapes(*of, longest=200_000)[0] == []  # the model's window


@pytest.mark.parametrize(
    ("model", "given", "splits"),
    [
        ("meta-llama/Llama-3.1-70B", {"pps": [1]}, ["TP2", "TP4", "TP8"]),
        ("meta-llama/Llama-3.1-70B", {"pps": [2]}, ["TP1 PP2", "TP2 PP2", "TP4 PP2", "TP8 PP2"]),
        ("meta-llama/Llama-3.1-70B", {"tps": [1]}, ["TP1 PP2"]),
        ("Qwen/Qwen3-30B-A3B", {"eps": [4]}, ["TP4 EP4", "TP1 DP4 EP4", "TP8 EP4", "TP1 DP8 EP4"]),
        ("Qwen/Qwen3-30B-A3B", {"eps": [16]}, ["TP1 DP16 EP16"]),
        ("Qwen/Qwen3-30B-A3B", {"tps": [4], "dps": [1]}, ["TP4", "TP4 EP4"]),
        ("Qwen/Qwen3-30B-A3B", {"dps": [8]}, ["TP1 DP8", "TP1 DP8 EP8"]),
    ],
)
def test_sizes_that_are_not_given_are_searched(model: str, given: dict[str, list[int]], splits: list[str]) -> None:
    possible, _ = shapes(ClusterConfig(model=model), ["h100_sxm"], **given)
    assert [shape.split for shape in possible] == splits


def test_unknown_gpus_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        shapes(BASE, ["h1000", "b2000"])
    assert len(caught.value.problems) == 2


def test_conversations_are_measured_once_as_many_end_as_begin() -> None:
    """Three instances carry the first minute of 10 turns/s, while conversations are young; in the long run they do not."""
    slo = "ttft_p99<500ms, tpot_mean<20ms"
    talks: dict[str, Any] = {"requests": 300, "lengths": ("2000", "500"), "turns": ("6", "20")}
    few = trials(slo, 10.0, **talks).run(SHAPES[0].config(BASE, 3), 10.0)
    assert not few.met
    light = trials(slo, 3.0, **talks).run(SHAPES[0].config(BASE, 3), 3.0)
    assert light.met
    assert light.figures["offered_per_s"] == 3.0
    assert light.figures["delivered_per_s"] == pytest.approx(3.0, rel=light.figures["shortfall_allowed"])
    assert light.figures["cached_token_share"] > 0.6  # no waves, in which conversations lose what was cached


def test_four_instances_carry_about_four_times_as_many_conversations_as_one() -> None:
    judged = trials("ttft_p99<2s, tpot_mean<30ms", 1.0, requests=300, lengths=("8000", "20"), turns=("4", "10"))
    one = max_rates(BASE, SHAPES[:1], judged, 1)[0].trial
    four = SHAPES[0].config(BASE, 4)
    assert [judged.run(four, times * one.amount).met for times in (3, 8)] == [True, False]


def test_an_instance_at_a_tenth_of_its_most_is_not_unloaded() -> None:
    """One alone misses the objective there, and many together meet it."""
    judged = trials("tpot_p95<8ms", 6.0, requests=300, lengths=("2000", "500"))
    sizing = size(BASE, SHAPES[:1], judged, Terms(PRICES, "gpus", 64, 0))
    assert 4 <= sizing.answer.capacity.instances <= 9
    assert sizing.answer.capacity.fewest <= sizing.answer.capacity.instances <= sizing.answer.capacity.most


def test_what_a_few_lengths_say_of_all_is_no_more_than_a_bound() -> None:
    """Whatever the seed, a limit that a user alone meets is not ruled out by a sample of lengths."""
    for seed in range(24):
        source = synthetic_source("lognormal(p50=2000, p95=12000, max=60000)", "20", "1", "0", 0, seed)
        judged = Trials(Traffic(source, "request_rate", 1.0, RunOptions(seed=0)), parse_slo("ttft_p99<1s"), 300)
        bounds = judged.bounds(SHAPES[0].config(BASE, 1))
        everything = np.percentile([bounds.ttft_s(int(n), int(n)) or 0.0 for n in _sizes(source)], 99) * 1e3
        objectives = parse_slo(f"ttft_p99<{everything * 1.02:.3f}ms")
        assert not missed_unloaded(objectives, source.sizes, bounds)


def _sizes(source: RequestSource) -> Ints:
    return source.sizes.prompt


def test_a_trial_in_doubt_goes_on_with_a_shared_prefix_too() -> None:
    source = synthetic_source("1000", "20", "1", "0", 500, 0)
    assert not source.tokens_alone
    traffic = Traffic(source, "request_rate", 20.0, RunOptions(seed=0))
    value = Trials(traffic, parse_slo("ttft_p90<1s"), 60).run(BASE, 20.0).verdicts[0].value
    close = Trials(traffic, parse_slo(f"ttft_p90<{value * 1.01:.2f}ms"), 60).run(BASE, 20.0)
    assert close.counted > 60


def test_an_answer_for_conversations_is_the_least_that_a_longer_simulation_confirms() -> None:
    confirmed: list[int] = []

    class Ageing(Trials):
        """Three instances meet the objective at first, and five for long."""

        def run(self, config: ClusterConfig, amount: float, to_the_end: bool = False) -> Trial:
            return self._met(config, config.instances >= 3)

        def run_long(self, config: ClusterConfig, amount: float) -> Trial:
            confirmed.append(config.instances)
            return self._met(config, config.instances >= 5)

        def _met(self, config: ClusterConfig, met: bool) -> Trial:
            value = 400.0 if met else 600.0
            verdict = Verdict(self.objectives[0], value)
            return Trial(
                config, "request_rate", 1.0, (verdict,), None, 900, 900, {"users": 1.0}, (Interval(value, value),), None
            )

    given = trials("ttft_p99<500ms", 1.0, requests=300, lengths=("2000", "500"), turns=("6", "20"))
    found = size(BASE, SHAPES[:1], Ageing(given.traffic, given.objectives), Terms(PRICES, "gpus", 100, 0))
    assert found.answer.capacity.instances == 5
    assert confirmed == [3, 4, 5]
