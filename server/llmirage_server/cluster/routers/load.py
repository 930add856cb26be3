"""Policies that go by load, by session or by chance."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from llmirage_server.cluster.instances.base import InstanceBase
from llmirage_server.cluster.request import Request
from llmirage_server.cluster.routers.base import Rotation, Router, loads, position_of

_REMEMBERED_SESSIONS = 100_000


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


class SessionAffinity(LeastLoaded):
    """Requests of one session key stay together, where the least load put the first; without a key, the least load.

    A session whose instance takes no requests any more is placed anew, and stays there.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self._placed: OrderedDict[str, int] = OrderedDict()  # index by session key, least recently used first

    def choose(self, request: Request, instances: Sequence[InstanceBase]) -> int:
        key = request.session_key
        if key is None:
            return super().choose(request, instances)
        index = self._placed.get(key, -1)
        position = position_of(index, instances)
        if position == len(instances) or instances[position].index != index:
            position = super().choose(request, instances)
            self._placed[key] = instances[position].index
            if len(self._placed) > _REMEMBERED_SESSIONS:
                self._placed.popitem(last=False)
        self._placed.move_to_end(key)
        return position
