"""The cluster's side of a simulation over time: batches, queues, KV memory, and what steps are made of, by instance."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from llmirage_client.simulator.engine import Cluster, Reading, ServedPool, StepShares

Floats = npt.NDArray[np.float64]

MOST_SAMPLES = 256
_FIRST_EVERY_S = 0.25
_STEP_EVERY = 4  # samples, of which one looks into a step

PHASES = ("down", "starting", "up", "draining")
READY = PHASES.index("up")
_LEVELS = ("running", "waiting", "kv_used_tokens", "kv_total_tokens")  # of a reading


@dataclass(frozen=True, slots=True)
class ClusterSeries:
    """time_s: shape (samples,), cluster time. The others: shape (instances, samples).

    running: sequences in the batch. waiting: in the queue or the front end. kv_used: share of the KV memory that running
    sequences hold. cached: share that the prefix cache has, what is in use among it. hit_tokens, query_tokens, preemptions,
    busy_s: counters since the start; busy_s grows while a step is under way.
    held: shape (3, instances, samples), integrals of running, waiting and kv_used over time. most: shape (3, instances).
    pool: the name of each instance's pool. gpus: of each instance.
    phase: what each instance is, an index into PHASES. paid_s: shape (instances,), how long each was there, started up or
    drained, until the end.
    step_shares: of the time of steps, by kind of operation; sampled, longest first.
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
    step_shares: dict[str, float]

    @property
    def instances(self) -> int:
        return len(self.pool)

    @property
    def changes(self) -> bool:
        """Whether an instance came or went."""
        return bool((self.phase != READY).any())

    def ready(self) -> Floats:
        """How many instances accept requests, at each sample."""
        return np.asarray((self.phase == READY).sum(axis=0), dtype=np.float64)

    def mean_ready(self) -> float:
        """How many instances accept requests, in the mean over time; a sample holds until the next."""
        ready, widths = self.ready(), np.diff(self.time_s)
        whole = float(widths.sum())
        return float((ready[:-1] * widths).sum()) / whole if whole else float(ready.mean())

    def utilisation(self, instance: int | None = None) -> float:
        """Share of the time in which a step was under way, of one instance or of all."""
        whole_s = float(self.time_s[-1]) if self.time_s.size else 0.0
        if not whole_s:
            return 0.0
        busy = self.busy_s[:, -1] if instance is None else self.busy_s[instance : instance + 1, -1]
        return float(np.minimum(busy / whole_s, 1.0).mean())


class _Held:
    """Integrals of levels over time, which keep what is between two samples when those are thinned out.

    A level holds until the next reading. Readings are summed up many at a time. most: the highest levels so far.
    """

    def __init__(self, instances: int) -> None:
        self.most = np.zeros((3, instances))
        self._at_s = 0.0  # of what is summed up
        self._level = self._sum = self.most
        self._sums: list[Floats] = []  # at each sample
        self._times: list[float] = []  # of readings that are not summed up yet
        self._readings: list[Sequence[Reading]] = []
        self._sampled: list[int] = []  # which of these readings are samples

    def note(self, now: float, readings: Sequence[Reading], sampled: bool = False) -> None:
        if sampled:
            self._sampled.append(len(self._times))
        self._times.append(now)
        self._readings.append(readings)

    def thin_out(self) -> None:
        """Every other sample goes."""
        self._sum_up()
        self._sums = self._sums[::2]

    def sums(self) -> Floats:
        """At each sample, shape (3, instances, samples)."""
        self._sum_up()
        return np.stack(self._sums, axis=-1)

    def _sum_up(self) -> None:
        if not self._times:
            return
        seen = np.array(self._readings, dtype=np.float64)  # shape (readings, instances, fields of a reading)
        running, waiting, used, total = (seen[:, :, Reading._fields.index(name)] for name in _LEVELS)
        levels = np.stack([running, waiting, used / np.maximum(total, 1.0)], axis=1)
        before = np.concatenate([self._level[None], levels[:-1]])
        widths = np.diff(self._times, prepend=self._at_s)
        sums = np.cumsum(np.concatenate([self._sum[None], before * widths[:, None, None]]), axis=0)[1:]
        self._sums += list(sums[self._sampled])
        self.most = np.maximum(self.most, levels.max(axis=0))
        self._at_s, self._level, self._sum = self._times[-1], levels[-1], sums[-1]
        self._times, self._readings, self._sampled = [], [], []


