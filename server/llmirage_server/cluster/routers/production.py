"""Routers of production stacks, by their names and with their defaults.

Their metrics are exact here: real ones read what a server said 50 ms to some seconds ago. Prompts are tokens here where the
stacks count characters; a token counts as four of them, as llm-d counts.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from llmirage_server.cluster.instances.base import InstanceBase
from llmirage_server.cluster.kv.radix_tree import TOKEN_BYTES
from llmirage_server.cluster.request import AdapterReading, Request
from llmirage_server.cluster.routers.builtin import (
    BALANCE_REQUESTS,
    PendingPrefills,
    PlacedSessions,
    Prefix,
    Rotation,
    Router,
    key_of,
    loads,
)
from llmirage_server.cluster.routers.prefix_index import PrefixIndex

_BLOCK_TOKENS = 16  # of vLLM; engines with smaller blocks are counted in these
_BLOCK_BYTES = 144  # of memory, of a block that a router remembers
_MOST_TOKENS = 1 << 24  # of prompts that were sent to one instance: 64 MiB


def _blocks(request: Request, block_tokens: int, most: int | None = None) -> list[int]:
    """Return a hash for each whole block of the prompt, of it and of all before it."""
    size, key, found = block_tokens * TOKEN_BYTES, request.key, list[int]()
    count = request.prompt_tokens // block_tokens
    for place in range(count if most is None else min(count, most)):
        found.append(hash((found[-1] if found else 0, key[place * size : (place + 1) * size])))
    return found


def _block_tokens(instances: Sequence[InstanceBase]) -> int:
    return max(_BLOCK_TOKENS, instances[0].limits.page_size)


class SGLangCacheAware(Prefix):
    """As `prefix`, with SGLang's own thresholds: a match of over 0.3, and 64 requests and 1.5 times as many apart."""

    balance_requests = BALANCE_REQUESTS


class DynamoKV(Router):
    """The lowest cost in blocks: prefill of what is not cached there or waits, plus blocks active with this request.

    NVIDIA Dynamo's KV router at its defaults (ai-dynamo/dynamo, lib/kv-router/src/scheduling/selector.rs): overlap weight 1,
    temperature 0. Active blocks are those of prompts in progress, equal ones once; a cached block that no request uses
    counts as one to become active, so that the cache speaks for an instance once and its load twice. Ties go to the least
    load.
    """

    def __init__(self, seed: int = 0) -> None:
        self._rotation = Rotation()
        self._ahead: defaultdict[int, PendingPrefills] = defaultdict(PendingPrefills)
        self._active: defaultdict[int, _ActiveBlocks] = defaultdict(_ActiveBlocks)

    def choose(self, request: Request, instances: Sequence[InstanceBase]) -> int:
        block = _block_tokens(instances)
        blocks, key = _blocks(request, block), key_of(request)
        needed = request.prompt_tokens + request.produced
        costs, uncached = [], []
        for instance, load in zip(instances, loads(instances), strict=True):
            cached = instance.match(key) // block * block
            uncached.append(needed - cached)
            prefill = (uncached[-1] + self._ahead[instance.index].tokens()) / block
            costs.append((prefill + self._active[instance.index].with_blocks(blocks), load))
        position = self._rotation.least(instances, costs)
        index = instances[position].index
        self._ahead[index].add(request, uncached[position])
        self._active[index].add(request, blocks)
        return position

    def forget(self, index: int) -> None:
        self._ahead.pop(index, None)
        self._active.pop(index, None)


class _ActiveBlocks:
    """Blocks of the prompts in progress on one instance."""

    def __init__(self) -> None:
        self._requests: deque[tuple[Request, list[int]]] = deque()
        self._users: Counter[int] = Counter()

    def add(self, request: Request, blocks: list[int]) -> None:
        self._requests.append((request, blocks))
        self._users.update(blocks)

    def with_blocks(self, blocks: list[int]) -> int:
        """Return the number of active blocks if these are, too."""
        for _ in range(len(self._requests)):
            request, used = self._requests.popleft()
            if not _over(request):
                self._requests.append((request, used))
                continue
            for one in used:
                self._users[one] -= 1
                if not self._users[one]:
                    del self._users[one]
        return len(self._users) + sum(one not in self._users for one in blocks)


def _over(request: Request) -> bool:
    return request.cancelled or request.failed or request.produced >= request.output_tokens


