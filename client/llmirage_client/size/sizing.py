"""The cheapest deployment for a traffic and its objectives.

Every shape waits in a queue, at the cost of the fewest instances that may suffice. The cheapest entry is simulated. If it
suffices it is the answer, as all others cost at least as much; else it goes back with more instances.

The numbers of instances of one shape are tried on one fixed grid: doubled until they suffice, then halved towards
the fewest. Clusters of up to SAMPLED instances are simulated whole: routers treat conversations differently in small
clusters and in large ones. More are represented by SAMPLED, with their share of the traffic.

Single simulations are noisy. Still, a stricter objective must never need fewer instances, nor a doubled traffic. A number of
instances suffices under a condition that stricter objectives meet on fewer clusters only, and on a fixed grid such a search
never ends lower with a stricter condition. For doubled traffic, a cluster must also meet the objectives at a half of the
traffic, a quarter, and so on, down to a traffic that it carries beyond doubt, or to one at which requests hardly ever meet:
there, a user alone stands for all. Conversations are simulated for so long that this is left out.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from llmirage_client.measure.slo import Verdict
from llmirage_client.simulator.deployments import Shape
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.size.max_rate import user_grid
from llmirage_client.size.traffic import missed_unloaded
from llmirage_client.size.trial import Trial, Trials

SAMPLED = 32  # instances
_GRID = user_grid(100_000)  # numbers of instances that are tried
_MEETING = 0.01  # requests in flight on an instance, about: a second one is there for 1 in 100
_FAR_FROM_LIMIT = 0.5  # of it: conversations that use more may still lose what was cached, for longer than is simulated
_PATIENCE = 4  # failures after which a user alone is simulated: if that fails, every number does
_UNKNOWN_FLOOR_PER_S = 0.002  # requests/s of an instance of which no bound is known


@dataclass(frozen=True, slots=True)
class Capacity:
    """A number of instances that suffices. trial: the simulation that shows it; `sampled`: of SAMPLED instances.

    fewest, most: the numbers between which noise leaves the answer.
    """

    shape: Shape
    instances: int
    trial: Trial
    fewest: int
    most: int

    @property
    def gpus(self) -> int:
        return sum(self.shape.gpus_of(self.instances).values())

    @property
    def sampled(self) -> bool:
        return self.instances > SAMPLED


class CapacitySearch:
    """The search for one shape, a simulation at a time.

    least: the fewest instances that may still suffice; None: no number does, for the `reason`. nearest: the verdict that
    came closest then.
    """

    def __init__(self, shape: Shape, base: ClusterConfig, trials: Trials, amount: float | None = None) -> None:
        """amount: of the traffic, in place of its own."""
        self.shape = shape
        self.reason = ""
        self.nearest: Verdict | None = None
        self._base = base
        self._trials = trials
        self._traffic = trials.traffic if amount is None else trials.traffic.of(amount)
        lengths = self._traffic.source.lengths
        bounds = trials.bounds(self._config(1))
        rates = bounds.requests_per_s(lengths) if lengths is not None else None
        self._alone_s = bounds.latency_s(lengths) if lengths is not None else None
        self._judged: dict[int, Trial] = {}  # the trial that decides about a number of instances
        self._whole = self._traffic.scenario is not None  # no part of it says anything
        self._drifts = not (self._whole or self._traffic.source.single_turns)
        self._low = -1  # place on the grid of a number that does not suffice; those below the roofline's are not tried
        self._enough: int | None = None  # of one that does
        self._failures = 0
        self._confirms = False  # a longer simulation has missed the objectives: one instance more at a time
        self.least: int | None = len(shape.counts(1))
        if self._by_rate and rates is not None:
            carried = partial(_carried, shape, rates)
            self.least = max(self.least, _GRID[min(bisect_left(_GRID, self._traffic.amount, key=carried), len(_GRID) - 1)])
        self._skip()
        if missed := missed_unloaded(trials.objectives, self._traffic.source.sizes, bounds):
            reasons = "; ".join(map(_at_best, missed))
            self._give_up(f"unloaded: {reasons}", max(missed, key=lambda verdict: verdict.load))

    @property
    def _by_rate(self) -> bool:
        return self._traffic.kind == "request_rate"

    @property
    def _next(self) -> int:
        """The place that is tried next: doubled numbers up to one that suffices, then the middle between it and `_low`."""
        if self._enough is not None:
            return (self._low + self._enough) // 2
        return self._low + 1 if self._confirms else max(0, 2 * self._low + 1)

    @property
    def _narrowed(self) -> bool:
        return self._enough is not None and self._enough - self._low == 1

    def _config(self, instances: int) -> ClusterConfig:
        return self.shape.config(self._base, instances)

    def step(self) -> Capacity | None:
        """Simulate a number of instances, unless the search is over; `least` may grow. Raises ConfigError, SimulationError.

        Not None: `least`, as it was, is the answer.
        """
        before = self.least
        assert before is not None
        if not self._narrowed:
            self._try(self._next)
        if not self._narrowed or self.least != before:
            return None
        if self._drifts and self._judged[before].worst_load > _FAR_FROM_LIMIT:
            self._confirm(before)
        return self._capacity(before) if self.least == before else None

    def _confirm(self, instances: int) -> None:
        """Simulate the answer for longer: cached tokens of conversations are lost slowly."""
        trial = self._judged[instances] = self._trials.run_long(*self._sample(instances, self._traffic.amount))
        if not trial.met:
            self._enough, self._confirms = None, True
            self._miss(_GRID.index(instances), trial)

    def _try(self, place: int) -> None:
        """Simulate one instance more, unless a user alone misses the objectives."""
        instances = _GRID[place]
        trial = self._judged[instances] = self.decide(instances)
        if trial.met:
            self._enough = place
            self._skip()
        else:
            self._miss(place, trial)

    def _miss(self, place: int, trial: Trial) -> None:
        """Search above a number that misses the objectives, or give up."""
        self._low = place
        self._failures += 1
        if self._failures == _PATIENCE and self._never():
            return
        if self._next >= len(_GRID):
            self._give_up(f"more than {_GRID[place]:,} instances needed", trial.tightest)
            return
        self._skip()

    def _skip(self) -> None:
        """Pass over numbers that are ruled out without a simulation, and say which is the least that is not."""
        assert self.least is not None
        while not self._narrowed and _GRID[self._next] < self.least:
            self._low = self._next
        self.least = max(self.least, _GRID[self._low + 1])

    def decide(self, instances: int) -> Trial:
        """Simulate the traffic on `instances`, or the half, quarter, ... of it that misses the objectives."""
        amount = self._traffic.amount
        trial = less = self._judge(instances, amount)
        while trial.met and less.met_by_latency and not (less.alone or less.beyond_doubt or self._drifts or self._whole):
            amount = amount / 2 if self._by_rate else amount // 2
            less = self._judge(instances, amount)
        return trial if less.met_by_latency else less

    def judge(self, instances: int) -> Trial:
        """Simulate the traffic on `instances`."""
        return self._judge(instances, self._traffic.amount)

    def _judge(self, instances: int, amount: float) -> Trial:
        if amount < self._floor(instances) and not self._whole:
            return self._trials.alone(self._config(instances))
        return self._trials.run(*self._sample(instances, amount))

    def _sample(self, instances: int, amount: float) -> tuple[ClusterConfig, float]:
        """Return the instances that stand for all, and their share of the traffic."""
        if instances > SAMPLED:
            pairs = zip(self.shape.counts(SAMPLED), self.shape.counts(instances), strict=True)
            amount *= max(some / whole for some, whole in pairs)
            amount = amount if self._by_rate else math.ceil(amount)
        return self._config(min(instances, SAMPLED)), amount

    def run_whole(self, instances: int) -> Trial:
        """Simulate the traffic on `instances`, and do not stop where the objectives are missed."""
        return self._trials.run(*self._sample(instances, self._traffic.amount), to_the_end=True)

    def _floor(self, instances: int) -> float:
        """Return the traffic below which a user alone stands for it."""
        apart = min(self.shape.counts(instances))  # requests that need not meet
        if not self._by_rate:
            return apart
        return apart * (_MEETING / self._alone_s if self._alone_s is not None else _UNKNOWN_FLOOR_PER_S)

    def _capacity(self, instances: int) -> Capacity:
        """Return the capacity with the neighbours that noise does not rule out."""
        place, trial = _GRID.index(instances), self._judged[instances]
        before = self._judged.get(_GRID[place - 1]) if place else None
        fewest = place if before is None or before.clear else place - 1
        doubtful = not trial.clear or (self._drifts and trial.worst_load > _FAR_FROM_LIMIT)
        return Capacity(self.shape, instances, trial, _GRID[fewest], _GRID[place + doubtful])

    def _never(self) -> bool:
        """Return whether a user alone misses the objectives, and so any number of instances does."""
        alone = self._trials.alone(self._config(1))
        if alone.met_by_latency:
            return False
        estimate = "" if alone.clear else f" (an estimate from {alone.counted:,} requests)"
        self._give_up(f"even one user at a time misses: {alone.reason}{estimate}", alone.tightest)
        return True

    def _give_up(self, reason: str, nearest: Verdict | None) -> None:
        self.least, self.reason, self.nearest = None, reason, nearest


def _at_best(verdict: Verdict) -> str:
    objective = verdict.objective
    return f"{objective.text} cannot be met, at best it is {verdict.measured}"


def _carried(shape: Shape, rates: tuple[float, ...], instances: int) -> float:
    """Return the most requests per second of so many instances. rates: of one of each pool."""
    return min(rate * count for rate, count in zip(rates, shape.counts(instances), strict=True))


Goal = Literal["cost", "gpus"]

_RUNNER_UP_COST = 2.0  # a runner-up costs so many times the answer at most


@dataclass(frozen=True, slots=True)
class Priced:
    """usd_per_h: None where the price of the GPU is not known."""

    capacity: Capacity
    usd_per_h: float | None

    @property
    def gpus(self) -> int:
        return self.capacity.gpus


@dataclass(frozen=True, slots=True)
class Sizing:
    """answer: None where nothing meets the objectives. runners_up: other shapes that do, the cheapest first.

    given_up: searches of shapes that meet them in no number. left: searches of shapes that cost too much to be simulated
    further. nearest: where these are all that is left, the one that needs the fewest GPUs, with as many instances as may be.
    """

    goal: Goal
    answer: Priced | None
    runners_up: tuple[Priced, ...]
    given_up: tuple[CapacitySearch, ...]
    left: tuple[CapacitySearch, ...]
    nearest: tuple[Shape, int, Trial] | None
    max_gpus: int


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of the choice. prices: USD per hour of one GPU; with the goal "cost" there is one for each."""

    prices: Mapping[str, float]
    goal: Goal
    max_gpus: int
    runners_up: int = 3

    def hourly(self, shape: Shape, instances: int) -> float | None:
        """Return USD per hour; None where the price of a GPU is not known."""
        gpus, prices = shape.gpus_of(instances), self.prices
        return sum(prices[gpu] * count for gpu, count in gpus.items()) if gpus.keys() <= prices.keys() else None

    def cost(self, shape: Shape, instances: int) -> tuple[float, int]:
        """Return what is minimized, and the number of GPUs."""
        gpus = sum(shape.gpus_of(instances).values())
        return (self.hourly(shape, instances) or 0.0 if self.goal == "cost" else float(gpus)), gpus