class SeriesSampler:
    """Looks at the cluster at equal distances, which double whenever there would be more than MOST_SAMPLES.

    next_s: when it wants to look next; the cluster must have reached that time. It changes nothing of what happens.
    on_look: called with the time at each look, so that somebody may tell how far a simulation is.
    """

    def __init__(self, cluster: Cluster, pools: Sequence[ServedPool]) -> None:
        self._cluster = cluster
        self._pools = [pool for pool in pools for _ in range(pool.config.instances)]
        self._every_s = _FIRST_EVERY_S
        self.next_s = 0.0
        self._times: list[float] = []
        self._samples: list[list[Reading]] = []
        self._phases: list[Sequence[str]] = []
        self._held = _Held(len(self._pools))
        self._shares = StepShares()
        self._looked_into = 0
        self.on_look: Callable[[float], None] = lambda now: None

    def look(self, now: float) -> None:
        self._note(now)
        if len(self._times) > MOST_SAMPLES:
            self._times, self._samples, self._phases = self._times[::2], self._samples[::2], self._phases[::2]
            self._held.thin_out()
            self._every_s *= 2
        self.next_s = (now // self._every_s + 1) * self._every_s
        self.on_look(now)

    def skip(self, to: float) -> None:
        """Nothing happens until then."""
        if self.next_s < to < math.inf:
            self._held.note(self.next_s, self._cluster.readings())  # idle from here on
            self.next_s = (to // self._every_s + 1) * self._every_s

    def finish(self, end_s: float) -> None:
        """The state at the end; it looks no more."""
        self._note(end_s)
        self.next_s = math.inf

    def series(self) -> ClusterSeries:
        """All that was seen."""
        seen = np.array(self._samples, dtype=np.float64)  # shape (samples, instances, fields of a reading)
        levels = {name: seen[:, :, i].T for i, name in enumerate(Reading._fields)}
        total = np.maximum(levels["kv_total_tokens"], 1.0)
        return ClusterSeries(
            time_s=np.array(self._times),
            running=levels["running"],
            waiting=levels["waiting"],
            kv_used=levels["kv_used_tokens"] / total,
            cached=levels["cached_tokens"] / total,
            hit_tokens=levels["prefix_hit_tokens"],
            query_tokens=levels["prefix_query_tokens"],
            preemptions=levels["preemptions"],
            busy_s=levels["busy_s"],
            held=self._held.sums(),
            most=self._held.most,
            pool=tuple(pool.config.name for pool in self._pools),
            gpus=tuple(pool.deployment.gpus for pool in self._pools),
            phase=np.array([[PHASES.index(phase) for phase in phases] for phases in self._phases]).T,
            paid_s=np.array(self._cluster.paid_s()),
            step_shares=self._shares.shares(),
        )

    def _note(self, now: float) -> None:
        self._times.append(now)
        readings = self._cluster.readings()
        self._samples.append(readings)
        self._held.note(now, readings, sampled=True)
        self._phases.append(self._cluster.phases())
        if len(self._times) % _STEP_EVERY == 1:
            self._look_into_step()

    def _look_into_step(self) -> None:
        """Take the step under way on one instance apart, each time of another one."""
        for _ in self._pools:
            index = self._looked_into % len(self._pools)
            self._looked_into += 1
            if self._shares.look(self._pools[index].step_model, self._cluster.batches(index)):
                return
