"""Which instance serves a request. A policy is one class and one entry in `ROUTERS`.

The load of an instance is 4 * waiting + running requests, the score of vLLM's data-parallel load balancer. Equal choices
are taken in rotation: the search begins one instance further with every request.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Sequence

import numpy as np

from llmirage_server.cluster.instance_base import InstanceBase
from llmirage_server.cluster.radix_tree import token_bytes
from llmirage_server.cluster.request import Request

_REMEMBERED_SESSIONS = 100_000

# SGLang's router gives up cache affinity at this imbalance (its balance_abs_threshold and balance_rel_threshold).
_BALANCE_REQUESTS = 64
_BALANCE_RATIO = 1.5


class Router(ABC):
    """Chooses for one request at a time; deterministic by seed and by what the instances hold."""

    @abstractmethod
    def choose(self, request: Request, instances: Sequence[InstanceBase]) -> int:
        """Return the position of one of the instances: those of a pool that accept requests now, by rising `index`."""

    def forget(self, index: int) -> None:  # noqa: B027 (most have nothing to forget)
        """The instance of that number has lost its KV."""


class RoundRobin(Router):
    """One after the other."""

    def __init__(self, seed: int = 0) -> None:
        self._next = 0

    def choose(self, request: Request, instances: Sequence[InstanceBase]) -> int:
        index = self._next % len(instances)
        self._next = index + 1
        return index


class Random(Router):
    """Any, with equal chances, by the seed."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def choose(self, request: Request, instances: Sequence[InstanceBase]) -> int:
        return int(self._rng.integers(len(instances)))


class LeastLoaded(Router):
    """The one with the least load."""

    def __init__(self, seed: int = 0) -> None:
        self._turn = 0

    def choose(self, request: Request, instances: Sequence[InstanceBase]) -> int:
        return min(self._in_rotation(len(instances)), key=lambda i: _load(instances[i]))

    def _in_rotation(self, n: int) -> list[int]:
        first = self._turn % n
        self._turn = first + 1
        return [*range(first, n), *range(first)]


class Session(LeastLoaded):
    """Requests of one session key stay together, where the least load put the first; without a key, the least load."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self._placed: OrderedDict[str, int] = OrderedDict()  # least recently used first

    def choose(self, request: Request, instances: Sequence[InstanceBase]) -> int:
        key = request.session_key
        if key is None:
            return super().choose(request, instances)
        if key not in self._placed:
            self._placed[key] = super().choose(request, instances)
            if len(self._placed) > _REMEMBERED_SESSIONS:
                self._placed.popitem(last=False)
        self._placed.move_to_end(key)
        return self._placed[key]


class Prefix(LeastLoaded):
    """Where the least is to be done: cache-aware, with the load in tokens as the counterweight.

    The cost of an instance is what its KV holds in use, plus the uncached prompt tokens still ahead of it, plus twice the
    tokens of this prompt that are not cached there: they must be computed, and kept (the terms of the cost function of
    NVIDIA Dynamo's KV router). Equal costs go to the least load. When one instance has more than 64 requests more and over
    1.5 times as many as another, the least load decides alone, as in SGLang's router.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        # For each instance: the requests that await their first token there, with their uncached tokens, and the sum.
        self._ahead: defaultdict[int, deque[tuple[Request, int]]] = defaultdict(deque)
        self._ahead_tokens: defaultdict[int, int] = defaultdict(int)

    def choose(self, request: Request, instances: Sequence[InstanceBase]) -> int:
        key = token_bytes(request.prompt)
        uncached = [len(request.prompt) - instance.match(key) for instance in instances]
        requests = [instance.waiting + instance.running for instance in instances]
        most, fewest = max(requests), min(requests)
        if most - fewest > _BALANCE_REQUESTS and most > fewest * _BALANCE_RATIO:
            index = super().choose(request, instances)
        else:
            costs = [
                (instance.kv_used_tokens + self._tokens_ahead(i) + 2 * uncached[i], _load(instance))
                for i, instance in enumerate(instances)
            ]
            index = min(self._in_rotation(len(instances)), key=costs.__getitem__)
        self._ahead[index].append((request, uncached[index]))
        self._ahead_tokens[index] += uncached[index]
        return index

    def _tokens_ahead(self, index: int) -> int:
        ahead = self._ahead[index]
        while ahead and (ahead[0][0].produced or ahead[0][0].cancelled):
            self._ahead_tokens[index] -= ahead.popleft()[1]
        return self._ahead_tokens[index]


def _load(instance: InstanceBase) -> int:
    return 4 * instance.waiting + instance.running


ROUTERS: dict[str, Callable[[int], Router]] = {
    "round_robin": RoundRobin,
    "random": Random,
    "least_loaded": LeastLoaded,
    "session": Session,
    "prefix": Prefix,
}


def make_router(name: str, seed: int = 0) -> Router:
    """Return a router by its name; raises ValueError listing the names."""
    if name not in ROUTERS:
        raise ValueError(f"unknown router {name!r}: choose one of {', '.join(ROUTERS)}")
    return ROUTERS[name](seed)
