"""Ramps, series, windows of a schedule, users at a pace, soft ends, sampling and cancellation; exact in virtual time."""

import itertools
import statistics
from collections import Counter
from typing import Any

import pytest

from llmirage_client.load.arrivals import first_users
from llmirage_client.load.options import RunOptions
from llmirage_client.load.plan import long_schedule
from llmirage_client.measure.record import CANCELLED, BranchStats
from llmirage_client.workload.rates import RateSeries
from llmirage_client.workload.schedule import scheduled
from llmirage_client.workload.session import Session


def starts(target: Any) -> list[float]:
    return [start for _, start in target.times()]


def test_a_series_of_rates_is_followed_and_its_end_at_zero_ends_the_run(bench: Any) -> None:
    series = RateSeries(((0.0, 1.0), (2.0, 1.0), (2.0, 4.0), (3.0, 4.0), (3.0, 0.0)))
    result, target = bench.run(
        bench.workload(bench.talk("a", 5)), request_rate_series=series, arrival_pattern="constant", request_count=100
    )
    assert starts(target) == pytest.approx([0, 1, 2, 2.25, 2.5, 2.75, 3.0])
    assert result.end_s == 8


def test_every_record_says_when_it_was_due(bench: Any) -> None:
    flow = bench.workload(bench.talk("a", 0.4, 0.4, delay_s=0.1), bench.talk("b", 1))
    result, _ = bench.run(flow, request_rate_per_s=1.0, arrival_pattern="constant")
    assert sorted((r.issued_s, r.exchange.start_s) for r in result.records) == [(0.1, 0.1), (1, 1), (2, 2)]


def test_think_times_may_be_drawn_instead_of_the_files(bench: Any) -> None:
    flow = bench.workload(*(bench.talk(name, *[0.0] * 40, delay_s=77.0) for name in "abcde"))
    options: dict[str, Any] = {"inter_turn_delay_mean_s": 10.0, "inter_turn_delay_std_s": 2.0, "concurrency": 5}
    result, target = bench.run(flow, **options)
    starts_of: dict[str, list[float]] = {}
    for record in result.records:
        starts_of.setdefault(record.conversation_id, []).append(record.exchange.start_s)
    assert {times[0] for times in starts_of.values()} == {77}  # a delay before the first turn is no think time
    gaps = [b - a for times in starts_of.values() for a, b in itertools.pairwise(times)]
    assert statistics.fmean(gaps) == pytest.approx(10.0, abs=0.5)
    assert statistics.pstdev(gaps) == pytest.approx(2.0, abs=0.3)
    assert bench.run(flow, **options)[1].times() == target.times()
    _, steady = bench.run(bench.workload(bench.talk("a", 1, 1, 1)), inter_turn_delay_mean_s=4.0)
    assert starts(steady) == [0, 5, 10]


