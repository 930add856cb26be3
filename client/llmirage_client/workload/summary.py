"""Counts of a loaded workload whose roots run once each; for `llmirage check`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from llmirage_client.workload.dag_graph import references
from llmirage_client.workload.session import Session, TokenSpec, Workload

_BLOCK_TOKENS = 16


@dataclass(slots=True, frozen=True)
class Tokens:
    """Sums over all calls. repeated_tokens: prompt tokens that an unlimited prefix cache would hold; None without ids."""

    calls: int
    input_tokens: int
    output_tokens: int
    longest_input_tokens: int
    calls_with_ids: int
    repeated_tokens: int | None


@dataclass(slots=True, frozen=True)
class WorkloadSummary:
    """Counts of a workload."""

    sessions: int
    roots: int
    turns: int
    forks: int  # children named in fork branches, as the file has them
    spawns: int  # children named in spawn branches, rounds and pre-session lists, as the file has them
    joins: int  # turns that wait for children
    depth: int  # of the deepest child below a root
    requests: int  # on the wire when each root runs once; a session that several name counts each time
    arrivals_s: tuple[float, float] | None
    tokens: Tokens | None


def summarise(workload: Workload, with_reuse: bool = True) -> WorkloadSummary:
    """Count the workload; with_reuse: also how many prompt tokens repeat, which takes longest on a large file."""
    sessions = workload.sessions
    requests, depth = _below(workload)
    branches = [branch for s in sessions.values() for turn in s.turns for branch in turn.branches]
    forks = sum(len(b.children) for b in branches if b.kind == "fork")
    spawns = sum(len(b.children) for b in branches if b.kind == "spawn")
    spawns += sum(len(s.pre_session_spawns) + sum(len(r.children) for r in s.rounds) for s in sessions.values())
    joins = {(s.id, b.join_at) for s in sessions.values() for t in s.turns for b in t.branches if b.join_at is not None}
    joins |= {(s.id, i) for s in sessions.values() for i, t in enumerate(s.turns) if any(a.session != s.id for a in t.after)}
    arrivals = [sessions[root].arrival_s for root in workload.roots]
    known = [arrival for arrival in arrivals if arrival is not None]
    return WorkloadSummary(
        sessions=len(sessions),
        roots=len(workload.roots),
        turns=sum(len(s.turns) for s in sessions.values()),
        forks=forks,
        spawns=spawns,
        joins=len(joins),
        depth=max((depth[root] for root in workload.roots), default=0),
        requests=sum(requests[root] for root in workload.roots),
        arrivals_s=(min(known), max(known)) if known else None,
        tokens=_tokens(workload, with_reuse),
    )


def requests_by_root(workload: Workload) -> dict[str, int]:
    """Return the number of requests of each root's whole tree."""
    requests, _ = _below(workload)
    return {root: requests[root] for root in workload.roots}


def _below(workload: Workload) -> tuple[dict[str, int], dict[str, int]]:
    """Return for every session the requests of its whole tree, and the depth of that tree; children before parents."""
    requests: dict[str, int] = {}
    depth: dict[str, int] = {}
    for sid in _children_first(workload):
        session = workload.sessions[sid]
        children = _dispatches(session)
        requests[sid] = len(session.turns) + sum(requests[child] * times for child, times in children.items())
        depth[sid] = max((depth[child] + 1 for child in children), default=0)
    return requests, depth


def _dispatches(session: Session) -> Counter[str]:
    """Return how often a session starts each of its children."""
    named = [*session.pre_session_spawns, *(c for t in session.turns for b in t.branches for c in b.children)]
    named += [child for round_ in session.rounds for child in round_.children]
    return Counter(named)


def _children_first(workload: Workload) -> list[str]:
    order: dict[str, None] = {}
    pending = list(workload.roots)
    while pending:
        sid = pending[-1]
        missing = [r.child for r in references(workload.sessions[sid]) if r.child not in order]
        if missing:
            pending += missing
        else:
            order[pending.pop()] = None
    return list(order)


def _tokens(workload: Workload, with_reuse: bool) -> Tokens | None:
    specs = [turn.tokens for s in workload.sessions.values() for turn in s.turns if turn.tokens is not None]
    if not specs:
        return None
    with_ids = [spec for spec in specs if spec.input_ids is not None]
    return Tokens(
        calls=len(specs),
        input_tokens=sum(spec.input_tokens for spec in specs),
        output_tokens=sum(spec.output_tokens for spec in specs),
        longest_input_tokens=max(spec.input_tokens for spec in specs),
        calls_with_ids=len(with_ids),
        repeated_tokens=_repeated_tokens(with_ids) if with_ids and with_reuse else None,
    )


def _repeated_tokens(calls: list[TokenSpec]) -> int:
    """Return prompt tokens, in whole blocks, that an earlier call had at the same place after the same tokens."""
    seen: set[int] = set()
    repeated = 0
    for call in calls:
        ids = np.concatenate([x for x in (call.input_ids, call.output_ids) if x is not None])
        prefix = 0
        fresh = False
        for start in range(0, len(ids) - _BLOCK_TOKENS + 1, _BLOCK_TOKENS):
            end = start + _BLOCK_TOKENS
            prefix = hash((prefix, ids[start:end].tobytes()))
            fresh = fresh or prefix not in seen or end > call.input_tokens
            repeated += 0 if fresh else _BLOCK_TOKENS
            seen.add(prefix)
    return repeated
