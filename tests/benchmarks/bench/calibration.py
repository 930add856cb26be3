"""The yardstick: a fixed loop of pure Python, measured beside each benchmark in the same process.

A benchmark's figure is its cost in passes of this loop. Other load on the machine and the processor's clock change both
alike, so their ratio moves far less than CPU time does. One pass does what the engine does for an event: it makes an object
and drops one, asks a dict, reads attributes, pushes to a heap and pops from it, computes with floats. Changing the loop
changes every ratio: measure the baseline anew then.
"""

import gc
import time
from heapq import heappop, heappush

PASSES = 40_000  # about 30 ms
_KEPT = 4096  # objects alive at a time: more than the first two caches of a core hold


class _Event:
    __slots__ = ("at_s", "number", "tokens", "waited_s")

    def __init__(self, number: int, at_s: float) -> None:
        self.number = number
        self.at_s = at_s
        self.tokens = [number, number + 1]
        self.waited_s = 0.0


def pass_cost_s(passes: int = PASSES) -> float:
    """CPU seconds of one pass, the mean of `passes`."""
    collects = gc.isenabled()
    gc.disable()  # a collection would walk what the benchmark keeps
    begun_s = time.process_time()
    _loop(passes)
    spent_s = time.process_time() - begun_s
    if collects:
        gc.enable()
    return spent_s / passes


def _loop(passes: int) -> float:
    events: dict[int, _Event] = {}
    agenda: list[tuple[float, int]] = []
    now_s = 0.0
    for number in range(passes):
        at_s = now_s + (number * 7919 % 1009) * 0.001
        events[number & _KEPT - 1] = _Event(number, at_s)
        heappush(agenda, (at_s, number))
        if len(agenda) > 64:
            due_s, due = heappop(agenda)
            event = events.get(due & _KEPT - 1)
            if event is not None and event.number == due:
                event.waited_s = due_s - event.at_s + len(event.tokens) * 0.5
                now_s += event.waited_s * 1e-3
    return now_s
