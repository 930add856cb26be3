"""The interface of an instance, as the cluster and its routers use it, whatever the source of its times."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from llmirage_server.cluster.kv.cache import KVCache
from llmirage_server.cluster.limits import EngineLimits, Role
from llmirage_server.cluster.request import Adapter, AdapterReading, Request, StepEnd
from llmirage_server.cluster.snapshots import InstanceSnapshot, Reading, StepCounts, TierSnapshot


class InstanceBase(ABC):
    """A model replica. Time only moves forward: no call may precede an earlier one.

    Routers read `running`, `waiting`, `unfinished`, `load`, `match`, `kv_used_tokens`, `kv_total_tokens`, `adapters` and
    `limits`, nothing else.

    running: requests in the batch.
    unfinished: requests in the queue and in the batch.
    load: 4 * waiting + running, the score of vLLM's data-parallel load balancer.
    next_event_s: time of the next event; inf when idle.
    """

    memory_limits = True  # can a request have to wait for KV memory?

    def __init__(self, index: int, limits: EngineLimits, role: Role = "both") -> None:
        self.index = index
        self.limits = limits
        self.role = role
        self.max_request_tokens = limits.max_request_tokens  # of prompt and output; a longer one could never finish
        self.running = 0
        self.unfinished = 0
        self.load = 0
        self.next_event_s = math.inf
        self._ran_s = self._stayed_s = 0.0  # see InstanceSnapshot

    @property
    def waiting(self) -> int:
        """Number of requests in the queue."""
        return self.unfinished - self.running

    @property
    @abstractmethod
    def kv_caches(self) -> list[KVCache]:
        """The KV cache of each rank."""

    @property
    def loading(self) -> int:
        """Number of requests in the queue whose KV is on the way from an offload tier."""
        return 0

    @abstractmethod
    def match(self, key: bytes) -> int:
        """Return the leading tokens of `key` (`request.token_bytes`) whose KV is here, on the best rank. Changes nothing."""

    @property
    @abstractmethod
    def kv_used_tokens(self) -> int:
        """Tokens of KV held by sequences, all ranks together."""

    @property
    @abstractmethod
    def kv_total_tokens(self) -> int: ...

    @abstractmethod
    def submit(self, request: Request, now: float) -> None:
        """Accept a request of at most `max_request_tokens`. The KV of tokens produced elsewhere is recomputed."""

    @abstractmethod
    def receive(self, request: Request, now: float) -> None:
        """Accept a request whose KV (prompt and produced tokens, but for the last token) arrives here at `now`.

        It needs memory and a batch slot, but no prefill.
        """

    @abstractmethod
    def release_transferred(self, request: Request, now: float) -> None:
        """Free the KV of a handed-over request whose transfer has ended by `now`.

        The prefix cache keeps it.
        """

    @abstractmethod
    def cancel(self, request: Request, now: float) -> None:
        """Drop a request that is waiting, running or handed over and not yet released."""

    @abstractmethod
    def evacuate(self, now: float) -> list[Request]:
        """Crash: drop all KV and the step in flight; return the unfinished requests in order of arrival here.

        Among them are those that were handed over and not yet released. What they had produced is as of the last `sync_to`.
        """

    def front_end_free_s(self, now: float) -> float:
        """Return when the front end has sent the tokens due by now and sees new requests; a past time: it is free."""
        return now

    def sync_to(self, now: float) -> None:  # noqa: B027 (optional hook)
        """Bring all that can be read up to `now`, the time of the present event. Changes no outcome."""

    @abstractmethod
    def clear_cache(self, now: float) -> None:
        """Evict all KV that no request uses; requests in flight keep theirs."""

    def load_adapter(self, adapter: Adapter, now: float) -> float:
        """Load a LoRA adapter, before steps that begin later; return the seconds that this takes."""
        return 0.0

    def unload_adapter(self, adapter: Adapter) -> None:  # noqa: B027 (most have none)
        """Free the memory of a LoRA adapter."""

    @property
    def adapters(self) -> AdapterReading | None:
        """The LoRA adapters in use; None: requests with one run as others do."""
        return None

    @abstractmethod
    def advance(self) -> StepEnd | None:
        """Process the next event. Return None if the cluster needs not know of it."""

    @abstractmethod
    def reading(self) -> Reading:
        """Return the figures that change all the time."""

    def snapshot(self) -> InstanceSnapshot:
        return InstanceSnapshot(
            index=self.index,
            **self.reading()._asdict(),
            tiers=self.tier_snapshots(),
            steps=self.step_counts(),
            loading=self.loading,
            adapters=self.adapters,
        )

    def rank_snapshots(self) -> list[InstanceSnapshot]:
        """Return the state of each data-parallel rank."""
        return [self.snapshot()]

    def step_counts(self) -> StepCounts | None:
        """Return the counters of its steps; None: it has no steps."""
        return None

    def tier_snapshots(self) -> tuple[TierSnapshot, ...]:
        """Return the state of the KV offload tiers, the nearest first."""
        return ()
