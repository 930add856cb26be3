"""When something happens next, for each of some numbered things: the earliest is found at once, however many there are."""

from __future__ import annotations

import math
from heapq import heappush


class Agenda:
    """times: of the next event of each thing; inf where there is none.

    heap: the same by time, then by number; an entry that differs from `times` is outlived, and is skipped when it comes up.
    The event loop changes both directly: a call for each would cost more than what it does.
    """

    def __init__(self, things: int) -> None:
        self.times = [math.inf] * things
        self.heap: list[tuple[float, int]] = []

    def note(self, number: int, time_s: float) -> None:
        """The next event of one is then; inf: it has none."""
        if time_s != self.times[number]:
            self.times[number] = time_s
            if time_s < math.inf:
                heappush(self.heap, (time_s, number))
