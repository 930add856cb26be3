"""Sessions with times of their own, as one workload whose schedule begins with the first; times of synthetic sessions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from llmirage_client.workload.dag_graph import roots
from llmirage_client.workload.rates import RateSeries
from llmirage_client.workload.session import Session, Workload
from llmirage_shared.plural import plural

Process = Literal["none", "constant", "poisson", "gamma", "weibull"]
_DRAWN_AT_ONCE = 1024


@dataclass(slots=True, frozen=True)
class ArrivalProcess:
    """rate_per_s conversations a second in the long run, the first at 0 s.

    none: no times; the load strategy of the run says when. constant: equal gaps. poisson: exponential gaps. gamma, weibull:
    gaps whose standard deviation is cv times their mean; above 1 arrivals come in bursts, 1 is Poisson, 0 constant.
    rates: instead of rate_per_s, over the time; the gaps are in the time that passes as fast as the rate is high. Their
    number follows: all before duration_s.
    """

    process: Process = "none"
    rate_per_s: float = 1.0
    cv: float = 1.0
    rates: RateSeries | None = None
    duration_s: float = 0.0

    @property
    def mean_rate_per_s(self) -> float:
        """Conversations a second, of all its time."""
        return self.rate_per_s if self.rates is None else self.rates.until(self.duration_s) / self.duration_s

    @property
    def variation(self) -> float:
        """Standard deviation of the gaps over their mean."""
        return {"constant": 0.0, "poisson": 1.0}.get(self.process, self.cv)

    def times_s(self, count: int, source: np.random.Generator) -> list[float] | None:
        """Return `count` times, ascending from 0, or those of its rates; None for the process none."""
        if self.process == "none":
            return None
        if self.rates is not None:
            return self._times_along(self.rates, source)
        gaps_s = self._gaps(max(count - 1, 0), 1 / self.rate_per_s, source)
        return [0.0, *np.cumsum(gaps_s).tolist()][:count]

    def _times_along(self, rates: RateSeries, source: np.random.Generator) -> list[float]:
        times_s, time_s = list[float](), 0.0
        while True:
            for gap in self._gaps(_DRAWN_AT_ONCE, 1.0, source).tolist():
                time_s = rates.after(time_s, gap)
                if time_s >= self.duration_s:
                    return times_s
                times_s.append(time_s)

    def _gaps(self, count: int, mean: float, source: np.random.Generator) -> npt.NDArray[np.float64]:
        cv = self.variation
        if not cv:
            return np.full(count, mean)
        if self.process == "weibull":
            shape = _weibull_shape(cv)
            return mean / math.gamma(1 + 1 / shape) * source.weibull(shape, count)
        shape = 1 / cv**2
        return source.gamma(shape, mean / shape, count)


def _weibull_shape(cv: float) -> float:
    """Return the shape of a Weibull distribution whose standard deviation is cv times its mean."""
    low, high = 0.1, 200.0  # cv falls from 400 to 0.006
    for _ in range(60):
        middle = math.sqrt(low * high)
        spread = math.lgamma(1 + 2 / middle) - 2 * math.lgamma(1 + 1 / middle)
        low, high = (middle, high) if spread > math.log1p(cv**2) else (low, middle)
    return middle


Item = TypeVar("Item")


def scheduled(format_name: str, path: str, sessions: Sequence[Session], notes: Iterable[str] = ()) -> Workload:
    """Return the workload of the sessions, all of them roots; by time where each has one, else in the order given.

    Times count from the first one: a run begins with it.
    """
    arrivals = [session.arrival_s for session in sessions if session.arrival_s is not None]
    notes = tuple(notes)
    pairs = (pair for session in sessions for pair in pairwise(turn.arrival_s for turn in session.turns))
    if late := sum(before is not None and after is not None and after < before for before, after in pairs):
        notes += (f"{plural(late, 'turn')} whose time is before that of the previous turn: the order is that of the file",)
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
