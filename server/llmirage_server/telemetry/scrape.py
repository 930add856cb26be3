"""Instances at a scrape of /metrics: requests that ended there and that are under way, and their state."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from llmirage_server.cluster.request import Request
from llmirage_server.cluster.snapshots import InstanceSnapshot, StepCounts

REASONS = ("stop", "length", "abort", "error")
_MOST_ENDED = 128  # requests that wait to be measured
Numbers = npt.NDArray[np.float64]


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

    def add_each(self, values: Numbers, times: Numbers | None = None) -> None:
        """Add many values at once, each `times`."""
        counts = np.bincount(np.searchsorted(self._bounds, values), times, len(self._counts))
        self._counts = [own + int(more) for own, more in zip(self._counts, counts.tolist(), strict=True)]
        self.count += len(values) if times is None else int(times.sum())
        for value in (values if times is None else values * times).tolist():  # in the order of `add`
            self.sum += value

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


def token_counts(request: Request) -> dict[str, int]:
    """Return the tokens of a request so far.

    external_tokens: of the cached ones, those that came from outside the GPU. forward_tokens: computed, whose contexts add
    up to context_tokens, those of its decoding steps to decode_context_tokens.
    """
    prompt, cached, produced = request.prompt_tokens, request.cached_tokens, request.produced
    if math.isnan(request.first_token_s):
        return {"generation_tokens": produced}
    last = prompt + max(0, produced - 1)  # the last token is not computed on
    to_last, to_prompt, to_cached = last * (last + 1), prompt * (prompt + 1), cached * (cached + 1)
    return {
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "external_tokens": min(request.external_tokens, cached),
        "generation_tokens": produced,
        "forward_tokens": last - cached,
        "context_tokens": (to_last - to_cached) // 2,
        "decode_context_tokens": (to_last - to_prompt) // 2,
    }


class EngineMetrics:
    """Requests that ended at one instance. measures: what is measured of each, and the bounds of its buckets.

    media_queries, media_hits: images and sounds of requests, and those that a request before had, too.
    """

    def __init__(self, measures: Mapping[str, Sequence[float]]) -> None:
        self.media_queries = self.media_hits = 0
        self.counts = Counter[str]()  # as `token_counts`, and the requests by reason
        self._histograms = {measure: PrometheusHistogram(bounds) for measure, bounds in measures.items()}
        self._ended: list[tuple[float, ...]] = []  # rows of `_measured`: to add many at once is a fraction of the work

    def ended(self, request: Request, reason: str) -> None:
        counts = self.counts
        counts[reason] += 1
        for name, count in token_counts(request).items():
            counts[name] += count
        if math.isnan(request.first_token_s):
            return
        times_s = (request.arrival_s, request.admitted_s, request.first_token_s, request.finished_s)
        tokens = (request.prompt_tokens, request.cached_tokens, request.produced, request.max_tokens)
        self._ended.append((reason in ("stop", "length"), *times_s, *tokens, request.preemptions))
        if len(self._ended) >= _MOST_ENDED:
            self._measure()

    @property
    def histograms(self) -> Mapping[str, PrometheusHistogram]:
        self._measure()
        return self._histograms

    def answered(self, n: int, longest: int) -> None:
        """Count a prompt with n replies, the longest of so many tokens."""
        for measure, value in (("n", n), ("longest", longest)):
            if measure in self._histograms:
                self._histograms[measure].add(value)

    def _measure(self) -> None:
        if self._ended:
            for measure, *values in _measured(np.array(self._ended, np.float64)):
                if measure in self._histograms:
                    self._histograms[measure].add_each(*values)
            self._ended.clear()


def _measured(rows: Numbers) -> Iterator[tuple[str, Numbers] | tuple[str, Numbers, Numbers]]:
    """Yield each measure of requests that have a first token, and how often a value counts, by default once.

    rows: shape (n, 10): whether it ended as it should, four times, four counts of tokens, preemptions.
    """
    _, arrival_s, start_s, first_s, *_ = rows.T
    yield "ttft_s", first_s - arrival_s
    started = ~np.isnan(start_s)
    yield "queue_s", np.maximum(0.0, start_s - arrival_s)[started]
    yield "prefill_s", np.maximum(0.0, first_s - start_s)[started]
    _, arrival_s, start_s, first_s, end_s, prompt, cached, produced, most, preemptions = rows[rows[:, 0] > 0].T
    decode_s, several = end_s - first_s, produced > 1
    gaps = produced[several] - 1
    each_s = decode_s[several] / gaps
    yield "itl_s", each_s, gaps
    yield "tpot_s", each_s
    yield "decode_s", decode_s
    yield "inference_s", np.maximum(0.0, end_s - start_s)[~np.isnan(start_s)]
    yield "e2e_s", end_s - arrival_s
    yield "prompt_tokens", prompt
    yield "generation_tokens", produced
    yield "computed_tokens", prompt - cached
    yield "cached_tokens", cached
    yield "preemptions", preemptions
    yield "max_tokens", most[most > 0]


@dataclass(slots=True, frozen=True)
class CacheSettings:
    """The KV cache of a pool's instances, as they were told to have it."""

    block_size: int
    dtype: str
    gpu_memory_utilization: float
    enable_prefix_caching: bool


