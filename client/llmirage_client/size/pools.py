"""Separate prefill and decode instances for a traffic: which pairs of shapes, and how many of each.

The roofline ranks pairs of shapes by the cost of the prefill and the decode instances that the traffic needs, at the use
that the objectives allow. The best few, each with some shares of prefill instances, are sized like other shapes: a larger
number of instances is never fewer of either. At the answer, one instance less of a pool, or one moved to the other pool, is
tried as long as that is cheaper.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from llmirage_client.measure.slo import Objective
from llmirage_client.simulator.bounds import KVTransferCost, Lengths
from llmirage_client.simulator.deployments import ROLES, InstanceShape, PoolShape
from llmirage_client.simulator.engine import ClusterConfig, ConfigError
from llmirage_client.size.sizing import Capacity, CapacitySearch, Priced, Sizing, Terms, size
from llmirage_client.size.traffic import tpot_limit_s
from llmirage_client.size.trial import Trial, Trials
from llmirage_shared.plural import rounded

_PAIRS = 4  # of shapes, that are simulated
_SHARES = (0.7, 1.0, 1.4)  # times the prefill instances that the roofline expects
_USE = 0.9  # of an instance, where no objective limits how long requests wait
_RATIOS = 2  # instances to each side of the answer's, in the table
_WAITS = {"avg": 1.0, "p50": 0.7, "p75": 1.4, "p90": 2.3, "p95": 3.0, "p99": 4.6}  # times the mean, exponential
_PATHS = ("prefill", "transfer", "decode")


@dataclass(frozen=True, slots=True)
class Ratio:
    """A split of GPUs between prefill and decode. carries: requests/s of prefill, transfer and decode, by the roofline.

    use: of the one that carries least, of the simulated requests/s. bound: its name.
    """

    shape: PoolShape
    instances: int
    usd_per_h: float | None
    carries: Mapping[str, float]
    bound: str
    use: float
    trial: Trial

    @property
    def result(self) -> str:
        """The simulated outcome in a few words."""
        if self.trial.met:
            return "met"
        tightest = self.trial.tightest
        if self.trial.problem is not None or tightest is None:
            return "overloaded"
        return f"{tightest.objective.text}: {rounded(tightest.load, 3)} x"


@dataclass(frozen=True, slots=True)
class PoolSizing:
    """The best separate pools. transfer: of a request's KV in the answer. ratios: by the number of prefill instances."""

    sizing: Sizing
    transfer: KVTransferCost | None
    ratios: tuple[Ratio, ...]

    @property
    def answer(self) -> Priced | None:
        return self.sizing.answer


def size_pools(base: ClusterConfig, shapes: Sequence[InstanceShape], trials: Trials, terms: Terms) -> PoolSizing:
    """Size separate pools whose instances have some of these shapes.

    The source has lengths. Raises ConfigError, SimulationError.
    """
    lengths = trials.traffic.source.lengths
    assert lengths is not None
    found = _candidates(base, shapes, trials, lengths, terms.prices if terms.goal == "cost" else {})
    sizing = size(base, found, trials, terms)
    if sizing.answer is None:
        return PoolSizing(sizing, None, ())
    answer = _trimmed(base, sizing.answer, trials, terms)
    others = tuple(one for one in sizing.runners_up if one.capacity.trial.config != answer.capacity.trial.config)
    sizing = replace(sizing, answer=answer, runners_up=others)
    transfer = trials.bounds(answer.capacity.trial.config).transfer(lengths)
    ratios = _ratios(base, answer, trials, lengths, terms)
    return PoolSizing(sizing, transfer, ratios)


def _use(objectives: Sequence[Objective], unloaded_s: float, service_s: float) -> float:
    """Return the use of a prefill instance at which waits, as in M/D/1, leave the TTFT within its limits."""
    uses = [_USE]
    for one in objectives:
        if one.metric.tag == "time_to_first_token" and one.comparison[0] == "<":
            waits = max(one.limit * 1e-3 - unloaded_s, 0.0) / (_WAITS.get(one.statistic or "", 4.6) * service_s)
            uses.append(2 * waits / (2 * waits + 1))
    return min(uses)


