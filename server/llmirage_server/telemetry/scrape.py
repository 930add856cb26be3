"""Instances at a scrape of /metrics: requests that ended there and that are under way, and their state."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from llmirage_server.cluster.request import Request
from llmirage_server.cluster.snapshots import InstanceSnapshot
from llmirage_server.cluster.step_counts import StepCounts

REASONS = ("stop", "length", "abort", "error")
_NOTHING: Mapping[str, float] = {}


class PrometheusHistogram:
    """Counts by bucket. bounds: upper bounds of the buckets, ascending; one more bucket follows the last."""

    __slots__ = ("_bounds", "_counts", "count", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.count = 0
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self.count += times
        self.sum += value * times

    def add_counts(self, counts: Sequence[int], total: float) -> None:
        """Values by bucket, and their sum."""
        self._counts = [own + more for own, more in zip(self._counts, counts, strict=True)]
        self.count += sum(counts)
        self.sum += total

    def add_all(self, other: PrometheusHistogram) -> None:
        """other: of the same bounds."""
        self.add_counts(other._counts, other.sum)

    def buckets(self) -> Iterator[tuple[str, int]]:
        """Each bound as Prometheus writes it, and the number of values up to it."""
        total = 0
        for bound, count in zip(self._bounds, self._counts, strict=False):
            total += count
            yield str(float(bound)), total
        yield "+Inf", self.count


class EngineMetrics:
    """Requests that ended at one instance. measures: what is measured of each, and the bounds of its buckets."""

    def __init__(self, measures: Mapping[str, Sequence[float]]) -> None:
        self.counts = Counter[str]()  # prompt_tokens, generation_tokens, cached_tokens, and the requests by reason
        self.histograms = {measure: PrometheusHistogram(bounds) for measure, bounds in measures.items()}

    def ended(self, request: Request, reason: str) -> None:
        produced, histograms = request.produced, self.histograms
        self.counts[reason] += 1
        self.counts["prompt_tokens"] += request.prompt_tokens
        self.counts["generation_tokens"] += produced
        if math.isnan(request.first_token_s):
            return
        self.counts["cached_tokens"] += request.cached_tokens
        for measure, value, times in _measured(request, reason in ("stop", "length")):
            if measure in histograms and times:
                histograms[measure].add(value, times)

    def answered(self, n: int, longest: int) -> None:
        """Count a prompt with n replies, the longest of so many tokens."""
        for measure, value in (("n", n), ("longest", longest)):
            if measure in self.histograms:
                self.histograms[measure].add(value)


def _measured(request: Request, whole: bool) -> Iterator[tuple[str, float, int]]:
    """Each measure of a request that has a first token, and how often it counts. whole: whether it ended as it should."""
    first_s, start_s, produced = request.first_token_s, request.admitted_s, request.produced
    yield "ttft_s", first_s - request.arrival_s, 1
    started = not math.isnan(start_s)
    if started:
        yield "queue_s", max(0.0, start_s - request.arrival_s), 1
        yield "prefill_s", max(0.0, first_s - start_s), 1
    if not whole:
        return
    decode_s = request.finished_s - first_s
    if produced > 1:
        each_s = decode_s / (produced - 1)
        yield "itl_s", each_s, produced - 1
        yield "tpot_s", each_s, 1
    yield "decode_s", decode_s, 1
    if started:
        yield "inference_s", max(0.0, request.finished_s - start_s), 1
    yield "e2e_s", request.finished_s - request.arrival_s, 1
    yield "prompt_tokens", request.prompt_tokens, 1
    yield "generation_tokens", produced, 1
    yield "computed_tokens", request.prompt_tokens - request.cached_tokens, 1
    yield "cached_tokens", request.cached_tokens, 1
    yield "preemptions", request.preemptions, 1
    yield "max_tokens", request.max_tokens, min(1, request.max_tokens)


@dataclass(slots=True, frozen=True)
class CacheSettings:
    """The KV cache of a pool's instances, as they were told to have it."""

    block_size: int
    dtype: str
    gpu_memory_utilization: float
    enable_prefix_caching: bool


class Standing:
    """One instance, or all that serve one model."""

    def __init__(
        self, ended: Sequence[EngineMetrics], begun: Mapping[str, float] = _NOTHING, states: Sequence[InstanceSnapshot] = ()
    ) -> None:
        """begun: of requests under way, as `EngineMetrics.counts`, and their tokens_per_s. states: of who is there."""
        self.begun = begun
        self.states = states
        self._ended = ended

    def with_others(self, others: Sequence[Standing]) -> Standing:
        """Return this and others as one."""
        every = (self, *others)
        begun = {name: sum([at.begun.get(name, 0.0) for at in every]) for name in self.begun}
        return Standing([one for at in every for one in at._ended], begun, [one for at in every for one in at.states])

    @cached_property
    def ended(self) -> Counter[str]:
        """Counts of requests that have ended, as `EngineMetrics.counts`."""
        return sum((engine.counts for engine in self._ended), Counter[str]())

    @property
    def by_reason(self) -> dict[str, float]:
        return {reason: self.ended[reason] for reason in REASONS}

    def so_far(self, name: str) -> float:
        """Return the count over requests that have ended or are under way."""
        return self.ended[name] + self.begun.get(name, 0.0)

    def histogram(self, measure: str, bounds: Sequence[float]) -> PrometheusHistogram:
        found = PrometheusHistogram(bounds)
        if measure == "step_tokens":
            found.add_counts(self.steps.by_tokens, self.steps.tokens)
            return found
        for engine in self._ended:
            found.add_all(engine.histograms[measure])
        return found

    @cached_property
    def steps(self) -> StepCounts:
        """Counts of the steps of all instances."""
        return sum([state.steps for state in self.states if state.steps is not None], StepCounts())

    @property
    def speculates(self) -> bool:
        """If any instance drafts."""
        return len(self.steps.by_accepted) > 1

    @property
    def acceptance_rate(self) -> float:
        """Share of draft tokens that were accepted; 0 before the first one."""
        return self.steps.accepted_tokens / drafted if (drafted := self.steps.draft_tokens) else 0.0

    @property
    def running(self) -> int:
        return sum([state.running for state in self.states])

    @property
    def waiting(self) -> int:
        return sum([state.waiting for state in self.states])

    @property
    def kv_used(self) -> int:
        return sum([state.kv_used_tokens for state in self.states])

    @property
    def kv_total(self) -> int:
        return sum([state.kv_total_tokens for state in self.states])

    @property
    def kv_share(self) -> float:
        return self.kv_used / self.kv_total if self.kv_total else 0.0

    @property
    def preemptions(self) -> int:
        return sum([state.preemptions for state in self.states])

    @property
    def queried(self) -> int:
        return sum([state.prefix_query_tokens for state in self.states])

    @property
    def hits(self) -> int:
        return sum([state.prefix_hit_tokens for state in self.states])

    @property
    def hit_rate(self) -> float:
        return self.hits / self.queried if self.queried else 0.0
