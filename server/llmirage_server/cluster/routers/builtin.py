"""The interface of routing policies, and those that come along: by load, by session, by chance, by cached prefixes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import OrderedDict, defaultdict, deque
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from llmirage_server.cluster.instances.base import InstanceBase
from llmirage_server.cluster.kv.radix_tree import TOKEN_BYTES
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.routers.prefix_index import PrefixIndex

# SGLang's cache-aware router gives up affinity when one worker has more than balance_abs_threshold requests more and over
# balance_rel_threshold times as many as another: 64 and 1.5 by its command line (sgl-project/sglang, sgl-model-gateway).
BALANCE_REQUESTS = 64
_BALANCE_RATIO = 1.5

_INDEX = attrgetter("index")
_LOAD = attrgetter("load")
_UNFINISHED = attrgetter("unfinished")


class RouterError(RuntimeError):
    """A user's router that raised an exception or returned something other than a valid position."""


class Router(ABC):
    """A policy that chooses an instance for one request at a time, deterministic by seed and by the state of the instances.

    Instances come and go: a router keys its memory of an instance by `index`.
    reads_kv: whether it reads `match` or `kv_used_tokens`; simulations bring these up to date for such routers alone.
    """

    reads_kv = True

    def admits(self, request: Request, instances: Sequence[InstanceBase]) -> bool:
        """Return whether a sheddable request may be served; it fails otherwise."""
        return True

    @abstractmethod
    def choose(self, request: Request, instances: Sequence[InstanceBase]) -> int:
        """Return the position of one of the instances: those of a pool that accept requests now, by rising `index`."""

    def forget(self, index: int) -> None:  # noqa: B027 (most have nothing to forget)
        """Forget what was sent to an instance that has lost its KV."""

    def bytes_kept(self) -> int:
        """Return what the router remembers of requests that are over, in bytes."""
        return 0


class Rotation:
    """Rotation among equal choices: every search begins one instance after the last."""

    def __init__(self) -> None:
        self._turn = 0  # the lowest index to begin with

    def next(self, instances: Sequence[InstanceBase]) -> int:
        """Return the position of the instance whose turn it is."""
        position = self._turn
        if position >= len(instances) or instances[position].index != position:  # one is missing, or it is the first's
            position = position_of(position, instances) if position <= instances[-1].index else 0
        self._turn = instances[position].index + 1
        return position

    def least(self, instances: Sequence[InstanceBase], costs: Sequence[Any]) -> int:
        """Return the position of the least cost; among equal ones, the next in turn."""
        first, least = self.next(instances), min(costs)
        try:
            return costs.index(least, first)
        except ValueError:
            return costs.index(least)


def position_of(index: int, instances: Sequence[InstanceBase]) -> int:
    """Return the position of the instance with that index, or of the next higher one; the number of instances if none."""
    if index < len(instances) and instances[index].index == index:  # none is missing before it
        return index
    return bisect_left(instances, index, key=_INDEX)


def loads(instances: Sequence[InstanceBase]) -> list[int]:
    """Return the `load` of each instance."""
    return list(map(_LOAD, instances))


def out_of_balance(instances: Sequence[InstanceBase], gap: int = BALANCE_REQUESTS) -> bool:
    """Return whether one instance has over `gap` requests more, and 1.5 times as many, as another."""
    unfinished = list(map(_UNFINISHED, instances))
    most, fewest = max(unfinished), min(unfinished)
    return bool(most - fewest > gap and most > fewest * _BALANCE_RATIO)


def key_of(request: Request) -> bytes:
    """Return the tokens whose KV the request needs at once: its prompt and any output produced elsewhere."""
    return request.key[: TOKEN_BYTES * (request.prompt_tokens + request.produced)]


REMEMBERED_SESSIONS = 100_000
SESSION_BYTES = 384  # of memory, with a key of 128 characters


class RoundRobin(Router):
    """Each instance in turn."""

    reads_kv = False

    def __init__(self, seed: int = 0) -> None:
        self._rotation = Rotation()

    def choose(self, request: Request, instances: Sequence[InstanceBase]) -> int:
        return self._rotation.next(instances)


class Random(Router):
    """A random instance, by the seed."""

    reads_kv = False

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def choose(self, request: Request, instances: Sequence[InstanceBase]) -> int:
        return int(self._rng.integers(len(instances)))


class LeastLoaded(Router):
    """The least load: 4 * waiting + running requests; equals take turns."""

    reads_kv = False

    def __init__(self, seed: int = 0) -> None:
        self._rotation = Rotation()

    def choose(self, request: Request, instances: Sequence[InstanceBase]) -> int:
        return self._rotation.least(instances, loads(instances))


class PowerOfTwo(Router):
    """The less loaded of two random instances: nearly as even as least_loaded, while reading two instances only."""

    reads_kv = False

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def choose(self, request: Request, instances: Sequence[InstanceBase]) -> int:
        n = len(instances)
        if n == 1:
            return 0
        one = int(self._rng.integers(n))
        other = (one + 1 + int(self._rng.integers(n - 1))) % n
        return one if instances[one].load <= instances[other].load else other


