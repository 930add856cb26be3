"""Routers of production stacks, by their names and with their defaults.

Their metrics are exact here: real ones read what a server said 50 ms to some seconds ago. Prompts are tokens here where the
stacks count characters; a token counts as four of them, as llm-d counts.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence

import numpy as np

from llmirage_server.cluster.instances.base import InstanceBase
from llmirage_server.cluster.kv.radix_tree import TOKEN_BYTES
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.routers.base import BALANCE_REQUESTS, Rotation, Router, key_of, loads
from llmirage_server.cluster.routers.builtin import REMEMBERED_SESSIONS, SESSION_BYTES, PendingPrefills, Prefix
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
        self._sessions: OrderedDict[str, int] = OrderedDict()  # least recently used first
        self._blocks: list[int] = []  # of the request that is being placed

    def choose(self, request: Request, instances: Sequence[InstanceBase]) -> int:
        block = _block_tokens(instances)
        self._blocks = _blocks(request, block, self._MOST_BLOCKS)
        totals = [0.0] * len(instances)
        for name, weight in self._weights:
            for place, score in enumerate(LLM_D_SCORERS[name](self, request, instances)):
                totals[place] += weight * score
        best = max(totals)
        ties = [place for place, total in enumerate(totals) if total == best]
        position = ties[int(self._rng.integers(len(ties)))] if len(ties) > 1 else ties[0]
        chosen = instances[position]
        sent, room = self._sent[chosen.index], chosen.kv_total_tokens // block
        for one in self._blocks:
            sent[one] = None
            sent.move_to_end(one)
        while len(sent) > room:
            sent.popitem(last=False)
        if request.session_key is not None:
            self._sessions[request.session_key] = chosen.index
            self._sessions.move_to_end(request.session_key)
            if len(self._sessions) > REMEMBERED_SESSIONS:
                self._sessions.popitem(last=False)
        return position

    def forget(self, index: int) -> None:
        self._sent.pop(index, None)

    def bytes_kept(self) -> int:
        return _BLOCK_BYTES * sum(map(len, self._sent.values())) + SESSION_BYTES * len(self._sessions)

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
        own = None if request.session_key is None else self._sessions.get(request.session_key)
        return [float(instance.index == own) for instance in instances]


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