class ProductionStackPrefix(Router):
    """A random one of the instances that were sent the longest prefix; any if none was sent as much as 128 characters.

    vLLM production-stack's `prefixaware` (vllm-project/production-stack, routing_logic.py): a trie of 128 characters a
    step, blind for load. Its own grows without end; here the least recently sent goes after 16 million tokens an instance.
    """

    reads_kv = False
    _STEP_TOKENS = 32

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._sent = PrefixIndex()

    def choose(self, request: Request, instances: Sequence[InstanceBase]) -> int:
        positions = {instance.index: place for place, instance in enumerate(instances)}
        steps = request.prompt_tokens // self._STEP_TOKENS * self._STEP_TOKENS * TOKEN_BYTES
        prompt = request.key[:steps]
        matched, found = self._sent.longest(prompt, positions) if prompt else (0, [])
        if matched < self._STEP_TOKENS * TOKEN_BYTES:
            found = list(positions)
        index = found[int(self._rng.integers(len(found)))]
        if prompt:
            self._sent.insert(prompt, index, _MOST_TOKENS)
        return positions[index]

    def forget(self, index: int) -> None:
        """Keep what was sent: the stack does not know that it is lost."""

    def bytes_kept(self) -> int:
        return self._sent.bytes_kept()


Floats = npt.NDArray[np.float64]
Scorer = Callable[["LlmD", Request, Sequence[InstanceBase]], list[float]]


class LlmD(Router):
    """The highest sum of weighted scores from 0 to 1: llm-d:default is queue 2, kv-cache-utilization 2, prefix-cache 3.

    llm-d's endpoint picker (kubernetes-sigs/gateway-api-inference-extension, llm-d/llm-d-inference-scheduler). Other weights
    are given by name: llm-d:prefix-cache=3,queue=1. Ties are drawn by the seed.
    """

    _MOST_BLOCKS = 256  # of a prompt that the prefix scorer looks at

    def __init__(self, seed: int = 0, weights: Sequence[tuple[str, float]] = ()) -> None:
        self._rng = np.random.default_rng(seed)
        self._weights = weights or tuple(_LLM_D_DEFAULT.items())
        self._sent: defaultdict[int, OrderedDict[int, None]] = defaultdict(OrderedDict)  # by instance, latest last
        self.sessions = PlacedSessions()
        self._blocks: list[int] = []  # of the request that is being placed
        self._latencies = _LatencyPredictor()

    def choose(self, request: Request, instances: Sequence[InstanceBase]) -> int:
        block = _block_tokens(instances)
        self._blocks = _blocks(request, block, self._MOST_BLOCKS)
        position = self._pick(request, instances)
        chosen = instances[position]
        self._latencies.sent(request, position, chosen.index)
        sent, room = self._sent[chosen.index], chosen.kv_total_tokens // block
        for one in self._blocks:
            sent[one] = None
            sent.move_to_end(one)
        while len(sent) > room:
            sent.popitem(last=False)
        self.sessions.place(request, chosen.index)
        return position

    def _pick(self, request: Request, instances: Sequence[InstanceBase]) -> int:
        totals = [0.0] * len(instances)
        for name, weight in self._weights:
            for place, score in enumerate(LLM_D_SCORERS[name](self, request, instances)):
                totals[place] += weight * score
        best = max(totals)
        ties = [place for place, total in enumerate(totals) if total == best]
        return ties[int(self._rng.integers(len(ties)))] if len(ties) > 1 else ties[0]

    def forget(self, index: int) -> None:
        self._sent.pop(index, None)

    def bytes_kept(self) -> int:
        return _BLOCK_BYTES * sum(map(len, self._sent.values())) + self.sessions.bytes_kept()

    def _queue(self, request: Request, instances: Sequence[InstanceBase]) -> list[float]:
        return _evenly([instance.waiting for instance in instances])

    def _running(self, request: Request, instances: Sequence[InstanceBase]) -> list[float]:
        return _evenly([instance.running for instance in instances])

    def _kv_cache(self, request: Request, instances: Sequence[InstanceBase]) -> list[float]:
        return [1.0 - instance.kv_used_tokens / max(instance.kv_total_tokens, 1) for instance in instances]

    def _prefix(self, request: Request, instances: Sequence[InstanceBase]) -> list[float]:
        if not self._blocks:
            return [0.0] * len(instances)
        sent = [self._sent[instance.index] for instance in instances]
        matched = [0] * len(instances)
        for one in self._blocks:
            there = [one in known for known in sent]
            if not any(there):
                break
            matched = [count + has for count, has in zip(matched, there, strict=True)]
        return [count / len(self._blocks) for count in matched]

    def _session(self, request: Request, instances: Sequence[InstanceBase]) -> list[float]:
        own = self.sessions.index_of(request)
        return [float(instance.index == own) for instance in instances]

    def _lora(self, request: Request, instances: Sequence[InstanceBase]) -> list[float]:
        """Return 1 where the adapter runs, 0.8 where one more may, 0.6 where it waits, else 0.

        kubernetes-sigs/gateway-api-inference-extension, pkg/epp/scheduling/framework/plugins/scorer/lora_affinity.go; a
        request without an adapter looks for its model's name there.
        """
        name = request.model if request.adapter is None else request.adapter.name
        scores = []
        for reading in [instance.adapters or _NO_ADAPTERS for instance in instances]:
            free = len(reading.running) + len(reading.waiting) < reading.most
            scores.append(1.0 if name in reading.running else 0.8 if free else 0.6 if name in reading.waiting else 0.0)
        return scores

    def _latency(self, request: Request, instances: Sequence[InstanceBase]) -> list[float]:
        cached = self._prefix(request, instances)
        return self._scores(request, instances, cached, self._latencies.predict(request, instances, cached))

    def _scores(
        self,
        request: Request,
        instances: Sequence[InstanceBase],
        cached: Sequence[float],
        predicted_s: Sequence[float] | None,
    ) -> list[float]:
        if predicted_s is not None:
            return latency_scores(predicted_s, [not instance.unfinished for instance in instances], _slo_s(request))
        most, kv = max(instance.waiting for instance in instances), self._kv_cache(request, instances)
        queues = [1 - instance.waiting / most if most else 1.0 for instance in instances]
        return [math.floor(sum(parts) / 3 * 100 + 0.5) / 100 for parts in zip(queues, kv, cached, strict=True)]


