"""What every routing policy is, and what several of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from llmirage_server.cluster.instance_base import InstanceBase
from llmirage_server.cluster.radix_tree import TOKEN_BYTES
from llmirage_server.cluster.request import Request

# SGLang's cache-aware router gives up affinity when one worker has more than balance_abs_threshold requests more and over
# balance_rel_threshold times as many as another: 64 and 1.5 by its command line (sgl-project/sglang, sgl-model-gateway).
BALANCE_REQUESTS = 64
_BALANCE_RATIO = 1.5


class RouterError(RuntimeError):
    """A router of the user's own raised, or answered with something that is not one of the instances."""


class Router(ABC):
    """Chooses for one request at a time; deterministic by seed and by what the instances hold.

    Instances come and go: what a router remembers of one, it remembers under its `index`.
    reads_kv: whether it looks at `match` or `kv_used_tokens`; simulations bring these up to date for such routers alone.
    """

    reads_kv = True

    @abstractmethod
    def choose(self, request: Request, instances: Sequence[InstanceBase]) -> int:
        """Return the position of one of the instances: those of a pool that accept requests now, by rising `index`."""

    def forget(self, index: int) -> None:  # noqa: B027 (most have nothing to forget)
        """The instance of that number has lost its KV."""


class Rotation:
    """Takes equal choices in turn: every search begins one instance further than the last."""

    def __init__(self) -> None:
        self._turn = 0  # the lowest index to begin with

    def positions(self, instances: Sequence[InstanceBase]) -> list[int]:
        n = len(instances)
        first = next((i for i in range(n) if instances[i].index >= self._turn), 0)
        self._turn = instances[first].index + 1
        return [*range(first, n), *range(first)]


def loads(instances: Sequence[InstanceBase], gap: int = BALANCE_REQUESTS) -> tuple[list[int], bool]:
    """The `load` of each, and whether one has over `gap` requests more, and 1.5 times as many, as another."""
    unfinished = [instance.unfinished for instance in instances]
    most, fewest = max(unfinished), min(unfinished)
    out_of_balance = most - fewest > gap and most > fewest * _BALANCE_RATIO
    return [instance.load for instance in instances], out_of_balance


def key_of(request: Request) -> bytes:
    """The tokens whose KV the request needs at once: its prompt and, if it began elsewhere, what it has produced."""
    return request.key[: TOKEN_BYTES * (request.prompt_tokens + request.produced)]