class TestSchedule:
    def flow(self, bench: Any) -> Any:
        return bench.workload(
            *(bench.talk(name, 1, arrival_s=float(at)) for name, at in zip("abcd", (2, 4, 6, 8), strict=True))
        )

    @pytest.mark.parametrize(
        ("options", "times"),
        [
            ({"schedule_speedup": 2.0}, {"a0": 1, "b0": 2, "c0": 3, "d0": 4}),
            ({"schedule_start_s": 4.0, "schedule_end_s": 6.0}, {"b0": 0, "c0": 2}),
            ({"schedule_auto_offset": True}, {"a0": 0, "b0": 2, "c0": 4, "d0": 6}),
        ],
        ids=["speed-up", "window with both ends", "from the first"],
    )
    def test_arrivals_are_moved(self, bench: Any, options: dict[str, Any], times: dict[str, float]) -> None:
        _, target = bench.run(self.flow(bench), fixed_schedule=True, **options)
        assert target.times() == list(times.items())

    def test_a_time_counted_from_the_first_one_is_in_the_window_that_begins_with_it(self, bench: Any) -> None:
        sessions = [bench.talk(name, 1, arrival_s=at) for name, at in (("a", 0.1), ("b", 0.3), ("c", 0.8))]
        flow = scheduled("single_turn", "f", sessions)  # 0.3 - 0.1 is less than 0.2
        _, target = bench.run(flow, fixed_schedule=True, schedule_start_s=0.2, schedule_end_s=0.7)
        assert [text for text, _ in target.times()] == ["b0", "c0"]

    def test_one_that_lasts_for_days_is_told_with_what_shortens_it(self, bench: Any) -> None:
        turns = (bench.turn("a0"), bench.turn("a1", arrival_s=300_000.0), bench.turn("a2", arrival_s=600_000.0))
        flow = bench.workload(Session("a", turns, arrival_s=10.0))

        def told(flow: Any = flow, **options: Any) -> str | None:
            return long_schedule(flow, RunOptions(**{"fixed_schedule": True, **options}))

        assert told() == (
            "The schedule lasts 6.9 days, by the times of the file: --fixed-schedule-speedup 167 sends it in an hour, "
            "--fixed-schedule-end-offset 3600000 its first hour."
        )
        assert "lasts 3.5 days" in (told(schedule_speedup=2.0) or "")
        assert "lasts 3.5 days" in (told(schedule_end_s=400_000.0) or "")
        assert "--fixed-schedule-end-offset 3610000 " in (told(schedule_auto_offset=True) or "")
        for less in (
            {"schedule_speedup": 7.0},
            {"schedule_end_s": 80_000.0},
            {"benchmark_duration_s": 60.0},
            {"speed": 7.0},
        ):
            assert told(**less) is None
        assert told(fixed_schedule=False) is None
        two = bench.workload(*(bench.talk(name, 1, arrival_s=at) for name, at in (("b", 0.0), ("c", 600_000.0))))
        assert told(two) is not None
        assert told(two, request_count=1) is told(two, num_conversations=1) is None

    def test_turns_with_times_of_their_own_move_with_their_session(self, bench: Any) -> None:
        turns = tuple(bench.turn(f"a{i}", arrival_s=at) for i, at in enumerate((4.0, 8.0, 12.0)))
        flow = bench.workload(Session("a", turns, arrival_s=4.0))
        options = {"schedule_start_s": 2.0, "schedule_end_s": 10.0, "schedule_speedup": 2.0}
        _, target = bench.run(flow, fixed_schedule=True, **options)
        assert target.times() == [("a0", 1), ("a1", 3)]

    def test_think_times_keep_their_length(self, bench: Any) -> None:
        turns = (bench.turn("a0"), bench.turn("a1", delay_s=4.0))
        _, target = bench.run(bench.workload(Session("a", turns, arrival_s=4.0)), fixed_schedule=True, schedule_speedup=4.0)
        assert target.times() == [("a0", 1), ("a1", 6)]


