"""When conversations start: slots, rates, schedules, speeds, warm-up; exact in virtual time."""

import itertools
from typing import Any

import pytest

from llmirage_client.workload.session import Session

EVEN: dict[str, Any] = {"request_rate_per_s": 1.0, "arrival_pattern": "constant"}
WARM_UP = {"warmup_num_conversations": 2, "num_conversations": 2}
# For each load: the times of the replies of each conversation, its options, and when each request goes out.
LOADS: dict[str, tuple[dict[str, tuple[float, ...]], dict[str, Any], dict[str, float]]] = {
    "each root runs once, one after the other": ({"a": (1,), "b": (1,)}, {}, {"a0": 0, "b0": 1}),
    "so many roots run at a time": (dict.fromkeys("abcde", (1,)), {"concurrency": 2},
        {"a0": 0, "b0": 0, "c0": 1, "d0": 1, "e0": 2}),
    "a ramp opens slot after slot": (dict.fromkeys("abcdef", (100,)), {"concurrency": 5, "concurrency_ramp_s": 8.0},
        {"a0": 0, "b0": 2, "c0": 4, "d0": 6, "e0": 8, "f0": 100}),
    "slots that come free during a ramp are used at once": (dict.fromkeys("abcd", (3,)),
        {"concurrency": 2, "concurrency_ramp_s": 4.0}, {"a0": 0, "b0": 3, "c0": 4, "d0": 6}),
    "speed divides ramps": (dict.fromkeys("abc", (100,)), {"concurrency": 3, "concurrency_ramp_s": 8.0, "speed": 4.0},
        {"a0": 0, "b0": 1, "c0": 2}),
    "a constant rate is exact however slow the replies": (dict.fromkeys("abcde", (100,)), EVEN | {"request_rate_per_s": 4.0},
        {"a0": 0, "b0": 0.25, "c0": 0.5, "d0": 0.75, "e0": 1}),
    "a rate grows over its ramp": (dict.fromkeys("abcdef", (100,)),
        EVEN | {"request_rate_per_s": 2.0, "request_rate_ramp_s": 4.0},
        {"a0": 0, "b0": 2, "c0": 8**0.5, "d0": 12**0.5, "e0": 4, "f0": 4.5}),
    "at a rate further turns go before new conversations": ({"a": (0.5, 0.5), "b": (1,), "c": (1,)}, EVEN,
        {"a0": 0, "a1": 1, "b0": 2, "c0": 3}),
    "at a rate ticks go on for the turns that are left": (dict.fromkeys("abc", (0.1,) * 3), EVEN | {"soft_duration_s": 3.5},
        {"a0": 0, "a1": 1, "a2": 2, "b0": 3, "b1": 4, "b2": 5}),
    "a rate held back by slots does not burst afterwards": (dict.fromkeys("abc", (10,)), EVEN | {"concurrency": 1},
        {"a0": 0, "b0": 10, "c0": 20}),
    "ticks missed while slots were taken are not made up for": ({"a": (10,), "b": (10,), "c": (1,), "d": (1,), "e": (1,)},
        EVEN | {"concurrency": 2}, {"a0": 0, "b0": 1, "c0": 10, "d0": 11, "e0": 12}),
    "the next user takes the seat on time": ({"a": (100, 100), "b": (1, 1)},
        {"user_rate_per_s": 0.5, "num_users": 1, "num_conversations": 2}, {"a0": 0, "b0": 4, "b1": 6, "a1": 100}),
    "a warm-up has the load of the run": (dict.fromkeys("abcd", (1,)), WARM_UP | {"concurrency": 2},
        {"a0": 0, "b0": 0, "c0": 1, "d0": 1}),
    "a warm-up may have slots of its own": (dict.fromkeys("abcd", (1,)),
        WARM_UP | {"concurrency": 1, "warmup_concurrency": 2}, {"a0": 0, "b0": 0, "c0": 1, "d0": 2}),
    "a warm-up may have a rate of its own": (dict.fromkeys("abcd", (1,)),
        WARM_UP | {"concurrency": 2, "warmup_request_rate_per_s": 2.0, "warmup_arrival_pattern": "constant"},
        {"a0": 0, "b0": 0.5, "c0": 1.5, "d0": 1.5}),
}  # fmt: skip