def size(base: ClusterConfig, shapes: Sequence[Shape], trials: Trials, terms: Terms) -> Sizing:
    """Size a traffic. Raises ConfigError, SimulationError."""
    cost = terms.cost
    searches = {shape: CapacitySearch(shape, base, trials) for shape in shapes}
    places = {shape: place for place, shape in enumerate(searches)}
    queue: list[tuple[tuple[float, int], int, CapacitySearch]] = []

    def wait(search: CapacitySearch) -> None:
        if search.least is not None:
            heapq.heappush(queue, (cost(search.shape, search.least), places[search.shape], search))

    for search in searches.values():
        wait(search)
    answer: Capacity | None = None
    sufficient: list[Capacity] = []  # before there is an answer: all of the same, lowest cost; afterwards: runners-up
    left: list[CapacitySearch] = []
    while queue or (sufficient and answer is None):
        cheapest = cost(sufficient[0].shape, sufficient[0].instances) if sufficient else None
        if cheapest is not None and answer is None and (not queue or queue[0][0] > cheapest):
            answer = min(sufficient, key=lambda capacity: capacity.trial.load)
            sufficient.remove(answer)
            continue
        key, _, search = heapq.heappop(queue)
        assert search.least is not None
        lowest = None if answer is None else cost(answer.shape, answer.instances)
        enough = lowest is not None and key > lowest
        enough = enough and (len(sufficient) >= terms.runners_up or key[0] > _RUNNER_UP_COST * (lowest or key)[0])
        if enough or key[1] > terms.max_gpus:
            left.append(search)
            continue
        trials.begin(f"{search.least} x {search.shape.gpu} {search.shape.split}")
        found = search.step()
        if found is not None:
            sufficient.append(found)
        else:
            wait(search)
    sufficient.sort(key=lambda capacity: (cost(capacity.shape, capacity.instances), capacity.trial.load))

    nearest = None
    if answer is None and left:
        close = min(left, key=lambda search: cost(search.shape, search.least or 0)[1])
        numbers = range(1, terms.max_gpus + 1)
        most = bisect_right(numbers, terms.max_gpus, key=lambda number: cost(close.shape, number)[1])
        if most >= len(close.shape.counts(1)):
            trials.begin(f"{most} x {close.shape.gpu} {close.shape.split}")
            nearest = close.shape, most, close.run_whole(most)

    def priced(capacity: Capacity) -> Priced:
        return Priced(capacity, terms.hourly(capacity.shape, capacity.instances))

    return Sizing(
        goal=terms.goal,
        answer=None if answer is None else priced(answer),
        runners_up=tuple(priced(capacity) for capacity in sufficient[: terms.runners_up]),
        given_up=tuple(search for search in searches.values() if search.least is None),
        left=tuple(left),
        nearest=nearest,
        max_gpus=terms.max_gpus,
    )
