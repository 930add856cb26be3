"""Routing by what every instance really has in its KV cache."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence

from llmirage_server.cluster.instances.base import InstanceBase
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.routers.base import Rotation, Router, key_of, loads, out_of_balance


class KVAware(Router):
    """Where the least is to be done: prompt tokens not cached there, plus the KV in use and the prefill ahead.

    What is cached is asked of the instances themselves, so it is exact, as it is for a router that is told of every block
    that is stored and removed. The cost of an instance is, in tokens, what it has to prefill (what waits there and is not
    cached, and the uncached part of this prompt) plus the KV it will hold (what is in use, and again the uncached part):
    prefill blocks + decode blocks, the cost of NVIDIA Dynamo's KV router with its overlap_score_weight of 1
    (ai-dynamo/dynamo, docs/router/kv_cache_routing.md). Equal costs go to the least load. When one instance has more than 64
    requests more and over 1.5 times as many as another, the least load decides alone, as in SGLang's router.
    """

    def __init__(self, seed: int = 0) -> None:
        self._rotation = Rotation()
        self._ahead: defaultdict[int, _Prefills] = defaultdict(_Prefills)

    def choose(self, request: Request, instances: Sequence[InstanceBase]) -> int:
        key = key_of(request)
        needed = request.prompt_tokens + request.produced
        uncached = [needed - instance.match(key) for instance in instances]
        scores = loads(instances)
        costs = [
            (instance.kv_used_tokens + self._ahead[instance.index].tokens() + 2 * tokens, score)
            for instance, tokens, score in zip(instances, uncached, scores, strict=True)
        ]
        position = self._rotation.least(instances, scores if out_of_balance(instances) else costs)
        self._ahead[instances[position].index].add(request, uncached[position])
        return position

    def forget(self, index: int) -> None:
        self._ahead.pop(index, None)


class _Prefills:
    """The uncached tokens of the requests sent to one instance that have got no token from there yet."""

    def __init__(self) -> None:
        self._requests: deque[tuple[Request, int, int]] = deque()  # with the tokens it had produced, and the uncached ones
        self._tokens = 0

    def add(self, request: Request, uncached: int) -> None:
        self._requests.append((request, request.produced, uncached))
        self._tokens += uncached

    def tokens(self) -> int:
        requests = self._requests
        while requests:
            request, produced, uncached = requests[0]
            if request.produced == produced and not request.cancelled and not request.failed:
                break
            self._tokens -= uncached
            requests.popleft()
        return self._tokens
