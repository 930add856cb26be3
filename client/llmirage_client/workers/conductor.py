"""Leads workers through a run: one start for all, their records into one file, and one end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from llmirage_client.load.options import Share
from llmirage_client.load.runner import ProgressSink
from llmirage_client.workers.job import Begin, Clocks, Crew, Event, Failed, Finished, Job, Lost, Progressed, Ready

LEAD_S = 0.2  # between the order to begin and the beginning; an order takes milliseconds
_BEAT_S = 0.1
_END_S = 15.0  # for a worker that was told to stop
_START_S = 300.0  # until the first word of a worker: it loads the workload and perhaps a tokenizer
_SILENCE_S = 20.0  # between two words of a worker, which has one at least every second (worker.WORD_S)


class Lines(Protocol):
    """Where records go as they come."""

    def write_lines(self, lines: bytes) -> None: ...


class WorkerFailure(Exception):
    """A worker could not do its part. refused: the message is for the user; else there is an error in this program."""

    def __init__(self, message: str, refused: bool) -> None:
        super().__init__(message)
        self.refused = refused


@dataclass(slots=True)
class WorkerPart:
    """A worker's part of the run. lines: its records, each a line of profile_export.jsonl.

    heard_s: when it last said something, on time.monotonic(); before that, when it was hired.
    """

    host: str
    clocks: Clocks | None = None
    clocks_after: Clocks | None = None
    lines: list[bytes] = field(default_factory=list)
    counts: tuple[int, int, int] = (0, 0, 0)
    ready: str | None = None
    finished: Finished | None = None
    lost: str | None = None
    heard_s: float = field(default_factory=time.monotonic)
    has_spoken: bool = False

    @property
    def over(self) -> bool:
        return self.finished is not None or self.lost is not None


class Conductor:
    """`run` in one thread; `cancel` from any other.

    Times of the run count from zero_s, a moment of time.monotonic() here, which was zero_unix_s on the wall clock.
    """

    def __init__(
        self,
        crew: Crew,
        job: Job,
        workers: int,
        lines: Lines,
        zero_s: float,
        zero_unix_s: float,
        progress: ProgressSink | None = None,
        on_begin: Callable[[], None] | None = None,
    ) -> None:
        """job: of the whole run. on_begin: called when all workers are there and the first phase is about to begin."""
        self.parts: list[WorkerPart] = []
        self.start_s = 0.0  # of the measured phase, after zero
        self.cancel_reason: str | None = None
        self._crew = crew
        self._jobs = [replace(job, options=replace(job.options, share=Share(i, workers))) for i in range(workers)]
        self._lines = lines
        self._zero_s = zero_s
        self._zero_unix_s = zero_unix_s
        self._progress = progress
        self._on_begin = on_begin
        self._stop_sent_s: float | None = None

    def cancel(self, reason: str) -> None:
        """Cancel the workers' requests in flight and end their runs. Idempotent."""
        self.cancel_reason = self.cancel_reason or reason

    def run(self) -> Sequence[WorkerPart]:
        """Wait until every worker's part has ended, in whatever way. Raises CrewError, WorkerFailure."""
        try:
            self.parts = [WorkerPart(host) for host in self._crew.hire(self._jobs)]
            for number, part in enumerate(self.parts):
                part.clocks = self._crew.clocks(number)
                if part.clocks is None:
                    self._lose(number, "it did not answer the clock request")
            while not all(part.over for part in self.parts):
                for number, event in self._crew.events(_BEAT_S):
                    self._hear(number, event)
                self._lose_silent()
                self._stop_if_cancelled()
                self._begin_if_ready()
                self.show_progress()
            for number, part in enumerate(self.parts):
                if part.lost is None:
                    part.clocks_after = self._crew.clocks(number)
        finally:
            self._crew.close()
        return self.parts

    def show_progress(self) -> None:
        if self._progress is not None:
            done, errors, in_flight = (sum(counts) for counts in zip(*(p.counts for p in self.parts), strict=True))
            self._progress.update(done, errors, in_flight)

    def _hear(self, number: int, event: Event) -> None:
        part = self.parts[number]
        part.heard_s, part.has_spoken = time.monotonic(), True
        match event:
            case Ready(phase):
                part.ready = phase
            case Progressed(lines, done, errors, in_flight):
                part.counts = (done, errors, in_flight)
                if lines:
                    part.lines.append(lines)
                    self._lines.write_lines(lines)
            case Finished():
                part.finished = event
                if event.cancel_reason is not None:
                    self.cancel(event.cancel_reason)
            case Failed(message, refused):
                raise WorkerFailure(message, refused)
            case Lost(why):
                if not part.over:
                    self._lose(number, why)

    def _lose_silent(self) -> None:
        """Give up workers that are stopped, or whose machine does not answer."""
        now_s = time.monotonic()
        for number, part in enumerate(self.parts):
            limit_s = _SILENCE_S if part.has_spoken else _START_S
            if not part.over and now_s > part.heard_s + limit_s:
                self._lose(number, f"it has said nothing for {limit_s:g} s")

    def _lose(self, number: int, why: str) -> None:
        part = self.parts[number]
        part.lost = why
        part.counts = (part.counts[0], part.counts[1], 0)
        self.cancel(f"worker {number + 1} of {len(self.parts)} on {part.host} was lost: {why}")

    def _stop_if_cancelled(self) -> None:
        if self.cancel_reason is None:
            return
        now_s = time.monotonic()
        if self._stop_sent_s is None:
            self._stop_sent_s = now_s
            for number, part in enumerate(self.parts):
                if not part.over:
                    self._crew.cancel(number, self.cancel_reason)
        elif now_s > self._stop_sent_s + _END_S:
            for number, part in enumerate(self.parts):
                if not part.over:
                    self._lose(number, f"it did not stop within {_END_S:g} s")

    def _begin_if_ready(self) -> None:
        """Begin a phase at one moment once all workers left wait for it."""
        waiting = [(number, part) for number, part in enumerate(self.parts) if not part.over]
        phases = {part.ready for _, part in waiting}
        if self.cancel_reason is not None or len(phases) != 1 or None in phases:
            return
        if self._on_begin is not None:
            self._on_begin()
            self._on_begin = None
        at_s = time.monotonic() + LEAD_S
        self.start_s = at_s - self._zero_s  # of the last phase that begins
        for number, part in waiting:
            part.ready = None
            assert part.clocks is not None
            ahead_s = part.clocks.ahead_s
            self._crew.begin(number, Begin(at_s + ahead_s, self._zero_s + ahead_s, self._zero_unix_s))
