"""Up to which `--speed` this machine keeps the times of a cluster: an estimate that takes the start 15 ms.

What the server does takes real time, which counts N times at speed N. How much it does for a request and for a token is
known, in passes of a fixed loop; how long a pass takes, and how late this machine wakes up, is measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush

EXCESS = 0.1  # of TTFT, that still counts as held
BUSY = 0.7  # of one core: what a server may use before requests wait for each other
# In passes of `_loop`: `python -m pacing` and `make bench ARGS=server` in tests/benchmarks, prompts of 1,000 tokens.
_FRONT_END = 3400  # a request that comes after a pause, from its last byte until the cluster has it
_REQUEST = 1850  # CPU of one among many
_TOKEN = 7  # CPU of one among many
_WAY = 300  # of the bytes, to the server and back to the client, both on this machine
_PASSES = 2500  # about 2 ms
_TRIES = 3
_NAPS, _NAP_S = 6, 0.0005


@dataclass(slots=True, frozen=True)
class MachineCost:
    """Seconds of real time. front_end_s: of a request that comes alone; request_s, token_s: CPU of one among many.

    wake_s: how late a client sees a token that is due at a time when the server sleeps.
    """

    front_end_s: float
    request_s: float
    token_s: float
    wake_s: float

    def excess(self, ttft_s: float, speed: float) -> float:
        """Return the share by which a client sees an unloaded TTFT longer than the cluster has it. ttft_s: cluster time."""
        late_s = self.wake_s + max(0.0, self.front_end_s - ttft_s / speed)
        return late_s * speed / ttft_s

    def held_speed(self, ttft_s: float) -> float:
        """Return the highest speed at which `excess` is at most EXCESS. ttft_s: above 0."""
        hidden = ttft_s / self.front_end_s  # up to this speed the front end ends before the first token is due
        beyond = (1 + EXCESS) * ttft_s / (self.wake_s + self.front_end_s)
        return beyond if beyond > hidden else min(hidden, EXCESS * ttft_s / self.wake_s)

    def carried_speed(self, requests_per_s: float, reply_tokens: int) -> float:
        """Return the highest speed at which the server has CPU for this load. requests_per_s: of cluster time."""
        return BUSY / (requests_per_s * (self.request_s + reply_tokens * self.token_s))


def machine_cost(clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep) -> MachineCost:
    """Measure this machine, as it is now."""
    passes, late = [], []
    for _ in range(_TRIES):
        begun_s = clock()
        _loop(_PASSES)
        passes.append((clock() - begun_s) / _PASSES)
    for _ in range(_NAPS):
        due_s = clock() + _NAP_S
        sleep(_NAP_S)
        late.append(max(clock() - due_s, 0.0))
    pass_s = min(passes)
    late_s = sorted(late)[_NAPS // 2]
    return MachineCost(_FRONT_END * pass_s, _REQUEST * pass_s, _TOKEN * pass_s, late_s + _WAY * pass_s)


def rounded(speed: float) -> str:
    """Round a speed down to one digit or two."""
    if speed >= 1:
        digits = 10 ** max(int(math.log10(speed)) - 1, 0)
        return f"{math.floor(speed / digits) * digits:,}"
    return f"{math.floor(speed * 100) / 100:g}"


class _Event:
    __slots__ = ("at_s", "number", "tokens")

    def __init__(self, number: int, at_s: float) -> None:
        self.number = number
        self.at_s = at_s
        self.tokens = [number, number + 1]


def _loop(passes: int) -> float:
    """Do the work of the engine for an event: objects, a dict, a heap, floats."""
    events: dict[int, _Event] = {}
    agenda: list[tuple[float, int]] = []
    now_s = 0.0
    for number in range(passes):
        at_s = now_s + (number * 7919 % 1009) * 0.001
        events[number & 4095] = _Event(number, at_s)
        heappush(agenda, (at_s, number))
        if len(agenda) > 64:
            due_s, due = heappop(agenda)
            event = events.get(due & 4095)
            if event is not None and event.number == due:
                now_s += (due_s - event.at_s + len(event.tokens) * 0.5) * 1e-3
    return now_s
