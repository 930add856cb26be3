"""Sessions with times of their own, as one workload whose schedule begins with the first; times of synthetic sessions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Literal, TypeVar

import numpy as np

from llmirage_client.workload.dag.graph import roots
from llmirage_client.workload.session import Session, Workload

Process = Literal["none", "constant", "poisson", "gamma"]


@dataclass(slots=True, frozen=True)
class ArrivalProcess:
    """rate_per_s conversations a second in the long run, the first at 0 s.

    none: no times; the load strategy of the run says when. constant: equal gaps. poisson: exponential gaps. gamma: gaps
    whose standard deviation is cv times their mean; above 1 arrivals come in bursts, 1 is Poisson, 0 constant.
    """

    process: Process = "none"
    rate_per_s: float = 1.0
    cv: float = 1.0

    @property
    def variation(self) -> float:
        """Standard deviation of the gaps over their mean."""
        return {"constant": 0.0, "poisson": 1.0}.get(self.process, self.cv)

    def times_s(self, count: int, source: np.random.Generator) -> list[float] | None:
        """Return `count` times, ascending from 0; None for the process none."""
        if self.process == "none":
            return None
        mean_s = 1 / self.rate_per_s
        cv = self.variation
        gaps = max(count - 1, 0)
        shape = 1 / cv**2 if cv else 0.0
        gaps_s = source.gamma(shape, mean_s / shape, gaps) if shape else np.full(gaps, mean_s)
        return [0.0, *np.cumsum(gaps_s).tolist()][:count]


Item = TypeVar("Item")


def scheduled(format_name: str, path: str, sessions: Sequence[Session], notes: Iterable[str] = ()) -> Workload:
    """Return the workload of the sessions, all of them roots; by time where each has one, else in the order given.

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
    return Workload.of_roots(format_name, path, sessions, notes)


def scheduled_trees(format_name: str, path: str, sessions: Iterable[Session], notes: Iterable[str] = ()) -> Workload:
    """Return the workload of sessions of which some start others: those that nothing starts are the roots."""
    by_id = {session.id: session for session in sessions}
    timed = scheduled(format_name, path, [by_id[root] for root in roots(by_id)], notes)
    return replace(timed, sessions={name: timed.sessions.get(name, session) for name, session in by_id.items()})


def earlier(session: Session, by_s: float) -> Session:
    """Return the session with all its times earlier by that time."""
    turns = tuple(
        turn if turn.arrival_s is None else replace(turn, arrival_s=turn.arrival_s - by_s) for turn in session.turns
    )
    return replace(session, turns=turns, arrival_s=(session.arrival_s or 0.0) - by_s)


class SessionLines(Generic[Item]):
    """Items of a file's lines by session_id; a line without one is a session of its own, request_<line>."""

    def __init__(self) -> None:
        self._items: dict[str | int, list[Item]] = {}
        self._first_line: dict[str | int, int] = {}

    def add(self, session_id: str | None, line: int, items: Iterable[Item]) -> None:
        self.of(session_id, line).extend(items)

    def of(self, session_id: str | None, line: int) -> list[Item]:
        """Return the items of that line's session so far."""
        key = session_id or line
        self._first_line.setdefault(key, line)
        return self._items.setdefault(key, [])

    def sessions(self) -> Iterator[tuple[str, int, list[Item]]]:
        """Name, first line and items of each session, in file order."""
        used = {key for key in self._items if isinstance(key, str)}
        for key, items in self._items.items():
            name = key if isinstance(key, str) else f"request_{key}"
            while not isinstance(key, str) and name in used:
                name = f"_{name}"
            yield name, self._first_line[key], items
