"""What the cluster and its router ask of an instance, however it finds its times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, NamedTuple

from llmirage_server.cluster.limits import EngineLimits
from llmirage_server.cluster.request import Request, StepEnd

Role = Literal["both", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class TierSnapshot:
    """The state of one KV offload tier of one instance. Counters only grow."""

    name: str
    used_tokens: int
    capacity_tokens: int
    hit_tokens: int  # counter: looked up here and found, beyond what the GPU and the tiers above had
    loaded_tokens: int  # counter: read back
    stored_tokens: int  # counter: written
    dropped_tokens: int  # counter: not written, because the tier was too slow or too small for them


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
    tiers: tuple[TierSnapshot, ...] = ()  # of KV offload, the nearest first
    busy_s: float = 0.0  # counter: while a step was under way
    # What the cluster knows of it:
    pool: str = ""
    role: Role = "both"
    model: str | None = None
    state: str = "up"  # starting, up, draining or down
    sending: int = 0  # KV transfers under way from here
    receiving: int = 0  # and to here


class Reading(NamedTuple):
    """What is looked at again and again in the course of a simulation, of one instance; as in InstanceSnapshot."""

    running: int
    waiting: int
    kv_used_tokens: int
    kv_total_tokens: int
    cached_tokens: int
    prefix_hit_tokens: int
    prefix_query_tokens: int
    preemptions: int
    busy_s: float


class InstanceBase(ABC):
    """A model replica. Time only moves forward: no call may go back behind an earlier one.

    Routers look at `running`, `waiting`, `unfinished`, `load`, `match`, `kv_used_tokens`, `kv_total_tokens` and `limits`, at
    nothing else.
    """

    memory_limits = True  # can a request have to wait for KV memory?

    def __init__(self, index: int, limits: EngineLimits, role: Role = "both") -> None:
        self.index = index
        self.limits = limits
        self.role = role
        self.max_request_tokens = limits.max_request_tokens  # of prompt and output; a longer one could never finish

    @property
    @abstractmethod
    def running(self) -> int: ...

    @property
    @abstractmethod
    def waiting(self) -> int: ...

    @property
    def unfinished(self) -> int:
        """Requests in the queue and in the batch."""
        return self.waiting + self.running

    @property
    def load(self) -> int:
        """4 * waiting + running requests, the score of vLLM's data-parallel load balancer."""
        return 4 * self.waiting + self.running

    @abstractmethod
    def match(self, key: bytes) -> int:
        """Leading tokens of `key` (radix_tree.token_bytes) whose KV is here, on the best rank. Changes nothing."""

    @property
    @abstractmethod
    def kv_used_tokens(self) -> int:
        """KV held by sequences, all ranks together."""

    @property
    @abstractmethod
    def kv_total_tokens(self) -> int: ...

    @abstractmethod
    def submit(self, request: Request, now: float) -> None:
        """Take a request of at most `max_request_tokens`. One that has produced tokens elsewhere recomputes their KV."""

    @abstractmethod
    def receive(self, request: Request, now: float) -> None:
        """Take a request whose KV (prompt and produced tokens, but for the last token) arrives here at `now`.

        It needs memory and a batch slot, but no prefill.
        """

    @abstractmethod
    def release_transferred(self, request: Request, now: float) -> None:
        """The KV of a request that was handed over has left by `now`: forget its hold on memory.

        The prefix cache keeps it.
        """

    @abstractmethod
    def cancel(self, request: Request, now: float) -> None:
        """Drop a request that is waiting, running or handed over and not yet released."""

    @abstractmethod
    def evacuate(self) -> list[Request]:
        """Crash: all KV is lost, the step in flight too; return the unfinished requests in order of arrival here.

        Among them are those that were handed over and not yet released.
        """

    def reach(self, now: float) -> None:  # noqa: B027 (for those that run ahead of what can be read)
        """Bring all that can be read up to `now`, the time of the present event."""

    @abstractmethod
    def clear_cache(self) -> None:
        """Forget all KV that no request uses; those under way keep theirs."""

    @abstractmethod
    def next_event_time(self) -> float:
        """When something happens next; inf when idle."""

    @abstractmethod
    def advance(self) -> StepEnd | None:
        """Let the next event happen. None if it brought no token to anyone."""

    @abstractmethod
    def snapshot(self) -> InstanceSnapshot: ...

    def reading(self) -> Reading:
        """The part of `snapshot` that changes all the time."""
        seen = self.snapshot()
        return Reading(
            seen.running,
            seen.waiting,
            seen.kv_used_tokens,
            seen.kv_total_tokens,
            seen.cached_tokens,
            seen.prefix_hit_tokens,
            seen.prefix_query_tokens,
            seen.preemptions,
            seen.busy_s,
        )
