"""Jobs and messages of workers, and the interface by which a run's leader drives them.

All that is said between them can be pickled.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from llmirage_client.load.options import RunOptions
from llmirage_client.measure.record import BranchStats
from llmirage_client.targets.endpoint import EndpointSettings
from llmirage_client.targets.target import TransportUse
from llmirage_client.workload.session import Workload


@dataclass(slots=True, frozen=True)
class Job:
    """The whole run; options.share says which part of it is this worker's."""

    workload: Workload
    options: RunOptions
    endpoint: EndpointSettings


@dataclass(slots=True, frozen=True)
class Begin:
    """Starts a phase. Times are of the worker's own time.monotonic().

    at_s: when. zero_s: a moment that all workers have in common, zero_unix_s on the wall clock of the leader.
    """

    at_s: float
    zero_s: float
    zero_unix_s: float


@dataclass(slots=True, frozen=True)
class Ready:
    """It could begin the phase."""

    phase: str


@dataclass(slots=True, frozen=True)
class Progressed:
    """lines: of profile_export.jsonl, one for each request that ended since the last time; counts are of the whole run."""

    lines: bytes
    done: int
    errors: int
    in_flight: int


@dataclass(slots=True, frozen=True)
class Finished:
    """Its part is over. inputs: pickled, as RunResult has them. end_s: seconds after the common zero."""

    branch_stats: BranchStats | None
    inputs: bytes
    notes: tuple[str, ...]
    endpoint: str
    cpu_s: float
    lag_s: tuple[float, ...]
    end_s: float
    late_start_s: float
    roots_taken: int
    cancel_reason: str | None
    transports: Sequence[TransportUse]


@dataclass(slots=True, frozen=True)
class Failed:
    """It could not do its part. refused: the message is for the user; else it is a traceback."""

    message: str
    refused: bool = False


@dataclass(slots=True, frozen=True)
class Lost:
    """Nothing will be heard of it any more."""

    why: str


Event = Ready | Progressed | Finished | Failed | Lost


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
    """Workers 0 to n - 1. `hire` comes first and `close` last, also where it failed; what has been lost stays silent."""

    def hire(self, jobs: Sequence[Job]) -> Sequence[str]:
        """Start a worker for each job; return the names of their machines. Raises CrewError."""
        ...

    def clocks(self, worker: int) -> Clocks | None:
        """Compare clocks; return None if the worker does not answer."""
        ...

    def begin(self, worker: int, begin: Begin) -> None: ...

    def cancel(self, worker: int, reason: str) -> None: ...

    def events(self, timeout_s: float) -> Sequence[tuple[int, Event]]:
        """Return the events since the last call, in order for each worker; empty if none came within the time."""
        ...

    def close(self) -> None:
        """End workers that are still running."""
        ...


def usable_cpus() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