def _slo_s(request: Request) -> float:
    """Return the TTFT objective, which llm-d compares with whole latencies without streaming mode; 0 stands for none."""
    return request.slo_ttft_s if math.isfinite(request.slo_ttft_s) else 0.0


def latency_scores(predicted_s: Sequence[float], idle: Sequence[bool], slo_s: float = 0.0) -> list[float]:
    """Return llm-d's scores: 1.01 next to the objective, 0.01 farthest from it.

    Where some meet it, the others have 0; where none does, idle instances come first.
    """
    away_s = [abs(slo_s - one) for one in predicted_s]
    places = [place for place, one in enumerate(predicted_s) if one <= slo_s]
    places = places or [place for place, one in enumerate(idle) if one] or list(range(len(idle)))
    low, high = (limit(away_s[place] for place in places) for limit in (min, max))
    scores = [0.0] * len(idle)
    for place in places:
        share = (away_s[place] - low) / (high - low) if high - low > 1e-12 else 0.5
        scores[place] = (int((1.0 - share) * 100) + 1) / 100
    return scores


class _LatencyPredictor:
    """End-to-end latency of a request on each instance, learnt from the requests before by least squares.

    llm-d's predicted-latency-producer without streaming mode, with its inputs: prompt, cached share, requests waiting and
    running, KV memory in use, prompt tokens in flight. It trains XGBoost from 100 samples on, on the last few hundred.
    """

    _LEAST = 100
    _KEPT = 0.998  # of the weight of earlier samples, with each

    def __init__(self) -> None:
        self._in_flight: list[tuple[Request, int, Floats]] = []  # with instance and inputs
        self._inputs: Floats | None = None  # of the request that is being placed, a row an instance
        self._products, self._sums, self._samples = 1e-6 * np.eye(7), np.zeros(7), 0

    def predict(self, request: Request, instances: Sequence[InstanceBase], cached: Sequence[float]) -> list[float] | None:
        """Return seconds for each instance; None: too few samples. cached: share of the prompt there."""
        self._learn()
        tokens: Counter[int] = Counter()
        for sent, index, _ in self._in_flight:
            tokens[index] += sent.prompt_tokens
        thousands = request.prompt_tokens / 1e3
        rows = []
        for one, share in zip(instances, cached, strict=True):
            used = one.kv_used_tokens / max(one.kv_total_tokens, 1)
            rows.append((1, thousands, thousands * (1 - share), one.waiting, one.running, used, tokens[one.index] / 1e3))
        self._inputs = np.array(rows, dtype=np.float64)
        if self._samples < self._LEAST:
            return None
        found: list[float] = (self._inputs @ np.linalg.solve(self._products, self._sums)).tolist()
        return found

    def sent(self, request: Request, position: int, index: int) -> None:
        """Follow the request, if its latency was to be predicted."""
        if self._inputs is not None:
            self._in_flight.append((request, index, self._inputs[position]))
            self._inputs = None

    def _learn(self) -> None:
        for request, _, inputs in self._in_flight:
            if request.finished_s >= request.arrival_s:
                self._products = self._KEPT * self._products + np.outer(inputs, inputs)
                self._sums = self._KEPT * self._sums + (request.finished_s - request.arrival_s) * inputs
                self._samples += 1
        self._in_flight = [one for one in self._in_flight if not _over(one[0])]


