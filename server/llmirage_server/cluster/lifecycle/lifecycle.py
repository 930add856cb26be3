"""The lifecycle of instances: late starts, graceful stops, crashes and restarts, and the actions of autoscaling."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Literal, get_args

Action = Literal["start", "stop", "crash"]
State = Literal["starting", "up", "draining", "down"]


@dataclass(frozen=True, slots=True)
class LifecycleEvent:
    """A change to one instance at one moment of cluster time.

    start: it accepts requests from now on. An instance whose first event is a start is not there before it.
    stop: it accepts no new request, finishes those it has, and then is gone with its KV.
    crash: its KV and the step in flight are lost at once; with `restart_after_s` it comes back, empty, that much later.
    """

    time_s: float
    instance: int  # numbered over the whole cluster
    action: Action
    restart_after_s: float | None = None

    def problems(self, instances: int) -> list[str]:
        """Return what is wrong with it in a cluster of so many instances."""
        problems = []
        if not 0 <= self.time_s < math.inf:
            problems.append(f"time_s must be a number of seconds from 0 up, not {self.time_s}")
        if not 0 <= self.instance < instances:
            problems.append(f"there is no instance {self.instance}: they are numbered 0 to {instances - 1}")
        if self.action not in get_args(Action):
            problems.append(f"unknown action {self.action!r}: choose one of {', '.join(get_args(Action))}")
        if self.restart_after_s is not None:
            if self.action != "crash":
                problems.append("restart_after_s belongs to a crash: give a start of its own to an instance that stops")
            if not 0 <= self.restart_after_s < math.inf:
                problems.append(f"restart_after_s must be a number of seconds from 0 up, not {self.restart_after_s}")
        return problems


class Lifecycle:
    """The states of all instances and the events still to come; at one instant they happen in the order given.

    An instance is paid for from when it begins to start until it is gone: while it starts up, serves, drains, and comes
    back from a crash; but not before a first `start` of the events, nor after a crash or a stop without one.
    """

    def __init__(self, instances: int, events: Sequence[LifecycleEvent] = (), absent: Collection[int] = ()) -> None:
        """Take the events. absent: instances that are down at first. Raises ValueError naming every invalid event."""
        if problems := [f"event {i + 1}: {text}" for i, event in enumerate(events) for text in event.problems(instances)]:
            raise ValueError("; ".join(problems))
        self._serial = count()
        self._coming = [(event.time_s, next(self._serial), event) for event in events]
        heapify(self._coming)
        first = {event.instance: event.action for _, _, event in sorted(self._coming, reverse=True)}
        self._states: list[State] = [
            "down" if first.get(index) == "start" or index in absent else "up" for index in range(instances)
        ]
        self._booting: set[int] = set()
        self._paid_since_s = [0.0 if state == "up" else math.nan for state in self._states]
        self._paid_s = [0.0] * instances
        self.draining: set[int] = set()  # and not yet gone
        self.changes = [0] * instances  # starts, stops and crashes

    @property
    def next_s(self) -> float:
        """Time of the next event; inf if there is none."""
        return self._coming[0][0] if self._coming else math.inf

    @property
    def next_instance(self) -> int:
        """Instance of the next event."""
        return self._coming[0][2].instance

    def accepts(self, index: int) -> bool:
        """Return whether the instance may get new requests now."""
        return self._states[index] == "up"

    def will_start(self, index: int) -> bool:
        """Return whether an event is due that will make it accept requests."""
        return any(event.instance == index and event.action == "start" for _, _, event in self._coming)

    def state(self, index: int, busy: bool) -> State:
        """Return the state; `starting` and `down` say whether it will come (back). busy: it still has requests."""
        state = self._states[index]
        if state == "up" or (state == "draining" and busy):
            return state
        return "starting" if self.will_start(index) else "down"

    def take(self) -> LifecycleEvent:
        """Process the next event and return it."""
        time_s, _, event = heappop(self._coming)
        index = event.instance
        self.changes[index] += 1
        if event.action == "start":
            self._states[index] = "up"
            self._booting.discard(index)
            self.draining.discard(index)
            self._pay(index, time_s)
        elif event.action == "stop":
            if self._states[index] in ("up", "draining"):
                self.drain(index)
            else:
                self.call_off(index, time_s)
        else:
            self._states[index] = "down"
            self._booting.discard(index)
            self.draining.discard(index)
            if event.restart_after_s is not None:
                self._pay(index, time_s)
                self.add(LifecycleEvent(time_s + event.restart_after_s, index, "start"))
            else:
                self._pay_no_more(index, time_s)
        return event

    def add(self, event: LifecycleEvent) -> None:
        """Add an event, not earlier than those processed."""
        heappush(self._coming, (event.time_s, next(self._serial), event))

    # --- for autoscaling ---

    def counts(self, index: int) -> bool:
        """Return whether the instance serves, or will soon."""
        return self._states[index] != "draining" and not math.isnan(self._paid_since_s[index])

    def is_free(self, index: int) -> bool:
        """Return whether it is gone, so that it may begin to start."""
        return math.isnan(self._paid_since_s[index])

    def is_booting(self, index: int) -> bool:
        return index in self._booting

    def begin(self, index: int, now: float, start_up_s: float) -> None:
        """Start up an instance that is gone."""
        self._booting.add(index)
        self._pay(index, now)
        self.add(LifecycleEvent(now + start_up_s, index, "start"))

    def call_off(self, index: int, now: float) -> None:
        """Cancel the start of an instance."""
        if index in self._booting:
            self._booting.discard(index)
            self._coming = [
                entry for entry in self._coming if not (entry[2].instance == index and entry[2].action == "start")
            ]
            heapify(self._coming)
        self._states[index] = "down"
        self._pay_no_more(index, now)

    def drain(self, index: int) -> None:
        """Stop accepting requests on an instance; see `gone`."""
        self._states[index] = "draining"
        self.draining.add(index)

    def gone(self, index: int, now: float) -> None:
        """Remove a draining instance that has finished its last request."""
        self._states[index] = "down"
        self.draining.discard(index)
        self._pay_no_more(index, now)

    def paid_s(self, index: int, now: float) -> float:
        """Return the seconds up to `now` that are paid for."""
        since = self._paid_since_s[index]
        return self._paid_s[index] + (0.0 if math.isnan(since) else max(0.0, now - since))

    def phase(self, index: int) -> State:
        """Return the `state` of an instance that is paid for; one that is to start at some later time is `down`."""
        if self._states[index] == "down" and not math.isnan(self._paid_since_s[index]):
            return "starting"
        return self._states[index]

    def _pay(self, index: int, now: float) -> None:
        if math.isnan(self._paid_since_s[index]):
            self._paid_since_s[index] = now

    def _pay_no_more(self, index: int, now: float) -> None:
        self._paid_s[index] = self.paid_s(index, now)
        self._paid_since_s[index] = math.nan
