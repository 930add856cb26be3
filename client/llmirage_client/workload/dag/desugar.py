"""From a checked line to a Session: shorthands become branches with ids, milliseconds become seconds."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

from llmirage_client.workload.dag.schema import ConversationLine, ForkEntry, SpawnEntry
from llmirage_client.workload.session import Branch, Problem, Session, Turn


def desugar(conversation: ConversationLine) -> tuple[Session, list[Problem]]:
    """Return the session of a line, and its problems: children named twice, joins that cannot be."""
    problems: list[Problem] = []
    sid, count = conversation.session_id, len(conversation.turns)

    def fail(message: str) -> None:
        problems.append(Problem(message, conversation.line))

    for child in _repeated(conversation.pre_session_spawns):
        fail(f"session '{sid}' duplicate child_conversation_id '{child}' in pre_session_spawns")
    rounds = conversation.orchestrator.rounds if conversation.orchestrator else ()
    for number, round_ in enumerate(dict.fromkeys(rounds)):
        for child in _repeated(round_.children):
            fail(f"session '{sid}' round {number}: duplicate child_conversation_id '{child}' in spawn group")
    turns = []
    for index, line in enumerate(conversation.turns):
        groups = group_spawns(line.spawns)
        for message in _duplicates(line.forks, groups):
            fail(f"session '{sid}' turn {index}: {message}")
        for group in groups:
            wrong = _bad_join(group.join_at, index, count)
            if wrong is not None:
                fail(f"session '{sid}' turn {index}: {wrong}")
        turns.append(
            Turn(
                messages=line.messages,
                model=line.model,
                max_tokens=line.max_tokens,
                tools=line.tools,
                extra=line.extra,
                delay_s=line.delay_ms / 1000,
                branches=branches_of(f"{sid}:{index}", index, count, line.forks, groups),
            )
        )
    session = Session(
        id=sid,
        turns=tuple(turns),
        mode=conversation.mode,
        arrival_s=conversation.arrival_s,
        pre_session_spawns=conversation.pre_session_spawns,
        rounds=rounds,
        think_time=conversation.orchestrator.think_time if conversation.orchestrator else None,
        line=conversation.line,
    )
    return session, problems


def group_spawns(entries: Sequence[SpawnEntry]) -> list[SpawnEntry]:
    """Read spawns: neighbouring bare strings are one group that joins on the next turn, an object is its own group."""
    groups: list[SpawnEntry] = []
    for bare, run in itertools.groupby(entries, key=lambda entry: entry.bare):
        if bare:
            groups.append(SpawnEntry(tuple(child for entry in run for child in entry.children), bare=True))
        else:
            groups += run
    return groups


def branches_of(
    base: str, index: int, turn_count: int, forks: Sequence[ForkEntry], groups: Sequence[SpawnEntry]
) -> tuple[Branch, ...]:
    """Return the branches of one turn, foreground forks first, then background forks, then spawns.

    The id is `base` alone when the turn has one branch, else it ends in :fork, :bg_fork, :spawn, :spawn1, ...
    A spawn without join_at joins on the next turn; on the last turn nothing waits for it.
    """
    foreground = tuple(fork.child for fork in forks if not fork.background)
    background = tuple(fork.child for fork in forks if fork.background)
    mixed = bool(forks) and bool(groups)
    both_kinds = bool(foreground) and bool(background)
    branches = []
    if foreground:
        branches.append(Branch(f"{base}:fork" if mixed or both_kinds else base, "fork", foreground))
    if background:
        branches.append(Branch(f"{base}:bg_fork" if mixed or both_kinds else base, "fork", background, background=True))
    for number, group in enumerate(groups):
        branch_id = f"{base}:spawn{number or ''}" if mixed or len(groups) > 1 else base
        join_at = index + 1 if group.join_at is None else group.join_at
        branches.append(Branch(branch_id, "spawn", group.children, join_at if join_at < turn_count else None))
    return tuple(branches)


def _repeated(names: Sequence[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _duplicates(forks: Sequence[ForkEntry], groups: Sequence[SpawnEntry]) -> list[str]:
    found = [f"duplicate child_conversation_id '{c}' in fork entries" for c in _repeated([f.child for f in forks])]
    seen: set[str] = set()
    for group in groups:
        found += [f"duplicate child_conversation_id '{c}' in spawn group" for c in _repeated(group.children)]
        across = [c for c in dict.fromkeys(group.children) if c in seen]
        found += [f"duplicate child_conversation_id '{c}' across spawn groups" for c in across]
        seen.update(group.children)
    return found


def _bad_join(join_at: int | None, index: int, turn_count: int) -> str | None:
    if join_at is None:
        return None
    if join_at <= index:
        return f"spawn join_at={join_at} must be strictly greater than the spawning turn index"
    if join_at >= turn_count:
        return f"spawn join_at={join_at} is out of range (conversation has {turn_count} turns)"
    return None