def _candidates(
    base: ClusterConfig, shapes: Sequence[InstanceShape], trials: Trials, lengths: Lengths, prices: Mapping[str, float]
) -> list[PoolShape]:
    """Return the pairs that promise most, with their shares of prefill instances. prices: {} where GPUs count."""
    traffic = trials.traffic
    limit_s = tpot_limit_s(trials.objectives, lengths)
    by_rate = traffic.kind == "request_rate"
    rate = traffic.amount if by_rate else 1.0  # of users, the ratio alone is known
    ranked: list[tuple[float, int, PoolShape]] = []
    for prefill, decode in product(shapes, shapes):
        if (prefill.engine, prefill.weights) != (decode.engine, decode.weights):
            continue  # KV of one form
        shape = PoolShape(prefill, decode, 0.5)
        try:
            bounds = trials.bounds(shape.config(base, 2))
        except ConfigError:  # one of them does not fit
            continue
        carries, ttft_s = bounds.requests_per_s(lengths), bounds.ttft_s(round(lengths.prompt), max(1, round(lengths.new)))
        decodes = bounds.decode_requests_per_s(lengths, limit_s)
        if carries is None or ttft_s is None or decodes is None:
            continue
        use = max(_use(trials.objectives, ttft_s, 1 / carries[0]), 0.05)
        needed = rate / (carries[0] * use), rate / (decodes * _USE)
        if by_rate:
            needed = max(1.0, needed[0]), max(1.0, needed[1])
        whole = [math.ceil(count) for count in needed] if by_rate else needed
        cost = sum(one.gpus * prices.get(one.gpu, 1.0) * count for one, count in zip((prefill, decode), whole, strict=True))
        ranked.append((cost, len(ranked), replace(shape, share=needed[0] / sum(needed))))
    best = [shape for *_, shape in sorted(ranked)[:_PAIRS]]
    shares = product(best, _SHARES)
    return [replace(one, share=times * one.share / (times * one.share + 1 - one.share)) for one, times in shares]


def _trimmed(base: ClusterConfig, answer: Priced, trials: Trials, terms: Terms) -> Priced:
    """Return the deployment with as few instances of either pool as meet the objectives."""
    while True:
        shape, instances = answer.capacity.shape, answer.capacity.instances
        if not isinstance(shape, PoolShape) or answer.capacity.sampled:
            return answer
        prefill, decode = shape.counts(instances)
        tried = [(prefill - 1, decode), (prefill, decode - 1), (prefill - 1, decode + 1), (prefill + 1, decode - 1)]
        cheaper = []
        for counts in (pair for pair in tried if min(pair) > 0):
            one, number = _split(shape, counts)
            cost, _ = terms.cost(one, number)
            if cost < terms.cost(shape, instances)[0]:
                cheaper.append((cost, number, one))
        for _, number, one in sorted(cheaper):
            trials.begin(one.named(number))
            search = CapacitySearch(one, base, trials)
            if (search.least or number + 1) > number:
                continue
            trial = search.decide(number)
            if trial.met:
                capacity = Capacity(one, number, trial, number, number + (not trial.clear))
                answer = Priced(capacity, terms.hourly(one, number))
                break
        else:
            return answer


def _split(shape: PoolShape, counts: tuple[int, int]) -> tuple[PoolShape, int]:
    number = sum(counts)
    return replace(shape, share=counts[0] / number), number


def _ratios(base: ClusterConfig, answer: Priced, trials: Trials, lengths: Lengths, terms: Terms) -> tuple[Ratio, ...]:
    """Simulate splits of about as many GPUs as the answer has."""
    shape, found = answer.capacity.shape, []
    assert isinstance(shape, PoolShape)
    own = shape.counts(answer.capacity.instances)
    limit_s = tpot_limit_s(trials.objectives, lengths)
    for prefill in range(max(1, own[0] - _RATIOS), own[0] + _RATIOS + 1):
        decode = (answer.gpus - prefill * shape.prefill.gpus) // shape.decode.gpus
        if decode < 1:
            continue
        one, number = (shape, answer.capacity.instances) if prefill == own[0] else _split(shape, (prefill, decode))
        decode = one.counts(number)[1]
        trials.begin(one.named(number))
        search = CapacitySearch(one, base, trials)
        trial = answer.capacity.trial if prefill == own[0] else search.run_whole(number)
        bounds = trials.bounds(one.config(base, 2))
        transfer, carries = bounds.transfer(lengths), dict[str, float]()
        each = (
            bounds.prefill_requests_per_s(lengths),
            None if transfer is None else 1 / max(transfer.link_s, 1e-12),
            bounds.decode_requests_per_s(lengths, limit_s),
        )
        for path, rate, count in zip(_PATHS, each, (prefill, prefill, decode), strict=True):
            carries[path] = (rate or math.inf) * count
        bound = min(carries, key=lambda path: carries[path])
        load = trials.traffic.amount if trials.traffic.kind == "request_rate" else float(trial.figures["request_per_s"])
        found.append(Ratio(one, number, terms.hourly(one, number), carries, bound, load / carries[bound], trial))
    return tuple(found)


def ratio_json(ratio: Ratio) -> dict[str, Any]:
    """Return a row of the table for JSON."""
    counts = dict(zip(ROLES, ratio.shape.counts(ratio.instances), strict=True))
    return {
        "instances": counts,
        "gpus": sum(ratio.shape.gpus_of(ratio.instances).values()),
        "usd_per_h": ratio.usd_per_h,
        "carries_per_s": dict(ratio.carries),
        "bound_by": ratio.bound,
        "use": ratio.use,
        "met": ratio.trial.met,
        "reason": ratio.trial.reason,
    }
