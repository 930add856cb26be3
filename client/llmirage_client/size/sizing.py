"""The cheapest deployment for a traffic and its objectives.

Every shape waits in a queue, at the cost of the fewest instances that may suffice. The cheapest entry is simulated. If it
suffices it is the answer, as all others cost at least as much; else it goes back with more instances.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from llmirage_client.simulator.deployments import InstanceShape, Refused
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.size.capacity import Capacity, CapacitySearch
from llmirage_client.size.trial import Effort, Trials

Goal = Literal["cost", "gpus"]
Progress = Callable[[str], None]

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

    given_up: searches of shapes that meet them in no number. left: shapes that cost too much to be simulated further, with
    the fewest instances that may suffice. refused: shapes that are not possible.
    """

    goal: Goal
    answer: Priced | None
    runners_up: tuple[Priced, ...]
    given_up: tuple[CapacitySearch, ...]
    left: tuple[tuple[InstanceShape, int], ...]
    refused: tuple[Refused, ...]
    effort: Effort


def size(
    base: ClusterConfig,
    shapes: Sequence[InstanceShape],
    refused: Sequence[Refused],
    trials: Trials,
    prices: Mapping[str, float],
    *,
    goal: Goal = "cost",
    max_gpus: int,
    runners_up: int = 3,
    progress: Progress = lambda line: None,
) -> Sizing:
    """Size a traffic.

    prices: USD per hour of one GPU; with the goal "cost" there is one for each. Raises ConfigError, SimulationError.
    """

    def cost(shape: InstanceShape, instances: int) -> tuple[float, int]:
        gpus = shape.gpus * instances
        return (gpus * prices[shape.gpu] if goal == "cost" else float(gpus)), gpus

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
    left: list[tuple[InstanceShape, int]] = []
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
        enough = enough and (len(sufficient) >= runners_up or key[0] > _RUNNER_UP_COST * (lowest or key)[0])
        if enough or key[1] > max_gpus:
            left.append((search.shape, search.least))
            continue
        progress(f"{search.least} x {search.shape.gpu} {search.shape.split}")
        found = search.step()
        if found is not None:
            sufficient.append(found)
        else:
            wait(search)
    sufficient.sort(key=lambda capacity: (cost(capacity.shape, capacity.instances), capacity.trial.load))

    def priced(capacity: Capacity) -> Priced:
        known = capacity.shape.gpu in prices
        return Priced(capacity, prices[capacity.shape.gpu] * capacity.gpus if known else None)

    return Sizing(
        goal=goal,
        answer=None if answer is None else priced(answer),
        runners_up=tuple(priced(capacity) for capacity in sufficient[:runners_up]),
        given_up=tuple(search for search in searches.values() if search.least is None),
        left=tuple(left),
        refused=tuple(refused),
        effort=trials.effort,
    )
