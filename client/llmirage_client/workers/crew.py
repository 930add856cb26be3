"""Workers as whoever leads a run sees them, wherever they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from llmirage_client.workers.job import Begin, Event, Job


class CrewError(Exception):
    """Workers cannot be had; the message is for the user."""


@dataclass(slots=True, frozen=True)
class Clocks:
    """A worker's clocks against those here: ahead_s of its time.monotonic(), wall_ahead_s of its wall clock.

    error_s: how far either may be off.
    """

    ahead_s: float
    wall_ahead_s: float
    error_s: float


class Crew(Protocol):
    """Workers 0 to n - 1. `hire` comes first and `close` last; what has been lost stays silent."""

    def hire(self, jobs: Sequence[Job]) -> Sequence[str]:
        """Starts a worker for each job; returns the names of their machines. Raises CrewError."""
        ...

    def clocks(self, worker: int) -> Clocks | None:
        """Compares clocks; None when the worker does not answer."""
        ...

    def begin(self, worker: int, begin: Begin) -> None: ...

    def cancel(self, worker: int, reason: str) -> None: ...

    def events(self, timeout_s: float) -> Sequence[tuple[int, Event]]:
        """What happened since, in order for each worker; empty when nothing did within the time."""
        ...

    def close(self) -> None:
        """Ends workers that are not over."""
        ...
