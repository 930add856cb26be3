"""Any tree of conversations runs to its end, in order, whatever its shape; a cap or a cancel loses nothing."""

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.load.runner import Runner
from llmirage_client.measure.record import BranchStats
from llmirage_client.workload.session import Branch, BranchKind, Session, Turn, Workload
from llmirage_client.workload.summary import requests_by_root

KINDS = st.lists(st.sampled_from(["fork", "spawn", "join"]), max_size=2)
CHILDREN = st.integers(1, 2)
TURNS = st.integers(1, 3)
FAILURE, REPLY_S, DELAY_S = st.sampled_from(["", "FAIL "]), st.integers(1, 9), st.sampled_from([0.0, 0.0, 2.5])


@st.composite
def trees(draw: st.DrawFn) -> Workload:
    """One or two roots; forks, background forks, spawns with and without joins, failing turns, delays."""
    sessions: dict[str, Session] = {}

    def session(depth: int) -> str:
        name = f"s{len(sessions)}"
        sessions[name] = Session(name, ())  # takes the name
        count = draw(TURNS)
        turns = []
        for index in range(count):
            branches: list[Branch] = []
            for kind in draw(KINDS) if depth < 3 else ():
                if kind == "join" and index == count - 1:
                    continue
                children = tuple(session(depth + 1) for _ in range(draw(CHILDREN)))
                join_at = draw(st.integers(index + 1, count - 1)) if kind == "join" else None
                background = kind == "fork" and index < count - 1
                branch_kind: BranchKind = "fork" if kind == "fork" else "spawn"
                branches.append(Branch(f"{name}:{index}:{len(branches)}", branch_kind, children, join_at, background))
            text = draw(FAILURE) + f"{name}.{index}@{draw(REPLY_S)}"
            delay_s = draw(DELAY_S)
            turns.append(Turn(({"role": "user", "content": text},), delay_s=delay_s, branches=tuple(branches)))
        sessions[name] = Session(name, tuple(turns))
        return name

    roots = tuple(session(0) for _ in range(draw(CHILDREN)))
    return Workload("dag_jsonl", "random.jsonl", sessions, roots)


@given(trees(), st.integers(1, 3))
def test_every_turn_goes_out_once_after_what_it_waits_for(bench: Any, flow: Workload, concurrency: int) -> None:
    result, target = bench.run(flow, concurrency=concurrency)
    assert len(target.sent) == sum(requests_by_root(flow).values()) == sum(len(s.turns) for s in flow.sessions.values())
    starts = {(r.conversation_id, r.turn_index): r.exchange.start_s for r in result.records}
    ends = {(r.conversation_id, r.turn_index): r.exchange.end_s for r in result.records}
    assert len(starts) == len(target.sent)
    for name, session in flow.sessions.items():
        for index, turn in enumerate(session.turns):
            if index:
                assert starts[name, index] >= ends[name, index - 1] + turn.delay_s
            for branch in turn.branches:
                for child in branch.children:
                    first = flow.sessions[child].turns[0]
                    assert starts[child, 0] == ends[name, index] + first.delay_s
                    if branch.join_at is not None:
                        assert starts[name, branch.join_at] >= ends[child, len(flow.sessions[child].turns) - 1]
    stats = result.branch_stats or BranchStats()
    assert stats.children_spawned == len(flow.sessions) - len(flow.roots)
    assert stats.children_completed + stats.children_errored == stats.children_spawned
    assert (stats.children_truncated, stats.parents_suspended) == (0, stats.parents_resumed)


@given(trees(), st.integers(1, 12))
def test_a_cap_is_met_to_the_request_and_every_child_is_accounted_for(bench: Any, flow: Workload, cap: int) -> None:
    result, target = bench.run(flow, request_count=cap, num_conversations=len(flow.roots))
    assert len(target.sent) == len(result.records) == min(cap, sum(requests_by_root(flow).values()))
    assert not any(record.cancelled for record in result.records)
    stats = result.branch_stats or BranchStats()
    assert stats.children_completed + stats.children_errored <= stats.children_spawned
    assert stats.children_spawned <= stats.children_completed + stats.children_errored + stats.children_truncated
    assert stats.parents_resumed + stats.joins_suppressed >= stats.parents_suspended


@given(trees(), st.integers(0, 40))
def test_a_run_cancelled_at_any_moment_ends_then_and_records_all_it_sent(bench: Any, flow: Workload, quarters: int) -> None:
    moment_s = quarters / 4 + 0.125  # never at the very instant of a reply

    async def interrupt(runner: Runner) -> None:
        await asyncio.sleep(moment_s)
        runner.cancel("enough")

    result, target = bench.run(flow, during=interrupt)
    assert len(result.records) == len(target.sent)
    assert [record.cancelled for record in result.records].count(True) == sum(sent.end_s is None for sent in target.sent)
    assert result.end_s <= moment_s
    assert result.cancelled == (result.end_s == moment_s)  # unless it was over before
