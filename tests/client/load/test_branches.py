"""Forks, spawns, joins: who inherits what, who waits for whom, to the second; replies take 1 s unless the text says "@s"."""

import dataclasses
import itertools
from typing import Any

import pytest

from llmirage_client.measure.record import BranchStats
from llmirage_client.workload.session import Branch, Round, Session, ThinkTime, Turn


def test_a_fork_child_continues_its_parents_history_and_tools(bench: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    system = {"role": "system", "content": "sys"}
    root = Session("r", (Turn((system, bench.user("root")), tools=tools, branches=(bench.fork("k"),)),))
    child = Session("k", (Turn((bench.user("one"), bench.user("two"))), bench.turn("three")))
    _, target = bench.run(bench.workload(root, child))
    assert target.histories()["two"] == ["sys", "root", "re root", "one", "two"]
    assert target.histories()["three"] == ["sys", "root", "re root", "one", "two", "re two", "three"]
    assert all(sent.call.body["tools"] == tools for sent in target.sent)


def test_a_spawn_child_starts_empty_and_takes_no_tools(bench: Any) -> None:
    root = Session("r", (bench.turn("root", tools=[{}], branches=(bench.spawn("k"),)),))
    _, target = bench.run(bench.workload(root, Session("k", (bench.turn("kid"),))))
    assert target.histories()["kid"] == ["kid"]
    assert "tools" not in target.sent[1].call.body


def test_siblings_do_not_see_each_other(bench: Any) -> None:
    root = Session("r", (bench.turn("root", branches=(bench.fork("a", "b"),)),))
    a, b = Session("a", (bench.turn("a0"), bench.turn("a1"))), Session("b", (bench.turn("b0@3"), bench.turn("b1")))
    _, target = bench.run(bench.workload(root, a, b))
    assert target.histories()["b1"] == ["root", "re root", "b0@3", "re b0@3", "b1"]
    assert target.times() == [("root", 0), ("a0", 1), ("b0", 1), ("a1", 2), ("b1", 4)]


def test_a_background_fork_takes_the_history_of_its_moment_and_the_parent_goes_on(bench: Any) -> None:
    root = Session("r", (bench.turn("r0", branches=(bench.fork("k", background=True),)), bench.turn("r1")))
    _, target = bench.run(bench.workload(root, Session("k", (bench.turn("k0@5"), bench.turn("k1")))))
    assert target.times() == [("r0", 0), ("k0", 1), ("r1", 1), ("k1", 6)]
    assert target.histories()["k1"] == ["r0", "re r0", "k0@5", "re k0@5", "k1"]


def test_a_delayed_join_lets_the_turns_between_run(bench: Any) -> None:
    root = Session(
        "r",
        (
            bench.turn("r0", branches=(bench.spawn("a", "b", join_at=2),)),
            bench.turn("r1"),
            bench.turn("r2"),
            bench.turn("r3"),
        ),
    )
    a, b = Session("a", (bench.turn("a0@2"), bench.turn("a1@2.5"))), Session("b", (bench.turn("b0"),))
    result, target = bench.run(bench.workload(root, a, b))
    starts = dict(target.times())
    assert starts == {"r0": 0, "a0": 1, "b0": 1, "r1": 1, "a1": 3, "r2": 5.5, "r3": 6.5}
    assert result.branch_stats == BranchStats(
        children_spawned=2, children_completed=2, parents_suspended=1, parents_resumed=1
    )


def test_a_join_whose_children_are_done_already_suspends_nobody(bench: Any) -> None:
    root = Session("r", (bench.turn("r0", branches=(bench.spawn("a", join_at=2),)), bench.turn("r1@5"), bench.turn("r2")))
    result, target = bench.run(bench.workload(root, Session("a", (bench.turn("a0"),))))
    assert dict(target.times())["r2"] == 6
    assert (result.branch_stats.parents_suspended, result.branch_stats.parents_resumed) == (0, 0)


def test_fan_in_waits_for_branches_of_two_turns(bench: Any) -> None:
    root = Session(
        "r",
        (
            bench.turn("r0", branches=(bench.spawn("a", join_at=2),)),
            bench.turn("r1", branches=(bench.spawn("b", join_at=2),)),
            bench.turn("r2"),
        ),
    )
    _, target = bench.run(bench.workload(root, Session("a", (bench.turn("a0@7"),)), Session("b", (bench.turn("b0@4"),))))
    assert dict(target.times())["r2"] == 8


def test_a_gate_waits_for_a_childs_own_turns_not_for_what_it_forked(bench: Any) -> None:
    root = Session("r", (bench.turn("r0", branches=(bench.spawn("a", join_at=1),)), bench.turn("r1")))
    a = Session("a", (bench.turn("a0", branches=(bench.fork("far"),)),))
    _, target = bench.run(bench.workload(root, a, Session("far", (bench.turn("far0@50"),))))
    assert dict(target.times())["r1"] == 2


def test_a_bare_join_suspends_the_parent_until_its_children_said_their_last(bench: Any) -> None:
    root = Session("r", (bench.turn("r0", branches=(bench.spawn("a", "b", join_at=1),)), bench.turn("r1")))
    a, b = Session("a", (bench.turn("a0"), bench.turn("a1@3"))), Session("b", (bench.turn("b0@2"),))
    _, target = bench.run(bench.workload(root, a, b))
    assert target.times() == [("r0", 0), ("a0", 1), ("b0", 1), ("a1", 2), ("r1", 5)]
    assert target.histories()["r1"] == ["r0", "re r0", "r1"]  # what children say stays with them


def test_joins_nest(bench: Any) -> None:
    root = Session("r", (bench.turn("r0", branches=(bench.spawn("a", join_at=1),)), bench.turn("r1")))
    a = Session("a", (bench.turn("a0", branches=(bench.spawn("b", join_at=1),)), bench.turn("a1@2")))
    result, target = bench.run(bench.workload(root, a, Session("b", (bench.turn("b0@5"),))))
    assert target.times() == [("r0", 0), ("a0", 1), ("b0", 2), ("a1", 7), ("r1", 9)]
    assert result.branch_stats == BranchStats(
        children_spawned=2, children_completed=2, parents_suspended=2, parents_resumed=2
    )


def test_children_spawned_by_the_last_turn_run_to_their_end(bench: Any) -> None:
    root = Session("r", (bench.turn("r0", branches=(bench.spawn("a"),)),))
    result, target = bench.run(bench.workload(root, Session("a", (bench.turn("a0"), bench.turn("a1")))))
    assert target.times() == [("r0", 0), ("a0", 1), ("a1", 2)]
    assert result.end_s == 3
    assert result.branch_stats == BranchStats(children_spawned=1, children_completed=1)


def test_forks_and_spawns_of_one_turn_start_together(bench: Any) -> None:
    root = Session("r", (bench.turn("r0", branches=(bench.fork("f"), bench.spawn("s"))),))
    _, target = bench.run(bench.workload(root, Session("f", (bench.turn("f0"),)), Session("s", (bench.turn("s0"),))))
    assert target.times() == [("r0", 0), ("f0", 1), ("s0", 1)]
    assert target.histories() == {"r0": ["r0"], "f0": ["r0", "re r0", "f0"], "s0": ["s0"]}


def test_a_session_that_several_parents_spawn_runs_once_for_each(bench: Any) -> None:
    roots = [Session(name, (bench.turn(f"{name}0", branches=(bench.spawn("k"),)),)) for name in "ab"]
    result, target = bench.run(bench.workload(*roots, Session("k", (bench.turn("k0"),))))
    assert [label for label, _ in target.times()] == ["a0", "k0", "b0", "k0"]
    kids = [record for record in result.records if record.conversation_id == "k"]
    assert kids[0].correlation_id != kids[1].correlation_id
    assert [kid.root_correlation_id for kid in kids] == [result.records[0].correlation_id, result.records[2].correlation_id]


def test_a_gate_opens_for_a_failed_child_which_is_counted(bench: Any) -> None:
    root = Session("r", (bench.turn("r0", branches=(bench.spawn("a", join_at=1),)), bench.turn("r1")))
    result, target = bench.run(bench.workload(root, Session("a", (bench.turn("FAIL@2"),))))
    assert dict(target.times())["r1"] == 3
    assert result.branch_stats.children_errored == 1
    assert result.branch_stats.children_completed == 0


def test_a_failed_request_keeps_its_user_message_and_ends_nothing(bench: Any) -> None:
    root = Session("r", (bench.turn("FAIL root", branches=(bench.fork("k"),)),))
    result, target = bench.run(bench.workload(root, Session("k", (bench.turn("FAIL kid"), bench.turn("kid two")))))
    assert target.histories()["kid two"] == ["FAIL root", "FAIL kid", "kid two"]
    assert result.branch_stats.children_completed == 1  # its last turn succeeded
    assert [record.ok for record in result.records] == [False, False, True]


def test_a_chain_of_forks_runs_to_its_end(bench: Any) -> None:
    depth = 60
    sessions = [
        Session(f"s{i}", (bench.turn(f"t{i}", branches=(bench.fork(f"s{i + 1}"),) if i < depth else ()),))
        for i in range(depth + 1)
    ]
    result, target = bench.run(bench.workload(*sessions))
    assert len(target.sent) == depth + 1
    assert result.branch_stats.children_completed == depth
    assert [record.agent_depth for record in result.records] == list(range(depth + 1))


def test_identifiers_place_each_request_in_its_tree(bench: Any) -> None:
    root = Session("r", (bench.turn("root", branches=(bench.fork("f"), Branch("s", "spawn", ("s",)))),))
    f = Session("f", (bench.turn("fork", branches=(bench.fork("g"),)),))
    sessions = (root, f, Session("g", (bench.turn("grand"),)), Session("s", (bench.turn("spawn"),)))
    result, target = bench.run(bench.workload(*sessions))
    headers = {sent.label: sent.call.headers for sent in target.sent}
    records = {record.conversation_id: record for record in result.records}
    root_id = headers["root"]["X-Correlation-ID"]
    assert {headers[x]["X-Session-Affinity"] for x in ("root", "fork", "grand")} == {root_id}
    assert headers["spawn"]["X-Session-Affinity"] == headers["spawn"]["X-Correlation-ID"] != root_id
    assert len({h["X-Correlation-ID"] for h in headers.values()}) == 4
    assert len({h["X-Request-ID"] for h in headers.values()}) == 4
    assert {record.root_correlation_id for record in records.values()} == {root_id}
    assert records["g"].parent_correlation_id == records["f"].correlation_id
    assert records["r"].parent_correlation_id is None


def test_pre_session_children_go_first_and_know_no_parent(bench: Any) -> None:
    root = Session("r", (bench.turn("r0@9"),), pre_session_spawns=("early",))
    result, target = bench.run(bench.workload(root, Session("early", (bench.turn("e0@4"), bench.turn("e1")))))
    assert target.times() == [("e0", 0), ("r0", 0), ("e1", 4)]
    early = next(record for record in result.records if record.conversation_id == "early")
    assert (early.agent_depth, early.parent_correlation_id) == (1, None)
    assert early.root_correlation_id == early.correlation_id
    assert result.branch_stats == BranchStats(children_spawned=1, children_completed=1)
    assert result.notes == []


def test_pre_session_children_hold_no_slot_and_go_on_while_anything_else_does(bench: Any) -> None:
    root = Session("r", (bench.turn("r0"),), pre_session_spawns=("early",))
    early = Session("early", (bench.turn("e0@4"), bench.turn("e1")))
    _, target = bench.run(bench.workload(root, early, Session("z", (bench.turn("z0@9"),))), concurrency=1)
    assert target.times() == [("e0", 0), ("r0", 0), ("z0", 1), ("e1", 4)]


def test_the_run_ends_with_what_is_in_flight_when_only_pre_session_children_are_left(bench: Any) -> None:
    root = Session("r", (bench.turn("r0"),), pre_session_spawns=("early", "short"))
    early = Session("early", (bench.turn("e0@4", branches=(bench.spawn("late"),)), bench.turn("e1")))
    others = (Session("short", (bench.turn("s0@3"),)), Session("late", (bench.turn("l0"),)))
    result, target = bench.run(bench.workload(root, early, *others))
    assert target.times() == [("e0", 0), ("s0", 0), ("r0", 0)]
    assert result.end_s == 4
    assert [(record.conversation_id, record.ok) for record in result.records] == [
        ("r", True),
        ("short", True),
        ("early", True),
    ]
    assert result.branch_stats == BranchStats(children_spawned=2, children_completed=1, children_truncated=2)
    assert not result.cancelled
    assert result.notes == [
        "2 conversations were left unfinished: nothing waits for pre_session_spawns, "
        "and all that the run does wait for was done."
    ]


def test_a_run_that_its_cap_ends_says_nothing_of_pre_session_children(bench: Any) -> None:
    root = Session("r", (bench.turn("r0"), bench.turn("r1")), pre_session_spawns=("early",))
    early = Session("early", (bench.turn("e0@4"), bench.turn("e1")))
    result, _ = bench.run(bench.workload(root, early), request_count=3)
    assert result.branch_stats == BranchStats(children_spawned=1, children_truncated=1)
    assert result.notes == []


def test_rounds_of_an_orchestrator_wait_for_each_other_and_think_between(bench: Any) -> None:
    orchestrator = Session("o", (), rounds=(Round(("a", "b")), Round(("c",), think_time_s=2.5)))
    others = [Session("a", (bench.turn("a0@3"),)), Session("b", (bench.turn("b0"),)), Session("c", (bench.turn("c0"),))]
    result, target = bench.run(bench.workload(orchestrator, *others))
    assert target.times() == [("a0", 0), ("b0", 0), ("c0", 5.5)]
    assert result.branch_stats.children_completed == 3
    assert result.end_s == 6.5


@pytest.mark.parametrize(
    ("rounds", "wanted"),
    [
        ((Round(("a",), awaited=False),), BranchStats(graphs_admitted=1)),
        (
            (Round(("a",)),),
            BranchStats(parents_suspended=1, parents_resumed=1, graphs_admitted=1, graphs_completed_to_end=1),
        ),
        (
            (Round(("a",)),) * 2,
            BranchStats(parents_suspended=2, parents_resumed=2, graphs_admitted=1, graphs_completed_to_end=1),
        ),
    ],
)
def test_an_orchestrator_counts_its_rounds_as_aiperf_does(bench: Any, rounds: Any, wanted: BranchStats) -> None:
    flow = bench.workload(Session("o", (), rounds=rounds), Session("a", (bench.turn("a0"),)))
    result, _ = bench.run(flow)
    count = len(rounds)
    assert result.branch_stats == dataclasses.replace(wanted, children_spawned=count, children_completed=count)
    cut, _ = bench.run(flow, request_count=1)
    assert (cut.branch_stats.graphs_admitted, cut.branch_stats.graphs_completed_to_end) == (1, 0)


def test_think_times_spread_around_their_median_within_bounds_and_repeat_by_seed(bench: Any) -> None:
    think_time = ThinkTime(2.0, sigma=1.0, min_s=1.5, max_s=3.0)
    orchestrator = Session("o", (), rounds=tuple(Round(("a",), 2.0) for _ in range(20)), think_time=think_time)
    flow = bench.workload(orchestrator, Session("a", (bench.turn("a0"),)))
    _, first = bench.run(flow, seed=5)
    _, second = bench.run(flow, seed=5)
    starts = [start for _, start in first.times()]
    pauses = [b - a - 1 for a, b in itertools.pairwise(starts)]
    assert min(pauses) >= 1.5 - 1e-9
    assert max(pauses) <= 3.0 + 1e-9
    assert len({round(pause, 6) for pause in pauses}) > 5
    assert first.times() == second.times()


def test_fail_fast_aborts_at_the_first_failed_request_of_a_child(bench: Any) -> None:
    root = Session("r", (bench.turn("r0", branches=(bench.spawn("bad", "good", join_at=1),)), bench.turn("r1")))
    bad, good = Session("bad", (bench.turn("FAIL"),)), Session("good", (bench.turn("good@9"), bench.turn("never")))
    result, target = bench.run(bench.workload(root, bad, good), fail_fast=True)
    assert [label for label, _ in target.times()] == ["r0", "FAIL", "good"]
    assert result.end_s == 2
    assert result.cancelled
    assert "bad" in result.cancel_reason
    assert [record.cancelled for record in result.records] == [False, False, True]
    assert result.branch_stats == BranchStats(
        children_spawned=2, children_errored=1, parents_suspended=1, parents_failed_due_to_child_error=1
    )


def test_a_file_without_branches_has_no_branch_stats(bench: Any) -> None:
    assert bench.run(bench.workload(Session("r", (bench.turn("r0"),))))[0].branch_stats is None
