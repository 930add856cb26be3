"""dag_jsonl: everything but whole bodies and calls in tokens."""

from __future__ import annotations

from typing import Any

from llmirage_client.workload.dag.schema import CONTEXT_MODES
from llmirage_client.workload.session import Branch, Session, Turn, Workload
from llmirage_client.workload.writers.writer import Writer, Written, extra_of, line, milliseconds

_MODE_NAMES = {mode: name for name, mode in CONTEXT_MODES.items()}


def write(workload: Workload) -> Written:
    """Roots in the order of the run, each followed by nothing of its own: children stand after all roots."""
    rest = [name for name in workload.sessions if name not in set(workload.roots)]
    return Written(b"".join(line(_row(workload.sessions[name])) for name in (*workload.roots, *rest)))


def _row(session: Session) -> dict[str, Any]:
    row: dict[str, Any] = {"session_id": session.id}
    if session.arrival_s is not None:
        row["timestamp"] = milliseconds(session.arrival_s)
    if session.mode != "accumulate":
        row["context_mode"] = _MODE_NAMES[session.mode]
    if session.pre_session_spawns:
        row["pre_session_spawns"] = list(session.pre_session_spawns)
    if session.rounds:
        return row | _orchestrator(session)
    row["turns"] = [_turn(turn, index, len(session.turns)) for index, turn in enumerate(session.turns)]
    return row


def _orchestrator(session: Session) -> dict[str, Any]:
    row: dict[str, Any] = {"orchestrator": True}
    first, think = session.rounds[0], session.think_time
    if not first.awaited:
        return row | {"spawns": list(first.children)}
    if all(round_ == first for round_ in session.rounds):  # rounds of a list may not share children
        row |= {"spawns": list(first.children), "rounds": len(session.rounds)}
        if first.think_time_s:
            row["think_time_ms"] = milliseconds(first.think_time_s)
    else:
        row["rounds"] = [
            {"spawns": list(r.children), "think_time_ms": milliseconds(r.think_time_s)} for r in session.rounds
        ]  # fmt: skip
    if think is not None:
        row |= {"think_time_ms": milliseconds(think.median_s), "think_time_sigma": think.sigma}
        if think.min_s:
            row["think_time_min_ms"] = milliseconds(think.min_s)
        if think.max_s != float("inf"):
            row["think_time_max_ms"] = milliseconds(think.max_s)
    return row


def _turn(turn: Turn, index: int, count: int) -> dict[str, Any]:
    row: dict[str, Any] = {"messages": [dict(message) for message in turn.messages]}
    if turn.model is not None:
        row["model"] = turn.model
    if turn.max_tokens is not None:
        row["max_tokens"] = turn.max_tokens
    if turn.tools is not None:
        row["tools"] = list(turn.tools)
    extra = extra_of(turn)
    if extra:
        row["extra"] = extra
    if turn.delay_s:
        row["delay"] = milliseconds(turn.delay_s)
    forks: list[Any] = []
    spawns: list[Any] = []
    groups = [branch for branch in turn.branches if branch.kind == "spawn"]
    for branch in turn.branches:
        if branch.kind == "fork":
            forks += [{"child": c, "background": True} if branch.background else c for c in branch.children]
        else:
            spawns += _spawn(branch, index, count, alone=len(groups) == 1)
    return row | ({"forks": forks} if forks else {}) | ({"spawns": spawns} if spawns else {})


def _spawn(branch: Branch, index: int, count: int, alone: bool) -> list[Any]:
    """Bare names where they come to the same: neighbours among them would be one branch."""
    join_at = count if branch.join_at is None else branch.join_at
    if join_at == index + 1:
        return list(branch.children) if alone else [{"children": list(branch.children)}]
    return [{"children": list(branch.children), "join_at": join_at}]


WRITER = Writer("dag_jsonl", frozenset(("accumulate", "accumulate_authored", "isolated")), write)
