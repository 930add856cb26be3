"""The interface of routing policies, and helpers that several of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from llmirage_server.cluster.instances.base import InstanceBase
from llmirage_server.cluster.kv.radix_tree import TOKEN_BYTES
from llmirage_server.cluster.request import Request

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
