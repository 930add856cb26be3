"""Points of load in a sweep or a search: what varies, the size of each point, and the search for the highest load."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass, field, replace

from llmirage_client.choices import Variable
from llmirage_client.load.options import RunOptions
from llmirage_client.measure.load_points import point_name
from llmirage_client.workload.session import Workload
from llmirage_client.workload.summary import requests_by_root

PROBE_REQUESTS = 100  # so that a 99th percentile means something
PROBE_S = 30.0
_PROBE_ROUNDS = 2  # conversations in each slot


@dataclass(slots=True, frozen=True)
class Point:
    """One load. number: its place in the sweep or search, from 1. conversations, requests, duration_s: its own limits."""

    variable: Variable
    load: float
    number: int
    conversations: int | None = None
    requests: int | None = None
    duration_s: float | None = None

    @property
    def name(self) -> str:
        return point_name(self.variable, self.load)

    @property
    def folder(self) -> str:
        return f"{self.variable}{self.load:g}"

    def options(self, base: RunOptions, first_root: int) -> RunOptions:
        """Return the run's options at this point, with conversations from first_root on."""
        options = replace(base, first_root=first_root)
        if self.variable == "concurrency":
            options = replace(options, concurrency=int(self.load))
        else:
            options = replace(options, request_rate_per_s=self.load)
        if self.conversations is not None:
            options = replace(options, num_conversations=self.conversations)
        if self.duration_s is not None:
            options = replace(options, benchmark_duration_s=self.duration_s)
        return options if self.requests is None else replace(options, request_count=self.requests)


def by_load(workload: Workload, loads: int) -> tuple[int, ...]:
    """Return how many conversations of a workload made for this many loads belong to each.

    Each load has those of an equal share of its requests (see synthetic_load).
    """
    ends = itertools.accumulate(len(workload.sessions[root].turns) for root in workload.roots)
    each = sum(len(workload.sessions[root].turns) for root in workload.roots) // loads
    shares = Counter((end - 1) // each for end in ends)
    return tuple(shares[load] for load in range(loads))


def shared_out(workload: Workload, loads: tuple[float, ...], variable: Variable) -> int:
    """Return the default number of conversations of each point of a sweep: an equal share of the file.

    If that is fewer than the largest concurrency needs, each point runs as many as that, and the file is repeated.
    """
    roots = len(workload.roots) - workload.skipped
    needed = max(loads) if variable == "concurrency" else 1
    return max(roots // len(loads), int(needed), 1)


def probe(workload: Workload, variable: Variable, load: float, number: int) -> Point:
    """Return a point of a search, of default size.

    At a concurrency: as many conversations as send PROBE_REQUESTS requests and fill every slot twice. At a rate: long enough
    that PROBE_REQUESTS are due, and PROBE_S seconds at least, with new conversations all the while.
    """
    if variable == "request_rate":
        return Point(variable, load, number, duration_s=max(PROBE_S, PROBE_REQUESTS / load))
    by_root = list(requests_by_root(workload).values())
    needed = math.ceil(PROBE_REQUESTS * len(by_root) / sum(by_root))
    return Point(variable, load, number, conversations=max(needed, _PROBE_ROUNDS * int(load)))


@dataclass(slots=True)
class MaxSearch:
    """A search for the highest load that meets a condition: doubling until it is missed, then bisection.

    It asks for loads (`next_load`) and is given the outcome of each (`tell`), until next_load is None.

    start: the first load tried.
    lower, upper: bounds, which may be tried themselves.
    whole: loads are whole numbers.
    precision: when the lowest miss is within this share above the highest hit, the search ends; whole loads also end when
        they are neighbours.
    best: the highest load that met the condition.
    worst: the lowest that did not. missed: the lowest that certainly missed it. open: loads that are too close to tell.
    """

    start: float
    lower: float
    upper: float
    whole: bool
    precision: float
    best: float | None = None
    worst: float | None = None
    missed: float | None = None
    open: list[float] = field(default_factory=list)

    def next_load(self) -> float | None:
        best, worst = self.best, self.worst
        if best is None and worst is None:
            return min(max(self.start, self.lower), self.upper)
        if worst is None:
            assert best is not None
            return min(best * 2, self.upper) if best < self.upper else None
        if best is None:
            return max(worst // 2 if self.whole else _rounded(worst / 2), self.lower) if worst > self.lower else None
        middle = (best + worst) // 2 if self.whole else _rounded((best + worst) / 2)
        close = worst - best <= self.precision * best
        return middle if best < middle < worst and not close else None

    def tell(self, load: float, met: bool | None) -> None:
        """Take in whether the load met the condition; None: too close to tell, which counts as missed."""
        if met:
            self.best = load if self.best is None else max(self.best, load)
            return
        self.worst = load if self.worst is None else min(self.worst, load)
        if met is None:
            self.open.append(load)
        else:
            self.missed = load if self.missed is None else min(self.missed, load)


def _rounded(load: float) -> float:
    """Return the load to three digits, so that a rate can be read and typed again."""
    return float(f"{load:.3g}")
