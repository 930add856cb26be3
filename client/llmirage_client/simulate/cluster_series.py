"""The cluster of a simulation over time: batches, queues, KV memory, and the time of steps by kind, by instance."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from llmirage_client.simulator.engine import Cluster, Reading, ScalingDecision, ServedPool, StepShares
from llmirage_shared.statistics import Floats

MOST_SAMPLES = 256
_FIRST_EVERY_S = 0.25
_STEP_EVERY = 4  # samples, one of which decomposes a step

PHASES = ("down", "starting", "up", "draining")
READY = PHASES.index("up")
_LEVELS = ("running", "waiting", "kv_used_tokens", "kv_total_tokens")  # of a reading


@dataclass(frozen=True, slots=True)
class ClusterSeries:
    """Samples of the cluster's state.

    time_s: shape (samples,), cluster time. The others: shape (instances, samples).
    running: sequences in the batch. waiting: in the queue or the front end.
    kv_used: share of the KV memory that running sequences hold.
    cached: share held by the prefix cache, including the part in use.
    hit_tokens, query_tokens, preemptions, busy_s, paid_s: counters since the start; busy_s grows while a step is in flight,
        paid_s while an instance is there, starts up or drains.
    held: shape (3, instances, samples), integrals of running, waiting and kv_used over time, the last one of samples.
    most: shape (3, instances, samples), their maxima since the sample before, at the observations.
    pool: the name of each instance's pool.
    gpus: of each instance.
    phase: of each instance, an index into PHASES.
    shares: of the time of the step observed at each of these times, by kind of operation.
    kv_loaded: tokens of KV loaded from each tier outside the GPUs, of all instances, from the start to the end.
    autoscaling: the decisions.
    """

    time_s: Floats
    running: Floats
    waiting: Floats
    kv_used: Floats
    cached: Floats
    hit_tokens: Floats
    query_tokens: Floats
    preemptions: Floats
    busy_s: Floats
    held: Floats
    most: Floats
    pool: tuple[str, ...]
    gpus: tuple[int, ...]
    phase: npt.NDArray[np.int64]
    paid_s: Floats
    shares: tuple[tuple[float, Mapping[str, float]], ...]
    kv_loaded: Mapping[str, int]
    autoscaling: Sequence[ScalingDecision] = ()

    @property
    def instances(self) -> int:
        return len(self.pool)

    @property
    def changes(self) -> bool:
        """True if an instance came or went."""
        return bool((self.phase != READY).any())

    def ready(self) -> Floats:
        """Return the number of instances that accept requests, at each sample."""
        return np.asarray((self.phase == READY).sum(axis=0), dtype=np.float64)

    def between(self, start_s: float, end_s: float) -> Totals:
        """Return the totals from start_s to end_s. Counters grow evenly between two samples."""
        start_s, end_s = max(start_s, 0.0), max(end_s, start_s, 0.0)
        span_s = max(end_s - start_s, 1e-12)
        before = max(int(np.searchsorted(self.time_s, start_s, side="right")) - 1, 0)
        inside = (self.time_s > start_s) & (self.time_s <= end_s)
        steps = [share for at_s, share in self.shares if start_s <= at_s <= end_s]

        def grown(counter: Floats) -> Floats:
            rows = counter.reshape(-1, self.time_s.size)
            there = [np.diff(np.interp((start_s, end_s), self.time_s, row))[0] for row in rows]
            return np.array(there).reshape(counter.shape[:-1])

        ready, edges = self.ready(), np.clip(self.time_s, start_s, end_s)
        widths = np.diff(edges, append=end_s)
        return Totals(
            span_s=span_s,
            busy_s=np.minimum(grown(self.busy_s), span_s),
            means=grown(self.held) / span_s,
            most=self.most[:, :, inside].max(axis=-1, initial=0.0),
            hit_tokens=grown(self.hit_tokens),
            query_tokens=grown(self.query_tokens),
            preemptions=grown(self.preemptions).round(),
            mean_ready=float((ready * widths).sum() / widths.sum()) if widths.any() else float(ready[-1]),
            most_ready=int(ready[inside].max(initial=ready[before])),
            paid_s=np.minimum(grown(self.paid_s), span_s),
            step_shares=mean_shares(steps),
            kv_loaded=self.kv_loaded,
        )


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of a stretch of time.

    Arrays by instance; means and most: shape (3, instances), of running, waiting and kv_used.
    span_s: its length.
    busy_s: while a step was in flight.
    paid_s: while an instance was there, started up or drained.
    mean_ready, most_ready: instances that accept requests.
    step_shares: of the time of steps, by kind of operation; the longest first.
    kv_loaded: as in ClusterSeries, of the whole run.
    """

    span_s: float
    busy_s: Floats
    means: Floats
    most: Floats
    hit_tokens: Floats
    query_tokens: Floats
    preemptions: Floats
    mean_ready: float
    most_ready: int
    paid_s: Floats
    step_shares: Mapping[str, float]
    kv_loaded: Mapping[str, int]

    @property
    def utilisation(self) -> Floats:
        """Share of the time in which a step was in flight, by instance."""
        return self.busy_s / self.span_s


