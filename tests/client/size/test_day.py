"""size --day: hourly rates, static and autoscaled deployments."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from invoked import json_of, refusal, text_of
from workload_files import write

from llmirage_client.simulator.deployments import InstanceShape
from llmirage_client.simulator.engine import ClusterConfig, ConfigError
from llmirage_client.size.day import CarriedLoads, cold_start_s, plan_day
from llmirage_client.size.day_file import Day, ScalingPolicy, SpotOffer, TenantDay, read_day
from llmirage_client.workload.rates import SHAPES
from llmirage_client.workload.registry import load
from llmirage_client.workload.session import Workload

TWO_GPUS = InstanceShape("h100_sxm", "vllm", "bf16", 2)
LOADS = CarriedLoads([(4, 40.0), (1, 8.0)])


def no_trace() -> Workload:
    raise AssertionError


def day_of(*rates: float, policy: ScalingPolicy | None = None, spot: SpotOffer | None = None) -> Day:
    return Day((TenantDay("all", "all", 0, rates),), "a test", policy=policy or ScalingPolicy(), spot=spot)


@pytest.mark.parametrize("name", SHAPES)
def test_a_named_shape_has_its_peak(name: str) -> None:
    rates = read_day(name.replace("-", "_"), 30.0, no_trace).rates
    assert len(rates) == 24
    assert max(rates) == pytest.approx(30)
    assert min(rates) > 0


def test_tenants_have_classes_and_priorities(tmp_path: Path) -> None:
    file = tmp_path / "day.yaml"
    file.write_text(
        "tenants:\n"
        "  - {name: chat, class: interactive, rates: [1, 2.5]}\n"
        "  - {name: nightly, class: batch, priority: 1, rates: [3, 0]}\n"
        "autoscaling: {policy: scheduled, headroom: 0}\n"
        "spot: {price: 0.5}\n"
    )
    day = read_day(str(file), None, no_trace)
    assert day.rates == [4, 2.5]
    assert [(one.service_class, one.priority) for one in day.tenants] == [("interactive", 0), ("batch", 1)]
    assert day.policy == ScalingPolicy("scheduled", headroom=0.0)
    assert day.spot == SpotOffer(0.5)


def test_tables_of_numbers_are_days(tmp_path: Path) -> None:
    table, mapping = tmp_path / "day.csv", tmp_path / "day.json"
    table.write_text("hour,chat,code\n0,1,2\n1,3,4\n")
    mapping.write_text('{"rates": [3, 7]}')
    assert read_day(str(table), None, no_trace).rates == read_day(str(mapping), None, no_trace).rates == [3, 7]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("rates: [1, -2]\n", "day.yaml:1: rates must be a list of numbers"),
        ("tenants:\n  - {name: a, rate: [1]}\n", "day.yaml:2: rate is unknown"),
        ("tenants:\n  - {name: a, rates: [1]}\n  - {name: b, rates: [1, 2]}\n", "the same hours"),
        ("rates: [1]\nautoscaling: {policy: magic}\n", "day.yaml:2: policy must be one of reactive, scheduled"),
        ("rates: [0, 0]\n", "no hour has a request"),
        ("hours: [1]\n", "hours is unknown"),
        ("rates: [1]\nspot: {price: cheap}\n", "day.yaml:2: price must be a number"),
        ("rates: [1]\nspot: {price: 40}\n", "day.yaml:2: price is a share of the on-demand price, 1 at most, not 40"),
    ],
)
def test_a_day_that_cannot_be_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "day.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_day(str(file), None, no_trace)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("hours", "problem"),
    [
        (["0", "1", "3"], "day.csv:4: hour 3 stands where 2 is due"),
        (["8", "9"], "day.csv:2: hour 8 stands where 1 is due"),
        (["0", "0"], "day.csv:3: hour 0 stands where 1 is due"),
        (["1", "2"], ""),
        (["00", "01"], ""),
        (["Monday 8:00", "Monday 9:00"], ""),
    ],
)
def test_rows_of_a_table_are_hours_one_after_the_other(tmp_path: Path, hours: list[str], problem: str) -> None:
    table = tmp_path / "day.csv"
    table.write_text("hour,chat\n" + "".join(f"{hour},5\n" for hour in hours))
    if not problem:
        assert read_day(str(table), None, no_trace).rates == [5] * len(hours)
        return
    with pytest.raises(ConfigError) as caught:
        read_day(str(table), None, no_trace)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("times_s", "rates", "said"),
    [
        ([0, 1, 3599, 3600, 9000], [3 / 3600, 1 / 3600, 1 / 1800], "The last hour of the trace has 30 min;"),
        ([*range(0, 901, 3)], [301 / 900], "The last hour of the trace has 15 min;"),
        ([*range(0, 3600, 2), 3601, 3602], [0.5], "The last 1 min of the trace are left out"),
        ([*range(0, 7000, 4), *[3000] * 300], [1200 / 3600, 850 / 3400], "The trace has 1.25 req/s for 5 min, and 0.333"),
        ([*range(0, 7000, 4)], [0.25, 850 / 3400], ""),
    ],
)
def test_a_trace_is_counted_by_hour(tmp_path: Path, times_s: list[int], rates: list[float], said: str) -> None:
    rows = [{"timestamp": at * 1000, "input_length": 100, "output_length": 5, "hash_ids": [0]} for at in sorted(times_s)]
    file = write(tmp_path, *rows)
    day = read_day(str(file), None, lambda: load(str(file)))
    assert day.trace is not None
    assert day.rates == pytest.approx(rates, rel=0.01)
    assert said in " ".join(day.notes)
    assert bool(said) == bool(day.notes)


def test_turns_that_count_at_once_are_no_burst(tmp_path: Path) -> None:
    """Half a conversation a minute, of 40 turns: two or three in some five minutes are 0.3 requests/s more than the mean."""
    calls = [{"input_toks": 100, "output_toks": 9, "tool_duration_ns": 0}] * 40
    starts_s = [*range(0, 7200, 120), 3001, 3002]
    rows = [{"session_id": f"{at}", "arrival_time_ns": at * 10**9, "sub_requests": calls} for at in sorted(starts_s)]
    file = write(tmp_path, *rows)
    assert read_day(str(file), None, lambda: load(str(file))).notes == ()


def test_hours_of_other_lengths_are_told(tmp_path: Path) -> None:
    rows = [{"arrival_time_ns": at * 10**10, "input_toks": 500 + 3500 * (at > 360), "output_toks": 9} for at in range(720)]
    file = write(tmp_path, *rows)
    (note,) = read_day(str(file), None, lambda: load(str(file))).notes
    assert "Hour 1 has prompt lengths of 3,990 tokens on average, the whole trace 2,245" in note


def test_more_instances_carry_as_much_each_as_fewer_were_seen_to() -> None:
    assert [LOADS.carried(count) for count in (0, 1, 2, 3, 4, 6)] == [0, 8, 16, 24, 40, 60]
    assert [LOADS.needed(rate) for rate in (0, 8, 9, 24, 25, 33, 40, 41)] == [1, 1, 2, 3, 4, 4, 4, 5]


def test_requests_wait_for_instances_that_start_and_for_their_backlog() -> None:
    """One instance of 8 req/s gets 24 for 90 s: a backlog of 1,440 requests, which 16 more a second take 90 s to clear."""
    day = day_of(8, 24)
    plan = plan_day(day, TWO_GPUS, LOADS, [1, 4], 7.0, 90.0)
    waits_s = 90 + (24 - 8) * 90 / (40 - 24)
    assert plan.hours[1].goodput == {"all": pytest.approx(1 - waits_s / 3600)}
    assert plan.hours[0].goodput == {"all": 1.0}
    assert plan.worst_hour == 1
    assert plan.goodput["all"] == pytest.approx((8 + 24 * (1 - waits_s / 3600)) / 32)
    hours = 1 + 3 * 300 / 3600 + 4  # three stay 5 minutes longer when they are not needed any more
    assert plan.gpu_hours == pytest.approx(2 * hours)
    assert plan.usd == pytest.approx(7 * hours)
    early = plan_day(day_of(8, 24, policy=ScalingPolicy("scheduled")), TWO_GPUS, LOADS, [1, 4], 7.0, 90.0)
    assert early.goodput == {"all": 1.0}
    assert early.gpu_hours == pytest.approx(2 * (hours + 3 * 90 / 3600))


def test_a_backlog_is_answered_faster_than_objectives_allow() -> None:
    """One instance answers 12 req/s and four 48, though they carry 8 and 40 within the objectives."""
    plan = plan_day(day_of(8, 40), TWO_GPUS, CarriedLoads([(4, 40.0), (1, 8.0)], 12.0), [1, 4], 7.0, 90.0)
    assert plan.hours[1].worst == pytest.approx(1 - (90 + (40 - 12) * 90 / (48 - 40)) / 3600)
    plan = plan_day(day_of(8, 10), TWO_GPUS, CarriedLoads([(4, 40.0), (1, 8.0)], 12.0), [1, 2], 7.0, 90.0)
    assert plan.hours[1].worst == pytest.approx(1 - 90 / 3600)


def test_what_is_left_goes_to_the_higher_priority() -> None:
    tenants = (TenantDay("chat", "interactive", 0, (4.0, 8.0)), TenantDay("night", "batch", 1, (4.0, 16.0)))
    plan = plan_day(Day(tenants, "a test"), TWO_GPUS, LOADS, [1, 4], None, 90.0)
    assert plan.hours[1].goodput == {"interactive": 1.0, "batch": pytest.approx(1 - 180 / 3600)}
    assert plan.usd is None


def test_interrupted_instances_are_missing_until_others_have_started() -> None:
    """Of two, each is away a tenth of the time; the load needs both."""
    spot = SpotOffer(0.25, interruptions_per_h=6.0, notice_s=30.0)
    plan = plan_day(day_of(16, spot=spot), TWO_GPUS, LOADS, [2], 8.0, 90.0)
    assert plan.goodput == {"all": pytest.approx(0.9**2)}
    assert plan.usd == pytest.approx(2 * 8 * 0.25)
    assert plan.interruptions == pytest.approx(12)
    spare = plan_day(day_of(8, spot=spot), TWO_GPUS, LOADS, [2], 8.0, 90.0)
    assert spare.goodput == {"all": pytest.approx(0.9**2 + 2 * 0.9 * 0.1)}


@given(st.lists(st.floats(0.5, 60), min_size=2, max_size=6), st.integers(1, 4), st.floats(0, 5), st.floats(0, 2000))
def test_more_instances_never_lower_goodput(rates: list[float], more: int, per_h: float, start_s: float) -> None:
    day = day_of(*rates, spot=SpotOffer(interruptions_per_h=per_h))
    counts = [LOADS.needed(rate) for rate in rates]
    few, many = (plan_day(day, TWO_GPUS, LOADS, [count + extra for count in counts], None, start_s) for extra in (0, more))
    for one, other in zip(few.hours, many.hours, strict=True):
        assert 0 <= one.worst <= other.worst + 1e-9
        assert other.worst <= 1 + 1e-9


def test_a_cold_start_reads_the_weights() -> None:
    config = ClusterConfig(model="meta-llama/Llama-3.1-8B", gpu="h100_sxm", engine="vllm", weights="bf16")
    assert cold_start_s(config, ScalingPolicy(start_s=10, disk_gb_per_s=2)) == pytest.approx(10 + 8.03 * 2 / 2, rel=0.01)


ARGS = ("size", "--model", "llama-3.1-8b", "--isl", "1000", "--osl", "40", "--requests", "60", "--tps", "1")
SLO = ("--slo", "ttft_p90<300ms")


def test_the_static_count_is_that_of_the_worst_hour(tmp_path: Path) -> None:
    file, page = tmp_path / "day.csv", tmp_path / "day.html"
    file.write_text("hour,chat\n0,10\n1,60\n2,120\n3,0\n")
    found, one = json_of(*ARGS, *SLO, "--day", file, "--html", page), json_of(*ARGS, *SLO, "--request-rate", "120")
    static, autoscaled, answer, hours = found["static"], found["autoscaled"], one["answer"], found["hours"]
    assert static["instances"] == [answer["instances"]] * 4
    assert static["gpu_hours"] == 4 * answer["gpus"]
    assert autoscaled["gpu_hours"] < static["gpu_hours"]
    assert autoscaled["instances"] == [hour["instances"] for hour in hours]
    assert autoscaled["instances"][0] < autoscaled["instances"][2] <= answer["instances"]
    assert autoscaled["instances"][3] == 1
    for hour in hours[:3]:
        assert hour["objectives"]["ttft_p90<300ms"] < 300
    text = page.read_text()
    assert text.count("<figure>") == 4
    assert "Requests within the objectives" in text


def test_priorities_need_a_scheduler_that_knows_them(tmp_path: Path) -> None:
    file = tmp_path / "day.yaml"
    file.write_text(
        "tenants:\n  - {name: chat, rates: [10, 12]}\n  - {name: night, priority: 1, rates: [5, 100]}\n"
        "autoscaling: {headroom: 0}\n"
    )
    plain, by_priority = (
        json_of(*ARGS, *SLO, "--day", file),
        json_of(*ARGS, *SLO, "--day", file, "--set", "schedule_policy=priority"),
    )
    for found, alike in ((plain, True), (by_priority, False)):
        hours, notes = found["hours"], found["notes"]
        goodput = hours[1]["goodput"]
        assert goodput["night"] < 1
        assert (goodput["chat"] == goodput["night"]) is alike
        assert any("Priorities have no effect" in note for note in notes) is alike


def test_a_day_without_an_answer_says_so() -> None:
    said = text_of(*ARGS, "--slo", "ttft_p90<1ms", "--day", "office-hours", "--request-rate", "5", status=1)
    assert "No deployment meets the objectives in the highest hour." in said


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (("--day", "office-hours"), "needs --request-rate"),
        (("--day", "nowhere.csv"), "must be a file, or one of office-hours"),
        (("--day", "office-hours", "--concurrency", "5"), "--day is of rates"),
        (("--day", "office-hours", "--max-rate"), "--max-rate finds the rate"),
        (("--day", "bundled:dag-example"), "its requests have no times"),
    ],
)
def test_days_that_make_no_sense_are_refused(more: tuple[str, ...], problem: str) -> None:
    assert problem in refusal(*ARGS, *SLO, *more)


def test_loads_beyond_the_judged_ones_need_as_many_more() -> None:
    assert LOADS.needed(400) == 40
    assert math.isclose(LOADS.carried(40), 400)


@given(st.integers(1, 500), st.floats(0.01, 5000))
def test_a_judged_number_of_instances_carries_its_rate_exactly(count: int, rate: float) -> None:
    loads = CarriedLoads([(count, rate)])
    assert (loads.carried(count), loads.needed(rate)) == (rate, count)
