"""When conversations start: slots, rates, schedules, speeds, warm-up; exact in virtual time."""

import itertools
from typing import Any

import pytest

from llmirage_client.workload.session import Session


def single(bench: Any, name: str, **fields: Any) -> Session:
    return Session(name, (bench.turn(f"{name}0"),), **fields)


def test_each_root_runs_once_one_after_the_other(bench: Any) -> None:
    _, target = bench.run(bench.workload(single(bench, "a"), single(bench, "b"), single(bench, "c")))
    assert target.times() == [("a0", 0), ("b0", 1), ("c0", 2)]


def test_slots_bound_roots_and_are_taken_until_the_whole_tree_is_done(bench: Any) -> None:
    root = Session("r", (bench.turn("r0", branches=(bench.fork("k"),)),))
    kid = Session("k", (bench.turn("k0", branches=(bench.spawn("g"),)),))
    sessions = (root, kid, Session("g", (bench.turn("g0@3"),)), single(bench, "z"))
    _, target = bench.run(bench.workload(*sessions), concurrency=1)
    assert target.times() == [("r0", 0), ("k0", 1), ("g0", 2), ("z0", 5)]


def test_children_come_on_top_of_the_slots(bench: Any) -> None:
    root = Session("r", (bench.turn("r0", branches=(bench.fork(*"abcdef"),)),))
    _, target = bench.run(bench.workload(root, *(single(bench, name) for name in "abcdef")), concurrency=1)
    assert [start for _, start in target.times()] == [0] + [1] * 6


def test_concurrency_keeps_so_many_roots_running(bench: Any) -> None:
    _, target = bench.run(bench.workload(*(single(bench, name) for name in "abcde")), concurrency=2)
    assert [start for _, start in target.times()] == [0, 0, 1, 1, 2]


def test_a_constant_rate_is_exact_however_slow_the_replies(bench: Any) -> None:
    flow = bench.workload(*(Session(name, (bench.turn(f"{name}0@100"),)) for name in "abcde"))
    _, target = bench.run(flow, request_rate_per_s=4.0, arrival_pattern="constant")
    assert [start for _, start in target.times()] == [0, 0.25, 0.5, 0.75, 1.0]


def test_at_a_rate_further_turns_go_before_new_conversations(bench: Any) -> None:
    sessions = (Session("a", (bench.turn("a0@0.5"), bench.turn("a1@0.5"))), *(single(bench, name) for name in "bcd"))
    _, target = bench.run(bench.workload(*sessions), request_rate_per_s=1.0, arrival_pattern="constant")
    assert target.times() == [("a0", 0), ("a1", 1), ("b0", 2), ("c0", 3), ("d0", 4)]


def test_at_a_rate_children_start_with_their_parents_reply(bench: Any) -> None:
    root = Session("r", (bench.turn("r0", branches=(bench.fork("k"),)),))
    kid = Session("k", (bench.turn("k0"), bench.turn("k1")))
    _, target = bench.run(bench.workload(root, kid, single(bench, "z")), request_rate_per_s=0.1, arrival_pattern="constant")
    assert target.times() == [("r0", 0), ("k0", 1), ("k1", 2), ("z0", 10)]


def test_a_rate_held_back_by_slots_does_not_burst_afterwards(bench: Any) -> None:
    flow = bench.workload(*(Session(name, (bench.turn(f"{name}0@10"),)) for name in "abc"))
    _, target = bench.run(flow, request_rate_per_s=1.0, arrival_pattern="constant", concurrency=1)
    assert [start for _, start in target.times()] == [0, 10, 20]


def test_ticks_missed_while_slots_were_taken_are_not_made_up_for(bench: Any) -> None:
    slow = [Session(name, (bench.turn(f"{name}0@10"),)) for name in "ab"]
    flow = bench.workload(*slow, *(single(bench, name) for name in "cde"))
    _, target = bench.run(flow, request_rate_per_s=1.0, arrival_pattern="constant", concurrency=2)
    assert target.times() == [("a0", 0), ("b0", 1), ("c0", 10), ("d0", 11), ("e0", 12)]


def test_poisson_arrivals_have_the_rate_and_repeat_by_seed(bench: Any) -> None:
    flow = bench.workload(single(bench, "a"))
    options = {"request_rate_per_s": 50.0, "num_conversations": 2000}
    _, first = bench.run(flow, **options)
    _, second = bench.run(flow, **options)
    starts = [start for _, start in first.times()]
    assert starts[-1] == pytest.approx(40.0, rel=0.1)
    assert len({round(b - a, 9) for a, b in itertools.pairwise(starts)}) > 1900
    assert first.times() == second.times()


def test_a_schedule_starts_roots_when_the_file_says(bench: Any) -> None:
    flow = bench.workload(single(bench, "b", arrival_s=3.5), single(bench, "a", arrival_s=0.125))
    _, target = bench.run(flow, fixed_schedule=True)
    assert target.times() == [("a0", 0.125), ("b0", 3.5)]


def test_a_schedule_held_back_by_slots_issues_when_due_and_starts_when_it_can(bench: Any) -> None:
    flow = bench.workload(single(bench, "a", arrival_s=0.0), single(bench, "b", arrival_s=0.25))
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
    result, target = bench.run(bench.workload(root, single(bench, "k")), warmup_request_count=3)
    assert [label for label, _ in target.times()] == ["r0", "r1", "r0", "r0", "k0", "r1"]
    assert [record.phase for record in result.records] == ["warmup"] * 3 + ["profiling"] * 3
    assert result.start_s == 3
    assert result.branch_stats.children_spawned == 1
