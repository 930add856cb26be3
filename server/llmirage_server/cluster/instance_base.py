"""What the cluster and its router ask of an instance, however it finds its times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from llmirage_server.cluster.kv_cache import KVCache
from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.request import Request, StepEnd


@dataclass(frozen=True, slots=True)
class InstanceSnapshot:
    """The state of one instance, for telemetry. Counters only grow."""

    index: int
    running: int
    waiting: int
    kv_used_tokens: int  # held by running sequences, a shared prefix counted once
    kv_total_tokens: int
    cached_tokens: int  # in the prefix cache, the locked part of it being in use as well
    prefix_hit_tokens: int  # counter: prompt tokens found in the prefix cache when first admitted
    prefix_query_tokens: int  # counter: prompt tokens looked up
    preemptions: int  # counter


class InstanceBase(ABC):
    """A model replica. Time only moves forward: no call may go back behind an earlier one.

    The router looks at `running`, `waiting` and `kv`.
    """

    def __init__(self, index: int, limits: EngineLimits) -> None:
        self.index = index
        self.limits = limits
        self.kv = KVCache(limits)
        self.max_request_tokens = limits.max_request_tokens  # of prompt and output; a longer one could never finish

    @property
    @abstractmethod
    def running(self) -> int: ...

    @property
    @abstractmethod
    def waiting(self) -> int: ...

    @abstractmethod
    def submit(self, request: Request, now: float) -> None:
        """Take a request of at most `max_request_tokens`."""

    @abstractmethod
    def cancel(self, request: Request) -> None:
        """Drop a request that is waiting or running."""

    @abstractmethod
    def next_event_time(self) -> float:
        """When something happens next; inf when idle."""

    @abstractmethod
    def advance(self) -> StepEnd | None:
        """Let the next event happen. None if it brought no token to anyone."""

    @abstractmethod
    def snapshot(self) -> InstanceSnapshot: ...