class LlmDPredictedLatency(LlmD):
    """A random instance by the scores of predicted latency, of those with 0.99 of the prompt cached, else 0.8, else of all.

    llm-d's profile with latencyPredictor (llm-d/llm-d-router, config/charts/routerlib): prefix-cache-affinity-filter at
    0.99, slo-headroom-tier-filter, prefix-cache-affinity-filter at 0.80, latency-scorer, weighted-random-picker. A filter
    lets one request in a hundred pass, that of affinity all where the best instance with the prompt is predicted to take 5 s
    longer than the best without; that of headroom keeps those that meet the objective. latency-slo-admitter sheds.
    """

    _THRESHOLDS = (0.99, 0.80)
    _EXPLORED = 0.01
    _PENALTY_S = 5.0

    def _pick(self, request: Request, instances: Sequence[InstanceBase]) -> int:
        places, cached = list(range(len(instances))), self._prefix(request, instances)
        predicted_s = self._latencies.predict(request, instances, cached)
        for threshold in self._THRESHOLDS:
            if len(places) > 1 and self._rng.random() >= self._EXPLORED:
                places = self._sticky(places, threshold, cached, predicted_s)
            if threshold == self._THRESHOLDS[0] and predicted_s is not None and math.isfinite(request.slo_ttft_s):
                places = self._tier(places, [one <= request.slo_ttft_s for one in predicted_s])
        among = None if predicted_s is None else [predicted_s[place] for place in places]
        scores = self._scores(request, [instances[place] for place in places], [cached[place] for place in places], among)
        total = sum(scores)
        return places[int(self._rng.choice(len(places), p=[score / total for score in scores] if total else None))]

    def admits(self, request: Request, instances: Sequence[InstanceBase]) -> bool:
        if not math.isfinite(request.slo_ttft_s):
            return True
        self._blocks = _blocks(request, _block_tokens(instances), self._MOST_BLOCKS)
        predicted_s = self._latencies.predict(request, instances, self._prefix(request, instances))
        cold = any(not one.running or one.kv_used_tokens < 0.02 * one.kv_total_tokens for one in instances)
        return predicted_s is None or cold or min(predicted_s) < request.slo_ttft_s

    def _tier(self, places: list[int], meets: Sequence[bool]) -> list[int]:
        tiers = [[place for place in places if meets[place] is met] for met in (True, False)]
        if not all(tiers):
            return places
        return tiers[self._rng.random() < self._EXPLORED]

    def _sticky(
        self, places: list[int], threshold: float, cached: Sequence[float], predicted_s: Sequence[float] | None
    ) -> list[int]:
        sticky = [place for place in places if cached[place] >= threshold]
        others = [place for place in places if cached[place] < threshold]
        if not sticky or not others or predicted_s is None:
            return sticky or places
        best, other = (min(predicted_s[place] for place in some) for some in (sticky, others))
        return places if best - other > self._PENALTY_S else sticky


_NO_ADAPTERS = AdapterReading((), (), 0)


def _evenly(counts: Sequence[int]) -> list[float]:
    """Return 1 for the lowest count, 0 for the highest; 1 for all where they are equal."""
    low, high = min(counts), max(counts)
    return [1.0 if high == low else (high - count) / (high - low) for count in counts]


LLM_D_SCORERS: dict[str, Scorer] = {
    "queue": LlmD._queue,
    "running-requests-size": LlmD._running,
    "kv-cache-utilization": LlmD._kv_cache,
    "prefix-cache": LlmD._prefix,
    "session-affinity": LlmD._session,
    "latency": LlmD._latency,
    "lora-affinity": LlmD._lora,
}
_LLM_D_DEFAULT = {"queue": 2.0, "kv-cache-utilization": 2.0, "prefix-cache": 3.0}
LLM_D = "llm-d:"


def llm_d_weights(name: str) -> list[tuple[str, float]]:
    """Return the weights of a name such as llm-d:queue=2,prefix-cache=3. Raises ValueError."""
    found = []
    for part in name.removeprefix(LLM_D).split(","):
        scorer, _, weight = part.strip().partition("=")
        scorer = scorer.removesuffix("-scorer")
        if scorer not in LLM_D_SCORERS:
            raise ValueError(f"{name!r}: llm-d has the scorers {', '.join(LLM_D_SCORERS)}; not {scorer!r}")
        try:
            found.append((scorer, float(weight or 1.0)))
        except ValueError:
            raise ValueError(f"{name!r}: the weight of {scorer} must be a number, not {weight!r}") from None
    return found
