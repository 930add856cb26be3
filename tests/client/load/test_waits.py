"""Turns that wait for requests of other sessions of their tree, and children of a dispatch. Replies take 1 s."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from llmirage_client.workload.request_graph import (
    GraphError,
    Need,
    RecordedRequest,
    finished_before,
    plays_of,
    sessions_of_play,
)
from llmirage_client.workload.session import After, Branch, Session, Turn


def requests_of(bench: Any, *rows: tuple[str, str, float, Sequence[Need]]) -> list[RecordedRequest]:
    return [RecordedRequest(name, stream, bench.turn(name), start_s, tuple(needs)) for name, stream, start_s, needs in rows]


def started(*children: str) -> Branch:
    return Branch("b", "spawn", children, at="dispatch")


def test_a_child_starts_when_its_parents_request_goes_out(bench: Any) -> None:
    root = Session("r", (bench.turn("r0@5", branches=(started("k"),)), bench.turn("r1")))
    child = Session("k", (replace(bench.turn("k0"), delay_s=2.0), bench.turn("k1")))
    _, target = bench.run(bench.workload(root, child))
    assert target.times() == [("r0", 0), ("k0", 2), ("k1", 3), ("r1", 5)]


def test_a_turn_waits_for_requests_and_their_delays_but_its_own_pause_runs_meanwhile(bench: Any) -> None:
    after = (After("k", 1, 0.5), After("k", 0))
    root = Session(
        "r", (bench.turn("r0", branches=(bench.spawn("k"),)), Turn((bench.user("r1"),), delay_s=2.0, after=after))
    )
    child = Session("k", (bench.turn("k0"), bench.turn("k1@3")))
    _, target = bench.run(bench.workload(root, child))
    assert target.times() == [("r0", 0), ("k0", 1), ("k1", 2), ("r1", 5.5)]
    early = Session("k", (bench.turn("k0@0.1"), bench.turn("k1@0.1")))
    _, target = bench.run(bench.workload(root, early))
    assert target.times()[-1] == ("r1", 3)


def test_a_turn_may_wait_for_a_dispatch_of_a_session_that_runs_beside_it(bench: Any) -> None:
    root = Session("r", (bench.turn("r0", branches=(bench.spawn("a", "b"),)),))
    a = Session("a", (replace(bench.turn("a0"), delay_s=4.0),))
    b = Session("b", (Turn((bench.user("b0"),), after=(After("a", 0, 0.25, "dispatch"),)),))
    _, target = bench.run(bench.workload(root, a, b))
    assert target.times() == [("r0", 0), ("a0", 5), ("b0", 5.25)]


def test_each_repeat_of_a_tree_waits_for_its_own_requests(bench: Any) -> None:
    root = Session("r", (bench.turn("r0", branches=(bench.spawn("k"),)), Turn((bench.user("r1"),), after=(After("k", 0),))))
    _, target = bench.run(bench.workload(root, Session("k", (bench.turn("k0@3"),))), num_conversations=2, concurrency=1)
    assert [text for text, _ in target.times()] == ["r0", "k0", "r1"] * 2
    assert [time_s for text, time_s in target.times() if text == "r1"] == [4, 9]


def test_nobody_waits_for_a_request_that_will_not_be_sent(bench: Any) -> None:
    failing = Session("a", (bench.turn("FAIL a0"), bench.turn("a1", branches=(bench.spawn("c"),))), ends_on_failure=True)
    waiting = Session("b", (Turn((bench.user("b0"),), after=(After("c", 0),)),))
    root = Session("r", (bench.turn("r0", branches=(bench.spawn("a", "b"),)),))
    _, target = bench.run(bench.workload(root, failing, waiting, Session("c", (bench.turn("c0"),))))
    assert "b0" in [text for text, _ in target.times()]


def test_the_end_of_a_run_ends_waits(bench: Any) -> None:
    root = Session("r", (bench.turn("r0", branches=(bench.spawn("k"),)), Turn((bench.user("r1"),), after=(After("k", 1),))))
    child = Session("k", (bench.turn("k0@2"), bench.turn("k1@50")))
    result, target = bench.run(bench.workload(root, child), request_count=2)
    assert [text for text, _ in target.times()] == ["r0", "k0"]
    assert result.end_s == 3


def test_a_warm_up_without_children_does_not_wait_for_them(bench: Any) -> None:
    root = Session("r", (bench.turn("r0", branches=(bench.spawn("k"),)), Turn((bench.user("r1"),), after=(After("k", 0),))))
    _, target = bench.run(bench.workload(root, Session("k", (bench.turn("k0"),))), warmup_num_conversations=1)
    assert [text for text, _ in target.times()] == ["r0", "r1", "r0", "k0", "r1"]


def test_a_play_becomes_sessions_that_run_as_recorded(bench: Any) -> None:
    rows = requests_of(
        bench,
        ("p0", "main", 10.0, []),
        ("c0", "child", 10.5, [Need("p0", 0.5, "dispatch")]),
        ("q0", "other", 12.0, []),
        ("c1", "child", 13.0, [Need("c0", 1.0)]),
        ("p1", "main", 16.0, [Need("p0", 1.5), Need("c1", 0.5), Need("q0")]),
    )
    sessions = sessions_of_play(rows, set(), mode="accumulate")
    assert [session.id for session in sessions] == ["main", "child", "other"]
    _, target = bench.run(bench.workload(*sessions, roots=["main"]))
    assert target.times() == [("p0", 0), ("c0", 0.5), ("q0", 2), ("c1", 2.5), ("p1", 4)]


def test_on_a_schedule_recorded_starts_are_floors(bench: Any) -> None:
    rows = requests_of(bench, ("a", "s", 2.0, []), ("b", "t", 9.0, [Need("a", 0.5)]), ("c", "t", 9.2, [Need("b", 0.1)]))
    sessions = sessions_of_play(rows, set(), 2.0, floors=True, mode="accumulate")
    flow = bench.workload(*sessions, roots=["s"])
    _, target = bench.run(flow, fixed_schedule=True)
    assert target.times() == [("a", 2), ("b", 9), ("c", 10.1)]
    _, target = bench.run(flow, concurrency=1)
    assert target.times() == [("a", 0), ("b", 1.5), ("c", 2.6)]


def test_a_stream_whose_requests_overlap_becomes_several_sessions(bench: Any) -> None:
    rows = requests_of(
        bench, ("a", "s", 0.0, []), ("b", "s", 0.2, [Need("a", 0.2, "dispatch")]), ("c", "s", 5.0, [Need("a", 1)])
    )
    assert [(one.id, len(one.turns)) for one in sessions_of_play(rows, set())] == [("s", 2), ("s#2", 1)]


@pytest.mark.parametrize(
    ("needs", "message"),
    [
        ({"a": ["b"], "b": ["a"]}, "waits for a request that waits for it"),
        ({"a": ["x"], "b": []}, "waits for 'x', which is"),
    ],
)
def test_waits_that_cannot_end_are_told(bench: Any, needs: dict[str, list[str]], message: str) -> None:
    rows = requests_of(bench, *((name, name, 0.0, [Need(one) for one in waits]) for name, waits in needs.items()))
    with pytest.raises(GraphError, match=message):
        sessions_of_play(rows, set())


def test_requests_that_do_not_wait_for_each_other_are_plays_of_their_own(bench: Any) -> None:
    rows = requests_of(bench, ("a", "s", 0, []), ("b", "s", 1, []), ("c", "t", 2, [Need("a")]), ("d", "u", 3, [Need("c")]))
    assert [[request.id for request in play] for play in plays_of(rows)] == [["a", "c", "d"], ["b"]]


def test_what_was_over_in_the_recording_comes_first() -> None:
    streams = [[(0, 0.0, 2.0), (1, 5.0, 6.0)], [(2, 2.0, 3.0)], [(3, 2.5, 4.0)], [(4, 0.5, 9.0)]]
    assert finished_before(streams) == {1: [2, 3], 2: [0], 3: [0]}
    assert finished_before(streams[:1]) == {}
    assert finished_before([[(0, 2.43, 2.43 + 0.1)], [(1, 2.53, 3.0)]]) == {1: [0]}  # the sum is a little above 2.53
