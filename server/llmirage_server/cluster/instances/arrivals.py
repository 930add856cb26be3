"""Requests in the front end of an instance, and when its schedulers poll for them.

An engine that overlaps scheduling with execution forms a step while the one before it runs: a request that arrives then is
in the step after that at the earliest. With an interval (SGLang's scheduler_recv_interval) it polls only after that many
decoding steps, or after one with prompts. An idle engine polls all the time.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.request import Sequence
from llmirage_server.cluster.schedulers import Scheduler

_Arrival = tuple[float, Scheduler, Sequence]


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """The work ahead of the scheduler: HTTP, tokenizer, transfer between processes.

    latency_s: of every request.
    request_s, token_s: of a request and of each token of its prompt, one request at a time.
    output_s: of a token that is sent, in the same process: a request waits behind the tokens that are there already.
    """

    latency_s: float = 0.0
    request_s: float = 0.0
    token_s: float = 0.0
    output_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("latency_s", "request_s", "token_s", "output_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"front end: {name} must be a number of seconds from 0 up, not {getattr(self, name)}")

    @property
    def serial(self) -> bool:
        """True if requests wait for each other, or for tokens."""
        return self.request_s > 0 or self.token_s > 0 or self.output_s > 0


class ArrivalQueue:
    """Requests that are not with a scheduler yet.

    entries: the earliest first.
    last_poll_s: earlier arrivals are visible to the scheduler. A pipeline polls whenever it forms a step.
    """

    def __init__(self, limits: EngineLimits, front_end: FrontEnd, pipelined: bool) -> None:
        self._front_end = front_end
        self._overlap = limits.async_scheduling and not pipelined
        self._interval = 1 if pipelined else limits.scheduler_recv_interval
        self.sends_tokens = front_end.output_s > 0
        self.at_once = not self._overlap and self._interval == 1  # polls before every step
        self.clear()

    def clear(self) -> None:
        self.entries: list[_Arrival] = []
        self.last_poll_s = math.inf
        self._steps = 0  # formed since the last poll
        self.free_s = -math.inf  # when the front end is free

    def passed_on_s(self, arrival_s: float, prompt_tokens: int) -> float:
        """Return when the front end, which takes one request after the other, has processed one."""
        front = self._front_end
        if not front.serial:
            return arrival_s + front.latency_s
        begins_s = max(arrival_s, self.free_s)
        self.free_s = begins_s + front.request_s + front.token_s * prompt_tokens
        return self.free_s + front.latency_s

    def send(self, ends_s: Iterable[float], tokens: int) -> None:
        """Send `tokens` tokens at the end of each of these steps through the front end."""
        free_s, busy_s = self.free_s, tokens * self._front_end.output_s
        for end_s in ends_s:
            free_s = max(free_s, end_s) + busy_s
        self.free_s = free_s

    def add(self, seen_s: float, scheduler: Scheduler, sequence: Sequence) -> None:
        """Add a sequence that the front end passes on at `seen_s`."""
        entries = self.entries
        if entries and entries[-1][0] > seen_s:
            insort(entries, (seen_s, scheduler, sequence), key=lambda entry: entry[0])
        else:
            entries.append((seen_s, scheduler, sequence))

    def remove(self, sequence: Sequence) -> bool:
        """Remove a sequence; return False if it is with a scheduler."""
        for at, entry in enumerate(self.entries):
            if entry[2] is sequence:
                del self.entries[at]
                return True
        return False

    def take(self, now: float) -> None:
        """Pass sequences that have arrived by `now` and have been polled to their schedulers."""
        entries, by_s = self.entries, min(now, self.last_poll_s)
        while entries and entries[0][0] <= by_s:
            _, scheduler, sequence = entries.pop(0)
            scheduler.add(sequence)

    @property
    def next_s(self) -> float:
        """Time at which the next one is passed on, if the scheduler polls then."""
        entries = self.entries
        return entries[0][0] if entries and entries[0][0] <= self.last_poll_s else math.inf

    # --- polling ---

    def idle(self) -> None:
        """Poll all the time: nothing can be formed."""
        self.last_poll_s = math.inf
        self._steps = 0

    def busy(self, start_s: float) -> None:
        """Poll only when a step is formed, from `start_s` on."""
        if self.last_poll_s == math.inf and not self.at_once:
            self.last_poll_s = start_s

    def step_begins(self, start_s: float, prompts: bool) -> None:
        """Note that a step was formed for `start_s`, with or without prompts."""
        if self.at_once:
            return
        self.busy(start_s)
        self._steps = self._interval if prompts else self._steps + 1
        if self._overlap and self._steps >= self._interval:
            self.last_poll_s, self._steps = start_s, 0

    def step_ends(self, end_s: float) -> None:
        """Pass polled arrivals to the scheduler at the end of a step."""
        if not self.at_once and not self._overlap and self._steps >= self._interval:
            self.last_poll_s, self._steps = end_s, 0
        if self.entries:
            self.take(end_s)

    def run_ends(self, start_s: float, ends_s: Seq[float], steps: int) -> None:
        """Note that `steps` decoding steps, at least one, were formed one after the other, and have ended."""
        if not self.at_once:
            formed = self._steps + steps
            self._steps = formed % self._interval
            last = steps - 1 - self._steps  # of the last poll
            if last >= 0:
                if not self._overlap:
                    last += 1
                self.last_poll_s = ends_s[last - 1] if last else start_s
        if self.entries:
            self.take(ends_s[steps - 1])

    def noticed_at(self, step: int) -> int:
        """Return the step of a run after which a request that arrives in `step` can be scheduled; -1: before the first."""
        if self._overlap:
            step += 1
        elif step < 0:
            step = 0
        return step + (self._interval - 1 - self._steps - step) % self._interval
