"""Virtual time for a cluster, without HTTP or an event loop: requests are submitted, and reported when they finish."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import numpy.typing as npt

from llmirage_server.cluster.cluster import Cluster
from llmirage_server.cluster.request import QueueWait, Request, StepEnd

Times = npt.NDArray[np.float64]


class InFlightRequest:
    """A submitted request, with a callback for its end. `times` gives the times of its tokens."""

    __slots__ = ("request", "token_s")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.token_s: list[float] = []  # of tokens that the cluster tells of one by one

    def over(self) -> None:
        """Handle that it has finished or failed; never called for a cancelled one."""

    @property
    def times(self) -> Times:
        """Times at which tokens were sent, cluster time, float64, shape (tokens,)."""
        request, times = self.request, np.array(self.token_s)
        if request.spans:
            pieces = [np.array(ends_s[first : last + 1]) for ends_s, first, last in request.spans]
            times = np.sort(np.concatenate([*pieces, times]))
        return times if request.stream is None else request.stream.seen_s(times, request.output_tokens)

    @property
    def arrivals(self) -> Times:
        """The same with tokens that were sent together (speculation, streams in intervals) counted as one."""
        times = self.times
        return times[np.append(True, times[1:] > times[:-1])] if len(times) > 1 else times


class Observer(Protocol):
    """A reader of the cluster's state at times of its choice."""

    next_s: float  # when

    def observe(self, now: float) -> None:
        """Read the state at `next_s`."""
        ...

    def skip(self, to: float) -> None:
        """Note that nothing will happen until `to`."""
        ...


class _NoObserver:
    """An observer that never reads."""

    next_s = math.inf

    def observe(self, now: float) -> None: ...

    def skip(self, to: float) -> None: ...


_NO_OBSERVER = _NoObserver()


class ClusterRun:
    """Requests in a cluster, in the caller's virtual time."""

    def __init__(self, cluster: Cluster, observer: Observer = _NO_OBSERVER) -> None:
        self.cluster = cluster
        self.under_way = 0
        self.waits: list[QueueWait] = []  # of requests that are over, in that order
        self._observer = observer

    def submit(self, flight: InFlightRequest, now: float) -> None:
        """Hand a request to the cluster; `flight.over` is called when it has finished or failed.

        It may have failed at once: then `over` is not called. Raises ValueError and RouterError as Cluster.submit does.
        """
        request = flight.request
        request.tag = flight
        self.cluster.submit(request, now)
        if request.failed:
            request.tag = None  # the cluster reports it with its next events, which are not awaited
        else:
            self.under_way += 1

    def cancel(self, request: Request, now: float) -> None:
        """Cancel a request; harmless when it has finished."""
        if not (request.failed or request.cancelled or not math.isnan(request.finished_s)):
            self.under_way -= 1
            self.cluster.cancel(request, now)
            self.waits.append(request.wait(now))

    def run(self, to: float) -> float:
        """Run the cluster until `to`, or until the first instant at which requests finish; report all that do.

        Returns the time reached.
        """
        cluster, observer = self.cluster, self._observer
        while True:
            observe_s = observer.next_s
            stop = to if to < observe_s else observe_s
            ends = cluster.advance_to_next(stop)
            if ends:
                if self._note(ends):
                    return ends[-1].time_s
                continue
            if stop == observe_s:
                if cluster.next_event_time() == math.inf:
                    observer.skip(to)
                    return to
                observer.observe(stop)
            if stop == to:
                return to

    def _note(self, ends: list[StepEnd]) -> bool:
        """Record the times of tokens; return True if a request has finished."""
        any_over = False
        for end in ends:
            now = end.time_s
            for request in end.emitted:
                flight: InFlightRequest | None = request.tag
                if flight is None:
                    continue  # it failed when it was submitted, or at this instant, which also brought it a token
                if not request.failed:
                    token_s = flight.token_s
                    reported = len(token_s)
                    for _, first, last in request.spans:
                        reported += last - first + 1
                    if reported < request.produced:  # by one, but for speculation
                        token_s += [now] * (request.produced - reported)
                if request.finished_s <= now or request.failed:
                    any_over = True
                    request.tag = None
                    self.under_way -= 1
                    self.waits.append(request.wait(now))
                    flight.over()
        return any_over
