"""Sessions with times of their own, put together to a workload whose schedule begins with the first of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from llmirage_client.workload.session import Session, Workload


def scheduled(format_name: str, path: str, sessions: Sequence[Session], notes: Iterable[str] = ()) -> Workload:
    """The workload of the sessions, all of them roots; by time where each has one, else in the order given.

    Times count from the first one: a run begins with it.
    """
    arrivals = [session.arrival_s for session in sessions if session.arrival_s is not None]
    notes = tuple(notes)
    if arrivals and len(arrivals) < len(sessions):
        missing = next(session for session in sessions if session.arrival_s is None)
        notes += (
            f"{len(sessions) - len(arrivals)} of {len(sessions)} conversations have no timestamp (the first is "
            f"{missing.id!r}), so the file is no schedule and its timestamps are not used",
        )
    elif arrivals:
        first = min(arrivals)
        if first > 0:
            sessions = [earlier(session, first) for session in sessions]
            notes += (f"the file's first timestamp, {first:,.3f} s, is the start of the run",)
        sessions = sorted(sessions, key=lambda session: session.arrival_s or 0.0)
    by_id = {session.id: session for session in sessions}
    return Workload(format_name, path, by_id, tuple(by_id), notes)


def earlier(session: Session, by_s: float) -> Session:
    """The session with all its times so much earlier."""
    turns = tuple(
        turn if turn.arrival_s is None else replace(turn, arrival_s=turn.arrival_s - by_s) for turn in session.turns
    )
    return replace(session, turns=turns, arrival_s=(session.arrival_s or 0.0) - by_s)


def free_names(taken: Iterable[str], lines: Iterable[int]) -> dict[int, str]:
    """A name for the session of each line that has none: request_<line>, unless the file has such a session."""
    used = set(taken)
    names = {}
    for line in lines:
        name = f"request_{line}"
        while name in used:
            name = f"_{name}"
        names[line] = name
    return names
