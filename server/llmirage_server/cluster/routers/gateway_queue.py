"""Requests that wait at the router while instances are saturated: flow control of the Gateway API's inference extension.

Rules and defaults are those of llm-d's router, which has the extension's endpoint picker (llm-d/llm-d-router at ebab6879):
pkg/epp/framework/plugins/flowcontrol/saturationdetector/utilization (detector.go, config.go), fairness/roundrobin,
ordering/slodeadline, and in pkg/epp/flowcontrol controller/internal/processor.go, controller/config.go, registry/config.go
and types/outcomes.go. Here the metrics of instances are never old.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from llmirage_server.cluster.instances.base import InstanceBase
from llmirage_server.cluster.request import Request

Flow = tuple[str, int]
"""A fairness id, and a priority."""

Ordering = Literal["fcfs", "slo-deadline"]
Outcome = Literal[
    "Dispatched", "RejectedCapacity", "RejectedNoEndpoints", "EvictedTTL", "EvictedNoEndpoints", "EvictedContextCancelled"
]


@dataclass(frozen=True, slots=True)
class FlowControl:
    """When requests wait, which go first, and which are dropped.

    priorities: of objectives; higher goes first, 0 without one; below 0 is sheddable.
    queue_depth, kv_utilization: waiting requests, or share of the KV memory, with which an instance is saturated
        (DefaultQueueDepthThreshold and DefaultKVCacheUtilThreshold in config.go).
    request_ttl_s: after which a request that still waits is evicted.
    max_requests, max_bytes: of the waiting requests of one priority; one more is rejected. sheddable_max_requests: the same
        below priority 0; None: the same number.
    ordering: of the requests of one flow. slo-deadline: by arrival plus TTFT objective, those without one last.
    """

    priorities: Mapping[str, int] = field(default_factory=dict)
    queue_depth: int = 5
    kv_utilization: float = 0.8
    request_ttl_s: float = 60.0
    max_requests: int = 5000
    max_bytes: int = 1_000_000_000
    sheddable_max_requests: int | None = None
    ordering: Ordering = "fcfs"

    def score(self, instance: InstanceBase) -> float:
        """Return how saturated an instance is: 1 is fully."""
        used = instance.kv_used_tokens / max(instance.kv_total_tokens, 1)
        return max(instance.waiting / self.queue_depth, used / self.kv_utilization)

    def saturation(self, instances: Sequence[InstanceBase]) -> float:
        """Return the mean score of instances, of which there must be one."""
        return sum([self.score(instance) for instance in instances]) / len(instances)

    def priority(self, request: Request) -> int:
        return self.priorities.get(request.objective, 0)

    def has_room(self, priority: int, waiting: Waiting, request: Request) -> bool:
        """Return whether a request may wait beside those of its priority."""
        shed = priority < 0 and self.sheddable_max_requests is not None
        most = self.sheddable_max_requests if shed else self.max_requests
        return waiting.requests < (most or 0) and waiting.bytes + request.body_bytes <= self.max_bytes


class Waiting(NamedTuple):
    """Waiting requests, and the bytes of their bodies."""

    requests: int
    bytes: int


class GatewayQueue:
    """The waiting requests of one model: bands of equal priority, in each of which the flows take turns."""

    def __init__(self, ordering: Ordering) -> None:
        self._by_deadline = ordering == "slo-deadline"
        self._bands: dict[int, OrderedDict[str, OrderedDict[Request, None]]] = {}  # the flow whose turn it is first
        self._of_band: dict[int, Waiting] = {}
        self._added: dict[Request, tuple[int, float]] = {}  # with priority and time

    def add(self, request: Request, priority: int, now: float) -> None:
        flows = self._bands.setdefault(priority, OrderedDict())
        flows.setdefault(request.fairness_id, OrderedDict())[request] = None
        self._added[request] = priority, now
        self._count(priority, 1, request)

    def remove(self, request: Request) -> tuple[int, float]:
        """Remove a request; its flow keeps its turn while it has others. Return its priority and when it was added."""
        priority, added_s = self._added.pop(request)
        flows = self._bands[priority]
        del flows[request.fairness_id][request]
        if not flows[request.fairness_id]:
            del flows[request.fairness_id]
        if not flows:
            del self._bands[priority]
        self._count(priority, -1, request)
        return priority, added_s

    def pop(self) -> tuple[Request, int, float]:
        """Remove the request whose turn it is: the first of the next flow in the highest band; see `remove`."""
        flows = self._bands[max(self._bands)]
        name, flow = next(iter(flows.items()))
        request = min(flow, key=_deadline_s) if self._by_deadline else next(iter(flow))
        flows.move_to_end(name)
        return request, *self.remove(request)

    def added_s(self, request: Request) -> float:
        return self._added[request][1]

    def waiting(self, priority: int) -> Waiting:
        """Return what waits in a band."""
        return self._of_band.get(priority, Waiting(0, 0))

    def __len__(self) -> int:
        return len(self._added)

    def sizes(self) -> dict[Flow, Waiting]:
        """Return what waits of each flow that has something."""
        return {
            (name, priority): Waiting(len(flow), sum([request.body_bytes for request in flow]))
            for priority, flows in self._bands.items()
            for name, flow in flows.items()
        }

    def _count(self, priority: int, by: int, request: Request) -> None:
        requests, size = self.waiting(priority)
        self._of_band[priority] = Waiting(requests + by, size + by * request.body_bytes)


def _deadline_s(request: Request) -> float:
    return request.arrival_s + request.slo_ttft_s
