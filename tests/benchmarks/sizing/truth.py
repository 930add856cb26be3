"""What long simulations say of a number of instances: the objectives are met, missed, or too close to tell."""

import hashlib
import json
import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from llmirage_client.measure.breakdowns import mean_in_flight
from llmirage_client.measure.columns import Columns
from llmirage_client.measure.slo import Objective, parse_slo
from llmirage_client.simulate.simulation import simulate
from llmirage_shared.statistics import Floats
from sizing.mixes import Mix

SEEDS = (101, 102)  # others than those with which `size` is asked
_WARM = 0.2  # of the simulated time
_BATCHES = 10  # of each simulation
_SURE = 2.0  # standard errors
_GROWTH = 1.3  # requests in flight, from the first half to the second


class Truths:
    """Verdicts of long simulations, kept in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, bool | None] = json.loads(path.read_text()) if path.exists() else {}

    def judge(self, mix: Mix, instances: int) -> bool | None:
        """None: too close to the limit to tell."""
        key = f"{mix.name} {hashlib.sha256(repr(mix).encode()).hexdigest()[:12]} {instances}"
        if key not in self._known:
            self._known[key] = _judge(mix, instances)
            self._path.write_text(json.dumps(self._known, indent=1) + "\n")
        return self._known[key]

    def between(self, mix: Mix, start: int) -> tuple[int, int]:
        """The fewest instances that may suffice, and the fewest that do beyond doubt."""
        least = start
        while self.judge(mix, least) is False:
            least += 1
        while least > 1 and self.judge(mix, least - 1) is not False:
            least -= 1
        most = least
        while self.judge(mix, most) is not True:
            most += 1
        return least, most


def _judge(mix: Mix, instances: int) -> bool | None:
    runs = [_measured(mix, instances, seed) for seed in SEEDS]
    if any(values is None for values in runs):
        return False
    objectives = parse_slo(mix.slo)
    met = [_met(objective, [values[objective.metric.tag] for values in runs if values]) for objective in objectives]
    return False if False in met else None if None in met else True


def _met(objective: Objective, runs: Iterable[Floats]) -> bool | None:
    """By the mean of batches: of the values, or of the share of requests beyond the limit."""
    batches: list[float] = []
    statistic = objective.statistic or ""
    allowed = objective.limit if statistic == "avg" else 1 - float(statistic[1:]) / 100
    for values in runs:
        judged = values if statistic == "avg" else values > objective.limit
        batches += [float(batch.mean()) for batch in np.array_split(judged[~np.isnan(values)], _BATCHES)]
    mean, error = float(np.mean(batches)), float(np.std(batches, ddof=1)) / math.sqrt(len(batches))
    if mean + _SURE * error < allowed:
        return True
    return False if mean - _SURE * error > allowed else None


def _measured(mix: Mix, instances: int, seed: int) -> dict[str, Floats] | None:
    """Metrics of requests in the order in which they were sent, ms; None: more and more requests wait."""
    traffic = mix.traffic(seed)
    source = traffic.source
    ramp_s = 60.0 if traffic.kind == "concurrency" else 0.0
    config = mix.shape.config(mix.base, instances)
    columns = simulate(config, source.workload(mix.requests), traffic.run_options(mix.requests, ramp_s)).columns
    begin, end = columns.start_s.min(), columns.start_s.max()
    order = np.argsort(columns.start_s, kind="stable")
    order = order[columns.start_s[order] > begin + _WARM * (end - begin)]
    if not columns.ok[order].all() or (traffic.kind == "request_rate" and grows(columns)):
        return None
    start, first, last, events = (getattr(columns, name)[order] for name in ("start_s", "first_s", "last_s", "events"))
    return {
        "time_to_first_token": (first - start) * 1e3,
        "request_latency": (last - start) * 1e3,
        "inter_token_latency": np.where(events > 1, (last - first) / np.maximum(events - 1, 1), np.nan) * 1e3,
    }


def grows(columns: Columns) -> bool:
    """Whether more and more requests are in flight. (Of users at once there are never more than these.)"""
    begin, end = float(columns.start_s.min()), float(columns.start_s.max())
    before, after = mean_in_flight(columns, np.linspace(begin + _WARM * (end - begin), end, 3)).tolist()
    return after > _GROWTH * before + 5