class TestUsers:
    def test_the_first_users_are_of_all_ages(self) -> None:
        """Fifteen users of twenty turns, as AIPerf's documentation lists them: place in the order, turns left."""
        seats = dict(first_users(15, 19))
        assert seats == {
            0: None,
            1: 6,
            2: 11,
            3: 16,
            4: 2,
            5: 7,
            6: 12,
            7: 17,
            8: 3,
            9: 8,
            10: 13,
            11: 18,
            12: 4,
            13: 9,
            14: 14,
        }

    @pytest.mark.parametrize(("users", "turns"), [(1, 1), (2, 1), (4, 2), (6, 9), (10, 5), (7, 7), (50, 19)])
    def test_each_place_in_the_order_has_one_user(self, users: int, turns: int) -> None:
        assert sorted(place for place, _ in first_users(users, turns)) == list(range(users))

    def test_all_together_keep_the_rate_and_each_keeps_the_pace(self, bench: Any) -> None:
        flow = bench.workload(*(bench.talk(name, *[0.5] * 4) for name in "abcdefgh"))
        result, target = bench.run(flow, user_rate_per_s=2.0, num_users=3, benchmark_duration_s=30.0)
        assert starts(target) == pytest.approx([i / 2 for i in range(60)])
        by_conversation: dict[str, list[float]] = {}
        for record in result.records:
            by_conversation.setdefault(record.correlation_id, []).append(record.exchange.start_s)
        gaps = [b - a for times in by_conversation.values() for a, b in itertools.pairwise(times)]
        assert gaps == pytest.approx([1.5] * len(gaps))
        turns = Counter(len(times) for times in by_conversation.values())
        assert turns[4] >= 10  # whole ones, besides those who were there before and those the end cut off

    def test_a_slow_reply_moves_the_pace_and_nothing_is_caught_up(self, bench: Any) -> None:
        turns = (bench.turn("a0@1"), bench.turn("a1@7"), bench.turn("a2@1"), bench.turn("a3@1"))
        flow = bench.workload(Session("a", turns))
        result, target = bench.run(flow, user_rate_per_s=0.25, num_users=1, num_conversations=1)
        assert target.times() == [("a0", 0), ("a1", 4), ("a2", 11), ("a3", 15)]
        assert [record.issued_s for record in result.records] == [0, 4, 11, 15]

    def test_a_think_time_longer_than_the_pace_is_kept(self, bench: Any) -> None:
        turns = (bench.turn("a0"), bench.turn("a1", delay_s=9.0), bench.turn("a2", delay_s=1.0))
        _, target = bench.run(bench.workload(Session("a", turns)), user_rate_per_s=0.25, num_users=1, num_conversations=1)
        assert target.times() == [("a0", 0), ("a1", 10), ("a2", 14)]


class TestSoftEnd:
    def test_every_conversation_that_began_sends_all_its_turns(self, bench: Any) -> None:
        flow = bench.workload(bench.talk("a", *[1] * 4), bench.talk("b", *[1] * 4))
        result, target = bench.run(flow, soft_duration_s=5.0)
        assert target.times() == [*((f"a{i}", i) for i in range(4)), *((f"b{i}", 4 + i) for i in range(4))]
        assert not result.cancelled
        assert all(record.ok for record in result.records)

    def test_children_of_a_conversation_that_began_are_sent_too(self, bench: Any) -> None:
        root = Session("r", (bench.turn("r0@3", branches=(bench.spawn("k", join_at=1),)), bench.turn("r1")))
        result, target = bench.run(bench.workload(root, bench.talk("k", 1, 1)), soft_duration_s=1.0)
        assert [label for label, _ in target.times()] == ["r0", "k0", "k1", "r1"]
        assert result.branch_stats == BranchStats(
            children_spawned=1, children_completed=1, parents_suspended=1, parents_resumed=1
        )

    def test_a_slow_rate_does_not_hold_the_end_back(self, bench: Any) -> None:
        result, _ = bench.run(bench.workload(bench.talk("a", 1)), request_rate_per_s=0.01, soft_duration_s=5.0)
        assert result.end_s == 5

    def test_a_schedule_and_users_begin_nothing_afterwards(self, bench: Any) -> None:
        flow = bench.workload(bench.talk("a", 1, arrival_s=1.0), bench.talk("b", 1, arrival_s=50.0))
        result, target = bench.run(flow, fixed_schedule=True, soft_duration_s=5.0)
        assert (target.times(), result.end_s) == ([("a0", 1)], 5)
        result, target = bench.run(flow, user_rate_per_s=0.1, num_users=1, soft_duration_s=5.0)
        assert (target.times(), result.end_s) == ([("a0", 0)], 5)

    def test_a_hard_end_may_come_after_it(self, bench: Any) -> None:
        flow = bench.workload(bench.talk("a", *[1] * 9))
        result, target = bench.run(flow, soft_duration_s=2.0, benchmark_duration_s=4.5, benchmark_grace_period_s=0.25)
        assert starts(target) == [0, 1, 2, 3, 4]
        assert result.end_s == 4.75
        assert result.records[-1].cancelled


