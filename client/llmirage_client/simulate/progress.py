"""Progress of simulations: nothing for the first two seconds, in which most of them end; then their progress."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Self, TextIO

from llmirage_client.report.progress import SPARK_CELLS, StatusLine, bar, latency_line, minutes, rate_line
from llmirage_client.report.screen import duration
from llmirage_shared.plural import plural
from llmirage_shared.statistics import LogHistogram

if TYPE_CHECKING:
    from llmirage_client.simulate.token_rows import TokenRow

SAMPLE = 32  # finished requests since the last sample: all of them would slow the simulation down
_RATE_OVER = 5  # samples


class LiveSample:
    """Figures of a simulation in progress, from a sample of its requests, taken a few times a second."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int, float]] = deque([(0.0, 0, 0.0)], SPARK_CELLS + 1)  # time, requests, tokens
        self._ttft, self._tpot = LogHistogram(), LogHistogram()

    def sample(self, reached_s: float, done: int, rows: Sequence[TokenRow]) -> None:
        """Take a sample. reached_s: of the cluster's time. rows: the last finished requests."""
        last_s, before, tokens = self._samples[-1]
        if reached_s <= last_s:
            return
        every = max((done - before) // SAMPLE, 1)
        seen = [row for row in rows[max(len(rows) - (done - before), 0) :: every] if row.error is None]
        for row in seen:
            self._time(row)
        if seen:
            tokens += sum([row.request.produced for row in seen]) / len(seen) * (done - before)
        self._samples.append((reached_s, done, tokens))

    def _time(self, row: TokenRow) -> None:
        times = row.times
        if not len(times):
            return
        self._ttft.add(max(float(times[0]) - row.start_s, 0.0))
        if len(times) > 1:
            self._tpot.add(float(times[-1] - times[0]) / (len(times) - 1))

    def lines(self, *, sparks: bool) -> list[str]:
        samples = list(self._samples)
        if len(samples) < 2:
            return []
        tokens_per_s = [(b[2] - a[2]) / (b[0] - a[0]) for a, b in pairwise(samples)]
        first, last = samples[max(len(samples) - 1 - _RATE_OVER, 0)], samples[-1]
        over_s = last[0] - first[0]
        rates = rate_line((last[1] - first[1]) / over_s, (last[2] - first[2]) / over_s, tokens_per_s if sparks else [])
        return [rates, *latency_line(self._ttft, self._tpot)]


QUIET_S = 2.0
SAMPLE_EVERY_S = 0.5  # between two samples of the finished requests


class SimulationProgress(StatusLine):
    """A display of progress that begins when it is created; update it as often as you like.

    total: requests that will have finished in the end, None if unknown; called on demand, as counting takes time.
    until_s: cluster time at which it stops at the latest.
    """

    def __init__(
        self,
        total: Callable[[], int | None] = lambda: None,
        until_s: float | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(stream, clock, QUIET_S)
        self._total = total
        self._until_s = until_s
        self._of, self._place, self._count = "", 0, 1
        self._done, self._reached_s = 0, 0.0
        self._rows: Sequence[TokenRow] = ()
        self._live = LiveSample()
        self._next_sample_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def begin(self, of: str, place: int = 0, count: int = 1) -> None:
        """Begin the next of several simulations.

        of: its subject.
        place, count: of parts of many, which begin with a line.
        """
        self._of = f"{place + 1} of {count}, {of}" if count > 1 else of
        self._place, self._count, self._total = place, count, lambda: None
        if count > 1 and not place:
            self._draw(self._clock())
        self.update(0, 0.0)

    def update(self, done: int, reached_s: float, rows: Sequence[TokenRow] = ()) -> None:
        """Set the number of finished requests, the cluster's time, and those requests, where figures are wanted."""
        self._done, self._reached_s, self._rows = done, reached_s, rows
        self._draw_if_due()

    def update_of(self, done: int, total: int, reached_s: float) -> None:
        """Set the number of finished requests, that of all, and the cluster's time."""
        self._total = lambda: total
        self.update(done, reached_s)

    def stop(self) -> None:
        """Remove the line from a terminal. Safe to call twice."""
        self._end(f"\r{self._up()}\x1b[{'J' if self._below else 'K'}")

    def _lines_below(self, elapsed_s: float) -> list[str]:
        if not self._rows or not self._has_lines_below:
            return []
        if elapsed_s >= self._next_sample_s:
            self._next_sample_s = elapsed_s + SAMPLE_EVERY_S
            self._live.sample(self._reached_s, self._done, self._rows)
        return self._live.lines(sparks=self._has_sparks)

    def _known_total(self) -> int | None:
        total = self._total()
        self._total = lambda: total
        return total

    def _line(self, elapsed_s: float) -> str:
        total = self._known_total()
        requests = f"{self._done:,} of {plural(total, 'request')}" if total else plural(self._done, "request")
        parts = [requests, f"{duration(self._reached_s)} of cluster time", f"{minutes(elapsed_s)} elapsed"]
        text = (f"{self._of}: " if self._of else "") + ", ".join(parts)
        if self._count > 1:
            return f"{bar(self._place / self._count)} {text}" if self._has_room_for_a_bar else text
        shares = [self._done / total] if total else []
        shares += [self._reached_s / self._until_s] if self._until_s else []
        return f"{bar(max(shares))} {text}" if shares and self._has_room_for_a_bar else text
