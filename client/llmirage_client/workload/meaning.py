"""Whether two workloads mean the same: what goes out, when, in which order. Names, lines and notes do not count.

Equal meaning is what a conversion keeps. Things that are written differently and come to the same are made equal first: a
session of one turn has no history, so that its mode does not matter; `min_tokens` of a turn is what its `extra` may say too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from llmirage_client.workload.session import Round, Session, SyntheticUser, ThinkTime, TokenSpec, Turn, Workload, with_tools

_TIME_S = 1e-6  # times that differ less are the same: formats write milliseconds or nanoseconds


class Differences:
    """What two workloads differ in, by kind, with the first place and how many there are."""

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
    """What `before` has that `after` does not have, or has otherwise."""
    found = Differences()
    if before.branching and not after.branching:
        found.note("forks, spawns and rounds", "the file")
        return found
    if len(before.sessions) != len(after.sessions):
        found.note(f"{len(before.sessions):,} conversations (there would be {len(after.sessions):,})", "the file")
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
    """Of each turn, the tools its request has; () where it has none. They hold on from turn to turn, extra's do not."""
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
    """Keys count only by which messages share one."""
    if message is None:
        return None
    key = keys.setdefault(message.key, len(keys))
    blocks = None if message.block_ids is None else message.block_ids.tolist()
    return message.tokens, key, message.prefix_tokens, blocks, message.block_tokens if blocks else 0


def _rounds(rounds: Sequence[Round], think_time: ThinkTime | None) -> Any:
    """Without a think time's spread, its median is that of each round."""
    return [(r.children, round(r.think_time_s, 6), r.awaited) for r in rounds], think_time