class TestSampling:
    def names(self, bench: Any, **options: Any) -> list[str]:
        flow = bench.workload(*(bench.talk(name, 1) for name in "abcdef"))
        _, target = bench.run(flow, **options)
        return [label[0] for label, _ in target.times()]

    def test_shuffle_gives_each_once_and_then_all_in_another_order(self, bench: Any) -> None:
        names = self.names(bench, sampling="shuffle", num_conversations=12)
        assert sorted(names[:6]) == sorted(names[6:]) == list("abcdef")
        assert names[:6] != names[6:]
        assert names[:6] != list("abcdef")
        assert names == self.names(bench, sampling="shuffle", num_conversations=12)
        assert names != self.names(bench, sampling="shuffle", num_conversations=12, seed=2)

    def test_random_draws_with_replacement(self, bench: Any) -> None:
        names = self.names(bench, sampling="random", num_conversations=300)
        assert set(names) == set("abcdef")
        assert len(set(names[:6])) < 6 or len(set(names[6:12])) < 6
        assert names == self.names(bench, sampling="random", num_conversations=300)

    @pytest.mark.parametrize("sampling", ["sequential", "shuffle", "random"])
    def test_a_run_that_begins_where_another_ended_has_the_rest_of_its_order(self, bench: Any, sampling: str) -> None:
        whole = self.names(bench, sampling=sampling, num_conversations=10)
        first = self.names(bench, sampling=sampling, num_conversations=4)
        rest = self.names(bench, sampling=sampling, num_conversations=6, first_root=4)
        assert first + rest == whole


class TestWarmUp:
    def test_the_measured_conversations_follow_after_those_of_the_warm_up(self, bench: Any) -> None:
        flow = bench.workload(*(bench.talk(name, 1) for name in "abcde"))
        result, target = bench.run(flow, warmup_num_conversations=2, num_conversations=3)
        assert [label for label, _ in target.times()] == ["a0", "b0", "c0", "d0", "e0"]
        assert [record.phase for record in result.records] == ["warmup"] * 2 + ["profiling"] * 3

    def test_it_may_end_by_time_and_waits_for_its_replies(self, bench: Any) -> None:
        flow = bench.workload(*(bench.talk(name, 2.0) for name in "abcd"))
        result, target = bench.run(flow, warmup_duration_s=3.0, num_conversations=1)
        assert target.times() == [("a0", 0), ("b0", 2), ("c0", 4)]
        assert [record.phase for record in result.records] == ["warmup", "warmup", "profiling"]
        result, _ = bench.run(flow, warmup_duration_s=3.0, warmup_grace_period_s=0.5, num_conversations=1)
        assert [(record.cancelled, record.exchange.end_s) for record in result.records] == [
            (False, 2),
            (True, 3.5),
            (False, 5.5),
        ]

    def test_conversations_that_come_again_after_it_are_told(self, bench: Any) -> None:
        flow = bench.workload(*(bench.talk(name, 1) for name in "abc"))
        result, _ = bench.run(flow, warmup_num_conversations=2, num_conversations=2)
        assert [note.partition(":")[0] for note in result.notes] == [
            "The workload has 3 conversations, and the warm-up ran 2 of them"
        ]
        result, _ = bench.run(flow, warmup_num_conversations=1, num_conversations=2)
        assert result.notes == []


