"""A workload as a file of another format, where its meaning survives.

A file is written with all that its format has a place for, loaded again, and compared: what is not the same then would be
lost. So no format needs a list of what it cannot say. Differences of names, lines and notes do not count, nor do different
spellings of one thing: a session of one turn has no history, so its mode does not matter; `min_tokens` of a turn and of its
`extra` are the same.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llmirage_client.workload.dag_graph import references
from llmirage_client.workload.registry import ALIASES, load
from llmirage_client.workload.schedule import earlier
from llmirage_client.workload.session import (
    Round,
    Session,
    SyntheticUser,
    ThinkTime,
    TokenSpec,
    Turn,
    Workload,
    WorkloadError,
    with_tools,
)
from llmirage_client.workload.writers import WRITERS
from llmirage_shared.plural import plural

_TIME_S = 1e-6  # times that differ less are the same: formats write milliseconds or nanoseconds


class Differences:
    """Differences of two workloads by kind, with the first place and the count."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, int]] = {}

    def note(self, what: str, where: str) -> None:
        first, count = self._found.get(what, (where, 0))
        self._found[what] = (first, count + 1)

    def __iter__(self) -> Iterator[str]:
        for what, (first, count) in self._found.items():
            yield f"{what} ({first}{f' and {count - 1:,} more' if count > 1 else ''})"

    def __bool__(self) -> bool:
        return bool(self._found)


def differences(before: Workload, after: Workload) -> Differences:
    """Return the parts of `before` that `after` lacks or has otherwise."""
    found = Differences()
    if before.branching and not after.branching:
        found.note("forks, spawns and rounds", "the file")
        return found
    if len(before.sessions) != len(after.sessions):
        found.note(f"{plural(len(before.sessions), 'conversation')} (there would be {len(after.sessions):,})", "the file")
        return found
    keys: tuple[dict[int, int], dict[int, int]] = ({}, {})
    if before.branching or after.branching:
        if before.sessions.keys() != after.sessions.keys():
            found.note("names of conversations that others start", "the file")
            return found
        names = [*before.roots, *(name for name in before.sessions if name not in before.roots)]
        pairs = [(before.sessions[name], after.sessions[name]) for name in names]
    else:
        pairs = [(before.sessions[a], after.sessions[b]) for a, b in zip(before.roots, after.roots, strict=True)]
    fork_parents = {name for s in before.sessions.values() for name in _forked(s)}
    for one, other in pairs:
        _session(one, other, one.id in fork_parents, found, keys)
    return found


def _forked(session: Session) -> list[str]:
    return [
        child for turn in session.turns for branch in turn.branches if branch.kind == "fork" for child in branch.children
    ]


def _session(
    one: Session, other: Session, is_fork: bool, found: Differences, keys: tuple[dict[int, int], dict[int, int]]
) -> None:
    where = f"'{one.id}'"
    alone = len(one.turns) == 1 and not is_fork and not _forked(one)
    if not _same_time(one.arrival_s, other.arrival_s):
        found.note("arrival times", where)
    if one.tenant != other.tenant:
        found.note("tenants and service classes", where)
    if len(one.turns) != len(other.turns):
        found.note("turns", where)
        return
    if _mode(one, alone) != _mode(other, alone):
        found.note(f"how history is carried ({one.mode})", where)
    if one.pre_session_spawns != other.pre_session_spawns:
        found.note("conversations started before the first turn", where)
    if _rounds(one.rounds, one.think_time) != _rounds(other.rounds, other.think_time):
        found.note("rounds of an orchestrator", where)
    pairs = zip(one.turns, other.turns, _tools_sent(one), _tools_sent(other), strict=True)
    inherited = is_fork or bool(_forked(one))  # which tools hold on is then seen in other conversations, too
    for index, (mine, theirs, my_tools, their_tools) in enumerate(pairs):
        _turn(mine, theirs, f"{where}, turn {index}", found, keys)
        if my_tools != their_tools or (inherited and _listed(mine.tools) != _listed(theirs.tools)):
            found.note("tools", f"{where}, turn {index}")
        if index and not _same_time(mine.arrival_s, theirs.arrival_s):
            found.note("times of later turns", f"{where}, turn {index}")


def _mode(session: Session, alone: bool) -> str:
    messages = session.mode in ("accumulate", "accumulate_authored", "isolated")
    return "messages" if alone and messages else session.mode


def _turn(one: Turn, other: Turn, where: str, found: Differences, keys: tuple[dict[int, int], dict[int, int]]) -> None:
    mine, theirs = _body(one), _body(other)
    for part in mine:
        if mine[part] != theirs[part]:
            found.note(part, where)
    if not _same_tokens(one.tokens, other.tokens):
        found.note("lengths and token ids", where)
    if _synthetic(one.synthetic, keys[0]) != _synthetic(other.synthetic, keys[1]):
        found.note("texts given by their length", where)
    if not _same_time(one.delay_s, other.delay_s):
        found.note("delays", where)
    if [(b.kind, b.children, b.join_at, b.background, b.at) for b in one.branches] != [
        (b.kind, b.children, b.join_at, b.background, b.at) for b in other.branches
    ]:
        found.note("branches and joins", where)
    if one.after != other.after:
        found.note("waits for requests of other sessions", where)


def _tools_sent(session: Session) -> list[Any]:
    """Return the tools of each turn's request. They hold on from turn to turn; extra's do not."""
    return [turn.extra.get("tools", () if held is None else held) for turn, held in with_tools(session)]


def _listed(tools: Sequence[Any] | None) -> list[Any] | None:
    return None if tools is None else list(tools)


