"""What the cluster and its router ask of an instance, however it finds its times."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from llmirage_server.cluster.limits import EngineLimits, Role
from llmirage_server.cluster.request import Request, StepEnd
from llmirage_server.cluster.snapshots import InstanceSnapshot, Reading, TierSnapshot
from llmirage_server.cluster.step_counts import StepCounts


class InstanceBase(ABC):
    """A model replica. Time only moves forward: no call may go back behind an earlier one.

    Routers look at `running`, `waiting`, `unfinished`, `load`, `match`, `kv_used_tokens`, `kv_total_tokens` and `limits`, at
    nothing else.

    running: requests in the batch. unfinished: in the queue and in the batch. load: 4 * waiting + running, the score of
    vLLM's data-parallel load balancer. next_event_s: when something happens next; inf when idle.
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
        """Requests in the queue."""
        return self.unfinished - self.running

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
    def evacuate(self, now: float) -> list[Request]:
        """Crash: all KV is lost, the step in flight too; return the unfinished requests in order of arrival here.

        Among them are those that were handed over and not yet released. What they had produced is as of the last `sync_to`.
        """

    def front_end_free_s(self, now: float) -> float:
        """When its front end has sent the tokens that go out by now, and sees who has come; in the past: it is free."""
        return now

    def sync_to(self, now: float) -> None:  # noqa: B027 (for those that run ahead of what can be read)
        """Bring all that can be read up to `now`, the time of the present event. Changes nothing of what will happen."""

    @abstractmethod
    def clear_cache(self, now: float) -> None:
        """Forget all KV that no request uses; those under way keep theirs."""

    @abstractmethod
    def advance(self) -> StepEnd | None:
        """Let the next event happen. None if it brought nothing that the cluster needs to know."""

    @abstractmethod
    def reading(self) -> Reading:
        """What changes all the time."""

    def snapshot(self) -> InstanceSnapshot:
        return InstanceSnapshot(
            index=self.index, **self.reading()._asdict(), tiers=self.tier_snapshots(), steps=self.step_counts()
        )

    def step_counts(self) -> StepCounts | None:
        """What its steps brought; None: it has no steps."""
        return None

    def tier_snapshots(self) -> tuple[TierSnapshot, ...]:
        """The KV offload tiers, the nearest first."""
        return ()