class TestCancellation:
    def cancelled(self, bench: Any, **options: Any) -> list[tuple[str, int]]:
        flow = bench.workload(*(bench.talk(name, *[4.0] * 5) for name in "abcdefghij"))
        result, _ = bench.run(flow, cancellation_share=0.3, cancellation_delay_s=1.5, **options)
        assert len(result.records) == 50
        for record in result.records:
            took_s = record.exchange.end_s - record.exchange.start_s
            assert took_s == (1.5 if record.cancelled else 4.0)
            assert (record.exchange.error is not None) == record.cancelled
        given_up = [record for record in result.records if record.cancelled]
        assert {record.exchange.error.type for record in given_up} == {CANCELLED}
        return sorted((record.conversation_id, record.turn_index) for record in given_up)

    def test_a_share_of_the_requests_is_given_up_and_their_conversations_go_on(self, bench: Any) -> None:
        assert 8 <= len(self.cancelled(bench)) <= 22

    def test_which_ones_depends_on_the_seed_and_not_on_timing(self, bench: Any) -> None:
        alone = self.cancelled(bench, concurrency=1)
        assert alone == self.cancelled(bench, concurrency=5)
        assert alone != self.cancelled(bench, concurrency=1, seed=2)

    def test_a_reply_that_is_faster_is_kept(self, bench: Any) -> None:
        result, _ = bench.run(bench.workload(bench.talk("a", 1.0)), cancellation_share=1.0, cancellation_delay_s=1.5)
        assert [record.ok for record in result.records] == [True]

    def test_it_is_no_failure(self, bench: Any) -> None:
        root = Session("r", (bench.turn("r0@0", branches=(bench.fork("k"),)),))
        flow = bench.workload(root, bench.talk("k", 9.0, 9.0))
        result, target = bench.run(flow, cancellation_share=1.0, cancellation_delay_s=1.0, fail_fast=True)
        assert [label for label, _ in target.times()] == ["r0", "k0", "k1"]
        assert result.branch_stats.children_errored == 0
        assert not result.cancelled

    def test_a_cancelled_turn_leaves_its_messages_and_no_reply_in_the_history(self, bench: Any) -> None:
        flow = bench.workload(bench.talk("a", 9.0, 9.0))
        _, target = bench.run(flow, cancellation_share=1.0, cancellation_delay_s=1.0)
        assert target.histories() == {"a0": ["a0@9.0"], "a1": ["a0@9.0", "a1@9.0"]}


class TestFailFast:
    def test_the_first_failed_request_of_any_conversation_stops_the_run(self, bench: Any) -> None:
        sessions = (Session("a", (bench.turn("a0"), bench.turn("FAIL"), bench.turn("a2"))), bench.talk("b", 50.0))
        result, target = bench.run(bench.workload(*sessions), concurrency=2, fail_fast=True)
        assert [label for label, _ in target.times()] == ["a0", "b0", "FAIL"]
        assert (result.end_s, result.cancelled) == (2, True)
        assert "conversation 'a'" in result.cancel_reason

    def test_it_may_be_meant_for_children_alone(self, bench: Any) -> None:
        root = Session("r", (bench.turn("FAIL root"), bench.turn("r1", branches=(bench.fork("k"),))))
        kid = Session("k", (bench.turn("FAIL kid"), bench.turn("k1")))
        result, target = bench.run(bench.workload(root, kid), fail_fast_children=True)
        assert [label for label, _ in target.times()] == ["FAIL root", "r1", "FAIL kid"]
        assert result.cancelled


class TestRateNote:
    def test_a_rate_that_there_was_too_little_to_send_for_is_told(self, bench: Any) -> None:
        flow = bench.workload(*(bench.talk(name, *[1] * 5, delay_s=50.0) for name in "abcd"))
        result, _ = bench.run(flow, request_rate_per_s=10.0, arrival_pattern="constant")
        (note,) = result.notes
        assert note.startswith("10 turns a second were asked for, and 0.093 on average were there to send")

    def test_nothing_is_told_when_it_was_reached(self, bench: Any) -> None:
        flow = bench.workload(*(bench.talk(name, *[1] * 5, delay_s=2.0) for name in "abcd"))
        result, _ = bench.run(flow, request_rate_per_s=10.0, soft_duration_s=60.0)
        assert result.notes == []
