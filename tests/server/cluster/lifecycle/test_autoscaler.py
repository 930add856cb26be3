"""Autoscaling: the arithmetic by hand, what must always hold, and whole clusters with times computed by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest
from cluster_requests import request
from hypothesis import given
from hypothesis import strategies as st

from llmirage_server.cluster.cluster import Cluster, EngineLimits
from llmirage_server.cluster.instances.base import InstanceBase
from llmirage_server.cluster.instances.fixed import FixedInstance
from llmirage_server.cluster.lifecycle.autoscaler import Autoscaler, PoolLoad, ScalingRule
from llmirage_server.cluster.lifecycle.lifecycle import LifecycleEvent
from llmirage_server.cluster.lifecycle.pools import InstancePool
from llmirage_server.cluster.routers import make_router
from llmirage_server.config import ClusterConfig, ConfigError

LIMITS = EngineLimits(kv_tokens=1000)
IDLE = PoolLoad(0, 0, 0.0, 0.0)


def busy(waiting: int = 0, running: int = 0, kv: float = 0.0, rate: float = 0.0) -> PoolLoad:
    return PoolLoad(waiting, running, kv, rate)


def late(ttft_ms: float | None, ready: int) -> PoolLoad:
    return PoolLoad(0, 9, 0.0, 0.0, ready, ttft_ms)


@pytest.mark.parametrize(
    ("targets", "load", "current", "wanted"),
    [
        ({"queue": 4.0}, busy(waiting=9), 1, 3),
        ({"queue": 4.0}, busy(waiting=8), 1, 2),
        ({"concurrency": 10.0}, busy(waiting=5, running=21), 2, 3),
        ({"concurrency": 10.0}, busy(running=22), 2, 2),  # 2.2 is within 10 % of 2
        ({"kv": 0.5}, busy(kv=1.6), 2, 4),
        ({"rate": 2.0}, busy(rate=5.0), 1, 3),
        ({"rate": 2.0, "queue": 1.0}, busy(waiting=4, rate=5.0), 1, 4),  # the largest wish
        ({"queue": 0.1}, busy(waiting=50), 1, 6),  # never more than the most
        ({"queue": 4.0}, IDLE, 1, 1),  # never fewer than the least
        ({"ttft_ms": 500.0}, late(750.0, ready=3), 3, 5),
        ({"ttft_ms": 500.0}, late(750.0, ready=1), 4, 4),  # those that start may be enough
        ({"ttft_ms": 500.0}, late(540.0, ready=3), 3, 3),
        ({"ttft_ms": 500.0}, late(390.0, ready=3), 3, 2),
        ({"ttft_ms": 500.0}, late(None, ready=3), 3, 3),  # no request was observed
        ({"itl_ms": 20.0, "ttft_ms": 500.0}, PoolLoad(0, 9, 0.0, 0.0, 2, 100.0, 50.0), 2, 5),
        ({"itl_ms": 20.0}, IDLE, 5, 1),
    ],
)
def test_what_a_rule_wants(targets: dict[str, Any], load: PoolLoad, current: int, wanted: int) -> None:
    rule = ScalingRule(6, down_after_s=0, **targets)
    assert Autoscaler(rule).decide(0.0, load, current).desired == wanted


def test_nothing_goes_before_it_was_unwanted_for_the_whole_window() -> None:
    scaler = Autoscaler(ScalingRule(6, concurrency=1.0, down_after_s=60))
    assert scaler.decide(0, busy(running=4), 1).desired == 4
    assert scaler.decide(30, busy(running=2), 4).desired == 4
    assert scaler.decide(60, busy(running=1), 4).desired == 4  # at 0 s it were four
    assert scaler.decide(75, busy(running=1), 4).desired == 2  # at 30 s two
    assert scaler.decide(135, busy(running=1), 2).desired == 1


def test_nothing_comes_for_a_moment_only() -> None:
    scaler = Autoscaler(ScalingRule(6, concurrency=1.0, up_after_s=30, down_after_s=0))
    scaler.decide(0, busy(running=1), 1)
    assert scaler.decide(15, busy(running=5), 1).desired == 1
    assert scaler.decide(30, busy(running=4), 1).desired == 1
    assert scaler.decide(45, busy(running=5), 1).desired == 4


def test_zero_instances_come_back_for_any_request() -> None:
    scaler = Autoscaler(ScalingRule(6, least=0, kv=0.5, down_after_s=0))
    assert scaler.decide(0, IDLE, 1).desired == 0
    assert scaler.decide(15, busy(waiting=1), 0).desired == 1


@given(
    loads=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=40),
    least=st.integers(0, 3),
    more=st.integers(0, 8),
    down_after_s=st.sampled_from([0.0, 15.0, 40.0, 300.0]),
    target=st.sampled_from([0.5, 3.0, 20.0]),
)
def test_limits_and_calm(loads: list[tuple[int, int]], least: int, more: int, down_after_s: float, target: float) -> None:
    scaler = Autoscaler(ScalingRule(least + more, least, concurrency=target, down_after_s=down_after_s))
    current, raised_s = least, -math.inf
    for i, (waiting, running) in enumerate(loads):
        now = 15.0 * i
        wanted = scaler.decide(now, busy(waiting, running), current).desired
        assert least <= wanted <= least + more
        if wanted < current:
            assert now - raised_s > down_after_s or (down_after_s == 0 and now > raised_s)
        if wanted > current:
            raised_s = now
        current = wanted


@given(
    loads=st.lists(st.floats(0, 5000), min_size=2, max_size=9).map(sorted),
    current=st.integers(0, 8),
    ready=st.integers(0, 8),
    name=st.sampled_from(["ttft_ms", "itl_ms", "kv", "rate"]),
)
def test_a_larger_load_never_wants_fewer(loads: list[float], current: int, ready: int, name: str) -> None:
    target: dict[str, Any] = {name: 700.0}
    rule = ScalingRule(8, 0, down_after_s=0, **target)
    made = [PoolLoad(0, 1, **{"kv": 0.0, "rate": 0.0, name: one}, ready=min(ready, current)) for one in loads]
    wanted = [Autoscaler(rule).decide(0.0, load, current).desired for load in made]
    assert wanted == sorted(wanted)


@given(
    gaps_s=st.lists(st.floats(0, 3), min_size=1, max_size=60),
    budget=st.integers(2, 9),
    gpus=st.tuples(*[st.integers(1, 3)] * 2),
    advisory=st.booleans(),
    seconds=st.tuples(*[st.sampled_from([0.0, 0.5, 4.0])] * 2),
)
def test_a_budget_holds_and_advice_changes_nothing(
    gaps_s: list[float], budget: int, gpus: tuple[int, int], advisory: bool, seconds: tuple[float, float]
) -> None:
    """Two pools share it; one that drains still has its GPUs."""
    rule = ScalingRule(4, ttft_ms=300.0, concurrency=2.0, advisory=advisory, interval_s=1.0, start_up_s=seconds[0])
    rule = replace(rule, down_after_s=seconds[1])
    pools = [
        InstancePool(
            name, [FixedInstance(4 * i + j, 0.25, 0.1, LIMITS) for j in range(4)], make_router("round_robin"), scaling=rule,
            model=name, gpus=gpus[i],
        )
        for i, name in enumerate("ab")
    ]  # fmt: skip
    it = Cluster(pools=pools, max_gpu_budget=max(budget, sum(gpus)))
    asked, now = [], 0.0
    for number, gap_s in enumerate(gaps_s):
        now += gap_s
        asked.append(request(number, 30))
        asked[-1].model = "ab"[number % 2]
        it.submit(asked[-1], now)
        held = [gpus[place // 4] for place, phase in enumerate(it.phases()) if phase != "down"]
        assert sum(held) <= it.scaling.max_gpu_budget
        assert not advisory or sum(held) == sum(gpus)
    it.advance(math.inf)
    assert all(one.produced == 30 for one in asked)
    for decided in it.scaling.log:
        assert 1 <= decided.desired <= max(decided.current, it.scaling.max_gpu_budget)
        assert (set(decided.observed), set(decided.targets)) == ({"ttft_ms", "concurrency"},) * 2


def test_what_waits_longer_than_the_target_is_observed() -> None:
    """At 1 s the first request has had its first token after 0.6 s, and the second has waited 0.5 s."""
    rule = ScalingRule(2, ttft_ms=400.0, itl_ms=90.0, interval_s=1.0, percentile=50.0)
    it = Cluster(
        pools=[
            InstancePool(
                "default", [FixedInstance(i, 0.6, 0.1, LIMITS) for i in range(2)], make_router("round_robin"), scaling=rule
            )
        ]
    )
    it.submit(request(0, 3), 0.1)
    it.submit(request(1, 3), 0.5)
    it.submit(request(2, 3), 0.7)
    it.advance(2.0)
    first, second = [(decided.observed, decided.current, decided.desired) for decided in it.scaling.log]
    assert first == ({"ttft_ms": pytest.approx(500.0), "itl_ms": pytest.approx(100.0)}, 1, 2)
    assert second[:2] == ({"ttft_ms": pytest.approx(600.0), "itl_ms": pytest.approx(100.0)}, 2)


def cluster(rule: ScalingRule, *events: LifecycleEvent) -> Cluster:
    """Instances that answer in 1 s and 4 x 0.25 s, whatever the load."""
    made: list[InstanceBase] = [FixedInstance(i, 1.0, 0.25, LIMITS) for i in range(rule.most)]
    return Cluster(pools=[InstancePool("default", made, make_router("round_robin"), scaling=rule)], events=events)


def test_an_instance_starts_up_and_drains() -> None:
    rule = ScalingRule(2, concurrency=1.0, interval_s=2, start_up_s=3, down_after_s=4)
    it = cluster(rule)
    long = [request(0, 41), request(1, 41)]  # 1 + 40 x 0.25 s
    for one in long:
        it.submit(one, 0.5)
    it.advance(2)  # two under way on one instance: the second begins to start
    assert it.phases() == ["up", "starting"]
    it.advance(4.9)
    assert it.phases() == ["up", "starting"]
    third = request(2, 41)
    it.submit(third, 5.5)  # after 2 + 3 s it is there
    assert (it.phases(), third.instance) == (["up", "up"], 1)
    it.advance(12)  # the first two are over at 11.5 s, the third at 16.5 s
    assert it.phases() == ["up", "up"]
    it.advance(15.9)  # at 12 and 14 s one instance was enough, but at 10 s it was two: nobody goes before 16 s
    assert it.phases() == ["up", "up"]
    it.advance(16.2)
    assert it.phases() == ["up", "draining"]
    last = request(3)
    it.submit(last, 16.3)
    assert last.instance == 0
    it.advance(30)
    assert it.phases() == ["up", "down"]
    assert all(len(one.output) == one.produced for one in (*long, third, last))
    assert it.paid_s(30.0) == [pytest.approx(30.0), pytest.approx(16.5 - 2.0)]


def test_who_is_not_there_yet_is_called_off() -> None:
    rule = ScalingRule(2, concurrency=1.0, interval_s=1, start_up_s=100, down_after_s=0)
    it = cluster(rule)
    for number in range(2):
        it.submit(request(number), 0.0)
    it.advance(1.0)
    assert it.phases() == ["up", "starting"]
    it.submit(request(2), 3.5)  # at 3 s nobody was there
    assert it.phases() == ["up", "down"]
    assert it.paid_s(3.5) == [3.5, pytest.approx(1.0)]  # from 1 s to 2 s: they end at 2 s


def test_requests_wait_for_a_pool_of_zero() -> None:
    rule = ScalingRule(1, least=0, queue=1.0, interval_s=5, start_up_s=2, down_after_s=5)
    it = cluster(rule)
    one = request(0)
    it.submit(one, 1.0)
    assert not one.failed
    it.advance(math.inf)
    assert one.first_token_s == pytest.approx(5 + 2 + 1)
    assert one.finished_s == pytest.approx(9)


def test_a_crashed_instance_is_replaced() -> None:
    rule = ScalingRule(2, least=2, queue=1.0, interval_s=10, start_up_s=5)
    it = cluster(rule, LifecycleEvent(12, 0, "crash"))
    it.submit(request(0, 200), 0.0)
    it.advance(13)
    assert it.phases() == ["down", "up"]
    it.advance(21)
    assert it.phases() == ["starting", "up"]
    it.advance(26)
    assert it.phases() == ["up", "up"]
    assert it.paid_s(26.0) == [pytest.approx(12 + 6), pytest.approx(26)]


@given(
    gaps=st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.7, 3.0, 20.0]), st.integers(1, 40)), min_size=1, max_size=40),
    least=st.integers(0, 2),
    interval_s=st.sampled_from([0.5, 2.0, 7.0]),
    start_up_s=st.sampled_from([0.0, 1.0, 10.0]),
    down_after_s=st.sampled_from([0.0, 4.0]),
    looks=st.sampled_from([0.05, 0.9, 1000.0]),
)
def test_no_request_is_lost_and_looking_changes_nothing(
    gaps: list[tuple[float, int]], least: int, interval_s: float, start_up_s: float, down_after_s: float, looks: float
) -> None:
    rule = ScalingRule(4, least, concurrency=2.0, interval_s=interval_s, start_up_s=start_up_s, down_after_s=down_after_s)
    found = []
    for every_s in (math.inf, looks):
        it, due_s, all_of_them = cluster(rule), 0.0, []
        for number, (gap, output) in enumerate(gaps):
            for look in range(1, int(gap / every_s) + 1):
                it.advance(due_s + look * every_s)
                assert sum(phase in ("up", "starting") for phase in it.phases()) >= least
                assert len(it.snapshot()) == 4
            due_s += gap
            one = request(number, output)
            it.submit(one, due_s)
            all_of_them.append(one)
        it.advance(math.inf)
        assert all(not one.failed and one.produced == len(one.output) for one in all_of_them)
        found.append([one.instance for one in all_of_them])
    assert found[0] == found[1]


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(ConfigError, match="min_instances 5 is more than instances, the most there can be: 4"):
        ClusterConfig(instances=4, min_instances=5, scale_on_queue=2.0)
    with pytest.raises(ConfigError, match="initial_instances must be from 2 to 4, not 1"):
        ClusterConfig(instances=4, min_instances=2, initial_instances=1, scale_on_queue=2.0)
    with pytest.raises(ConfigError, match="scale_on_kv must be above 0 and at most 1, not 2"):
        ClusterConfig(scale_on_kv=2.0)
    with pytest.raises(ValueError, match="a rule needs a target"):
        ScalingRule(2)