@dataclass(slots=True, frozen=True)
class StepWork:
    """The work of one GPU of a data-parallel rank, as far as the shapes of the model tell it.

    Attributes:
        flops_per_token: Of the layers' weights.
        flops_per_context_token: Of attention, for each token of context that a token sees.
        flops_per_output_token: Of lm_head.
        weight_bytes: Read in each step, but for routed experts.
        expert_bytes: Of all routed experts.
        experts_per_token: The share of the experts that one token of each rank needs.
        kv_bytes: Of a token in the KV cache.
        activation_bytes: Of a token between the layers, read and written once each.
    """

    flops_per_token: float
    flops_per_context_token: float
    flops_per_output_token: float
    weight_bytes: float
    expert_bytes: float
    experts_per_token: float
    kv_bytes: float
    activation_bytes: float


@dataclass(frozen=True)
class Standing:
    """One data-parallel rank at a scrape, or all that serve one model.

    Attributes:
        engines: Counts of requests that have ended.
        begun: The same of requests under way, and their tokens_per_s.
        states: Of the instances that are there.
        work: Of one GPU, None where times are fixed.
        sleep_level: As /sleep was asked for; None: awake.
    """

    engines: Sequence[EngineMetrics]
    begun: Mapping[str, float]
    states: Sequence[InstanceSnapshot] = ()
    work: StepWork | None = None
    sleep_level: int | None = None

    def with_others(self, others: Sequence[Standing]) -> Standing:
        """Return this and others as one."""
        every = (self, *others)
        begun = {name: sum([at.begun.get(name, 0.0) for at in every]) for name in self.begun}
        return Standing([one for at in every for one in at.engines], begun, [one for at in every for one in at.states])

    @cached_property
    def ended(self) -> Counter[str]:
        """Counts of requests that have ended, as `EngineMetrics.counts`."""
        return sum((engine.counts for engine in self.engines), Counter[str]())

    @property
    def by_reason(self) -> dict[str, float]:
        return {reason: self.ended[reason] for reason in REASONS}

    def so_far(self, name: str) -> float:
        """Return the count over requests that have ended or are under way."""
        return self.ended[name] + self.begun.get(name, 0.0)

    @property
    def by_source(self) -> dict[str, float]:
        """Prompt tokens by where their KV came from."""
        cached, external = self.so_far("cached_tokens"), self.so_far("external_tokens")
        computed = self.so_far("prompt_tokens") - cached
        return {"local_compute": computed, "local_cache_hit": cached - external, "external_kv_transfer": external}

    @property
    def waiting_by_reason(self) -> dict[str, float]:
        """Waiting requests. deferred: those whose KV is on its way here."""
        return {"capacity": self.waiting - self.loading, "deferred": self.loading}

    @property
    def loading(self) -> int:
        return sum([state.loading for state in self.states])

    @property
    def sleep_states(self) -> dict[str, float]:
        level = self.sleep_level
        return {"awake": level is None, "weights_offloaded": level == 1, "discard_all": level == 2}

    @property
    def media_queries(self) -> int:
        return sum([engine.media_queries for engine in self.engines])

    @property
    def media_hits(self) -> int:
        return sum([engine.media_hits for engine in self.engines])

    @property
    def external_hits(self) -> int:
        """Tokens found in KV tiers, beyond what the GPUs had."""
        return sum([tier.hit_tokens for state in self.states for tier in state.tiers])

    @property
    def external_queries(self) -> int:
        """Tokens that the GPUs did not have, of instances with KV tiers."""
        missed = sum([state.prefix_query_tokens - state.prefix_hit_tokens for state in self.states if state.tiers])
        return missed + self.external_hits

    @property
    def estimated_flops(self) -> float:
        """Floating-point operations of one GPU."""
        if (work := self.work) is None:
            return 0.0
        of_tokens = self.so_far("forward_tokens") * work.flops_per_token
        of_contexts = self.so_far("context_tokens") * work.flops_per_context_token
        return of_tokens + of_contexts + self.so_far("generation_tokens") * work.flops_per_output_token

    @property
    def estimated_read_bytes(self) -> float:
        """Bytes that one GPU read: the experts that a mean step needs, contexts while decoding, activations."""
        steps, tokens = sum(self.steps.by_tokens), self.so_far("forward_tokens")
        if (work := self.work) is None or not steps:
            return 0.0
        experts = min(1.0, tokens / steps * work.experts_per_token)
        weights = steps * (work.weight_bytes + experts * work.expert_bytes)
        return weights + self.so_far("decode_context_tokens") * work.kv_bytes + tokens * work.activation_bytes

    @property
    def estimated_write_bytes(self) -> float:
        """Bytes that one GPU wrote: KV and activations."""
        return (
            0.0 if (work := self.work) is None else self.so_far("forward_tokens") * (work.kv_bytes + work.activation_bytes)
        )

    def histogram(self, measure: str, bounds: Sequence[float]) -> PrometheusHistogram:
        found = PrometheusHistogram(bounds)
        if measure == "step_tokens":
            found.add_counts(self.steps.by_tokens, self.steps.tokens)
            return found
        for engine in self.engines:
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
