"""Rules between the conversations of a dag_jsonl file. Every function returns all problems it finds."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from llmirage_client.workload.dag_schema import ConversationLine, ForkEntry, SpawnEntry
from llmirage_client.workload.session import Branch, Problem, Session
from llmirage_shared.plural import plural

Sessions = Mapping[str, Session]


@dataclass(slots=True, frozen=True)
class Reference:
    """One mention of a child: by whom, where ("turn 2", "round 0", "pre_session_spawns"), as a fork or not."""

    parent: str
    place: str
    child: str
    fork: bool = False


def references(session: Session) -> Iterator[Reference]:
    """Yield every mention of another session, in the order a run would start them."""
    for child in session.pre_session_spawns:
        yield Reference(session.id, "turn 0", child)
    for number, round_ in enumerate(dict.fromkeys(session.rounds)):
        for child in round_.children:
            yield Reference(session.id, f"round {number}", child)
    for index, turn in enumerate(session.turns):
        for branch in turn.branches:
            for child in branch.children:
                yield Reference(session.id, f"turn {index}", child, branch.kind == "fork")


def _mentions(sessions: Sessions) -> Iterator[Reference]:
    return (reference for session in sessions.values() for reference in references(session))


def roots(sessions: Sessions) -> tuple[str, ...]:
    """Return ids of the sessions that no other one mentions, in file order."""
    mentioned = {reference.child for reference in _mentions(sessions)}
    return tuple(sid for sid in sessions if sid not in mentioned)


def check_graph(sessions: Sessions, declared: Collection[str]) -> list[Problem]:
    """Return every structural problem. declared: all session ids of the file, those on faulty lines too."""
    mentions = list(_mentions(sessions))
    fork_parent: dict[str, Reference] = {}
    for reference in mentions:
        if reference.fork:
            fork_parent.setdefault(reference.child, reference)
    return [
        *_unresolved(sessions, mentions, declared),
        *_two_fork_parents(sessions, mentions, fork_parent),
        *_fork_before_the_end(sessions),
        *_pre_session(sessions, mentions, fork_parent),
        *_system_messages(sessions, fork_parent),
        *_isolated_forks(sessions, fork_parent),
        *_timed_children(sessions, mentions),
        *_cycles(sessions),
    ]


def _unresolved(sessions: Sessions, mentions: Sequence[Reference], declared: Collection[str]) -> Iterator[Problem]:
    known = sorted(declared)
    listed = f"{known[:10]}" if len(known) <= 10 else f"{known[:10]} and {len(known) - 10} more"
    for reference in mentions:
        if reference.child not in declared:
            message = f"branch target '{reference.child}' not declared. Known sessions: {listed}"
            yield Problem(f"session '{reference.parent}' {reference.place}: {message}", sessions[reference.parent].line)


def _two_fork_parents(
    sessions: Sessions, mentions: Sequence[Reference], fork_parent: Mapping[str, Reference]
) -> Iterator[Problem]:
    for reference in mentions:
        known = fork_parent[reference.child] if reference.fork else reference
        if (known.parent, known.place) != (reference.parent, reference.place):
            both = f"'{known.parent}' {known.place} and '{reference.parent}' {reference.place}"
            rule = "FORK-mode children require a single parent"
            yield Problem(f"session '{reference.child}' forked by both {both}; {rule}", sessions[reference.parent].line)


def _fork_before_the_end(sessions: Sessions) -> Iterator[Problem]:
    for session in sessions.values():
        for index, turn in enumerate(session.turns[:-1]):
            if any(branch.kind == "fork" and not branch.background for branch in turn.branches):
                yield Problem(
                    f"session '{session.id}' turn {index} has foreground FORK branches but is not the last turn and no "
                    'join is declared (use {"child": ..., "background": true} to keep the parent running, or move the '
                    "forks to the final turn)",
                    session.line,
                )


def _pre_session(
    sessions: Sessions, mentions: Sequence[Reference], fork_parent: Mapping[str, Reference]
) -> Iterator[Problem]:
    parent_of: dict[str, str] = {}
    for reference in mentions:
        parent_of.setdefault(reference.child, reference.parent)
    for session in sessions.values():
        for child in session.pre_session_spawns:
            if child in fork_parent:
                yield Problem(
                    f"session '{child}' is referenced by '{session.id}' pre_session_spawns but is also a FORK target; "
                    "pre-session children must be SPAWN-mode (no parent context to inherit)",
                    session.line,
                )
        if session.pre_session_spawns and session.id in parent_of:
            yield Problem(
                f"session '{session.id}' pre_session_spawns: pre-session dispatch requires a root conversation, "
                f"but '{session.id}' is a child of '{parent_of[session.id]}'",
                session.line,
            )


def _system_messages(sessions: Sessions, fork_parent: Mapping[str, Reference]) -> Iterator[Problem]:
    for session in sessions.values():
        for index, turn in enumerate(session.turns):
            places = [i for i, message in enumerate(turn.messages) if message.get("role") == "system"]
            if session.mode == "isolated":
                if any(place != 0 for place in places):
                    yield Problem(
                        f"session '{session.id}' turn {index}: a 'system' message must be the first message of an "
                        "isolated turn's array; chat templates drop it at later positions.",
                        session.line,
                    )
            elif places and (index > 0 or session.id in fork_parent):
                yield Problem(
                    f"session '{session.id}' turn {index}: non-root turns may not contain a 'system' message. Place the "
                    "single system prompt at the root turn only; popular chat templates (e.g. Qwen3-VL) ignore system "
                    "messages after index 0.",
                    session.line,
                )


def _isolated_forks(sessions: Sessions, fork_parent: Mapping[str, Reference]) -> Iterator[Problem]:
    for session in sessions.values():
        if session.mode == "isolated" and session.id in fork_parent:
            yield Problem(
                f"session '{session.id}' is a FORK target with context_mode 'message_array_with_responses'; payload "
                "isolation drops the inherited parent context and is only valid on fresh-context SPAWN branches",
                session.line,
            )


def _timed_children(sessions: Sessions, mentions: Sequence[Reference]) -> Iterator[Problem]:
    parent_of = {reference.child: reference.parent for reference in mentions}
    for session in sessions.values():
        if session.arrival_s is not None and session.id in parent_of:
            message = f"has a 'timestamp', but starts when '{parent_of[session.id]}' starts it; only roots have one"
            yield Problem(f"session '{session.id}' {message}", session.line, "timestamp")


def _cycles(sessions: Sessions) -> Iterator[Problem]:
    """Yield one problem for every edge that closes a cycle; depth first, without recursion, as chains may be long."""
    children = {
        sid: list(dict.fromkeys(r.child for r in references(session) if r.child in sessions))
        for sid, session in sessions.items()
    }
    finished: set[str] = set()
    for start in sessions:
        if start in finished:
            continue
        path = {start: None}  # a dict as an ordered set
        pending = [iter(children[start])]
        while pending:
            child = next(pending[-1], None)
            if child is None:
                pending.pop()
                finished.add(path.popitem()[0])
            elif child in path:
                names = list(path)
                cycle = [*names[names.index(child) :], child]
                yield Problem(f"cycle detected: {' -> '.join(cycle)}", sessions[child].line)
            elif child not in finished:
                path[child] = None
                pending.append(iter(children[child]))


def desugar(conversation: ConversationLine) -> tuple[Session, list[Problem]]:
    """Return the session of a line, and its problems: children named twice, joins that cannot be."""
    problems: list[Problem] = []
    session = conversation.session
    sid, count = session.id, len(conversation.turns)

    def fail(message: str) -> None:
        problems.append(Problem(message, session.line))

    for child in _repeated(session.pre_session_spawns):
        fail(f"session '{sid}' duplicate child_conversation_id '{child}' in pre_session_spawns")
    for number, round_ in enumerate(dict.fromkeys(session.rounds)):
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
        branches = branches_of(f"{sid}:{index}", index, count, line.forks, groups)
        turns.append(replace(line.turn, branches=branches) if branches else line.turn)
    return replace(session, turns=tuple(turns)), problems


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
        return f"spawn join_at={join_at} is out of range (conversation has {plural(turn_count, 'turn')})"
    return None
