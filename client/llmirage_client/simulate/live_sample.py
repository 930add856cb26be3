"""The figures of a simulation while it goes on, from a sample of its requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from llmirage_client.report.live_figures import SPARK_CELLS, latency_line, rate_line
from llmirage_shared.log_histogram import LogHistogram

if TYPE_CHECKING:
    from llmirage_client.simulate.token_rows import TokenRow

SAMPLE = 32  # requests of those that are over since the last look: all of them would slow the simulation down
_RATE_OVER = 5  # looks


class LiveSample:
    """Give it a look at the simulation a few times a second."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int, float]] = deque([(0.0, 0, 0.0)], SPARK_CELLS + 1)  # time, requests, tokens
        self._ttft, self._tpot = LogHistogram(), LogHistogram()

    def look(self, reached_s: float, done: int, rows: Sequence[TokenRow]) -> None:
        """reached_s: of the cluster's time. rows: those of the requests that are over."""
        last_s, before, tokens = self._looks[-1]
        if reached_s <= last_s:
            return
        every = max((done - before) // SAMPLE, 1)
        seen = [row for row in rows[before:done:every] if row.error is None]
        for row in seen:
            self._time(row)
        if seen:
            tokens += sum([row.request.produced for row in seen]) / len(seen) * (done - before)
        self._looks.append((reached_s, done, tokens))

    def _time(self, row: TokenRow) -> None:
        times = row.times
        if not len(times):
            return
        self._ttft.add(max(float(times[0]) - row.start_s, 0.0))
        if len(times) > 1:
            self._tpot.add(float(times[-1] - times[0]) / (len(times) - 1))

    def lines(self, *, sparks: bool) -> list[str]:
        looks = list(self._looks)
        if len(looks) < 2:
            return []
        tokens_per_s = [(b[2] - a[2]) / (b[0] - a[0]) for a, b in pairwise(looks)]
        first, last = looks[max(len(looks) - 1 - _RATE_OVER, 0)], looks[-1]
        over_s = last[0] - first[0]
        rates = rate_line((last[1] - first[1]) / over_s, (last[2] - first[2]) / over_s, tokens_per_s if sparks else [])
        return [rates, *latency_line(self._ttft, self._tpot)]