class PlacedSessions:
    """The instances of sessions by their keys: the least recently used are forgotten first, all ttl_s after a request."""

    def __init__(self) -> None:
        self.ttl_s = math.inf
        self._placed: OrderedDict[str, tuple[int, float]] = OrderedDict()  # index, last arrival; least recently used first

    def index_of(self, request: Request) -> int:
        """Return the index of the instance; -1 for an unknown session."""
        index, last_s = self._placed.get(request.session_key or "", (-1, -math.inf))
        return -1 if request.arrival_s - last_s > self.ttl_s else index

    def place(self, request: Request, index: int) -> None:
        if request.session_key is not None:
            self._placed[request.session_key] = index, request.arrival_s
            self._placed.move_to_end(request.session_key)
            if len(self._placed) > REMEMBERED_SESSIONS:
                self._placed.popitem(last=False)

    def bytes_kept(self) -> int:
        return len(self._placed) * SESSION_BYTES


class SessionAffinity(LeastLoaded):
    """Requests of one session key stay together, where the least load put the first; without a key, the least load.

    A session whose instance takes no requests any more is placed anew, and stays there.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.sessions = PlacedSessions()

    def choose(self, request: Request, instances: Sequence[InstanceBase]) -> int:
        index = self.sessions.index_of(request)
        position = position_of(index, instances)
        if position == len(instances) or instances[position].index != index:
            position = super().choose(request, instances)
        self.sessions.place(request, instances[position].index)
        return position

    def bytes_kept(self) -> int:
        return self.sessions.bytes_kept()


# SGLang's cache_threshold (sgl-project/sglang, sgl-model-gateway; default of its command line).
_MATCHED_SHARE = 0.3
_BALANCE_REQUESTS = 8


class Prefix(Router):
    """The instance to which most of the prompt was sent before, if that is more than 0.3 of it; else the least load.

    The rule of SGLang's cache-aware router (sgl-project/sglang, sgl-model-gateway/src/policies/cache_aware.rs): it asks no
    instance what is cached but keeps a tree of its own of what it has sent where, within what the memory of each can hold.
    Of several instances with an equally long match, the least loaded is taken. When one instance has more than 8 requests
    more and over 1.5 times as many as another, the least load decides alone. SGLang says 64 here, meant for hundreds of
    requests a worker: up to that many sessions that share a system prompt would stay on one instance while others idle.

    Replies are learnt with their prompts, when the request is sent: no request can continue a reply before it exists.
    """

    reads_kv = False
    balance_requests = _BALANCE_REQUESTS

    def __init__(self, seed: int = 0) -> None:
        self._rotation = Rotation()
        self._sent = PrefixIndex()
        self._instances: Sequence[InstanceBase] = ()
        self._positions: dict[int, int] = {}  # of these instances, by index
        self._capacities: list[int] = []  # KV memory of each in tokens

    def choose(self, request: Request, instances: Sequence[InstanceBase]) -> int:
        if instances is not self._instances:  # one list until an instance comes or goes
            self._instances = instances
            self._positions = {instance.index: i for i, instance in enumerate(instances)}
            self._capacities = [instance.kv_total_tokens for instance in instances]
        key, prompt_bytes = request.key, TOKEN_BYTES * request.prompt_tokens
        matched_bytes, found = self._sent.longest(key, self._positions, prompt_bytes)
        if matched_bytes > _MATCHED_SHARE * prompt_bytes and not out_of_balance(instances, self.balance_requests):
            positions = [self._positions[index] for index in found]
            position = min(positions, key=lambda i: (instances[i].load, i)) if len(positions) > 1 else positions[0]
        else:
            position = self._rotation.least(instances, loads(instances))
        self._sent.insert(key, instances[position].index, self._capacities[position])
        return position

    def forget(self, index: int) -> None:
        self._sent.forget(index)

    def bytes_kept(self) -> int:
        return self._sent.bytes_kept()


class KVAware(Router):
    """The least work: prompt tokens not cached there, plus the KV in use and the pending prefill.

    What is cached is asked of the instances themselves, so it is exact, as it is for a router that is told of every block
    that is stored and removed. The cost of an instance is, in tokens, what it has to prefill (what waits there and is not
    cached, and the uncached part of this prompt) plus the KV it will hold (what is in use, and again the uncached part), so
    that KV in use outweighs what is cached for a conversation that pauses. Equal costs go to the least load. When one
    instance has more than 64 requests more and over 1.5 times as many as another, the least load decides alone, as in
    SGLang's router. NVIDIA Dynamo's own cost is `dynamo:kv`.
    """

    def __init__(self, seed: int = 0) -> None:
        self._rotation = Rotation()
        self._ahead: defaultdict[int, PendingPrefills] = defaultdict(PendingPrefills)

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


class PendingPrefills:
    """Uncached prompt tokens of the requests sent to one instance that have not got a token from there yet."""

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
