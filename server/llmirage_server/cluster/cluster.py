"""The cluster: a router, its instances, and one clock. A pure state machine; whoever drives it brings the time."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

from llmirage_server.cluster.instance_base import InstanceBase, InstanceSnapshot
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.request import Request, StepEnd
from llmirage_server.cluster.router import Router

__all__ = ["Cluster", "EngineLimits", "InstanceBase", "InstanceSnapshot"]


class Cluster:
    """Serves requests in the caller's time.

    What happens depends on the submitted and cancelled requests and their times alone, not on how often or how far
    `advance` is called in between. A time earlier than one already reached counts as that one.
    """

    def __init__(self, instances: Sequence[InstanceBase], router: Router) -> None:
        if not instances:
            raise ValueError("a cluster needs at least one instance")
        self._instances = list(instances)
        self.max_request_tokens = min(instance.max_request_tokens for instance in instances)  # prompt and output together
        self._router = router
        self._now = -math.inf
        self._events = [instance.next_event_time() for instance in instances]
        self._held: list[StepEnd] = []  # happened before a submit or cancel, not yet returned by advance

    def submit(self, request: Request, now: float) -> None:
        """Route a request and queue it. Raises ValueError for an empty one, or one that could never finish."""
        prompt_tokens, output_tokens = len(request.prompt), len(request.output)
        if not prompt_tokens or not output_tokens:
            raise ValueError("a request needs at least one prompt token and one output token")
        if prompt_tokens + output_tokens > self.max_request_tokens:
            raise ValueError(
                f"a request of {prompt_tokens} prompt and {output_tokens} output tokens can never finish: "
                f"an instance has room for {self.max_request_tokens} tokens"
            )
        self._held.extend(self._run(now, sys.maxsize))
        index = self._router.choose(request, self._instances)
        self._instances[index].submit(request, self._now)
        request.instance = index
        request.arrival_s = self._now
        self._events[index] = self._instances[index].next_event_time()

    def cancel(self, request: Request, now: float) -> None:
        """Stop a request and free its KV and batch slot at once; the step in flight keeps its end time.

        Nothing happens if the request has finished or been cancelled by `now`, or was never submitted.
        """
        self._held.extend(self._run(now, sys.maxsize))
        if request.instance < 0 or request.cancelled or request.produced == len(request.output):
            return
        request.cancelled = True
        self._instances[request.instance].cancel(request, self._now)
        self._events[request.instance] = self._instances[request.instance].next_event_time()

    def next_event_time(self) -> float:
        """When `advance` should be called next; inf when idle.

        A driver that converts between clocks should advance to at least this time, not to what rounding made of it.
        """
        return self._held[0].time_s if self._held else min(self._events)

    def advance(self, to: float, max_steps: int | None = None) -> list[StepEnd]:
        """Let everything happen up to and including `to`; return what brought tokens, in time order.

        In each StepEnd every request of `emitted` gained exactly one token. Ties between instances go by index. With
        `max_steps` the work stops after so many step ends; `next_event_time` tells that there is more. `to` may be inf.
        """
        if max_steps is None:
            max_steps = sys.maxsize
        self._held.extend(self._run(to, max_steps - len(self._held)))
        ends, self._held = self._held[:max_steps], self._held[max_steps:]
        return ends

    def snapshot(self) -> list[InstanceSnapshot]:
        """The state of every instance, as of the time reached."""
        return [instance.snapshot() for instance in self._instances]

    def _run(self, to: float, max_steps: int) -> list[StepEnd]:
        ends: list[StepEnd] = []
        events, instances = self._events, self._instances
        while (now := min(events)) <= to and now < math.inf:
            if len(ends) >= max_steps:
                return ends
            index = events.index(now)
            end = instances[index].advance()
            events[index] = instances[index].next_event_time()
            if end is not None:
                ends.append(end)
            self._now = max(self._now, now)
        if to < math.inf:
            self._now = max(self._now, to)
        return ends
