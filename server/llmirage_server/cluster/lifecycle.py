"""When instances come and go: late starts, graceful stops, crashes and restarts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Literal, get_args

Action = Literal["start", "stop", "crash"]
State = Literal["starting", "up", "draining", "down"]


@dataclass(frozen=True, slots=True)
class LifecycleEvent:
    """What happens to one instance at one moment of cluster time.

    start: it accepts requests from now on. An instance whose first event is a start is not there before it.
    stop: it accepts no new request, finishes those it has, and then is gone with its KV.
    crash: its KV and the step in flight are lost at once; with `restart_after_s` it comes back, empty, that much later.
    """

    time_s: float
    instance: int  # numbered over the whole cluster
    action: Action
    restart_after_s: float | None = None


class Lifecycle:
    """The states of all instances and the events still to come; at one instant they happen in the order given."""

    def __init__(self, instances: int, events: Sequence[LifecycleEvent] = ()) -> None:
        """Raises ValueError naming every event that makes no sense."""
        if problems := [f"event {i + 1}: {text}" for i, event in enumerate(events) for text in _problems(event, instances)]:
            raise ValueError("; ".join(problems))
        self._serial = count()
        self._coming = [(event.time_s, next(self._serial), event) for event in events]
        heapify(self._coming)
        first = {event.instance: event.action for _, _, event in sorted(self._coming, reverse=True)}
        self._states: list[State] = ["down" if first.get(index) == "start" else "up" for index in range(instances)]

    @property
    def next_s(self) -> float:
        """When the next event happens; inf if there is none."""
        return self._coming[0][0] if self._coming else math.inf

    @property
    def next_instance(self) -> int:
        """Whose event that is."""
        return self._coming[0][2].instance

    def accepts(self, index: int) -> bool:
        """May the instance get new requests now?"""
        return self._states[index] == "up"

    def will_start(self, index: int) -> bool:
        """Is there an event that will make it accept requests?"""
        return any(event.instance == index and event.action == "start" for _, _, event in self._coming)

    def state(self, index: int, busy: bool) -> State:
        """`starting` and `down` tell whether it will come (back). `busy`: it still has requests."""
        state = self._states[index]
        if state == "up" or (state == "draining" and busy):
            return state
        return "starting" if self.will_start(index) else "down"

    def take(self) -> LifecycleEvent:
        """Let the next event happen."""
        time_s, _, event = heappop(self._coming)
        index = event.instance
        if event.action == "start":
            self._states[index] = "up"
        elif event.action == "stop":
            self._states[index] = "draining" if self._states[index] in ("up", "draining") else "down"
        else:
            self._states[index] = "down"
            if event.restart_after_s is not None:
                restart = LifecycleEvent(time_s + event.restart_after_s, index, "start")
                heappush(self._coming, (restart.time_s, next(self._serial), restart))
        return event


def _problems(event: LifecycleEvent, instances: int) -> list[str]:
    problems = []
    if not 0 <= event.time_s < math.inf:
        problems.append(f"time_s must be a number of seconds from 0 up, not {event.time_s}")
    if not 0 <= event.instance < instances:
        problems.append(f"there is no instance {event.instance}: they are numbered 0 to {instances - 1}")
    if event.action not in get_args(Action):
        problems.append(f"unknown action {event.action!r}: choose one of {', '.join(get_args(Action))}")
    if event.restart_after_s is not None:
        if event.action != "crash":
            problems.append("restart_after_s belongs to a crash: give a start of its own to an instance that stops")
        if not 0 <= event.restart_after_s < math.inf:
            problems.append(f"restart_after_s must be a number of seconds from 0 up, not {event.restart_after_s}")
    return problems