@pytest.mark.parametrize(("replies_s", "options", "times"), LOADS.values(), ids=LOADS)
def test_requests_go_out_when(bench: Any, replies_s: Any, options: dict[str, Any], times: dict[str, float]) -> None:
    flow = bench.workload(*(bench.talk(name, *each) for name, each in replies_s.items()))
    _, target = bench.run(flow, **options)
    assert [name for name, _ in target.times()] == list(times)
    assert [time_s for _, time_s in target.times()] == pytest.approx(list(times.values()))


def test_slots_bound_roots_and_are_taken_until_the_whole_tree_is_done(bench: Any) -> None:
    root = Session("r", (bench.turn("r0", branches=(bench.fork("k"),)),))
    kid = Session("k", (bench.turn("k0", branches=(bench.spawn("g"),)),))
    sessions = (root, kid, Session("g", (bench.turn("g0@3"),)), bench.talk("z", 1))
    _, target = bench.run(bench.workload(*sessions), concurrency=1)
    assert target.times() == [("r0", 0), ("k0", 1), ("g0", 2), ("z0", 5)]


def test_children_come_on_top_of_the_slots(bench: Any) -> None:
    root = Session("r", (bench.turn("r0", branches=(bench.fork(*"abcdef"),)),))
    _, target = bench.run(bench.workload(root, *(bench.talk(name, 1) for name in "abcdef")), concurrency=1)
    assert [start for _, start in target.times()] == [0] + [1] * 6


def test_at_a_rate_children_start_with_their_parents_reply(bench: Any) -> None:
    root = Session("r", (bench.turn("r0", branches=(bench.fork("k"),)),))
    kid = Session("k", (bench.turn("k0"), bench.turn("k1")))
    _, target = bench.run(bench.workload(root, kid, bench.talk("z", 1)), request_rate_per_s=0.1, arrival_pattern="constant")
    assert target.times() == [("r0", 0), ("k0", 1), ("k1", 2), ("z0", 10)]


def test_poisson_arrivals_have_the_rate_and_repeat_by_seed(bench: Any) -> None:
    flow = bench.workload(bench.talk("a", 1))
    options = {"request_rate_per_s": 50.0, "num_conversations": 2000}
    _, first = bench.run(flow, **options)
    _, second = bench.run(flow, **options)
    starts = [start for _, start in first.times()]
    assert starts[-1] == pytest.approx(40.0, rel=0.1)
    assert len({round(b - a, 9) for a, b in itertools.pairwise(starts)}) > 1900
    assert first.times() == second.times()


def test_a_schedule_starts_roots_when_the_file_says(bench: Any) -> None:
    flow = bench.workload(bench.talk("b", 1, arrival_s=3.5), bench.talk("a", 1, arrival_s=0.125))
    _, target = bench.run(flow, fixed_schedule=True)
    assert target.times() == [("a0", 0.125), ("b0", 3.5)]


def test_a_schedule_held_back_by_slots_issues_when_due_and_starts_when_it_can(bench: Any) -> None:
    flow = bench.workload(bench.talk("a", 1, arrival_s=0.0), bench.talk("b", 1, arrival_s=0.25))
    result, target = bench.run(flow, fixed_schedule=True, concurrency=1)
    assert target.times() == [("a0", 0), ("b0", 1)]
    assert [record.issued_s for record in result.records] == [0, 0.25]


def test_speed_divides_arrivals_delays_rates_and_durations(bench: Any) -> None:
    session = Session("a", (bench.turn("a0@0"), bench.turn("a1@0", delay_s=8.0)), arrival_s=4.0)
    result, target = bench.run(bench.workload(session), fixed_schedule=True, speed=4.0)
    assert target.times() == [("a0", 1), ("a1", 3)]
    assert result.speed == 4.0
    endless = bench.workload(Session("b", (bench.turn("b0@0"),)))
    options = {"request_rate_per_s": 1.0, "arrival_pattern": "constant", "benchmark_duration_s": 10.0}
    result, target = bench.run(endless, speed=4.0, **options)
    assert [start for _, start in target.times()] == [0.25 * i for i in range(10)]


def test_warm_up_sends_turns_of_roots_only_and_is_marked(bench: Any) -> None:
    root = Session("r", (bench.turn("r0", branches=(bench.spawn("k", join_at=1),)), bench.turn("r1")))
    result, target = bench.run(bench.workload(root, bench.talk("k", 1)), warmup_request_count=3)
    assert [label for label, _ in target.times()] == ["r0", "r1", "r0", "r0", "k0", "r1"]
    assert [record.phase for record in result.records] == ["warmup"] * 3 + ["profiling"] * 3
    assert result.start_s == 3
    assert result.branch_stats.children_spawned == 1
