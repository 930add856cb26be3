"""Gives the cluster virtual time, without HTTP or an event loop: requests go in, and come back when they are over."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import numpy.typing as npt

from llmirage_server.cluster.cluster import Cluster
from llmirage_server.cluster.request import Request, StepEnd

Times = npt.NDArray[np.float64]


class Flight:
    """A request under way, and who is told when it is over. `times` tells when its tokens came."""

    __slots__ = ("request", "token_s")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.token_s: list[float] = []  # of tokens that the cluster tells of one by one

    def over(self) -> None:
        """It has finished or failed; never called for a cancelled one."""

    @property
    def times(self) -> Times:
        """When each token came that has gone out, cluster time, float64, shape (tokens,)."""
        request, times = self.request, np.array(self.token_s)
        if request.spans:
            pieces = [np.array(ends_s[first : last + 1]) for ends_s, first, last in request.spans]
            times = np.sort(np.concatenate([*pieces, times]))
        return times if request.stream is None else request.stream.seen_s(times, request.output_tokens)

    @property
    def arrivals(self) -> Times:
        """The same, but tokens that came together (speculation, streams in intervals) came as one."""
        times = self.times
        return times[np.append(True, times[1:] > times[:-1])] if len(times) > 1 else times


class Observer(Protocol):
    """Reads the state of the cluster now and then."""

    next_s: float  # when

    def look(self, now: float) -> None:
        """It is that time."""
        ...

    def skip(self, to: float) -> None:
        """Nothing will happen until then."""
        ...


class _Nobody:
    """Observes nothing."""

    next_s = math.inf

    def look(self, now: float) -> None: ...

    def skip(self, to: float) -> None: ...


_NOBODY = _Nobody()


class ClusterRun:
    """Requests on their way through a cluster, in the caller's virtual time."""

    def __init__(self, cluster: Cluster, observer: Observer = _NOBODY) -> None:
        self.cluster = cluster
        self.under_way = 0
        self.waited_s: list[float] = []  # of requests that are over, in that order: see Request.waited_s
        self._observer = observer

    def submit(self, flight: Flight, now: float) -> None:
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
        """Take a request back; harmless when it is over."""
        if not (request.failed or request.cancelled or not math.isnan(request.finished_s)):
            self.under_way -= 1
            self.cluster.cancel(request, now)
            self.waited_s.append(request.waited_s(now))

    def run(self, to: float) -> float:
        """Let the cluster run until `to`, or until requests are over: all that are so at the first such instant.

        Returns the time reached.
        """
        cluster, observer = self.cluster, self._observer
        while True:
            look_s = observer.next_s
            stop = to if to < look_s else look_s  # noqa: FURB136 (a third of the cost, several times a request)
            ends = cluster.advance_to_next(stop)
            if ends:
                if self._note(ends):
                    return ends[-1].time_s
                continue
            if stop == look_s:
                if cluster.next_event_time() == math.inf:
                    observer.skip(to)
                    return to
                observer.look(stop)
            if stop == to:
                return to

    def _note(self, ends: list[StepEnd]) -> bool:
        """Write down when tokens came; True if a request is over."""
        any_over = False
        for end in ends:
            now = end.time_s
            for request in end.emitted:
                flight: Flight | None = request.tag
                if flight is None:
                    continue  # it failed when it was submitted, or at this instant, which also brought it a token
                if not request.failed:
                    token_s = flight.token_s
                    told = len(token_s)
                    for _, first, last in request.spans:
                        told += last - first + 1
                    if told < request.produced:  # by one, but for speculation
                        token_s += [now] * (request.produced - told)
                if request.finished_s <= now or request.failed:
                    any_over = True
                    request.tag = None
                    self.under_way -= 1
                    self.waited_s.append(request.waited_s(now))
                    flight.over()
        return any_over
