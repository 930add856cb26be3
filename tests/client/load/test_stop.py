"""Caps, durations, cancelling: what still goes out, what is counted, when it is over."""

import asyncio
from typing import Any

import pytest

from llmirage_client.load.runner import Runner
from llmirage_client.measure.record import BranchStats
from llmirage_client.workload.session import Session


def forked(bench: Any) -> Any:
    root = Session("r", (bench.turn("r0", branches=(bench.spawn("a", "b", join_at=1),)), bench.turn("r1")))
    return bench.workload(root, bench.talk("a", 1, 1), bench.talk("b", 1, 1))


@pytest.mark.parametrize(
    ("cap", "stats"),
    [
        (1, BranchStats(children_truncated=2, joins_suppressed=1)),
        (2, BranchStats(children_spawned=1, children_truncated=2, parents_suspended=1, joins_suppressed=1)),
        (3, BranchStats(children_spawned=2, children_truncated=2, parents_suspended=1, joins_suppressed=1)),
        (4, BranchStats(2, 1, 0, 1, 1, 0, 0, 1)),
        (5, BranchStats(2, 2, 0, 0, 1, 0, 0, 1)),
        (6, BranchStats(2, 2, 0, 0, 1, 1, 0, 0)),
        (7, BranchStats(2, 2, 0, 0, 1, 1, 0, 0)),
    ],
)
def test_the_request_cap_is_literal_and_what_it_cut_is_counted(bench: Any, cap: int, stats: BranchStats) -> None:
    result, target = bench.run(forked(bench), request_count=cap, num_conversations=1)
    assert len(target.sent) == min(cap, 6)
    assert result.branch_stats == stats
    assert not result.cancelled


def test_a_cap_alone_repeats_the_file_and_cuts_the_last_conversation(bench: Any) -> None:
    _, target = bench.run(bench.workload(bench.talk("a", 1, 1), bench.talk("b", 1)), request_count=5)
    assert [label for label, _ in target.times()] == ["a0", "a1", "b0", "a0", "a1"]


def test_conversations_wrap_around_the_file(bench: Any) -> None:
    result, target = bench.run(bench.workload(bench.talk("a", 1), bench.talk("b", 1)), num_conversations=3)
    assert [label for label, _ in target.times()] == ["a0", "b0", "a0"]
    assert len({record.correlation_id for record in result.records}) == 3
    assert [entry["session_id"] for entry in result.inputs] == ["a", "b", "a#2"]


def test_the_cap_ends_a_run_whose_conversations_are_waiting(bench: Any) -> None:
    slow = Session("slow", (bench.turn("s0"), bench.turn("s1", delay_s=1000.0)))
    result, _ = bench.run(bench.workload(slow, bench.talk("b", 1, 1)), concurrency=2, request_count=3)
    assert result.end_s == 2


def test_a_duration_sends_nothing_more_and_lets_replies_come(bench: Any) -> None:
    result, target = bench.run(bench.workload(bench.talk("a", 1)), benchmark_duration_s=2.5, benchmark_grace_period_s=9.0)
    assert target.times() == [("a0", 0), ("a0", 1), ("a0", 2)]
    assert result.end_s == 3
    assert all(record.ok for record in result.records)


def test_after_the_grace_period_what_is_in_flight_is_cancelled_and_recorded(bench: Any) -> None:
    flow = bench.workload(Session("a", (bench.turn("a0@100"), bench.turn("a1"))))
    result, _ = bench.run(flow, benchmark_duration_s=2.0, benchmark_grace_period_s=3.0)
    assert result.end_s == 5
    (record,) = result.records
    assert record.cancelled
    assert record.exchange.error is not None
    assert (record.exchange.start_s, record.exchange.end_s) == (0, 5)


def test_cancelling_ends_everything_at_once_and_keeps_every_record(bench: Any) -> None:
    async def interrupt(runner: Runner) -> None:
        await asyncio.sleep(2.25)
        runner.cancel("enough")

    root = Session("r", (bench.turn("r0", branches=(bench.fork("a", "b"),)),))
    a, b = bench.talk("a", *[1] * 5), Session("b", (bench.turn("b0", delay_s=50.0),))
    result, _ = bench.run(bench.workload(root, a, b, bench.talk("z", 1)), during=interrupt)
    assert result.end_s == 2.25
    assert (result.cancelled, result.cancel_reason) == (True, "enough")
    assert [(r.conversation_id, r.turn_index, r.ok) for r in result.records] == [
        ("r", 0, True),
        ("a", 0, True),
        ("a", 1, False),
    ]
    assert result.branch_stats == BranchStats(children_spawned=1, children_truncated=2)


def test_a_run_cancelled_while_it_warms_up_sends_no_more(bench: Any) -> None:
    async def interrupt(runner: Runner) -> None:
        await asyncio.sleep(0.5)
        runner.cancel("enough")

    result, target = bench.run(bench.workload(bench.talk("a", 1)), during=interrupt, warmup_request_count=3)
    assert len(target.sent) == 1
    assert [(record.phase, record.cancelled) for record in result.records] == [("warmup", True)]
