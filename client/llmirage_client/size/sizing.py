"""The cheapest deployment for a traffic and its objectives, best first.

Every shape waits in a queue with the cost of the fewest instances that may still do. The cheapest entry is looked at; it
turns out to do, and is then the answer, as all others cost at least as much, or it goes back with more instances.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from llmirage_client.simulator.deployments import Refused, Shape
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.size.need import Fit, Need
from llmirage_client.size.trial import Trials

Goal = Literal["cost", "gpus"]
Progress = Callable[[str], None]

_WORTH_KNOWING = 2.0  # runners-up cost so many times the answer at most


@dataclass(frozen=True, slots=True)
class Priced:
    """A fit and what it costs; None: the price of its GPU is not known."""

    fit: Fit
    usd_per_h: float | None

    @property
    def gpus(self) -> int:
        return self.fit.gpus


@dataclass(frozen=True, slots=True)
class Sizing:
    """answer: None where nothing meets the objectives. runners_up: other shapes that do, the cheapest first.

    given_up: shapes that no number of instances helps, with the verdict that came nearest; left: shapes whose fewest
    thinkable instances cost too much to be looked at further, with that number.
    """

    goal: Goal
    answer: Priced | None
    runners_up: tuple[Priced, ...]
    given_up: tuple[Need, ...]
    left: tuple[tuple[Shape, int], ...]
    refused: tuple[Refused, ...]
    simulations: int
    requests: int
    cpu_s: float


def size(
    base: ClusterConfig,
    shapes: Sequence[Shape],
    refused: Sequence[Refused],
    trials: Trials,
    prices: Mapping[str, float],
    *,
    goal: Goal = "cost",
    max_gpus: int,
    runners_up: int = 3,
    progress: Progress = lambda line: None,
) -> Sizing:
    """prices: USD per hour of one GPU; with the goal "cost" there is one for each. Raises ConfigError, SimulationError."""
    begun_s = time.process_time()

    def cost(shape: Shape, instances: int) -> tuple[float, int]:
        gpus = shape.gpus * instances
        return (gpus * prices[shape.gpu] if goal == "cost" else float(gpus)), gpus

    needs = {shape: Need(shape, base, trials) for shape in shapes}
    places = {shape: place for place, shape in enumerate(needs)}
    queue: list[tuple[tuple[float, int], int, Need]] = []

    def wait(need: Need) -> None:
        if need.least is not None:
            heapq.heappush(queue, (cost(need.shape, need.least), places[need.shape], need))

    for need in needs.values():
        wait(need)
    answer: Fit | None = None
    fits: list[Fit] = []  # no answer yet: all cost the same, as little as any; afterwards: the runners-up
    left: list[tuple[Shape, int]] = []
    while queue or (fits and answer is None):
        if fits and answer is None and (not queue or queue[0][0] > cost(fits[0].shape, fits[0].instances)):
            fit = min(fits, key=lambda fit: fit.trial.load)
            fits.remove(fit)
            need = needs[fit.shape]
            if need.holds_below(fit):
                answer = fit
            else:
                wait(need)
            continue
        key, _, need = heapq.heappop(queue)
        assert need.least is not None
        best = None if answer is None else cost(answer.shape, answer.instances)
        enough = best is not None and key > best and (len(fits) >= runners_up or key[0] > _WORTH_KNOWING * best[0])
        if enough or key[1] > max_gpus:
            left.append((need.shape, need.least))
            continue
        progress(f"{need.least} x {need.shape.gpu} {need.shape.split}")
        found = need.step()
        if found is not None:
            fits.append(found)
        else:
            wait(need)
    fits.sort(key=lambda fit: (cost(fit.shape, fit.instances), fit.trial.load))

    def priced(fit: Fit) -> Priced:
        return Priced(fit, prices[fit.shape.gpu] * fit.gpus if fit.shape.gpu in prices else None)

    return Sizing(
        goal=goal,
        answer=None if answer is None else priced(answer),
        runners_up=tuple(priced(fit) for fit in fits[:runners_up]),
        given_up=tuple(need for need in needs.values() if need.least is None),
        left=tuple(left),
        refused=tuple(refused),
        simulations=trials.count,
        requests=trials.requests,
        cpu_s=time.process_time() - begun_s,
    )