def _body(turn: Turn) -> dict[str, Any]:
    extra = {key: value for key, value in turn.extra.items() if key != "tools"}
    if turn.min_tokens is not None:
        extra = {"min_tokens": turn.min_tokens, "ignore_eos": True, **extra}
    return {
        "messages": [dict(message) for message in turn.messages],
        "whole request bodies": None if turn.payload is None else dict(turn.payload),
        "model": turn.model,
        "most tokens of a reply": turn.max_tokens,
        "extra request parameters": extra,
    }


def _same_time(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= _TIME_S


def _same_tokens(one: TokenSpec | None, other: TokenSpec | None) -> bool:
    if one is None or other is None:
        return one is other
    same = (one.input_tokens, one.output_tokens) == (other.input_tokens, other.output_tokens)
    return same and _ids(one.input_ids) == _ids(other.input_ids) and _ids(one.output_ids) == _ids(other.output_ids)


def _ids(ids: Any) -> bytes | None:
    return None if ids is None else ids.tobytes()


def _synthetic(message: SyntheticUser | None, keys: dict[int, int]) -> Any:
    """Return keys renumbered: they count only by which messages share one."""
    if message is None:
        return None
    key = keys.setdefault(message.key, len(keys))
    blocks = None if message.block_ids is None else message.block_ids.tolist()
    return message.tokens, key, message.prefix_tokens, blocks, message.block_tokens if blocks else 0


def _rounds(rounds: Sequence[Round], think_time: ThinkTime | None) -> Any:
    """Return think times in one form: without a spread, the median is that of each round."""
    return [(r.children, round(r.think_time_s, 6), r.awaited) for r in rounds], think_time


_KINDS = {
    "accumulate": "conversations with live replies in the history",
    "accumulate_authored": "conversations with the file's own replies",
    "server_state": "conversations whose history the server keeps",
    "server_conversation": "conversations whose history the server keeps",
    "isolated": "independent requests",
    "verbatim": "whole request bodies",
    "tokens": "calls in tokens",
}


class ConversionError(Exception):
    """The format cannot hold the workload. lost: everything that would be lost."""

    def __init__(self, format_name: str, lost: Sequence[str]) -> None:
        self.lost = tuple(lost)
        super().__init__(f"{format_name} cannot represent it; this would be lost or changed: {'; '.join(lost)}")


@dataclass(slots=True, frozen=True)
class Converted:
    """options: of the format, needed to load the file. notes: what is different and does not change what goes out."""

    data: bytes
    format: str
    options: Mapping[str, Any]
    notes: tuple[str, ...]


def convert(workload: Workload, format_name: str, is_part: bool = False) -> Converted:
    """Convert a workload, without conversations that an offset left out.

    is_part: of a larger file, whose schedule may begin before; formats move the first arrival to the start of the run.
    Raises ConversionError when the format cannot hold the workload, and KeyError when it has no writer.
    """
    workload = _without_skipped(workload)
    name = ALIASES.get(format_name, format_name)
    writer = WRITERS[name]
    foreign = dict.fromkeys(s.mode for s in workload.sessions.values() if s.turns and s.mode not in writer.modes)
    lost = [f"{_KINDS[mode]} ({_first(workload, mode).id!r})" for mode in foreign]
    if lost:
        raise ConversionError(name, lost)
    written = writer.write(workload)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "converted"
        path.write_bytes(written.data)
        try:
            after = load(str(path), name, written.options)
        except WorkloadError as error:
            raise ConversionError(name, [str(problem) for problem in error.problems[:5]]) from None
    found = differences(workload, _moved(after, workload) if is_part else after)
    if found:
        raise ConversionError(name, list(found))
    return Converted(written.data, name, written.options, tuple(_notes(workload, after)))


def _moved(workload: Workload, to: Workload) -> Workload:
    """Return the workload with the first arrival of another."""
    if not (workload.timed and to.timed):
        return workload
    starts_s = [min(w.sessions[root].arrival_s or 0.0 for root in w.roots) for w in (workload, to)]
    moved = {root: earlier(workload.sessions[root], starts_s[0] - starts_s[1]) for root in workload.roots}
    return replace(workload, sessions={**workload.sessions, **moved})


def _without_skipped(workload: Workload) -> Workload:
    """Return the roots that a run begins with, and what they start."""
    roots = workload.roots[: len(workload.roots) - workload.skipped]
    kept = dict.fromkeys(roots)
    waiting = list(roots)
    while waiting:
        for reference in references(workload.sessions[waiting.pop()]):
            if reference.child not in kept:
                kept[reference.child] = None
                waiting.append(reference.child)
    sessions = {name: session for name, session in workload.sessions.items() if name in kept}
    return replace(workload, sessions=sessions, roots=roots, skipped=0)


def _first(workload: Workload, mode: str) -> Session:
    return next(session for session in workload.sessions.values() if session.mode == mode)


def _notes(before: Workload, after: Workload) -> list[str]:
    notes = list(after.notes)
    names = next(((old, new) for old, new in zip(before.roots, after.roots, strict=True) if old != new), None)
    if names is not None:
        notes.append(f"conversations have other names ({names[0]!r} is {names[1]!r})")
    ends = {session.ends_on_failure for session in before.sessions.values()}
    if ends != {session.ends_on_failure for session in after.sessions.values()}:
        goes = "ends" if False in ends else "no longer ends"
        notes.append(f"a failed request {goes} its conversation")
    if any(t.min_tokens is not None for s in before.sessions.values() for t in s.turns) and not any(
        t.min_tokens is not None for s in after.sessions.values() for t in s.turns
    ):
        notes.append(
            "min_tokens and ignore_eos, which were sent only to endpoints that support them, are now sent to every endpoint"
        )
    return notes
