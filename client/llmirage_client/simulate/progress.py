"""Progress of simulations: nothing for the first two seconds, which most of them do not need; then how far they are."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self, TextIO

from llmirage_client.report.numbers import duration
from llmirage_client.report.progress import StatusLine, bar, minutes
from llmirage_client.simulate.live_sample import LiveSample

if TYPE_CHECKING:
    from llmirage_client.simulate.token_rows import TokenRow

QUIET_S = 2.0
LOOK_S = 0.5  # between two looks at the requests that are over


class SimulationProgress(StatusLine):
    """Tell it how far the simulation is as often as you like; it begins when it is made.

    total: requests that will be over in the end, None if not known; asked when there is something to say, as counting
    them takes time. until_s: of the cluster's time, where it stops at last.
    """

    def __init__(
        self,
        total: Callable[[], int | None] = lambda: None,
        until_s: float | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(stream, clock)
        self._total = total
        self._until_s = until_s
        self._of, self._place, self._count = "", 0, 1
        self._done, self._reached_s = 0, 0.0
        self._rows: Sequence[TokenRow] = ()
        self._live = LiveSample()
        self._next_look_s = 0.0
        self._started_s = clock()
        self._next_s = self._started_s + QUIET_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def begin(self, of: str, place: int = 0, count: int = 1) -> None:
        """The next of several simulations. of: what it is about. place, count: of parts of many, which begin with a line."""
        self._of = f"{place + 1} of {count}, {of}" if count > 1 else of
        self._place, self._count, self._total = place, count, lambda: None
        if count > 1 and not place:
            self._draw(self._clock())
        self.update(0, 0.0)

    def plan(self, total: int) -> None:
        """It will have so many requests."""
        self._total = lambda: total

    def update(self, done: int, reached_s: float, rows: Sequence[TokenRow] = ()) -> None:
        """done: requests that are over; reached_s: of the cluster's time. rows: those requests, where figures are wanted."""
        self._done, self._reached_s, self._rows = done, reached_s, rows
        self._draw_if_due()

    def stop(self) -> None:
        """Take the line away from a terminal. Safe to call twice."""
        self._end(f"\r{self._up()}\x1b[{'J' if self._below else 'K'}" if self._drawn else "")

    def _lines_below(self, elapsed_s: float) -> list[str]:
        if not self._rows or not self._has_lines_below:
            return []
        if elapsed_s >= self._next_look_s:
            self._next_look_s = elapsed_s + LOOK_S
            self._live.look(self._reached_s, self._done, self._rows)
        return self._live.lines(sparks=self._has_sparks)

    @property
    def _drawn(self) -> bool:
        assert self._started_s is not None
        return self._next_s != self._started_s + QUIET_S

    def _known_total(self) -> int | None:
        total = self._total()
        self._total = lambda: total
        return total

    def _line(self, elapsed_s: float) -> str:
        total = self._known_total()
        requests = f"{self._done:,} of {total:,} requests" if total else f"{self._done:,} requests"
        parts = [requests, f"{duration(self._reached_s)} of cluster time", f"{minutes(elapsed_s)} elapsed"]
        text = (f"{self._of}: " if self._of else "") + ", ".join(parts)
        if self._count > 1:
            return f"{bar(self._place / self._count)} {text}" if self._has_room_for_a_bar else text
        shares = [self._done / total] if total else []
        shares += [self._reached_s / self._until_s] if self._until_s else []
        return f"{bar(max(shares))} {text}" if shares and self._has_room_for_a_bar else text