def by_pool(values: Floats, pools: Sequence[ServedPool]) -> list[Floats]:
    """Return the values of each pool's instances. values: shape (instances,)."""
    return np.split(values, np.cumsum([pool.config.instances for pool in pools])[:-1])


def mean_shares(shares: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of several steps, each of which counts the same; the largest first."""
    sums: dict[str, float] = {}
    for one in shares:
        for name, share in one.items():
            sums[name] = sums.get(name, 0.0) + share / len(shares)
    return dict(sorted(sums.items(), key=lambda entry: -entry[1]))


def _as_array(readings: Sequence[Sequence[Reading]]) -> Floats:
    """Return shape (readings, instances, fields of a reading).

    Flat numbers: numpy takes twice as long with nested ones.
    """
    numbers = np.fromiter(chain.from_iterable(chain.from_iterable(readings)), dtype=np.float64)
    return numbers.reshape(len(readings), -1, len(Reading._fields))


class _Between:
    """The state between two samples, kept when those are thinned out: KV memory over time, and maxima of levels.

    KV memory is held until the next reading. Readings are summed up many at a time.
    """

    def __init__(self, instances: int) -> None:
        self._at_s = 0.0  # end of the summed readings
        self._kv = self._kv_sum = np.zeros(instances)
        self._top = np.zeros((3, instances))  # since the last sample
        self._kv_sums: list[Floats] = []  # at each sample
        self._tops: list[Floats] = []
        self._times: list[float] = []  # of readings that are not summed up yet
        self._readings: list[Sequence[Reading]] = []
        self._sampled: list[int] = []  # which of these readings are samples

    def note(self, now: float, readings: Sequence[Reading], sampled: bool = False) -> None:
        if sampled:
            self._sampled.append(len(self._times))
        self._times.append(now)
        self._readings.append(readings)

    def thin_out(self) -> None:
        """Drop every other sample."""
        self._sum_up()
        self._kv_sums = self._kv_sums[::2]
        self._tops[2::2] = map(np.maximum, self._tops[1::2], self._tops[2::2])
        self._tops = self._tops[::2]

    def kv_used(self) -> Floats:
        """Return integrals of the share of KV memory that is held, shape (instances, samples)."""
        self._sum_up()
        return np.stack(self._kv_sums, axis=-1)

    def most(self) -> Floats:
        """Return the maxima, see ClusterSeries."""
        self._sum_up()
        return np.stack(self._tops, axis=-1)

    def _sum_up(self) -> None:
        if not self._times:
            return
        seen = _as_array(self._readings)
        running, waiting, used, total = (seen[:, :, Reading._fields.index(name)] for name in _LEVELS)
        kv = used / np.maximum(total, 1.0)
        before = np.concatenate([self._kv[None], kv[:-1]])
        widths = np.diff(self._times, prepend=self._at_s)
        sums = np.cumsum(np.concatenate([self._kv_sum[None], before * widths[:, None]]), axis=0)[1:]
        self._kv_sums += list(sums[self._sampled])
        first = 0
        levels = np.stack([running, waiting, kv], axis=1)
        for sample in self._sampled:
            self._tops.append(np.maximum(self._top, levels[first : sample + 1].max(axis=0)))
            self._top, first = np.zeros_like(self._top), sample + 1
        self._top = np.maximum(self._top, levels[first:].max(axis=0, initial=0.0))
        self._at_s, self._kv, self._kv_sum = self._times[-1], kv[-1], sums[-1]
        self._times, self._readings, self._sampled = [], [], []


class SeriesSampler:
    """An observer at equal intervals, which double whenever there would be more than MOST_SAMPLES samples.

    next_s: time of the next observation; the cluster must have reached it. Observing changes no outcome.
    on_observe: called with the time at each observation, to show the progress of a simulation.
    """

    def __init__(self, cluster: Cluster, pools: Sequence[ServedPool]) -> None:
        self._cluster = cluster
        self._pools = [pool for pool in pools for _ in range(pool.config.instances)]
        self._every_s = _FIRST_EVERY_S
        self.next_s = 0.0
        self._times: list[float] = []
        self._samples: list[list[Reading]] = []
        self._phases: list[Sequence[str]] = []
        self._paid_s: list[list[float]] = []
        self._between = _Between(len(self._pools))
        self._shares: list[tuple[float, Mapping[str, float]]] = []
        self._next_instance = 0
        self.on_observe: Callable[[float], None] = lambda now: None

    def observe(self, now: float) -> None:
        self._note(now)
        if len(self._times) > MOST_SAMPLES:
            self._times, self._samples, self._phases = self._times[::2], self._samples[::2], self._phases[::2]
            self._paid_s = self._paid_s[::2]
            self._between.thin_out()
            self._every_s *= 2
        self.next_s = (now // self._every_s + 1) * self._every_s
        self.on_observe(now)

    def skip(self, to: float) -> None:
        """Note that nothing happens until `to`."""
        if self.next_s < to < math.inf:
            self._between.note(self.next_s, self._cluster.readings())  # idle from here on
            self.next_s = (to // self._every_s + 1) * self._every_s

    def finish(self, end_s: float) -> None:
        """Record the state at the end, and observe no more."""
        self._note(end_s)
        self.next_s = math.inf

    def series(self) -> ClusterSeries:
        """Return all observations."""
        seen = _as_array(self._samples)
        levels = {name: seen[:, :, i].T for i, name in enumerate(Reading._fields)}
        total = np.maximum(levels["kv_total_tokens"], 1.0)
        time_s = np.array(self._times)
        running, waiting = levels["running"], levels["waiting"]
        ran = running * time_s + levels["ran_s"]
        stayed = (running + waiting) * time_s + levels["stayed_s"]
        return ClusterSeries(
            time_s=time_s,
            running=running,
            waiting=waiting,
            kv_used=levels["kv_used_tokens"] / total,
            cached=levels["cached_tokens"] / total,
            hit_tokens=levels["prefix_hit_tokens"],
            query_tokens=levels["prefix_query_tokens"],
            preemptions=levels["preemptions"],
            busy_s=levels["busy_s"],
            held=np.stack([ran, stayed - ran, self._between.kv_used()]),
            most=self._between.most(),
            pool=tuple(pool.config.name for pool in self._pools),
            gpus=tuple(pool.deployment.gpus for pool in self._pools),
            phase=np.array([[PHASES.index(phase) for phase in phases] for phases in self._phases]).T,
            paid_s=np.array(self._paid_s).T,
            shares=tuple(self._shares),
            kv_loaded=self._kv_loaded(),
            autoscaling=tuple(self._cluster.scaling.log),
        )

    def _kv_loaded(self) -> dict[str, int]:
        loaded: dict[str, int] = {}
        for state in self._cluster.snapshot():
            for tier in state.tiers:
                loaded[tier.name] = loaded.get(tier.name, 0) + tier.loaded_tokens
        return loaded

    def _note(self, now: float) -> None:
        self._times.append(now)
        readings = self._cluster.readings()
        self._samples.append(readings)
        self._between.note(now, readings, sampled=True)
        self._phases.append(self._cluster.phases())
        self._paid_s.append(self._cluster.paid_s(now))
        if len(self._times) % _STEP_EVERY == 1:
            self._sample_step(now)

    def _sample_step(self, now: float) -> None:
        """Decompose the step in flight on one instance, each time of another one."""
        for _ in self._pools:
            index = self._next_instance % len(self._pools)
            self._next_instance += 1
            shares = StepShares()
            if shares.look(self._pools[index].step_model, self._cluster.batches(index)):
                self._shares.append((now, shares.shares()))
                return
